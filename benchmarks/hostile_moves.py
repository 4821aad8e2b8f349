"""What each attack of `hostile_attacks.py` does, in a function of its `Target`.

Each function does a bounded number of things and ends when the target's time is over; `scale` makes
the numbers smaller. It leaves in `target.done` what it did and what was acknowledged to it.
"""

import base64
import contextlib
import itertools
import json
import os
import random
import resource
import selectors
import ssl
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hostile_wire import (
    Ack,
    Stream,
    ack_of,
    ask_frame,
    create_topic,
    heartbeat,
    oneway_frame,
    pull,
    request,
    send,
)

from tamis.errors import RemoteProtocolError
from tamis.wire import record
from tamis.wire.codes import RequestCode
from tamis.wire.command import Command
from tamis.wire.frame import MAX_FRAME
from tamis.wire.headers import (
    GetConsumeStats,
    GetRoute,
    OfTopic,
    OfTopicAndGroup,
    PutKvConfig,
    QueryConsumeQueue,
    RegisterBroker,
    UpdateConsumerOffset,
)

__all__ = ["Done", "Target"]

FRAMES = Path(__file__).parents[1] / "tests" / "golden" / "frames"
COMPRESSED = 1  # of a message's system flag
CONSUME_SECONDS = 60.0
CONSUMER_LIMIT = 6 * 2**30  # bytes of address space
Code = RequestCode


@dataclass
class Done:
    """What an attack did: requests sent, answers by code, messages acknowledged to it."""

    requests: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    acks: list[Ack] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    consumer_memory: int = 0  # bytes, the most that a consumer beside it had resident


class Target:
    """Where an attack goes, how long and how much of it there is; and what it did."""

    def __init__(
        self, broker: str, nameserver: str, seconds: float, scale: float, seed: int
    ) -> None:
        self.broker = broker
        self.nameserver = nameserver
        self.seconds = seconds
        self.scale = scale
        self.rng = random.Random(seed)
        self.deadline = time.monotonic() + seconds
        self.done = Done()

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self.deadline

    def many(self, count: int) -> int:
        """So many, to scale."""
        return max(int(count * self.scale), 1)

    def stream(self, address: str = "", **options: Any) -> Stream:
        return Stream(address or self.broker, answers=self.done.answers, **options)

    def pour(self, frames: Iterator[bytes], *, answered: bool = True, address: str = "") -> None:
        with self.stream(address) as stream:
            self.done.requests += stream.pour(frames, self.deadline, answered=answered)

    def ask(self, stream: Stream, command: Command) -> Command:
        self.done.requests += 1
        return stream.ask(command)

    def ask_until_over(self, commands: Iterator[Command], address: str = "") -> None:
        """One after the other, each when the one before is answered or given up."""
        while not self.is_over:
            try:
                with self.stream(address) as stream:
                    while not self.is_over:
                        self.ask(stream, next(commands))
            except OSError as error:
                self.done.answers[type(error).__name__] += 1
                time.sleep(0.05)

    def send(self, stream: Stream, topic: str, queue_id: int, body: bytes, **options: Any) -> bool:
        """Return whether it was acknowledged, and then remember it."""
        answer = self.ask(stream, send(topic, queue_id, body, **options))
        if answer.code == 0:
            self.done.acks.append(ack_of(topic, body, answer))
        return answer.code == 0

    def hold(self) -> None:
        """Stay as it is until the time is over."""
        time.sleep(max(self.deadline - time.monotonic(), 0))


# Topics, queues, descriptors.


def nothing(target: Target) -> None:
    target.hold()


def new_topics(target: Target) -> None:
    names = (f"New-{n}" for n in range(target.many(100_000)))
    target.pour((oneway_frame(send(name, 0, b"x")) for name in names), answered=False)
    target.hold()


def every_queue(target: Target) -> None:
    with target.stream() as stream:
        for queue_id in range(target.many(1024)):
            target.send(stream, "BenchmarkTest", queue_id, f"queue {queue_id}".encode())
        for n in range(target.many(2000)):
            if target.is_over:
                break
            target.send(stream, f"Every-{n}", n % 4, f"topic {n}".encode())


def many_topics(target: Target) -> None:
    target.deadline += 3 * target.seconds  # a tool waits for its answers
    names = (f"Many-{n:06}-".ljust(100, "x") for n in range(target.many(80_000)))
    target.pour(ask_frame(create_topic(name, 8)) for name in names)
    time.sleep(target.seconds / 4)  # for the registration of all of them


def topic_changes(target: Target) -> None:
    queues = (1 + n % 16 for n in range(target.many(100_000)))
    target.pour(ask_frame(create_topic("Changing", count)) for count in queues)


def odd_names(target: Target) -> None:
    names = [
        "../../escape",
        "/tmp/escape",
        "a/b",
        "..",
        ".",
        "",
        "a\0b",
        "x" * 4000,
        "~",
        "%n",
        "\n",
    ]

    def commands() -> Iterator[Command]:
        for n in itertools.count():
            name = names[n % len(names)]
            yield send(name, 0, b"x")
            yield create_topic(name, 4)
            yield heartbeat(name, [{"groupName": name}])
            yield _commit_offset(name, name, n)
            yield pull(name, 0, 0, group=name)

    target.ask_until_over(commands())


# Groups, offsets, locks.


def big_heartbeat(target: Target) -> None:
    def commands() -> Iterator[Command]:
        for n in itertools.count():
            groups = [{"groupName": f"G{n}-{i}"} for i in range(target.many(100_000))]
            yield heartbeat(f"127.0.0.1@{n}", groups)

    target.ask_until_over(commands())


def new_groups(target: Target) -> None:
    ids = range(target.many(100_000))
    beats = (heartbeat(f"127.0.0.1@new-{n}", [{"groupName": f"New-{n}"}]) for n in ids)
    target.pour(ask_frame(beat) for beat in beats)


def made_up_offsets(target: Target) -> None:
    ids = range(target.many(1_000_000))
    commits = (_commit_offset(f"Made-up-{n}", f"Topic-{n}", n) for n in ids)
    target.pour((oneway_frame(commit) for commit in commits), answered=False)
    target.hold()


def _commit_offset(group: str, topic: str, offset: int) -> Command:
    header = UpdateConsumerOffset(
        consumer_group=group, topic=topic, queue_id=0, commit_offset=offset
    )
    return request(header)


def many_locks(target: Target) -> None:
    def commands() -> Iterator[Command]:
        for n in itertools.count():
            queues = [
                {"topic": f"T{n}", "brokerName": "broker-a", "queueId": i}
                for i in range(target.many(100_000))
            ]
            body = {"clientId": f"c{n}", "consumerGroup": f"locks-{n}", "mqSet": queues}
            yield Command(code=Code.LOCK_BATCH_MQ, body=json.dumps(body).encode())

    target.ask_until_over(commands())


# Filters.


def long_filters(target: Target) -> None:
    def commands() -> Iterator[Command]:
        for n in itertools.count():
            groups = [
                {
                    "groupName": f"filters-{i}",
                    "subscriptionDataSet": [
                        {
                            "topic": "Filtered",
                            "subString": _long_sql(target, n * 8 + i),
                            "expressionType": "SQL92",
                            "subVersion": n + 1,
                        }
                    ],
                }
                for i in range(8)
            ]
            yield heartbeat("127.0.0.1@filters", groups)

    target.ask_until_over(commands())


def filters_in_pulls(target: Target) -> None:
    with target.stream() as stream:
        target.send(stream, "Filtered", 0, b"x")
    sql = (_long_sql(target, n, is_bad=n % 2 == 1) for n in itertools.count())
    target.ask_until_over(pull("Filtered", 0, 0, sql=one) for one in sql)


def long_tags(target: Target) -> None:
    """Pulls that bring as many tags as are allowed, or more, and are held for an hour; heartbeats
    with as many."""
    with target.stream() as stream:
        target.send(stream, "Tagged", 0, b"x")

    def commands(name: str) -> Iterator[Command]:
        for n in itertools.count():
            count = 50_000 if n % 4 == 3 else 8_000
            tags = [f"{n}{i:x}" for i in range(target.many(count))]
            yield pull("Tagged", 0, 1, hold=3600, tags="||".join(tags))
            if n % 8 == 0:
                subscription = {"topic": "Tagged", "subString": "||".join(tags), "tagsSet": tags}
                group = {"groupName": f"tagged-{name}", "subscriptionDataSet": [subscription]}
                yield heartbeat(f"tagged-{name}", [group])
                yield pull("Tagged", 0, 0, group=f"tagged-{name}")

    with contextlib.ExitStack() as stack:
        for number in range(8):
            one = stack.enter_context(target.stream(timeout=1.0))
            for command in commands(str(number)):
                try:
                    one.socket.sendall(ask_frame(command))
                except OSError:
                    break
                target.done.requests += 1
                if target.is_over or target.done.requests > target.many(800) * (number + 1):
                    break
        target.hold()


def filters_to_check(target: Target) -> None:
    def commands() -> Iterator[Command]:
        for n in itertools.count():
            subscription = {
                "topic": "Filtered",
                "subString": _long_sql(target, n, is_bad=n % 2 == 1),
                "expressionType": "SQL92",
            }
            body = {"clientId": "c", "group": "checked", "subscriptionData": subscription}
            yield Command(code=Code.CHECK_CLIENT_CONFIG, body=json.dumps(body).encode())

    target.ask_until_over(commands())


def _long_sql(target: Target, number: int, *, is_bad: bool = False) -> str:
    """Nearly 60,000 characters, others for each number; a bad one is bad at its end."""
    parts = [f"(p{i % 50} = 'v{number}-{i}' AND q{i % 7} > {i})" for i in range(2000)]
    text = " OR ".join(parts)[: target.many(59_000)]
    return text[: text.rfind(")") + 1] + (" AND AND" if is_bad else "")


# Expensive questions.


def queue_listing(target: Target) -> None:
    count, step = target.many(200_000), 1000
    items = b"".join(record.batch_item(b"%d" % n) for n in range(min(step, count)))
    with target.stream() as stream:
        target.ask(stream, create_topic("Listed", 1))
        for _ in range(-(-count // step)):
            target.ask(stream, send("Listed", 0, items, batch=True))
    target.deadline = time.monotonic() + target.seconds
    listing = QueryConsumeQueue(topic="Listed", queue_id=0, index=0, count=count)
    target.ask_until_over(itertools.repeat(request(listing)))


def statistics(target: Target) -> None:
    topic, group = "Wide", "wide"
    with target.stream() as stream:
        target.ask(stream, create_topic(topic, target.many(10_000)))
        target.send(stream, topic, 0, b"x")
        target.ask(stream, heartbeat("127.0.0.1@wide", [{"groupName": group}]))
        target.ask(stream, _commit_offset(group, topic, 0))
        beat = [{"groupName": group, "subscriptionDataSet": [{"topic": topic, "subString": "*"}]}]
        target.ask(stream, heartbeat("127.0.0.1@wide", beat))
        questions = [
            request(OfTopic(topic=topic), Code.GET_TOPIC_STATS_INFO),
            request(GetConsumeStats(consumer_group=group, topic=topic)),
            request(OfTopicAndGroup(topic=topic, group=group), Code.QUERY_CONSUME_TIME_SPAN),
            Command(code=Code.GET_BROKER_CONSUME_STATS, fields={"isOrder": "false"}),
        ]
        target.ask_until_over(itertools.cycle(questions))


def pipelined_questions(target: Target) -> None:
    questions = [
        ask_frame(Command(code=code))
        for code in (
            Code.GET_BROKER_RUNTIME_INFO,
            Code.GET_ALL_TOPIC_CONFIG,
            Code.GET_BROKER_CONFIG,
            Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        )
    ]
    target.pour(itertools.islice(itertools.cycle(questions), target.many(400_000)))


def held_pulls(target: Target) -> None:
    with contextlib.ExitStack() as stack, target.stream() as stream:
        target.ask(stream, create_topic("Held", 4))
        frames = b"".join(ask_frame(pull("Held", n % 4, 0, hold=60)) for n in range(1000))
        for _ in range(target.many(100)):
            one = stack.enter_context(target.stream(timeout=1.0))
            with contextlib.suppress(OSError):
                one.socket.sendall(frames)
                target.done.requests += 1000
            if target.is_over:
                break
        target.hold()


# Connections and bytes.


def slow_readers(target: Target) -> None:
    body = os.urandom(8192)
    with target.stream() as stream:
        target.ask(stream, create_topic("Large", 1))
        for _ in range(32):
            target.send(stream, "Large", 0, body)
    pulls = ask_frame(pull("Large", 0, 0)) * 64  # 16 MiB of answers for each connection
    with contextlib.ExitStack() as stack:
        for _ in range(target.many(400)):
            one = stack.enter_context(target.stream(timeout=1.0, receive_buffer=4096))
            with contextlib.suppress(OSError):
                one.socket.sendall(pulls)
                target.done.requests += 64
            if target.is_over:
                break
        target.hold()


def partial_frames(target: Target) -> None:
    data = memoryview(bytes(MAX_FRAME))
    opened = 0
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
        for _ in range(target.many(300)):
            size = target.rng.randrange(4 * 2**20, MAX_FRAME - 4)
            one = stack.enter_context(target.stream(timeout=1.0))
            one.socket.sendall(size.to_bytes(4) + (100).to_bytes(4))
            one.socket.setblocking(False)
            left = data[: size - 5]  # all of the frame but its last byte
            selector.register(one.socket, selectors.EVENT_WRITE, left)
            opened += 1
        sent, closed = 0, 0
        while selector.get_map() and not target.is_over:
            for key, _ in selector.select(0.1):
                try:
                    count = key.fileobj.send(key.data)  # type: ignore[union-attr]
                except OSError:
                    selector.unregister(key.fileobj)
                    closed += 1
                    continue
                sent += count
                if count == len(key.data):
                    selector.unregister(key.fileobj)
                else:
                    selector.modify(key.fileobj, selectors.EVENT_WRITE, key.data[count:])
        target.done.notes.append(
            f"{opened} connections sent {sent >> 20} MiB of unfinished frames; {closed} were closed"
        )
        target.hold()


def idle_connections(target: Target) -> None:
    count = target.many(10_000)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    count = min(count, hard - 100)
    with contextlib.ExitStack() as stack:
        for n in range(count):
            address = target.nameserver if n % 10 == 0 else target.broker
            try:
                stack.enter_context(target.stream(address, timeout=5.0))
            except OSError as error:
                target.done.answers[type(error).__name__] += 1
                break
        target.done.notes.append(f"{n + 1} connections were open")
        target.deadline = max(target.deadline, time.monotonic() + target.seconds / 2)
        target.hold()


def open_handshakes(target: Target) -> None:
    """Each a whole hello, or the beginning of one; none goes on."""
    count = target.many(10_000)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    hello = _hello()
    with contextlib.ExitStack() as stack:
        for n in range(min(count, hard - 100)):
            address = target.nameserver if n % 10 == 0 else target.broker
            part = hello if n % 4 else hello[: target.rng.randrange(1, len(hello))]
            try:
                stack.enter_context(target.stream(address, timeout=5.0)).socket.sendall(part)
            except OSError as error:
                target.done.answers[type(error).__name__] += 1
        target.done.notes.append(f"{n + 1} handshakes were begun")
        target.deadline = max(target.deadline, time.monotonic() + target.seconds / 2)
        target.hold()


def _hello() -> bytes:
    """What a client of TLS says first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def mutated_frames(target: Target) -> None:
    recorded: list[tuple[str, bytes]] = []
    for path in sorted(FRAMES.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            one = json.loads(line)
            if one["to"] == "server":
                address = target.nameserver if one["peer"] == "nameserver" else target.broker
                recorded.append((address, base64.b64decode(one["frame"])))
    rng, count = target.rng, 0
    while not target.is_over and count < target.many(50_000):
        address, _ = rng.choice(recorded)
        frames = [frame for to, frame in recorded if to == address]
        with contextlib.suppress(OSError, RemoteProtocolError), target.stream(address) as stream:
            stream.socket.settimeout(0.05)
            for _ in range(rng.randrange(1, 20)):
                stream.socket.sendall(_mutate(rng, rng.choice(frames)))
                count += 1
            stream.receive()
    target.done.requests += count


def _mutate(rng: random.Random, frame: bytes) -> bytes:
    data = bytearray(frame)
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(data))
        match rng.randrange(6):
            case 0:
                data[at] = rng.randrange(256)
            case 1:
                data[at:at] = rng.randbytes(rng.randrange(1, 9))
            case 2:
                del data[at : at + rng.randrange(1, 9)]
            case 3:
                data[at:] = data[: len(data) - at]
            case 4:
                digits = str(rng.choice([-1, 0, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 10**30]))
                data[at : at + len(digits)] = digits.encode()
            case 5:
                data[:4] = (len(data) - 4 & 0x7FFFFFFF).to_bytes(4)  # its length is right again
        data = data or bytearray(frame)
    return bytes(data)


# Bombs.


def bombs(target: Target) -> None:
    size = target.many(1024)  # MiB each, of which a thousandth is sent
    packer = zlib.compressobj(9)
    zeros = bytes(2**20)
    body = b"".join(packer.compress(zeros) for _ in range(size)) + packer.flush()
    with target.stream() as stream:
        target.ask(stream, create_topic("Bombs", 1))
        for _ in range(3):
            target.send(stream, "Bombs", 0, body, sys_flag=COMPRESSED)
    # limited, for the machine's sake: it is the consumer that a bomb is meant for
    line = ["sh", "-c", f'ulimit -v {CONSUMER_LIMIT >> 10}; exec "$@"', "sh"]
    line += [str(Path(sys.executable).with_name("tamis")), "consume", "-n", target.nameserver]
    consumer = subprocess.Popen(
        [*line, "Bombs", "--format", "json"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert consumer.stderr is not None
    try:
        said = consumer.communicate(timeout=CONSUME_SECONDS)[1].decode(errors="replace").strip()
    except subprocess.TimeoutExpired:
        consumer.kill()
        said = f"killed after {CONSUME_SECONDS:g} s"
        consumer.communicate()
    # of all children that ended, but there is only this one
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    target.done.consumer_memory = peak
    target.done.notes.append(
        f"tamis consume peaked at {peak >> 20} MiB and ended with {consumer.returncode}"
        + (f": {said.splitlines()[-1][:160]}" if said else "")
    )


def nameserver_bombs(target: Target) -> None:
    """A quarter of the time each: large registrations, compressed ones, many brokers, many keys."""
    topics = {
        f"Route-{n}": {
            "topicName": f"Route-{n}",
            "readQueueNums": 8,
            "writeQueueNums": 8,
            "perm": 6,
        }
        for n in range(target.many(100_000))
    }
    table = {"topicConfigTable": topics, "dataVersion": {"timestamp": 1, "counter": 1}}
    large = json.dumps({"topicConfigSerializeWrapper": table, "filterServerList": []}).encode()
    packer = zlib.compressobj(9)
    zeros = bytes(2**20)
    bomb = b"".join(packer.compress(zeros) for _ in range(target.many(1024))) + packer.flush()
    small = json.dumps(
        {
            "topicConfigSerializeWrapper": table
            | {"topicConfigTable": dict(list(topics.items())[:20])}
        }
    ).encode()

    def brokers() -> Iterator[Command]:
        for n in itertools.count():
            yield _registration(f"stranger-{n}", n, small)
            yield request(GetRoute(topic=f"Route-{n % 20}", accept_standard_json_only=True))

    def keys() -> Iterator[Command]:
        for n in itertools.count():
            yield request(PutKvConfig(namespace=f"ns{n % 100}", key=f"k{n}", value="v" * 1000))

    larges = (_registration(f"large-{n % 20}", n, large) for n in itertools.count())
    packed = (_registration(f"bomb-{n}", n, bomb, compressed=True) for n in itertools.count())
    for commands in (larges, packed, brokers(), keys()):
        target.deadline = time.monotonic() + target.seconds / 4
        target.ask_until_over(commands, target.nameserver)


def _registration(name: str, number: int, body: bytes, *, compressed: bool = False) -> Command:
    header = RegisterBroker(
        broker_name=name,
        broker_addr=f"127.0.0.1:{1 + number % 60_000}",
        cluster_name="Strangers",
        broker_id=0,
        compressed=compressed,
        body_crc32=zlib.crc32(body) & 0x7FFFFFFF,
    )
    return request(header, body=body)


# Settings.


def odd_settings(target: Target) -> None:
    changes = (
        'regionId=x","code":0,"y":"',
        "regionId=a\\u0022b\\",
        "regionId=" + "r" * 60_000,
        "flushIntervalCommitLog=1e300",
        "flushIntervalCommitLog=nan",
        "flushIntervalCommitLog=500",
        "maxMessageSize=-1",
        "maxTransferBytesOnMessageInMemory=99999999999999999999",
        "maxTransferBytesOnMessageInMemory=262144",
        "shortPollingTimeMills=-5",
        "pullScanSeconds=inf",
        "brokerPermission=9",
        "listenPort=1",
        "regionId=DefaultRegion",
    )
    bodies = itertools.cycle(change.encode() for change in changes)
    target.ask_until_over(Command(code=Code.UPDATE_BROKER_CONFIG, body=body) for body in bodies)
    with target.stream() as stream:
        for change in (b"regionId=DefaultRegion", b"flushIntervalCommitLog=500"):
            target.ask(stream, Command(code=Code.UPDATE_BROKER_CONFIG, body=change))


# Disasters, with a producer of many messages.


def busy_sends(target: Target) -> None:
    """Many in flight on one connection; goes on until the server is gone or the time is over."""
    bodies: dict[int, bytes] = {}
    with contextlib.suppress(OSError), target.stream() as stream:
        target.ask(stream, create_topic("Busy", 4))
        for number in itertools.count(1):
            body = f"{number}:".encode().ljust(500, b".")
            bodies[number] = body
            command = send("Busy", number % 4, body)
            command.opaque = number
            stream.socket.sendall(ask_frame(command))
            target.done.requests += 1
            while len(bodies) >= 64 or (target.is_over and bodies):
                for answer in stream.receive():
                    sent = bodies.pop(answer.opaque)
                    if answer.code == 0:
                        target.done.acks.append(ack_of("Busy", sent, answer))
            if target.is_over:
                return


def fill_disk(target: Target) -> None:
    _send_until_refused(target, lambda number: ("Full", os.urandom(50_000)))


def use_inodes(target: Target) -> None:
    _send_until_refused(target, lambda number: (f"Inodes-{number}", b"%d" % number))


def _send_until_refused(target: Target, message: Callable[[int], tuple[str, bytes]]) -> None:
    """Until nothing is taken any more, and some more."""
    refused = 0
    try:
        with target.stream() as stream:
            for number in range(100_000):
                topic, body = message(number)
                refused += not target.send(stream, topic, number % 4, body, queues=4)
                if target.is_over or refused > 200:
                    break
    except OSError as error:
        target.done.answers[type(error).__name__] += 1
    target.done.notes.append(f"{len(target.done.acks)} taken, {refused} refused")
