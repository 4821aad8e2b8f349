"""Does a broker stay as it is under a load that goes on, with consumers that come and go?

    .venv/bin/python benchmarks/soak.py [--minutes M] [--rate N] [--flush sync|async] [--json]

`tamis up` runs as a child. Producers send at a steady rate: single messages with either header,
batches, delayed ones, transactions. Groups consume all of it, by tag and by SQL; their members
heartbeat, share the queues, pull with long polling, commit, send some messages back for a retry,
and leave, in good order or without a word, while others join. Every ten seconds the broker's memory
(anonymous: mapped files don't count), descriptors, threads and tasks are noted.

It ends with verdicts, and with 1 if one of them is bad: nothing acknowledged was lost; nothing was
stored twice, or given to one consumer twice; what two consumers got was on its way when a member
came or went; memory, descriptors, threads and tasks are what they were.
"""

import argparse
import asyncio
import json
import os
import random
import shutil
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from broker.asking import close, create_topic, until
from broker.child import Child
from broker.load import Group, Journal, Member, Producer, finish, groups_on

from tamis.net import aio

TOPIC, QUEUES = "Soak", 8
# Kind of producer to its part of the rate.
PARTS = {"plain": 0.30, "binary": 0.20, "batch": 0.44, "delayed": 0.03, "transaction": 0.03}
MEMBERS = range(1, 5)  # of a group at once
STAY = (5.0, 40.0)  # seconds
BACK = 0.002  # of the messages got are sent back
SAMPLE = 10.0  # seconds
WARM = 0.25  # of the time, before memory counts
DRAIN = 90.0  # seconds
SLOPE = 1.0  # MiB a minute that memory may grow by
EACH_CHANGE = 64  # messages a queue may have twice when a member comes or goes


@dataclass(frozen=True)
class Sample:
    seconds: float
    memory: float  # MiB
    descriptors: int
    threads: int
    connections: int
    held: int
    tasks: int | None  # of the broker's loop, where it tells
    acked: int
    received: int
    members: int


class Soak:
    def __init__(self, child: Child, rate: float, rng: random.Random) -> None:
        self.child = child
        self.groups = groups_on(TOPIC, QUEUES)
        self.journal = Journal(self.groups)
        self.producers = [
            Producer(
                self.journal,
                number,
                kind,
                TOPIC,
                QUEUES,
                rate=rate * part,
                in_flight=32,
                size=200,
                delay_levels=(1, 2),
            )
            for number, (kind, part) in enumerate(PARTS.items())
        ]
        self.members: dict[Member, asyncio.Task[None]] = {}
        self.faults: list[str] = []
        self.changes = 0  # members that came or went
        self._names = 0
        self._rng = rng
        self._started = time.monotonic()
        self.samples: list[Sample] = []

    # Members.

    async def come_and_go(self, group: Group) -> None:
        """Until it is cancelled: there is always one, and never more than the most."""
        here: dict[Member, float] = {}  # to when it leaves
        while True:
            now = time.monotonic()
            for member in [one for one, end in here.items() if end < now and len(here) > 1]:
                del here[member]
                self._go(member)
            if not here or (len(here) < MEMBERS[-1] and self._rng.random() < 0.1):
                member = self._come(group)
                here[member] = now + self._rng.uniform(*STAY)
            await asyncio.sleep(self._rng.uniform(0.5, 1.5))

    def _come(self, group: Group) -> Member:
        self._names += 1
        self.changes += 1
        member = Member(self.journal, group, f"c{self._names:05}-{group.name}", back=BACK)
        self.members[member] = asyncio.create_task(member.run(self.child.broker))
        return member

    def _go(self, member: Member) -> None:
        self.changes += 1
        (member.leave if self._rng.random() < 0.5 else member.drop)()

    def tidy(self) -> None:
        """Notes what those had to say that are gone."""
        for member in [one for one, task in self.members.items() if task.done()]:
            self.members.pop(member).result()
            self.faults += member.faults

    # Samples.

    async def watch(self) -> None:
        while True:
            self.tidy()
            self.samples.append(await self.sample())
            print(_line(self.samples[-1]), file=sys.stderr, flush=True)
            await asyncio.sleep(SAMPLE)

    async def sample(self) -> Sample:
        metrics = await asyncio.to_thread(_scrape, self.child.metrics)
        status = _status(self.child.pid)
        return Sample(
            seconds=round(time.monotonic() - self._started, 1),
            memory=round(status["RssAnon"] / 1024, 1),
            descriptors=_descriptors(self.child.pid),
            threads=status["Threads"],
            connections=int(metrics["tamis_connections"]),
            held=int(metrics["tamis_held_pulls"]),
            tasks=int(metrics["tamis_tasks"]) if "tamis_tasks" in metrics else None,
            acked=self.journal.acked,
            received=sum(self.journal.received.values()),
            members=len(self.members),
        )


def _status(pid: int) -> dict[str, int]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    words = {line.split(":")[0]: line.split()[1:] for line in lines}
    return {name: int(words[name][0]) for name in ("RssAnon", "Threads")}


def _descriptors(pid: int) -> int:
    """Without those of the store's files, of which there are more as it grows."""
    found = 0
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found += "/data/" not in os.readlink(link)
        except FileNotFoundError:  # closed meanwhile
            continue
    return found


def _scrape(address: str) -> dict[str, float]:
    with urllib.request.urlopen(address, timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    plain = [line.split() for line in lines if not line.startswith("#") and "{" not in line]
    return {name: float(value) for name, value in plain}


def _line(one: Sample) -> str:
    return (
        f"{one.seconds:7.1f} s  {one.memory:7.1f} MiB  {one.descriptors:4} descriptors  "
        f"{one.threads:3} threads  {one.connections:3} connections  {one.held:3} held  "
        f"{'-' if one.tasks is None else one.tasks} tasks  {one.members:3} members  "
        f"{one.acked:9,} acknowledged  {one.received:9,} received"
    )


# Verdicts.


@dataclass(frozen=True)
class Verdict:
    what: str
    found: object
    is_good: bool


def _slope(samples: list[Sample]) -> float:
    """MiB a minute, by least squares."""
    if len(samples) < 3:
        return 0.0
    times = [one.seconds / 60 for one in samples]
    middle = sum(times) / len(times)
    mean = sum(one.memory for one in samples) / len(samples)
    spread = sum((t - middle) ** 2 for t in times)
    pairs = zip(times, samples, strict=True)
    return sum((t - middle) * (one.memory - mean) for t, one in pairs) / spread


def verdicts(soak: Soak, before: Sample, after: Sample) -> list[Verdict]:
    journal = soak.journal
    warm = [one for one in soak.samples if one.seconds >= WARM * soak.samples[-1].seconds]
    lost = {group.name: len(journal.missing(group)) for group in soak.groups}
    back = sum(not count for count in journal.returned.values())
    twice, most = sum(journal.duplicates.values()), soak.changes * QUEUES * EACH_CHANGE
    busy = sum(producer.busy for producer in soak.producers)
    slope = _slope(warm)
    rows: list[tuple[str, object, bool]] = [
        ("acknowledged", journal.acked, journal.acked > 0),
        ("lost", lost, not any(lost.values())),
        ("sent back and not come again", f"{back} of {len(journal.returned)}", not back),
        ("came where it was not wanted", journal.strange[:3], not journal.strange),
        ("faults", soak.faults[:3], not soak.faults),
        ("told to come later", busy, not busy),
        ("stored twice", journal.stored_twice, journal.stored_twice <= journal.again),
        (f"consumed twice, in {soak.changes} changes of members", twice, twice <= most),
        ("memory after warm-up, MiB a minute", round(slope, 2), slope < SLOPE),
        ("descriptors before and after", [before.descriptors, after.descriptors],
         after.descriptors <= before.descriptors + 2),
        ("threads before and after", [before.threads, after.threads],
         after.threads <= before.threads + 4),
        ("connections after", after.connections, after.connections == 0),
        ("held pulls after", after.held, after.held == 0),
    ]  # fmt: skip
    if before.tasks is not None and after.tasks is not None:
        rows.append(
            ("tasks before and after", [before.tasks, after.tasks], after.tasks <= before.tasks)
        )
    return [Verdict(*row) for row in rows]


# The run.


async def run(arguments: argparse.Namespace, directory: Path) -> bool:
    child = Child(directory, "--flush", arguments.flush, "--log-level", "warning")
    await child.start()
    try:
        return await _run(child, arguments)
    finally:
        child.end()


async def _run(child: Child, arguments: argparse.Namespace) -> bool:
    peer = await aio.connect(child.broker)
    await create_topic(peer, TOPIC, QUEUES)
    await close(peer)
    soak = Soak(child, arguments.rate, random.Random(arguments.seed))
    await _until_idle(soak)
    before = await soak.sample()
    print(_line(before), file=sys.stderr, flush=True)
    sending = [asyncio.create_task(one.run(child.broker)) for one in soak.producers]
    beside = [asyncio.create_task(soak.come_and_go(group)) for group in soak.groups]
    beside.append(asyncio.create_task(soak.watch()))
    try:
        await _for(arguments.minutes * 60, [*sending, *beside])
        for producer in soak.producers:
            producer.is_stopped = True
        await _within(DRAIN, lambda: all(task.done() for task in sending))
        await _within(DRAIN, lambda: soak.journal.is_even)
    finally:
        await finish(*beside)
        for member in soak.members:
            member.leave()
        await _within(DRAIN, lambda: all(task.done() for task in soak.members.values()))
        await finish(*sending, *soak.members.values())
    soak.tidy()
    for producer in soak.producers:
        soak.faults += producer.faults
    await _until_idle(soak)
    after = await soak.sample()
    print(_line(after), file=sys.stderr, flush=True)
    found = verdicts(soak, before, after)
    code = await child.stop()
    found.append(Verdict("exit code", code, code == 0))
    complaints = [x for x in child.log.splitlines() if "level=error" in x or "Traceback" in x]
    found.append(Verdict("errors in its log", complaints[:3], not complaints))
    _report(arguments, soak, found)
    return all(verdict.is_good for verdict in found)


async def _for(seconds: float, tasks: list["asyncio.Task[None]"]) -> None:
    """None of them may end before."""
    done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()
        raise RuntimeError(f"{task} ended")


async def _within(seconds: float, condition: Callable[[], bool]) -> None:
    """Or not: the verdicts tell."""
    try:
        await until(condition, lambda: "", seconds)
    except AssertionError:
        print(f"soak: still not so after {seconds:g} s", file=sys.stderr)


async def _until_idle(soak: Soak) -> None:
    for _ in range(100):
        one = await soak.sample()
        if one.connections == 0 and one.held == 0:
            return
        await asyncio.sleep(0.1)


def _report(arguments: argparse.Namespace, soak: Soak, found: list[Verdict]) -> None:
    for verdict in found:
        mark = "ok " if verdict.is_good else "BAD"
        print(f"{mark} {verdict.what}: {verdict.found}", file=sys.stderr, flush=True)
    if arguments.json:
        row = {
            "bench": "soak",
            "minutes": arguments.minutes,
            "rate": arguments.rate,
            "flush": arguments.flush,
            "seed": arguments.seed,
            "is_good": all(verdict.is_good for verdict in found),
            "verdicts": [asdict(verdict) for verdict in found],
            "samples": [asdict(one) for one in soak.samples],
        }
        print(json.dumps(row), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0, metavar="M")
    parser.add_argument("--rate", type=float, default=2000.0, metavar="N", help="messages a second")
    parser.add_argument("--flush", choices=["sync", "async"], default="async")
    parser.add_argument("--seed", type=int, default=1, help="of who comes and goes, and when")
    parser.add_argument("--directory", help="where to put the store; a temporary one if not given")
    parser.add_argument("--json", action="store_true", help="one JSON object at the end")
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="tamis-soak-", dir=arguments.directory))
    try:
        is_good = asyncio.run(run(arguments, directory))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    sys.exit(0 if is_good else 1)


if __name__ == "__main__":
    main()
