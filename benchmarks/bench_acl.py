"""What does access control cost a send and a pull? In CPU time of the broker's process, which does
not depend on what else the machine does.

    .venv/bin/python benchmarks/bench_acl.py [--json] [--messages N]

Sends have 100 bytes and come 128 at a time over one connection, flush is async; pulls get 32
messages each. All of them are signed; with access control the signatures are checked.
"""

import argparse
import json
import os
import shutil
import tempfile
from pathlib import Path

import bench_broker
import loadgen
from loadgen import CYCLE, QUEUES, Connection, Pull

TICKS = os.sysconf("SC_CLK_TCK")
KEY = ("admin-key", "admin-secret")
REPEATS = 3


def cpu_seconds() -> float:
    """Of our only child, with its threads."""
    us = os.getpid()
    [child] = Path(f"/proc/{us}/task/{us}/children").read_text().split()
    fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def costs(is_guarded: bool, messages: int) -> tuple[float, float]:
    """Microseconds of a send and of a pull: the best of a few."""
    loadgen.KEY = KEY if is_guarded else None
    directory = Path(tempfile.mkdtemp())
    try:
        with (
            bench_broker.tamis(directory, "async", {}) as broker,
            Connection(broker) as connection,
        ):
            loadgen.KEY = KEY  # the load is the same, whether the broker looks at signatures or not
            connection.create_topic("Sends")
            connection.create_topic("Pulls")
            frames = loadgen.sends("Sends", 100)
            connection.send_all(frames, 20_000, 128)
            sends = []
            for _ in range(REPEATS):
                began = cpu_seconds()
                connection.send_all(frames, messages, 128)
                sends.append((cpu_seconds() - began) / messages)
            each = messages // (QUEUES * CYCLE) * CYCLE
            connection.send_all(loadgen.batches("Pulls", 100), each // CYCLE * QUEUES, QUEUES)
            connection.wait_for_offsets("Pulls", each)
            pull, pulls = Pull(topic="Pulls", group="g"), []
            connection.consume(pull, each)
            for _ in range(REPEATS):
                began = cpu_seconds()
                got = connection.consume(pull, each)
                pulls.append((cpu_seconds() - began) / (got / 32))
            return min(sends) * 1e6, min(pulls) * 1e6
    finally:
        shutil.rmtree(directory)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--messages", type=int, default=200_000, metavar="N")
    arguments = parser.parse_args()
    plain, guarded = (costs(each, arguments.messages) for each in (False, True))
    for name, without, with_acl in zip(("send", "pull"), plain, guarded, strict=True):
        if arguments.json:
            row = {
                "bench": "acl",
                "case": f"{name}, CPU time with access control",
                "unit": "µs",
                "ours": round(with_acl, 2),
                "peer": round(without, 2),
                "peer_name": "without access control",
                "ratio": round(with_acl / without, 2),
                "target": None,
            }
            print(json.dumps(row, ensure_ascii=False))
        else:
            print(
                f"{name}: {without:.2f} µs of CPU time, {with_acl:.2f} µs with access control,"
                f" {with_acl / without:.2f} times"
            )


if __name__ == "__main__":
    main()
