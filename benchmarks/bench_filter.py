"""How many messages a second does a SQL92 filter look at on one core, ours and Apache's?

From raw property strings of 7 properties, decoding included, to a verdict each. Both sides are
bound to one core. Apache's engine is rocketmq-filter 4.9.4 with its own decoder, warmed up, in the
same run; it needs Java and Maven.

    .venv/bin/python benchmarks/bench_filter.py [--json] [--messages N] [--seconds S]
"""

import argparse
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import pyarrow as pa
from interop.build import Unavailable, classpath

from tamis.filter import Outcome, parse
from tamis.filter.engines.closures import compile_closure, evaluate
from tamis.filter.engines.columnar import compile_batch
from tamis.wire import properties

EXPRESSIONS = (
    "(age BETWEEN 6 AND 9) AND (name IS NOT NULL) AND (isGender = TRUE)",
    "a > 5 AND b = 'abc'",
    "region IN ('a','b','c') AND price > 3.14",
)
PEER = "rocketmq-filter 4.9.4"
TARGETS = {"columnar": 2.0, "closures": 1 / 20}


def property_strings(count: int) -> list[bytes]:
    """Seven properties each; the order of names is a Java producer's: the same for all."""
    rng = random.Random(7)
    return [
        properties.encode(
            {
                "age": str(rng.randrange(16)),
                "name": f"user{rng.randrange(10_000)}",
                "isGender": rng.choice(("true", "false")),
                "a": str(rng.randrange(12)),
                "b": rng.choice(("abc", "def")),
                "region": rng.choice("abcdef"),
                "price": f"{rng.random() * 10:.2f}",
            }
        ).encode()
        for _ in range(count)
    ]


def rate(look_at_all: Callable[[], int], count: int, seconds: float) -> tuple[float, int]:
    """Median evaluations a second of whole passes, and how many matched."""
    matched = look_at_all()  # compiles and warms up
    rates = []
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline or len(rates) < 3:
        start = time.perf_counter()
        look_at_all()
        rates.append(count / (time.perf_counter() - start))
    return median(rates), matched


def columnar(expression: str, strings: list[bytes]) -> Callable[[], int]:
    batch_filter = compile_batch(parse(expression))
    column = pa.array(strings, pa.large_binary())
    return lambda: int((batch_filter.match_strings(column) == Outcome.TRUE).sum())


def closures(expression: str, strings: list[bytes]) -> Callable[[], int]:
    closure = compile_closure(parse(expression))

    def look_at_all() -> int:
        decode = properties.decode_bytes
        return sum(evaluate(closure, decode(string)).matched for string in strings)

    return look_at_all


def apache(strings: list[bytes], seconds: float) -> list[tuple[float, int]]:
    with tempfile.NamedTemporaryFile(suffix=".properties") as file:
        for string in strings:
            file.write(struct.pack(">i", len(string)) + string)
        file.flush()
        main = ["java", "-cp", classpath("4.9"), "tamis.interop.FilterBench"]
        done = subprocess.run(
            [*main, file.name, str(seconds), *EXPRESSIONS],
            capture_output=True,
            text=True,
            check=True,
        )
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    return [(float(per_second), int(matched)) for per_second, matched in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--messages", type=int, default=200_000, metavar="N")
    parser.add_argument("--seconds", type=float, default=3.0, metavar="S", help="each measurement")
    arguments = parser.parse_args()

    if hasattr(os, "sched_setaffinity"):  # the JVM inherits it
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    strings = property_strings(arguments.messages)
    try:
        peers = apache(strings, arguments.seconds)
    except Unavailable as reason:
        sys.exit(f"bench_filter: {reason}")
    for expression, (peer, peer_matched) in zip(EXPRESSIONS, peers, strict=True):
        for name, engine, few in (
            ("columnar", columnar, strings),
            ("closures", closures, strings[: len(strings) // 10]),
        ):
            ours, matched = rate(engine(expression, few), len(few), arguments.seconds)
            if few is strings and matched != peer_matched:
                sys.exit(f"bench_filter: {expression}: {matched} matched, Apache {peer_matched}")
            report(arguments.json, name, expression, ours, peer)


def report(as_json: bool, engine: str, expression: str, ours: float, peer: float) -> None:
    ratio, target = ours / peer, TARGETS[engine]
    if as_json:
        row = {
            "bench": "filter",
            "case": f"{engine}: {expression}",
            "unit": "evaluations/s",
            "ours": round(ours),
            "peer": round(peer),
            "peer_name": PEER,
            "ratio": round(ratio, 3),
            "target": target,
        }
        print(json.dumps(row), flush=True)
    else:
        print(
            f"{engine:<9} {ours / 1e6:6.2f} M/s   {PEER} {peer / 1e6:5.2f} M/s   "
            f"ratio {ratio:6.2f} (target {target:g})   {expression}",
            flush=True,
        )


if __name__ == "__main__":
    main()
