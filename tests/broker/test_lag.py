"""The exact lag: against a count that decodes every message, and what it remembers."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import expressions, messages

from tamis.broker.lag import BLOCK, Lags, QueueLag
from tamis.broker.readers import Reader, ReaderFilter
from tamis.filter import parse
from tamis.filter.engines.closures import compile_closure, evaluate
from tamis.filter.engines.columnar import BatchFilter
from tamis.filter.engines.shared import SharedFilters
from tamis.filter.logic import Outcome
from tamis.filter.nodes import Expr
from tamis.filter.render import render
from tamis.filter.tags import TagFilter, parse_tags, tags_code
from tamis.store.config import StoreConfig
from tamis.store.select import SqlFilter
from tamis.store.store import Store
from tamis.wire.record import Draft

FOREVER = float("inf")
SMALL = StoreConfig(
    flush="async",
    log_file_size=2**16,
    queue_file_size=2000,  # a hundred units
    extension_file_size=2**16,
    index_slots=64,
    index_entries=256,
    keep_hours=0.0,
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path, SMALL) as store:
        yield store


def grow(store: Store, count: int, rng: random.Random, queue_id: int = 0) -> None:
    def properties() -> bytes:
        number = rng.randrange(100) if rng.random() < 0.9 else "none"
        return f"TAGS\x01{rng.choice('abc')}\x02n\x01{number}\x02s\x01{rng.choice('xyz')}".encode()

    drafts = [
        Draft(topic="T", queue_id=queue_id, body=b"x" * 50, properties=properties())
        for _ in range(count)
    ]
    store.append(drafts)
    store.dispatch()


def by_tags(text: str) -> ReaderFilter:
    return ReaderFilter("TAG", text, parse_tags(text))


def by_sql(text: str) -> ReaderFilter:
    return ReaderFilter("SQL92", text, SqlFilter(BatchFilter(parse(text))))


FILTERS = [
    ReaderFilter("TAG", "*"),
    by_tags("*"),
    by_tags("a"),
    by_tags("b || c"),
    by_tags("missing"),
    by_sql("n < 30"),
    by_sql("n > 50 AND TAGS = 'a'"),
    by_sql("s = 'x' OR n IS NULL"),
    by_sql("n = 1000"),
]


def reader(group: str, by: ReaderFilter, committed: dict[int, int]) -> Reader:
    return Reader(group, "T", (0, 1), committed, by)


_decoded: dict[tuple[Path, int], dict[str, str]] = {}  # properties, by the place in a store


def decoded(store: Store, at: int) -> dict[str, str]:
    key = (store.paths.root, at)
    if key not in _decoded:
        _decoded[key] = dict(store.message(at).properties)
    return _decoded[key]


def plain_matches(store: Store, queue_id: int, start: int, by: ReaderFilter) -> list[int]:
    """The offsets that match, by decoding every message."""
    queue = store.find_queue("T", queue_id)
    if queue is None:
        return []
    closure = compile_closure(parse(by.text)) if by.kind == "SQL92" else None
    found = []
    for offset in range(max(start, queue.min_offset), queue.max_offset):
        unit = queue.units(offset, 1)
        if not len(unit) or unit["offset"][0] < store.log.start:
            continue  # its message is gone from the log
        properties = decoded(store, int(unit["offset"][0]))
        if closure is not None:
            is_match = evaluate(closure, properties) is Outcome.TRUE
        else:
            wanted = by.wanted
            assert wanted is None or isinstance(wanted, TagFilter)
            code = tags_code(properties.get("TAGS"))
            is_match = wanted is None or wanted.matches_code(code)
        if is_match:
            found.append(offset)
    return found


def check(store: Store, row: QueueLag, committed: int) -> None:
    assert row.filter is not None
    matches = plain_matches(store, row.queue, committed, row.filter)
    queue = store.find_queue("T", row.queue)
    end = queue.max_offset if queue is not None else 0
    assert (row.committed, row.end, row.lag) == (committed, end, max(end - committed, 0))
    assert row.is_complete, row
    assert not row.reason
    assert row.matching_lag == len(matches), row
    assert row.next_match_offset == (matches[0] if matches else None), row
    if matches:
        assert queue is not None
        at = int(queue.units(matches[0], 1)["offset"][0])
        assert row.next_match_stored == store.message(at).store_timestamp
    else:
        assert row.next_match_stored is None


@pytest.mark.parametrize("seed", range(8))
def test_the_lag_is_that_of_a_plain_count(seed: int, store: Store) -> None:
    """Whatever happens between questions: messages, commits forth and back, other filters, files
    that are removed, and a question that is given up in the middle."""
    rng = random.Random(seed)
    lags = Lags(store, block=rng.choice([1, 8, 64, 1000]))
    groups = {f"g{n}": (rng.choice(FILTERS), {0: 0, 1: 0}) for n in range(8)}
    for turn in range(30):
        for queue_id in (0, 1):
            grow(store, rng.randrange(40), rng, queue_id)
            for name, (by, committed) in groups.items():
                end = store.queue("T", queue_id).max_offset
                step = rng.random()
                if step < 0.6:
                    committed[queue_id] = min(committed[queue_id] + rng.randrange(60), end)
                elif step < 0.65:
                    committed[queue_id] = rng.randrange(end + 5)
                elif step < 0.7:
                    groups[name] = (rng.choice(FILTERS), committed)
                del by
        if turn in (12, 24):
            store.clean()
        readers = [reader(name, by, dict(c)) for name, (by, c) in groups.items()]
        if rng.random() < 0.3:
            given_up = lags.steps(readers)
            for _ in range(rng.randrange(20)):
                next(given_up, None)
        rows = lags.count(readers, FOREVER)
        assert len(rows) == 2 * len(readers)
        for row in rows:
            check(store, row, groups[row.group][1][row.queue])
    assert store.queue("T", 0).min_offset > 0, "no file was removed: it shows less than it should"


@pytest.mark.parametrize("bitmaps", [False, True])
def test_the_lag_is_the_same_with_extensions(bitmaps: bool, tmp_path: Path) -> None:
    from dataclasses import replace

    rng = random.Random(1)
    with Store(tmp_path, replace(SMALL, extensions=True, bitmaps=bitmaps)) as store:
        grow(store, 500, rng)
        rows = Lags(store, block=64).count(
            [reader(f"g{n}", by, {0: 7 * n, 1: 0}) for n, by in enumerate(FILTERS)], FOREVER
        )
        for row in rows:
            check(store, row, {0: 7 * int(row.group[1:]), 1: 0}[row.queue])


@given(st.lists(expressions(), min_size=1, max_size=5), st.lists(messages, max_size=20))
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_filters_that_are_asked_together_agree_with_each_alone(
    exprs: list[Expr], batch: list[dict[str, str] | None]
) -> None:
    import numpy as np

    texts = [
        "".join(f"{k}\x01{v}\x02" for k, v in (one or {}).items()).encode("utf-8", "surrogatepass")
        for one in batch
    ]
    sizes = np.array([len(text) for text in texts], dtype=np.int64)
    ends = np.cumsum(sizes) if texts else sizes
    data = np.frombuffer(b"".join(texts) + b"\0", dtype=np.uint8)
    shared = SharedFilters([BatchFilter(one) for one in exprs])
    counts = shared.count_spans(data, ends - sizes, ends).tolist()
    alone = [
        int((BatchFilter(one).match_spans(data, ends - sizes, ends) == Outcome.TRUE).sum())
        for one in exprs
    ]
    assert counts == alone, [render(one) for one in exprs]


def test_what_was_counted_is_not_looked_at_again(store: Store) -> None:
    rng = random.Random(1)
    grow(store, 1000, rng)
    lags, by = Lags(store, block=100), by_sql("n < 30")

    def looked_at(*committed: int) -> int:
        before = lags.looked_at
        readers = [reader(f"g{n}", by, {0: offset}) for n, offset in enumerate(committed)]
        for row in lags.count(readers, FOREVER):
            check(store, row, committed[int(row.group[1:])] if row.queue == 0 else 0)
        return lags.looked_at - before

    assert looked_at(0) <= 1100, "all, and a few for the first match"
    assert looked_at(0) == 0
    assert looked_at(0, 0, 0) == 0, "groups with equal filters share a count"
    assert looked_at(50) <= 100, "what is left of a block"
    assert looked_at(60) == looked_at(90) == looked_at(55) == 0
    grow(store, 10, rng)
    assert looked_at(90) == 10, "what came"
    assert looked_at(0, 90) == 0
    assert looked_at(1005) <= 10
    assert looked_at(1010) == 0


def test_a_count_that_takes_too_long_says_how_far_it_got_and_goes_on_later(store: Store) -> None:
    grow(store, 1000, random.Random(1))
    ticks = iter(range(10_000))
    lags = Lags(store, clock=lambda: float(next(ticks)), block=10)
    asked = [reader("g", by_tags("a"), {0: 0})]
    counts = []
    while True:
        row = next(row for row in lags.count(asked, 40.0) if row.queue == 0)
        counts.append(row.matching_lag)
        if row.is_complete:
            break
        assert row.reason == "not counted to the end yet"
        assert row.matching_lag is not None
        assert len(counts) < 100
    assert len(counts) > 2
    assert counts == sorted(counts)
    check(store, row, 0)


def test_what_can_not_be_counted_is_not_guessed(store: Store) -> None:
    grow(store, 10, random.Random(1))
    code = ReaderFilter("CODE", "a.B", None, "its filter is code")
    rows = Lags(store).count(
        [
            Reader("code", "T", (0,), {0: 3}, code),
            Reader("broadcasting", "T", (0,), None, by_tags("a"), "it is broadcasting"),
            Reader("offline", "T", (0,), {0: 3}, None, "its filter is not kept"),
        ],
        FOREVER,
    )
    seen = {row.group: (row.lag, row.matching_lag, row.reason) for row in rows}
    assert seen == {
        "code": (7, None, "its filter is code"),
        "broadcasting": (None, None, "it is broadcasting"),
        "offline": (7, None, "its filter is not kept"),
    }
    assert not any(row.is_complete for row in rows)


def test_memory_is_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    from tamis.broker import lag

    monkeypatch.setattr(lag, "_MOST_MEMORY", 20_000)
    monkeypatch.setattr(lag, "_UNCHECKED", 4)
    grow(store, 500, random.Random(1))
    lags = Lags(store, block=10)
    for number in range(100):
        readers = [reader("g", by_tags(f"a || t{number}"), {0: number})]
        for row in lags.count(readers, FOREVER):
            check(store, row, number if row.queue == 0 else 0)
        assert lags.size <= 20_000


@pytest.mark.parametrize("memory", [0, 5000, 10**9])
@pytest.mark.parametrize("seed", range(4))
def test_questions_at_the_same_time_do_not_confuse_each_other(
    seed: int, memory: int, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is exact for the ends it saw, or says that it is not complete."""
    from tamis.broker import lag

    monkeypatch.setattr(lag, "_MOST_MEMORY", memory)
    monkeypatch.setattr(lag, "_UNCHECKED", 1)
    rng = random.Random(seed)
    lags, asked = Lags(store, block=20), list[Any]()
    complete = 0
    for _ in range(300):
        if len(asked) < 3:
            grow(store, rng.randrange(60), rng)
            start = rng.randrange(store.queue("T", 0).max_offset + 1)
            wanted = rng.sample(FILTERS, 4)
            readers = [Reader(f"g{n}", "T", (0,), {0: start}, by) for n, by in enumerate(wanted)]
            asked.append(lags.steps(readers))
        if rng.random() < 0.02:
            store.clean()
        steps = rng.choice(asked)
        try:
            next(steps)
        except StopIteration as over:
            asked.remove(steps)
            for row in over.value:
                found = plain_matches(store, 0, row.committed, row.filter)
                matches = [offset for offset in found if offset < row.end]
                gone = store.queue("T", 0).min_offset > row.committed
                if gone:
                    continue  # since it began: it may have counted those
                assert row.matching_lag <= len(matches)
                if row.is_complete:
                    complete += 1
                    assert row.matching_lag == len(matches)
                    assert row.next_match_offset == (matches[0] if matches else None)
    assert complete > 20


def test_a_block_is_small_enough_for_its_matches() -> None:
    assert BLOCK <= 65_536
