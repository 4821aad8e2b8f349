"""How long does the exact lag of 100 groups take on 10 million waiting messages?

    .venv/bin/python benchmarks/fate_lag.py [--json] [--messages N] [--directory DIR]

Half of the groups filter by tags, half by SQL, each by an expression of its own; the messages are
in four queues, 100 bytes of body and six properties each. Cold is the first question after a start,
warm the same once more, and moved the next one after 100,000 messages came and every group
consumed some. The peer of the cold one is the way it was before: one group after the other, each
with a pass of its own over the queues (measured with some of the groups, for all of them would take
a minute). A part of `bench_fate.py`.
"""

import argparse
import json
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tamis.broker.lag import Lags, QueueLag
from tamis.broker.readers import Reader, ReaderFilter
from tamis.filter import parse
from tamis.filter.engines.columnar import BatchFilter
from tamis.filter.tags import parse_tags
from tamis.store.config import StoreConfig
from tamis.store.select import SqlFilter
from tamis.store.store import Store
from tamis.wire import properties, record
from tamis.wire.record import Draft

TOPIC = "Orders"
QUEUES = 4
GROUPS = 100
TAGS = 40
BATCH = 4000  # messages appended at once
CAME = 100_000  # messages between two questions
SAMPLE = 3  # groups of each kind that the peer is measured with
REGIONS = ("eu", "us", "cn", "br")
PEER = "one group after the other"


def figures(root: Path, messages: int = 10_000_000) -> Iterator[dict[str, Any]]:
    """The case's figures, for `bench_fate.py`; `root` is where the store is put."""
    with Store(root, StoreConfig(flush="async")) as store:
        fill(store, messages)
        yield from measure(store, messages)


def fill(store: Store, count: int) -> None:
    rng = random.Random(14)
    items = []
    for number in range(BATCH):
        block = {
            "TAGS": f"t{number % TAGS}",
            "KEYS": f"k{number}",
            "UNIQ_KEY": f"{number:032X}",
            "region": rng.choice(REGIONS),
            "price": f"{rng.random() * 200:.2f}",
            "age": str(rng.randrange(100)),
        }
        items.append(record.batch_item(b"x" * 100, properties.encode(block).encode()))
    batch = b"".join(items)
    for number in range(count // BATCH):
        store.append_batch(Draft(topic=TOPIC, queue_id=number % QUEUES), batch)
        if number % 100 == 99:
            store.dispatch()
    store.dispatch()


def filters() -> list[ReaderFilter]:
    made = []
    for number in range(GROUPS // 2):
        tags = " || ".join(f"t{(number * step) % TAGS}" for step in (1, 7, 11))
        made.append(ReaderFilter("TAG", tags, parse_tags(tags)))
        region = REGIONS[number % len(REGIONS)]
        sql = (
            f"region = '{region}' AND price > {2 * number}",
            f"age BETWEEN {number} AND {number + 10}",
            f"region IN ('eu', '{region}') AND age > {number}",
            f"TAGS = 't{number % TAGS}' AND price < {4 * number}.5",
        )[number % 4]
        made.append(ReaderFilter("SQL92", sql, SqlFilter(BatchFilter(parse(sql)))))
    return made


def readers_at(wanted: list[ReaderFilter], offset: int) -> list[Reader]:
    """Each group stands somewhere near an offset."""
    return [
        Reader(
            f"group-{number}",
            TOPIC,
            range(QUEUES),
            {queue: offset + 37 * number + queue for queue in range(QUEUES)},
            by,
        )
        for number, by in enumerate(wanted)
    ]


def measure(store: Store, messages: int) -> Iterator[dict[str, Any]]:
    wanted = filters()
    small = Lags(store, block=1000)
    small.count(readers_at(wanted, int(store.queue(TOPIC, 0).max_offset) - 5000), 10.0)  # warms up
    lags, readers = Lags(store), readers_at(wanted, 0)
    scale = f"{GROUPS} groups, {messages / 1e6:g} M waiting"
    peer = {"peer": peer_seconds(store, wanted), "peer_name": PEER}
    seconds, rows = timed(lambda: lags.count(readers, float("inf")))
    yield {"case": f"exact lag, {scale}, cold", "unit": "s", "ours": seconds, **peer}
    check(store, rows)
    seconds, rows = timed(lambda: lags.count(readers, float("inf")))
    yield {"case": f"exact lag, {scale}, warm", "unit": "s", "ours": seconds, "target": 1.0}
    check(store, rows)
    fill(store, CAME)
    seconds, rows = timed(lambda: lags.count(readers_at(wanted, 5000), float("inf")))
    yield {"case": f"exact lag, {scale}, moved", "unit": "s", "ours": seconds, "target": 1.0}
    check(store, rows)
    yield {"case": "exact lag, remembered", "unit": "MB", "ours": lags.size / 1e6, "target": 64.0}


def timed(work: Callable[[], list[QueueLag]]) -> tuple[float, list[QueueLag]]:
    start = time.perf_counter()
    rows = work()
    return time.perf_counter() - start, rows


def peer_seconds(store: Store, wanted: list[ReaderFilter]) -> float:
    """All groups, by what some of them take."""
    spent = 0.0
    for number in range(SAMPLE):
        for by in wanted[2 * number : 2 * number + 2]:
            start = time.perf_counter()
            for queue in range(QUEUES):
                store.count(TOPIC, queue, 0, by.wanted)
            spent += time.perf_counter() - start
    return spent * len(wanted) / (2 * SAMPLE)


def check(store: Store, rows: list[QueueLag]) -> None:
    """That some of it is true."""
    for row in random.Random(1).sample(rows, 3):
        assert row.filter is not None
        assert row.committed is not None
        assert row.is_complete
        assert row.matching_lag == store.count(TOPIC, row.queue, row.committed, row.filter.wanted)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--messages", type=int, default=10_000_000, metavar="N")
    parser.add_argument("--directory", help="where to put the store; a temporary one if not given")
    arguments = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

    root = Path(tempfile.mkdtemp(dir=arguments.directory))
    try:
        for figure in figures(root, arguments.messages):
            report(arguments.json, **figure)
    finally:
        shutil.rmtree(root)


def report(
    as_json: bool,
    case: str,
    unit: str,
    ours: float,
    peer: float | None = None,
    peer_name: str | None = None,
    target: float | None = None,
) -> None:
    ratio = None if peer is None else ours / peer
    if as_json:
        row = {
            "bench": "fate",
            "case": case,
            "unit": unit,
            "ours": round(ours, 4),
            "peer": None if peer is None else round(peer, 2),
            "peer_name": peer_name,
            "ratio": None if ratio is None else round(ratio, 4),
            "target": target,
        }
        print(json.dumps(row), flush=True)
        return
    against = "" if ratio is None else f"  {ratio:7.4f} × {peer_name} ({peer:.1f} s)"
    wanted = f"  (target {target:g})" if target is not None else ""
    print(f"{case:<48} {ours:>10.3f} {unit}{against}{wanted}", flush=True)


if __name__ == "__main__":
    main()
