"""How fast does the store append, and how fast does it find?

    .venv/bin/python benchmarks/bench_store.py [--json] [--messages N] [--directory DIR]

Append: 100-byte and 1 KiB bodies, one by one and in batches of 32, both flush modes. Select: a
queue of 5 million messages, at several selectivities, by tag, by bitmap and by SQL; units looked at
and bytes returned a second, on one core. The peer of a select is what Apache's broker was seen to
do on such a machine (design.md); of an append, nothing.
"""

import argparse
import json
import os
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from tamis.filter import parse
from tamis.filter.bloom import BloomFilter, group_key
from tamis.filter.engines.columnar import BatchFilter
from tamis.filter.tags import parse_tags
from tamis.store import tables
from tamis.store.config import StoreConfig
from tamis.store.select import Limits, SqlFilter
from tamis.store.store import Store
from tamis.wire import properties, record
from tamis.wire.record import Draft

TOPIC = "Orders"
RARE = {100.0: "all", 1.0: "r1", 0.1: "r2", 0.001: "r3"}  # percent -> value of the property
APPEND_TARGETS = {("async", 100, 32): 500_000.0}
SELECT_TARGETS = {"tag": 200e6, "sql": 4e6, "bitmap": 30e6}
UNFILTERED = 0.4e6  # Apache's, when all match
APACHE = {"tag": 11e6, "sql": 1.9e6, "bitmap": 1.9e6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument(
        "--messages", type=int, default=5_000_000, metavar="N", help="to select from"
    )
    parser.add_argument("--directory", help="where to put the stores; a temporary one if not given")
    arguments = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    root = Path(tempfile.mkdtemp(dir=arguments.directory))
    try:
        appends(root / "append", arguments.json)
        selects(root / "select", arguments.messages, arguments.json)
    finally:
        shutil.rmtree(root)


def report(
    as_json: bool, case: str, unit: str, ours: float, peer: float | None, target: float | None
) -> None:
    ratio = None if peer is None else ours / peer
    if as_json:
        row = {
            "bench": "store",
            "case": case,
            "unit": unit,
            "ours": round(ours, 3),
            "peer": peer,
            "peer_name": None if peer is None else "Apache RocketMQ 4.9.4, as seen (design.md)",
            "ratio": None if ratio is None else round(ratio, 2),
            "target": target,
        }
        print(json.dumps(row), flush=True)
        return
    against = f"  {ratio:6.1f} × Apache" if ratio is not None else ""
    wanted = f"  (target {target:,.0f})" if target is not None else ""
    print(f"{case:<48} {ours:>16,.0f} {unit}{against}{wanted}", flush=True)


def appends(root: Path, as_json: bool) -> None:
    for flush in ("async", "sync"):
        for size in (100, 1024):
            for batch in (1, 32):
                block = properties.encode({"TAGS": "a", "UNIQ_KEY": "U" * 32, "n": "1"}).encode()
                draft = Draft(topic=TOPIC, body=os.urandom(size), properties=block)
                store = Store(root, StoreConfig(flush=flush))
                items = b"".join([record.batch_item(draft.body, block)] * batch)
                envelope, count = Draft(topic=TOPIC), 0
                store.append_batch(envelope, items)  # warms up
                start = time.perf_counter()
                while (spent := time.perf_counter() - start) < 2.0:
                    if batch == 1:
                        store.append([draft])
                    else:
                        store.append_batch(envelope, items)
                    count += batch
                case = f"append {size} B, batch {batch}, {flush}"
                target = APPEND_TARGETS.get((flush, size, batch))
                report(as_json, case, "messages/s", count / spent, None, target)
                if (flush, size, batch) == ("async", 100, 32):
                    start = time.perf_counter()
                    store.dispatch()
                    rate = count / (time.perf_counter() - start)
                    report(as_json, "dispatch 100 B", "messages/s", rate, None, None)
                store.close()
                shutil.rmtree(root)


def selects(root: Path, count: int, as_json: bool) -> None:
    bloom = BloomFilter()
    filters = {}
    for percent, value in RARE.items():
        group = f"g{value}"
        filters[TOPIC, group] = tables.FilterData(
            group=group,
            topic=TOPIC,
            expression="kind = 'all'" if value == "all" else f"{value} = 'yes'",
            expression_type="SQL92",
            born_time=1,
            client_version=1,
            bloom_positions=bloom.positions(group_key(group, TOPIC)),
            bloom_bits=bloom.bits,
        )
        del percent
    (root / "config").mkdir(parents=True)
    tables.save_filters(root / "config", filters)
    config = StoreConfig(flush="async", extensions=True, bitmaps=True)
    with Store(root / "bitmaps", config) as store:
        tables.save_filters(root / "bitmaps" / "config", filters)
        store.set_filters(filters.values())
        fill(store, count)
        for percent, value in RARE.items():
            data = filters[TOPIC, f"g{value}"]
            batch_filter = BatchFilter(parse(data.expression))
            wanted = SqlFilter(batch_filter, data.bloom_positions, data.bloom_bits, 1)
            measure(store, as_json, "bitmap", percent, wanted, count)
    shutil.rmtree(root / "bitmaps")
    with Store(root / "plain", StoreConfig(flush="async")) as store:
        fill(store, count)
        for percent, value in RARE.items():
            tag = "common || r1 || r2 || r3" if value == "all" else value
            measure(store, as_json, "tag", percent, parse_tags(tag), count)
        for percent, value in RARE.items():
            expression = filters[TOPIC, f"g{value}"].expression
            measure(
                store, as_json, "sql", percent, SqlFilter(BatchFilter(parse(expression))), count
            )
        start = time.perf_counter()
        lag = store.count(TOPIC, 0, 0, parse_tags("r2"))
        seconds = (time.perf_counter() - start) * 10_000_000 / count
        assert lag
        report(as_json, "exact lag by tag, of 10 M units", "ms", seconds * 1000, None, 50.0)


def fill(store: Store, count: int) -> None:
    """Rare messages are spread evenly; every one has 7 properties."""
    common = {
        "KEYS": "k",
        "UNIQ_KEY": "U" * 32,
        "kind": "all",
        "region": "eu",
        "price": "12.50",
        "age": "7",
    }
    every = {round(100 / percent): value for percent, value in RARE.items() if percent < 100}
    kinds = {}
    for value in ("common", *every.values()):
        block = {"TAGS": value, **common} | ({value: "yes"} if value != "common" else {})
        kinds[value] = Draft(
            topic=TOPIC, body=b"x" * 100, properties=properties.encode(block).encode()
        )
    done = 0
    numbers = np.arange(count)
    value_of = np.full(count, "common", dtype="U6")
    for step, value in sorted(every.items()):
        value_of[numbers % step == step // 2] = value
    while done < count:
        drafts = [kinds[value] for value in value_of[done : done + 5000]]
        store.append(drafts)
        done += len(drafts)
        if done % 500_000 == 0:
            store.dispatch()
    store.dispatch()


def measure(
    store: Store, as_json: bool, by: str, percent: float, wanted: object, count: int
) -> None:
    """Pulls, as a consumer would, from the first to the last message or for two seconds."""
    limits = Limits(messages=1000, count=1000, bytes=2**20)
    store.select(TOPIC, 0, 0, limits, wanted)  # type: ignore[arg-type]  # warms up
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    offset = found = size = units = 0
    start = time.perf_counter()
    while (spent := time.perf_counter() - start) < 2.0 or not units:
        selection = store.select(TOPIC, 0, offset, limits, wanted)  # type: ignore[arg-type]
        found += len(selection.records)
        size += sum(map(len, selection.records))
        units += selection.next_offset - offset
        offset = selection.next_offset if selection.next_offset < count else 0
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory
    is_target = (by, percent) in (("tag", 0.1), ("sql", 0.1), ("bitmap", 0.1))
    target = SELECT_TARGETS[by] if is_target else None
    peer = APACHE[by] if percent < 100 else UNFILTERED
    report(as_json, f"select by {by}, {percent:g} %", "units/s", units / spent, peer, target)
    report(as_json, f"  bytes returned, {by}, {percent:g} %", "bytes/s", size / spent, None, None)
    if grown > 200_000:
        print(f"  memory grew by {grown // 1024} MiB", file=sys.stderr)


if __name__ == "__main__":
    main()
