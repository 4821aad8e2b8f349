"""What does it cost to know why a message was not consumed?

    .venv/bin/python benchmarks/bench_fate.py [--json] [--only TEXT] [--directory DIR]

explain: one message and 100 groups, each with a reading, half of them by SQL; from the request's
bytes to the answer's, in the broker's loop; the median of 50 questions.
history: the processor time a broker takes for a pull of 32 messages of 1 KiB, and for a heartbeat
of 20 groups of which one in ten has new versions, from a socket to the socket; what recording takes
of it, measured alone; and the ratio of the whole to the rest. 1.00 is no cost, the target 1.02.
lag: how many matching messages wait for each of 100 groups on 10 million messages (fate_lag.py).
audit: the fates of 5 million messages for 20 groups on Spark, beside a plain scan (fate_audit.py).
"""

import argparse
import asyncio
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tamis.broker.broker import Broker
from tamis.broker.config import BrokerConfig
from tamis.broker.handlers.onepull import Pull
from tamis.net.aio import Peer
from tamis.net.longwork import Long
from tamis.net.server import Request
from tamis.store.select import Selection
from tamis.wire import beans, properties
from tamis.wire import command as commands
from tamis.wire.bodies import ConsumerData, Heartbeat, Subscription, TopicConfig
from tamis.wire.codes import RequestCode
from tamis.wire.command import Command
from tamis.wire.headers import ExplainMessage, PullMessage
from tamis.wire.record import Draft

TOPIC = "Orders"
GROUPS = 100
MESSAGES = 20_000
ROUNDS = 40
TURN = 400  # requests in a turn


@dataclass(frozen=True)
class Figure:
    """`ours` in `unit`; `ratio` is ours to the peer's."""

    case: str
    unit: str
    ours: float
    peer: float | None = None
    peer_name: str | None = None
    target: float | None = None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases with TEXT in their name")
    parser.add_argument("--directory", help="where to put stores; a temporary one if not given")
    arguments = parser.parse_args()
    root = Path(tempfile.mkdtemp(dir=arguments.directory))
    cases: dict[str, Callable[[Path], Iterator[Figure]]] = {
        "explain": explain,
        "history": history,
        "lag": lag,
        "audit": audit,
    }
    try:
        for name, case in cases.items():
            if arguments.only in name:
                for figure in case(root / name):
                    report(arguments.json, figure)
    finally:
        shutil.rmtree(root)


def report(as_json: bool, figure: Figure) -> None:
    ratio = None if figure.peer is None else figure.ours / figure.peer
    if as_json:
        row = {
            "bench": "fate",
            "case": figure.case,
            "unit": figure.unit,
            "ours": round(figure.ours, 3),
            "peer": None if figure.peer is None else round(figure.peer, 3),
            "peer_name": figure.peer_name,
            "ratio": None if ratio is None else round(ratio, 3),
            "target": figure.target,
        }
        print(json.dumps(row), flush=True)
        return
    against = "" if ratio is None else f"  {ratio:6.3f} × {figure.peer_name}"
    wanted = "" if figure.target is None else f"  (target {figure.target:g})"
    print(f"{figure.case:<52} {figure.ours:>14,.2f} {figure.unit}{against}{wanted}", flush=True)


class Scene:
    """A broker that does not listen, and requests that are handed to its handlers."""

    def __init__(self, root: Path) -> None:
        self.broker = Broker(BrokerConfig(port=0, flush="async"), root)
        self.peer = Peer(lambda peer, requests: None)

    async def start(self) -> None:
        await self.broker.start()
        self.broker.topics.put(TopicConfig(name=TOPIC, read_queues=4, write_queues=4))
        block = properties.encode(
            {"TAGS": "PAID", "UNIQ_KEY": "K" * 32, "price": "250", "region": "eu"}
        ).encode()
        drafts = [
            Draft(topic=TOPIC, queue_id=n % 4, body=b"x" * 1024, properties=block)
            for n in range(MESSAGES)
        ]
        for at in range(0, MESSAGES, 1000):
            self.broker.store.append(drafts[at : at + 1000])
        self.broker.store.dispatch()

    def pull(self, group: str, queue_id: int, offset: int, version: int = 0) -> Request:
        header = PullMessage(
            consumer_group=group,
            topic=TOPIC,
            queue_id=queue_id,
            queue_offset=offset,
            max_msg_nums=32,
            sys_flag=0,
            suspend_timeout_millis=0,
            sub_version=version,
            expression_type="TAG",
        )
        return Request(self.peer, Command(code=RequestCode.PULL_MESSAGE, fields=header.to_fields()))

    def heartbeat(self, groups: list[str], version: int = 1) -> Request:
        consumers = [
            ConsumerData(group=name, subscriptions=[subscription(number, version)])
            for number, name in enumerate(groups)
        ]
        body = beans.encode(Heartbeat(client_id="bench", producers=[], consumers=consumers))
        return Request(self.peer, Command(code=RequestCode.HEART_BEAT, body=body))

    async def ask(self, request: Request) -> Any:
        """What the broker's table makes of a request, header and all."""
        route = self.broker.server._routes[request.command.code]
        header = None if route.header is None else route.header.from_fields(request.command.fields)
        result = route.handle(header, request)
        if isinstance(result, Long):
            result = self.broker.server.work.finish(request.peer, result)
        return await result if asyncio.iscoroutine(result) else result


def subscription(number: int, version: int) -> Subscription:
    if number % 2:
        expression = f"price > {number} AND region = 'eu'"
        return Subscription(
            topic=TOPIC, expression=expression, expression_type="SQL92", version=version
        )
    return Subscription(topic=TOPIC, expression="PAID", tags=["PAID"], version=version)


def explain(root: Path) -> Iterator[Figure]:
    async def measure() -> float:
        scene = Scene(root)
        await scene.start()
        groups = [f"group-{number}" for number in range(GROUPS)]
        await scene.ask(scene.heartbeat(groups))
        for group in groups:
            await scene.ask(scene.pull(group, 0, 0))
            scene.broker.offsets.commit(group, TOPIC, 0, 32)
            scene.broker.recorder.committed(group, TOPIC, 0, None, 32, scene.peer)
        times = []
        for number in range(50):
            header = ExplainMessage(topic=TOPIC, queue_id=0, offset=number % 32)
            command = Command(code=RequestCode.EXPLAIN_MESSAGE, fields=header.to_fields())
            began = time.perf_counter()
            answer = await scene.ask(Request(scene.peer, command))
            times.append(time.perf_counter() - began)
            said = json.loads(answer.body)["groups"]
            assert [one["fate"] for one in said] == ["CONSUMED"] * GROUPS, said[0]
        await scene.broker.close()
        return statistics.median(times) * 1000

    yield Figure(f"explain: one message, {GROUPS} groups", "ms", asyncio.run(measure()), target=50)


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def times_of(connection: Connection, requests: list[Request]) -> float:
    """Processor seconds for each request, sent in one go and answered over a socket."""
    reader, writer = connection
    frames = b"".join(commands.encode(request.command) for request in requests)
    began = time.thread_time()
    writer.write(frames)
    for _ in requests:
        size = int.from_bytes(await reader.readexactly(4))
        await reader.readexactly(size)
    return (time.thread_time() - began) / len(requests)


def history(root: Path) -> Iterator[Figure]:
    """The difference between two runs is less than their noise: what recording takes is measured
    alone, and set against the whole."""

    async def measure() -> dict[str, tuple[float, float]]:
        scene = Scene(root)
        await scene.start()
        broker, beats = scene.broker, [f"beat-{number}" for number in range(20)]
        connection = await asyncio.open_connection("127.0.0.1", broker.port)
        await times_of(connection, [scene.heartbeat(["pulls"])])
        pulls = [scene.pull("pulls", 0, 32 * n) for n in range(TURN // 4)]
        whole: dict[str, list[float]] = {"pull": [], "heartbeat": []}
        for number in range(ROUNDS):
            whole["pull"].append(await times_of(connection, pulls))
            heartbeats = [scene.heartbeat(beats, number + 2)] * 10  # a version, as at a rebalance
            whole["heartbeat"].append(await times_of(connection, heartbeats))
        alone = {
            "pull": await record_pulls(scene, pulls),
            "heartbeat": record_changes(scene, beats) / 10,
        }
        connection[1].close()
        await broker.close()
        return {what: (statistics.median(times), alone[what]) for what, times in whole.items()}

    measured = asyncio.run(measure())
    for what, case in (("pull", "a pull of 32"), ("heartbeat", "a heartbeat of 20 groups")):
        ours, recording = (1e6 * seconds for seconds in measured[what])
        yield Figure(
            f"history: {case}, of which recording {recording:.2f}", "µs", ours, ours - recording,
            "the same, not recorded", target=1.02,
        )  # fmt: skip


async def record_pulls(scene: Scene, requests: list[Request]) -> float:
    """Processor seconds that recording takes for each of these pulls, which follow each other."""
    answered: list[tuple[Pull, Selection]] = []
    record = Pull._record

    def note(pull: Pull, selection: Selection) -> None:
        answered.append((pull, selection))
        record(pull, selection)

    Pull._record = note  # type: ignore[method-assign]
    for request in requests:
        await scene.ask(request)
    Pull._record = record  # type: ignore[method-assign]
    reader = scene.broker.recorder._readers["pulls", TOPIC, 0, ""]
    times = []
    for _ in range(ROUNDS):
        reader.span.end = 0
        began = time.thread_time()
        for pull, selection in answered:
            record(pull, selection)
        times.append((time.thread_time() - began) / len(answered))
    return statistics.median(times)


def record_changes(scene: Scene, groups: list[str]) -> float:
    """Processor seconds for noticing that of these groups' subscriptions only versions changed."""
    consumers, recorder = scene.broker.consumers, scene.broker.recorder
    known = [consumers.groups[name] for name in groups]
    members = [next(iter(group.members.values())) for group in known]
    times = []
    for _ in range(ROUNDS):
        began = time.thread_time()
        for group, member in zip(known, members, strict=True):
            recorder.member_changed(group, member, member.subscriptions)
        times.append(time.thread_time() - began)
    return statistics.median(times)


def lag(root: Path) -> Iterator[Figure]:
    import fate_lag

    for row in fate_lag.figures(root):
        yield Figure(**row)


def audit(root: Path) -> Iterator[Figure]:
    import fate_audit

    for row in fate_audit.figures(root):
        yield Figure(**row)


if __name__ == "__main__":
    main()
