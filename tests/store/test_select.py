"""Select against a plain list: RocketMQ's own loop, spelled out, is the model."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tamis.filter import parse
from tamis.filter.bloom import BloomFilter, group_key
from tamis.filter.engines.closures import compile_closure, evaluate
from tamis.filter.engines.columnar import BatchFilter
from tamis.filter.tags import TagFilter, parse_tags
from tamis.store import tables
from tamis.store.commitlog import CommitLog
from tamis.store.config import StoreConfig
from tamis.store.select import Limits, SqlFilter, Status
from tamis.store.store import Store
from tamis.wire import properties, record
from tamis.wire.record import Draft

TAGS = ["*", "a", "b", "a || b", "Aa", "none", " "]
SQL = ["a > 5", "a IS NULL", "b = 'x' AND a < 3", "a = 'nothing'", "TRUE"]
SMALL = {
    "log_file_size": 4096,
    "queue_file_size": 200,
    "extension_file_size": 512,
    "index_slots": 64,
    "index_entries": 256,
    "flush": "async",
}


@dataclass
class Stored:
    body: bytes
    props: dict[str, str]
    size: int
    offset: int


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[tuple[Store, list[Stored]]]]:
    """Queues with and without extensions and bitmaps, whole, cut at the front, and empty."""
    made = []
    for number, extra in enumerate(
        ({}, {"extensions": True}, {"extensions": True, "bitmaps": True}, {"keep_hours": 0.0})
    ):
        root = tmp_path_factory.mktemp("store")
        _register(root)
        store = Store(root, StoreConfig(**SMALL, **extra))
        messages = []
        for i in range(120):
            props = {"TAGS": ("a", "b", "Aa", "BB", "订单", "")[(i * 7 + number) % 6]}
            props |= {"a": str(i % 11)} if i % 3 else {}
            props |= {"b": "x"} if i % 2 else {}
            body = bytes(i % 5 * 150)
            block = properties.encode({k: v for k, v in props.items() if v}).encode()
            [place] = store.append([Draft(topic="T", body=body, properties=block)])
            kept = {k: v for k, v in props.items() if v}
            messages.append(Stored(body, kept, place.size, place.log_offset))
            store.append([Draft(topic="Other", body=b"-" * 40)])
        store.dispatch()
        if "keep_hours" in extra:
            store.clean()
        made.append((store, messages))
    yield made
    for store, _ in made:
        store.close()


def _register(root: Path) -> None:
    bloom = BloomFilter()
    data = {
        ("T", f"g{i}"): tables.FilterData(
            group=f"g{i}",
            topic="T",
            expression=text,
            expression_type="SQL92",
            born_time=1,
            client_version=1,
            bloom_positions=bloom.positions(group_key(f"g{i}", "T")),
            bloom_bits=bloom.bits,
        )
        for i, text in enumerate(SQL)
    }
    (root / "config").mkdir(parents=True)
    tables.save_filters(root / "config", data)


def wanted_of(text: str) -> TagFilter | SqlFilter | None:
    if text == "":
        return None
    if text in TAGS:
        return parse_tags(text)
    bloom = BloomFilter()
    positions = bloom.positions(group_key(f"g{SQL.index(text)}", "T"))
    return SqlFilter(BatchFilter(parse(text)), positions, bloom.bits, 1)


def matches(text: str, message: Stored) -> bool:
    """At the broker: tags by hash."""
    if text == "":
        return True
    if text in TAGS:
        from tamis.filter.tags import tags_code

        return parse_tags(text).matches_code(tags_code(message.props.get("TAGS")))
    return evaluate(compile_closure(parse(text)), message.props).matched


def model(
    messages: list[Stored], low: int, log: CommitLog, offset: int, limits: Limits, text: str
) -> tuple[Status, list[int], int]:
    """RocketMQ's getMessage, a unit at a time, on a queue whose files hold ten units."""
    high, log_start = len(messages), log.start
    if offset < low:
        return Status.OFFSET_TOO_SMALL, [], low
    if offset == high:
        return Status.OFFSET_OVERFLOW_ONE, [], offset
    if offset > high:
        return Status.OFFSET_OVERFLOW_BADLY, [], high
    status, taken, total = Status.NO_MATCHED_MESSAGE, [], 0
    at = offset
    while at < high:
        if limits.strict and (at // 10 != offset // 10 or at - offset >= max(800, limits.messages)):
            break
        size = messages[at].size
        is_cold = log.end - messages[at].offset > limits.memory
        if taken and (
            len(taken) >= limits.messages
            or total + size > (limits.cold_bytes if is_cold else limits.bytes)
            or len(taken) >= (limits.cold_count if is_cold else limits.count)
        ):
            break
        if matches(text, messages[at]):
            if messages[at].offset < log_start:
                status = Status.MESSAGE_WAS_REMOVING if not taken else status
            else:
                taken.append(at)
                total += size
                status = Status.FOUND
        elif not taken:
            status = Status.NO_MATCHED_MESSAGE
        at += 1
    return status, taken, at


@settings(max_examples=1500, deadline=None)
@given(
    which=st.integers(0, 3),
    offset=st.integers(0, 123),
    text=st.sampled_from(["", *TAGS, *SQL]),
    most=st.integers(1, 40),
    most_bytes=st.sampled_from([300, 1000, 5000, 262_144]),
    memory=st.sampled_from([0, 2000, 20_000, 2**40]),
    cold_bytes=st.sampled_from([300, 2000, 65_536]),
    strict=st.booleans(),
)
def test_select_is_rocketmqs_loop(
    stores: list,
    which: int,
    offset: int,
    text: str,
    most: int,
    most_bytes: int,
    memory: int,
    cold_bytes: int,
    strict: bool,
) -> None:
    store, messages = stores[which]
    limits = Limits(
        messages=most,
        bytes=most_bytes,
        memory=memory,
        cold_bytes=cold_bytes,
        strict=strict,
        seconds=60,
    )
    selection = store.select("T", 0, offset, limits, wanted_of(text))
    low = store.queues["T", 0].min_offset
    status, taken, after = model(messages, low, store.log, offset, limits, text)
    event(status.name)
    bodies = [record.decode(memoryview(r.tobytes())).body for r in selection.records]
    assert bodies == [messages[i].body for i in taken]
    assert len(selection.records) == len(taken)
    assert selection.body == b"".join(r.tobytes() for r in selection.records)
    assert (selection.status, selection.next_offset) == (status, after)
    assert (selection.min_offset, selection.max_offset) == (low, len(messages))


@settings(max_examples=300, deadline=None)
@given(which=st.integers(0, 3), offset=st.integers(0, 123), text=st.sampled_from(["", *TAGS, *SQL]))
def test_counting_and_the_next_match(stores: list, which: int, offset: int, text: str) -> None:
    store, messages = stores[which]
    first = max(offset, store.queues["T", 0].min_offset)
    hits = [i for i in range(first, len(messages)) if matches(text, messages[i])]
    assert store.count("T", 0, offset, wanted_of(text)) == len(hits)
    assert store.next_match("T", 0, offset, wanted_of(text)) == (hits[0] if hits else None)


def test_every_status_is_reached(stores: list, tmp_path: Path) -> None:
    store, _ = stores[3]  # its first log files are gone
    queue = store.queues["T", 0]
    low = queue.min_offset
    assert low > 0
    reached = {
        store.select("T", 0, low - 1).status,
        store.select("T", 0, low).status,
        store.select("T", 0, low, wanted=parse_tags("none")).status,
        store.select("T", 0, 120).status,
        store.select("T", 0, 121).status,
        store.select("T", 5, 0).status,
    }
    queue.min_offset = type(low)(low - low % 10)  # as before it was corrected
    reached.add(store.select("T", 0, queue.min_offset, Limits(strict=True)).status)
    queue.min_offset = type(low)(0)  # a unit whose file is gone
    reached.add(store.select("T", 0, 0).status)
    queue.min_offset = low
    assert reached >= set(Status) - {Status.NO_MATCHED_QUEUE, Status.MESSAGE_WAS_REMOVING}


def test_a_rare_match_is_found_in_one_call_and_in_800_units_when_strict(tmp_path: Path) -> None:
    with Store(tmp_path, StoreConfig(flush="async", log_file_size=2**22)) as store:
        draft = Draft(topic="T", body=b"x", properties=b"TAGS\x01common")
        rare = Draft(topic="T", body=b"y", properties=b"TAGS\x01rare")
        store.append([draft] * 5000 + [rare] + [draft] * 10)
        store.dispatch()
        wide = store.select("T", 0, 0, wanted=parse_tags("rare"))
        assert (wide.status, len(wide.records), wide.next_offset) == (Status.FOUND, 1, 5011)
        strict = store.select("T", 0, 0, Limits(strict=True), parse_tags("rare"))
        assert (strict.status, strict.next_offset) == (Status.NO_MATCHED_MESSAGE, 800)


LARGE = {"flush": "async", "log_file_size": 2**21, "queue_file_size": 20 * 3000}


def _numbered(count: int, size: int = 20) -> list[Draft]:
    """Every 7th has tag t7, every 100th t100, and so on; `n` is its number."""
    drafts = []
    for n in range(count):
        tag = next((f"t{k}" for k in (1000, 100, 7) if n % k == 0), "other")
        block = properties.encode({"TAGS": tag, "n": str(n)}).encode()
        drafts.append(Draft(topic="T", body=b"%d" % n + bytes(size), properties=block))
    return drafts


def _read_all(store: Store, wanted: TagFilter | SqlFilter | None, limits: Limits) -> list[int]:
    """The numbers of all messages that are found, one pull after the other."""
    found, offset, high = list[int](), 0, 1
    while offset < high:
        selection = store.select("T", 0, offset, limits, wanted)
        assert selection.next_offset > offset
        offset, high = selection.next_offset, selection.max_offset
        for raw in selection.records:
            found.append(int(record.decode(raw.tobytes()).properties["n"]))
    return found


@pytest.mark.parametrize("extra", [{}, {"extensions": True}], ids=["plain", "extensions"])
def test_whatever_the_stretches_each_match_is_found_once_and_in_order(
    tmp_path: Path, extra: dict
) -> None:
    with Store(tmp_path, StoreConfig(**LARGE, **extra)) as store:
        store.append(_numbered(10_000))
        store.dispatch()
        many = " || ".join(["t100", "t1000", *(f"tag{i}" for i in range(200))])
        cases = (
            (None, lambda n: True),
            (parse_tags("t1000"), lambda n: n % 1000 == 0),
            (parse_tags("t100 || t7"), lambda n: n % 1000 and (n % 100 == 0 or n % 7 == 0)),
            (parse_tags(many), lambda n: n % 100 == 0),
            (SqlFilter(BatchFilter(parse("n BETWEEN 50 AND 60"))), lambda n: 50 <= n <= 60),
            (SqlFilter(BatchFilter(parse("n > 9000 OR n < 3"))), lambda n: n > 9000 or n < 3),
            (SqlFilter(BatchFilter(parse("n = 9999"))), lambda n: n == 9999),
        )
        for wanted, matches_ in cases:
            right = [n for n in range(10_000) if matches_(n)]
            for limits in (Limits(), Limits(messages=5), Limits(messages=999, count=999)):
                assert _read_all(store, wanted, limits) == right
            assert _read_all(store, wanted, Limits(seconds=0)) == right  # a stretch a pull
            assert store.count("T", 0, 0, wanted) == len(right)


def test_an_answer_larger_than_the_usual_is_whole(tmp_path: Path) -> None:
    with Store(tmp_path, StoreConfig(**LARGE)) as store:
        store.append([Draft(topic="T", body=bytes([n]) * 400_000) for n in range(6)])
        store.dispatch()
        one = store.select("T", 0, 0)  # the first is taken however large it is
        assert [len(record.decode(bytes(r)).body) for r in one.records] == [400_000]
        some = store.select("T", 0, 1, Limits(bytes=1_700_000))
        bodies = [record.decode(bytes(r)).body for r in some.records]
        assert bodies == [bytes([n]) * 400_000 for n in range(1, 5)]


@pytest.mark.parametrize("sealed", [False, True], ids=["by body", "by seal"])
def test_a_damaged_record_is_left_out_and_the_others_are_served(
    tmp_path: Path, sealed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with Store(tmp_path, StoreConfig(**LARGE)) as store:
        if not sealed:
            store.select("T", 0, 0)
            store.log.is_sealed(0)  # as it is now: what comes later is judged by its body
        placed = store.append(_numbered(100))
        store.dispatch()
        (path,) = (tmp_path / "commitlog").iterdir()
        for n in (0, 40, 41, 99):
            with path.open("r+b") as file:
                file.seek(placed[n].log_offset + 90)  # in the body
                file.write(b"!")
        right = [n for n in range(100) if n not in (0, 40, 41, 99)]
        assert _read_all(store, None, Limits()) == right
        assert _read_all(store, SqlFilter(BatchFilter(parse("n >= 0"))), Limits()) == right
        first = store.select("T", 0, 0)
        assert (len(first.records), first.next_offset) == (32, 33)
        assert f"no sound record at offset {placed[40].log_offset} of the log" in caplog.text


def test_units_without_their_extension_may_match(tmp_path: Path) -> None:
    _register(tmp_path)
    config = StoreConfig(**LARGE, extensions=True, bitmaps=True, extension_file_size=4096)
    with Store(tmp_path, config) as store:
        store.append(_numbered(1000))
        store.dispatch()
        extension = store.queues["T", 0].extension
        assert extension is not None
        assert len(extension.sequence.starts) > 3
        assert store.count("T", 0, 0, parse_tags("none")) == 0
        unsaid = wanted_of("a > 5")  # no message has an `a`: in no bitmap has it a bit
        assert isinstance(unsaid, SqlFilter)
        flagged = replace(unsaid, batch_filter=BatchFilter(parse("n >= 0")))
        assert store.count("T", 0, 0, flagged) == 0
        extension.sequence.drop_first()
        lost = store.count("T", 0, 0, parse_tags("none"))
        assert 100 < lost < 300
        assert store.count("T", 0, 0, flagged) == lost
        assert store.next_match("T", 0, 0, parse_tags("none")) == 0


def test_several_threads_select_at_once_and_get_their_own(tmp_path: Path) -> None:
    with Store(tmp_path, StoreConfig(**LARGE)) as store:
        store.append(_numbered(3000))
        store.dispatch()
        wanted = [None, parse_tags("t7"), SqlFilter(BatchFilter(parse("n > 1000")))] * 3
        right = [_read_all(store, one, Limits()) for one in wanted]
        with ThreadPoolExecutor(len(wanted)) as threads:
            found = list(threads.map(lambda one: _read_all(store, one, Limits()), wanted))
        assert found == right
