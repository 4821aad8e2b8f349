"""How long does it take until something is ready, on a new machine and later?

    .venv/bin/python benchmarks/bench_start.py [--json] [--before COMMIT] [--orders N]
        [--only up,cluster,pipeline]

Cold is a machine where no loop is compiled, warm one where all are. `tamis up` and a `LocalCluster`
are timed until they are ready, in wall time and in CPU seconds of their process: what another
process compiles meanwhile is not waited for, and told apart. The example pipeline
(`examples/orders`) runs over N orders that lie in a broker: the whole command; its first batch, as
long as Spark says that it took (`durationMs.triggerExecution`); and the time from the beginning of
the command until that batch is written. CPU seconds are those of all its processes, Java's too.
The pipeline is new where Java's classes are not kept yet (loops are compiled), warm where they are.
With --before the same is measured in a worktree of that commit, with the same Python, and the ratio
printed; that commit must know `[run] metrics`.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
CASES = ("up", "cluster", "pipeline")
TARGETS = {
    "tamis up, cold": 10.0,
    "tamis up, warm": 3.0,
    "pipeline, warm: first batch": 8.0,
    "pipeline, warm": 20.0,
}

CLUSTER = """
from tamis.testing import LocalCluster
with LocalCluster():
    print("ready", flush=True)
    input()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--before", metavar="COMMIT", help="measure this one too")
    parser.add_argument("--only", default=",".join(CASES), metavar="CASES")
    parser.add_argument("--orders", type=int, default=30_000, metavar="N")
    arguments = parser.parse_args()
    wanted = arguments.only.split(",")
    if unknown := set(wanted) - set(CASES):
        parser.error(f"--only {','.join(unknown)}: there are {', '.join(CASES)}")
    with tempfile.TemporaryDirectory(prefix="tamis-start-") as name:
        home = Path(name)
        ours = Machine(ROOT, home / "now").measure(wanted, arguments.orders)
        theirs = {}
        if arguments.before:
            with tree_of(arguments.before, home / "before-tree") as tree:
                theirs = Machine(tree, home / "before").measure(wanted, arguments.orders)
    for (case, unit), value in ours.items():
        report(arguments, case, unit, value, theirs.get((case, unit)))


Figures = dict[tuple[str, str], float]


class Machine:
    """A tree of Tamis, and a directory that stands for a new machine's."""

    def __init__(self, tree: Path, home: Path) -> None:
        self.home = home
        home.mkdir()
        self.environment = os.environ | {
            "PYTHONPATH": str(tree / "src"),
            "NUMBA_CACHE_DIR": str(home / "numba"),
            "XDG_CACHE_HOME": str(home / "cache"),
            "TAMIS_SPARK_KEEP": "off",  # not in the background: the next case is measured then
        }
        self.environment.pop("TAMIS_LOOPS", None)
        self.figures: Figures = {}

    def measure(self, wanted: list[str], orders: int) -> Figures:
        up = [sys.executable, "-m", "tamis", "up", "--data", str(self.home / "data")]
        up += ["--port", "0", "--nameserver-port", "0", "--filter-servers", "0"]
        if "up" in wanted:
            shutil.rmtree(self.home / "numba", ignore_errors=True)
            self._server("tamis up, cold", up)
            self._warm()
            self._server("tamis up, warm", up)
        if "cluster" in wanted:
            cluster = [sys.executable, "-c", CLUSTER]
            shutil.rmtree(self.home / "numba", ignore_errors=True)
            self._server("LocalCluster, cold", cluster)
            self._warm()
            self._server("LocalCluster, warm", cluster)
        if "pipeline" in wanted:
            self._warm()
            self._pipeline(up, orders)
        return self.figures

    def _warm(self, *more: str) -> None:
        """Compile everything; the old trees do so when a cluster starts."""
        subprocess.run(
            [sys.executable, "-m", "tamis", "warm", "--quiet", *more],
            env=self.environment,
            stderr=subprocess.DEVNULL,
            check=False,
        )
        subprocess.run(
            [sys.executable, "-c", CLUSTER],
            env=self.environment,
            input=b"\n",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )

    def _server(self, case: str, command: list[str]) -> None:
        began = time.monotonic()
        with self._running(command) as (server, _):
            self.figures[case, "s"] = time.monotonic() - began
            self.figures[case, "CPU s"] = cpu_seconds(server.pid)

    @contextmanager
    def _running(self, command: list[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
        with (self.home / "log").open("w") as log:
            server = subprocess.Popen(
                command,
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
            compilers: list[int] = []
            try:
                assert server.stdout is not None
                told = server.stdout.readline()
                if "ready" not in told:
                    raise SystemExit((self.home / "log").read_text())
                compilers = children(server.pid)
                yield server, told
            finally:
                for pid in compilers:  # the next case is to find the machine idle
                    os.kill(pid, signal.SIGKILL)
                server.send_signal(signal.SIGTERM)
                server.communicate()

    def _pipeline(self, up: list[str], orders: int) -> None:
        with self._running(up) as (_, told):
            nameserver = told.split("name server ")[1].split(",")[0]
            send = [sys.executable, "-c", SEND, nameserver, str(orders)]
            subprocess.run(send, env=self.environment, check=True)
            self._example("pipeline, new", nameserver)
            self._warm("--spark")
            self._example("pipeline, warm", nameserver)

    def _example(self, case: str, nameserver: str) -> None:
        folder = self.home / case.replace(", ", "-")
        shutil.copytree(ROOT / "examples" / "orders", folder)
        shutil.rmtree(folder / "out", ignore_errors=True)
        file = folder / "pipeline.toml"
        text = file.read_text().replace("127.0.0.1:9876", nameserver)
        file.write_text(f'[run]\nmetrics = "metrics.jsonl"\n{text}')
        self._run(case, file)

    def _run(self, case: str, file: Path) -> None:
        began = time.monotonic()
        run = subprocess.Popen(
            [sys.executable, "-m", "tamis", "pipeline", "run", str(file)],
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        first = 0.0
        used: dict[str, float] = {}  # by process; Spark leaves Java to itself, nobody waits for it
        while run.poll() is None:
            used |= session_cpu(run.pid)
            if not first and any((file.parent / "out").glob("*/batch=*")):
                first = time.monotonic() - began
            time.sleep(0.05)
        if run.returncode:
            raise SystemExit(f"{case}: exit code {run.returncode}")
        line = (file.parent / "metrics.jsonl").read_text().splitlines()[0]
        self.figures[f"{case}: first batch", "s"] = json.loads(line)["seconds"]
        self.figures[f"{case}: written after", "s"] = first
        self.figures[case, "s"] = time.monotonic() - began
        self.figures[case, "CPU s"] = sum(used.values())


SEND = """
import random, sys
from tamis.client import Message, blocking

nameserver, count = sys.argv[1], int(sys.argv[2])
chance = random.Random(7)
with blocking.Admin(nameserver) as admin:
    admin.create_topic("Orders", queues=4)
messages = [
    Message("Orders", b"x" * 100, tags=chance.choice(["PAID", "REFUND", "NEW"]), keys=f"order-{i}",
            properties={"region": chance.choice(["eu", "us"]), "vip": chance.choice(["true", "no"]),
                        "price": f"{chance.randrange(5, 400)}.0"})
    for i in range(count)
]
with blocking.Producer(nameserver, "bench") as producer:
    for at in range(0, count, 500):
        producer.send_batch(messages[at : at + 500])
"""


@contextmanager
def tree_of(commit: str, path: Path) -> Iterator[Path]:
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "--quiet", "--detach", str(path), commit], check=True)
    try:
        yield path
    finally:
        subprocess.run([*git, "remove", "--force", str(path)], check=True)


def cpu_seconds(pid: int) -> float:
    """Of a process, without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def session_cpu(leader: int) -> dict[str, float]:
    """CPU seconds of the processes of a session."""
    used = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(fields[3]) == leader:
            ticks = int(fields[11]) + int(fields[12])
            used[path.parent.name] = ticks / os.sysconf("SC_CLK_TCK")
    return used


def children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += map(int, (task / "children").read_text().split())
    return found


def report(
    arguments: argparse.Namespace, case: str, unit: str, ours: float, before: float | None
) -> None:
    target = TARGETS.get(case) if unit == "s" else None
    ratio = before / ours if before is not None and ours else None
    if arguments.json:
        row = {"bench": "start", "case": case, "unit": unit, "ours": ours, "peer": before}
        row |= {"peer_name": arguments.before, "ratio": ratio, "target": target}
        print(json.dumps(row), flush=True)
        return
    text = f"{case:<32} {ours:8.2f} {unit:<6}"
    if before is not None:
        text += f" before {before:8.2f}, {ratio or 0:5.1f} times as fast"
    if target is not None:
        text += f" (target: {target:g})"
    print(text, flush=True)


if __name__ == "__main__":
    main()
