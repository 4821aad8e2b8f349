"""Can a stranger stop the broker for everybody, or make it lose what it acknowledged?

    .venv/bin/python benchmarks/hostile.py [--json] [--list] [--only NAME ...] [--seconds S]
                                           [--flush sync|async] [--directory DIR] [--scale X]

Each attack of the table in hostile_attacks.py is run against a fresh `tamis up` while a
well-behaved client beside it (hostile_client.py) sends, pulls and asks for routes. A row has:

- that client's latencies in milliseconds, each as p50/p99/worst. Targets: a p99 under 100, a worst
  one under 500. A request that took long kept the client from sending others; those that would have
  waited are counted too (Gil Tene's correction), or one freeze of ten seconds would hardly show.
- the most memory the server had, sampled twenty times a second: what it allocated itself
  (anonymous; the target is under 1 GiB) and all that was resident, with pages of mapped files,
  which the kernel can take back.
- how many messages were acknowledged, to the client and to the attacker, and how many of them could
  not be pulled afterwards, before or after a restart. The target is none.
- whether the server is alive: it runs, it answers, and it ends in good order on SIGTERM.

The first row is without an attack. A machine makes noise of its own, most of all when attacker,
server and client share two cores: the attackers have a lower priority (nice 10) for that reason,
and a latency that the first row has too is not the server's. A target that is missed, a request of
the client that failed, or a restart that did not work is told below its row, and makes the exit
code 1. All of it takes about twelve minutes; what needs root is skipped with a line.
"""

import argparse
import contextlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import hostile_attacks
import hostile_client
from certificates import Authority
from hostile_attacks import ATTACKS, Attack
from hostile_client import INTERVALS, Report, find_missing
from hostile_moves import Done
from hostile_server import Memory, NotMounted, NotStarted, Server, mounted
from hostile_wire import Ack

__all__ = [
    "Neighbour",
    "Row",
    "Unusable",
    "attack_beside",
    "ballast",
    "main",
    "measure",
    "server_for",
    "tls_settings",
]

P99, WORST = 100.0, 500.0  # milliseconds
MEMORY = 2**30  # bytes
RESTART_SECONDS = 60.0
REPORT_SECONDS = 60.0  # the client may be in the middle of requests that are not answered
KINDS = ("send", "pull", "route")
FILES = {"data", "out", "err", "attack.json", "disk", "disk.img", "tls"}  # beside a server's data


class Unusable(Exception):
    """Raised when the server does not serve the well-behaved client, attack or not."""


# The parts: a client beside, an attack, and both at once.


class Neighbour:
    """The well-behaved client, in its own process."""

    def __init__(self, server: Server) -> None:
        """Start it, and wait until it is under way. Raises Unusable."""
        line = [sys.executable, hostile_client.__file__, server.broker, server.nameserver]
        self._process = subprocess.Popen(
            line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise Unusable(self._process.communicate()[1].strip().splitlines()[-1])

    def report(self) -> Report:
        """What happened to it since the last report."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("report\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise Unusable(f"the client ended: {self._process.communicate()[1][-300:]}")
        found = json.loads(line)
        return Report(**found | {"acks": [tuple(ack) for ack in found["acks"]]})

    def end(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.communicate(timeout=REPORT_SECONDS)  # closes its input
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


def attack_beside(
    server: Server,
    neighbour: Neighbour,
    attack: Attack,
    *,
    seconds: float,
    scale: float = 1.0,
    seed: int = 1,
    after: float = 1.0,
) -> tuple[Report, Done]:
    """Run an attack to its end; returns what happened to the client meanwhile, and for so many
    seconds after, and what the attack did. A server that is to be killed is killed."""
    path = server.directory / "attack.json"
    path.unlink(missing_ok=True)
    line = [sys.executable, hostile_attacks.__file__, attack.name]
    line += [server.broker, server.nameserver, "--report", str(path)]
    line += ["--seconds", str(seconds), "--scale", str(scale), "--seed", str(seed)]
    process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        process.stdout.readline()  # it is under way
        if attack.kills:
            time.sleep(seconds * 0.8)
            report = neighbour.report()  # its messages are acknowledged before the kill
            server.kill()
        process.communicate(timeout=6 * seconds + 60)
        if not attack.kills:
            time.sleep(after)
            report = neighbour.report()
    except subprocess.TimeoutExpired:
        report = neighbour.report()
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    done = Done(notes=["it did not end by itself"])
    if path.exists():
        found = json.loads(path.read_text())
        answers, acks = Counter(found.pop("answers")), [tuple(one) for one in found.pop("acks")]
        done = Done(**found, answers=answers, acks=acks)
    return report, done


@contextlib.contextmanager
def server_for(attack: Attack, directory: Path, flush: str = "sync") -> Iterator[Server]:
    """A server under the limits the attack calls for, not started. Raises NotMounted."""
    with contextlib.ExitStack() as stack:
        data = None
        if attack.disk is not None:
            data = stack.enter_context(mounted(attack.disk, directory)) / "data"
            data.mkdir()
            ballast(data.parent)
        server = Server(
            directory,
            data=data,
            flush=flush,
            settings=attack.settings | (tls_settings(directory) if attack.tls else {}),
            descriptors=attack.descriptors,
            file_size=attack.file_size,
        )
        stack.callback(server.kill)
        yield server


def tls_settings(directory: Path) -> dict[str, object]:
    """Settings for a certificate made for the occasion, with a key that is expensive to use."""
    issued = Authority(directory / "tls").issue(rsa=True)
    return {"tls": "permissive", "tls_cert": issued.cert, "tls_key": issued.key}


def ballast(disk: Path, *, is_off: bool = False) -> None:
    """Files that take room and inodes on a small disk, until it is to be usable again."""
    for file in (disk / f"ballast-{n}" for n in range(200)):
        if is_off:
            file.unlink(missing_ok=True)
        else:
            file.write_bytes(bytes(2**14))


# A row.


@dataclass
class Row:
    attack: Attack
    latencies: dict[str, list[float]] = field(default_factory=dict)
    memory: Memory = field(default_factory=Memory)
    acks: list[Ack] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    is_alive: bool = True
    bad: list[str] = field(default_factory=list)  # what went wrong beside the figures
    notes: list[str] = field(default_factory=list)
    skipped: str = ""

    def missed(self) -> list[str]:
        """The targets it missed, each in a line, and what else went wrong."""
        lines = []
        for kind, times in self.latencies.items():
            for name, limit in (("p99", P99), ("worst", WORST)):
                found = percentiles(kind, times)[name]
                if found >= limit:
                    lines.append(f"{kind} {name} {found:.0f} ms, not under {limit:.0f}")
        if self.memory.anonymous >= MEMORY:
            lines.append(f"memory {_mebibytes(self.memory.anonymous)} MiB, not under 1024")
        if self.missing:
            lines.append(f"{len(self.missing)} acknowledged and missing, first {self.missing[0]}")
        return lines + self.bad


def percentiles(kind: str, times: list[float]) -> dict[str, float]:
    """By nearest rank; of nothing, zeros. With the requests a slow one kept from being sent."""
    step = INTERVALS[kind]
    kept = (time - n * step for time in times for n in range(1, int(time // step) + 1))
    ordered = sorted([*times, *kept]) or [0.0]
    last = len(ordered) - 1
    return {"p50": ordered[last // 2], "p99": ordered[-(-last * 99 // 100)], "worst": ordered[-1]}


def measure(attack: Attack, directory: Path, arguments: argparse.Namespace) -> Row:
    """Attack a fresh server, look for what it acknowledged, stop it, start it again, look again."""
    row = Row(attack)
    try:
        with server_for(attack, directory, arguments.flush) as server:
            try:
                server.start()
            except NotStarted as error:
                if attack.must_not_start and "limit" in str(error):
                    row.notes.append(f"refused to start: {error}")
                else:
                    row.is_alive = False
                    row.bad.append(f"did not start: {error}")
                return row
            if attack.must_not_start:
                row.bad.append("it started")
            try:
                _attack(row, server, arguments)
                _look_and_restart(row, server)
            except (Unusable, NotStarted) as error:
                row.is_alive = False
                row.bad.append(str(error))
            row.memory = server.memory
            strays = set(os.listdir(directory)) - FILES
            if strays:
                row.bad.append(f"files outside its directory: {', '.join(sorted(strays))}")
            tracebacks = server.log.count("Traceback (most recent call last)")
            if tracebacks:
                row.notes.append(f"{tracebacks} tracebacks in its log")
    except NotMounted as error:
        row.skipped = str(error)
    return row


def _attack(row: Row, server: Server, arguments: argparse.Namespace) -> None:
    attack = row.attack
    neighbour = Neighbour(server)
    try:
        report, done = attack_beside(
            server,
            neighbour,
            attack,
            seconds=arguments.seconds,
            scale=arguments.scale,
            seed=arguments.seed,
        )
    finally:
        neighbour.end()
    row.latencies = {kind: getattr(report, kind) for kind in KINDS}
    row.bad += [f"{count} × {fault}" for fault, count in report.faults.items()]
    refusals = [f"{count} × refused: {why}" for why, count in report.refusals.items()]
    (row.notes if attack.may_refuse else row.bad).extend(refusals)
    if done.consumer_memory >= MEMORY:
        row.bad.append(f"the consumer took {_mebibytes(done.consumer_memory)} MiB, not under 1024")
    answers = ", ".join(f"{count} × {code}" for code, count in done.answers.most_common(6))
    row.notes.append(f"{done.requests} requests; answers by code: {answers or 'none'}")
    row.notes += done.notes
    row.acks = [*report.acks, *done.acks]


def _look_and_restart(row: Row, server: Server) -> None:
    """Raises Unusable or NotStarted."""
    if not row.attack.kills:
        if server.exit_code is not None:
            row.is_alive = False
            row.bad.append(f"the server ended with {server.exit_code}")
        else:
            try:
                row.missing = find_missing(server.broker, row.acks)
                _stop(row, server)
            except (ConnectionError, TimeoutError) as error:
                row.is_alive = False
                row.bad.append(f"frozen: {error!r}")
                server.kill()
    if row.attack.disk is not None:
        ballast(server.data.parent, is_off=True)
    peak, server.memory = server.memory, Memory()
    try:
        server.start(RESTART_SECONDS)
        again = find_missing(server.broker, row.acks)
    except NotStarted as error:
        raise NotStarted(f"the restart failed: {error}") from None
    except (ConnectionError, TimeoutError) as error:
        raise Unusable(f"not served after the restart: {error!r}") from None
    finally:
        server.memory = peak
    row.missing += [f"{line} (after the restart)" for line in again]


def _stop(row: Row, server: Server) -> None:
    code = server.stop()
    if code is None:
        row.is_alive = False
        row.bad.append("SIGTERM did not end it")
    elif code != 0 and row.attack.may_refuse:  # it could not save all it wanted, and said so
        row.notes.append(f"it ended with {code}")
    elif code != 0:
        row.is_alive = False
        row.bad.append(f"it ended with {code}")


def _mebibytes(count: int) -> int:
    return round(count / 2**20)


# Output.


def heading(arguments: argparse.Namespace) -> None:
    load = " ".join(f"{each:.2f}" for each in os.getloadavg())
    print(
        f"{os.cpu_count()} cores, load {load}, Linux {platform.release()}, Python "
        f"{platform.python_version()}, flush {arguments.flush}, {arguments.seconds:g} s each; "
        "attackers at nice 10",
        file=sys.stderr,
        flush=True,
    )
    if not arguments.json:
        columns = [f"{kind} p50/p99/worst" for kind in KINDS]
        print(_line("attack", columns, "anon", "RSS", "acknowledged", "alive"), flush=True)


def _line(name: str, times: list[str], *rest: str) -> str:
    middle = " ".join(f"{one:>20}" for one in times)
    return f"{name:<17} {middle} {rest[0]:>6} {rest[1]:>6}  {rest[2]:<22} {rest[3]}"


def show(row: Row) -> None:
    if row.skipped:
        print(f"{row.attack.name:<17} skipped: {row.skipped}", flush=True)
        return
    found = (percentiles(kind, row.latencies.get(kind, [])) for kind in KINDS)
    times = [f"{one['p50']:.1f}/{one['p99']:.1f}/{one['worst']:.0f}" for one in found]
    memory = [str(_mebibytes(row.memory.anonymous)), str(_mebibytes(row.memory.resident))]
    there = f"{len(row.missing):,} of {len(row.acks):,} MISSING"
    if not row.missing:
        there = f"all {len(row.acks):,} there" if row.acks else "none"
    print(_line(row.attack.name, times, *memory, there, "yes" if row.is_alive else "NO"))
    for note in row.notes:
        print(f"    {note}")
    for line in row.missed():
        print(f"  ! {line}")
    sys.stdout.flush()


def show_json(row: Row) -> None:
    figures: list[tuple[str, str, float, float | None]] = []
    for kind, times in row.latencies.items():
        limits = {"p50": None, "p99": P99, "worst": WORST}
        found = percentiles(kind, times)
        figures += [(f"{kind} {name}", "ms", found[name], limits[name]) for name in limits]
    if not row.skipped and not row.attack.must_not_start:
        anonymous, resident = row.memory.anonymous / 2**20, row.memory.resident / 2**20
        figures.append(("peak memory, anonymous", "MiB", anonymous, MEMORY / 2**20))
        figures.append(("peak memory, resident", "MiB", resident, None))
        figures.append(("acknowledged", "messages", len(row.acks), None))
        figures.append(("acknowledged and missing", "messages", len(row.missing), 0))
    figures.append(("skipped", "", 1, None) if row.skipped else ("alive", "", row.is_alive, 1))
    figures.append(("other faults", "", len(row.bad), 0))
    for name, unit, ours, target in figures:
        line: dict[str, Any] = {
            "bench": "hostile",
            "case": f"{row.attack.name}: {name}",
            "unit": unit,
            "ours": round(ours, 2),
            "peer": None,
            "peer_name": None,
            "ratio": None,
            "target": target,
        }
        print(json.dumps(line), flush=True)
    for text in (*row.notes, *row.missed()):
        print(f"{row.attack.name}: {text}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--list", action="store_true", help="print the attacks and end")
    parser.add_argument(
        "--only", action="append", choices=ATTACKS, metavar="NAME", help="one attack"
    )
    parser.add_argument("--seconds", type=float, default=12.0, metavar="S", help="of each attack")
    parser.add_argument("--scale", type=float, default=1.0, metavar="X", help="of the counts")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of what is random")
    parser.add_argument("--flush", choices=["sync", "async"], default="sync")
    parser.add_argument("--directory", help="where to put the stores; a temporary one if not given")
    arguments = parser.parse_args()
    if arguments.list:
        for attack in ATTACKS.values():
            print(f"{attack.name:<17} {attack.about}")
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended then too
    heading(arguments)
    missed = []
    for name in arguments.only or ATTACKS:
        directory = Path(tempfile.mkdtemp(prefix="tamis-hostile-", dir=arguments.directory))
        try:
            row = measure(ATTACKS[name], directory, arguments)
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        (show_json if arguments.json else show)(row)
        missed += [name] if row.missed() else []
    if missed:
        print(f"hostile: targets missed: {', '.join(missed)}", file=sys.stderr)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
