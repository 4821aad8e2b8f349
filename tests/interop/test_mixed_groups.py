"""Members of Apache's Java client and of ours in one group: each works out its share of the queues
for itself, and nobody tells it that it is wrong. So the shares are compared, through joins, leaves
and crashes, and every message is followed to whoever handled it.
"""

import itertools
import json
import os
import secrets
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pytest
from interop.cluster import Target, apache_cluster, our_cluster
from interop.javaclient import LINES, JavaClient, wait_for

from tamis.client import assign
from tamis.wire.bodies import MessageQueue

# Seconds: longer than the minute that a lock lives at the broker. A Java member that stops while it
# is being given a queue may leave it locked.
PATIENCE = 100.0
LOCKS = 100.0  # a broker keeps the lock of an ordered member that died for sixty of them
SETTINGS: dict[str, object] = {"messageDelayLevel": "3s 1s 1s 1s", "enablePropertyFilter": True}
LOCK_BATCH, MEMBER_IDS = 41, 38  # requests
ONCE = itertools.count(1)


class Heard(NamedTuple):
    """A message that a handler was given."""

    queue: int
    body: str
    reconsume_times: int
    topic: str


class Member(Protocol):
    name: str
    is_ours: bool

    def share(self, topic: str) -> list[int]:
        """The queues it has now."""

    def heard(self) -> list[Heard]:
        """In order; also when it is gone."""

    def log(self) -> str: ...

    def leave(self) -> None: ...

    def crash(self) -> None: ...


# Ours, in a process of its own. It writes down what it is given before it says that it is done.
PROGRAM = """
import asyncio, json, logging, os, sys
from tamis.client import ConsumerConfig, PushConsumer, RetryLater

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")

async def main():
    given = json.loads(sys.stdin.readline())
    failing, gate = given["failing"], given["gate"]
    log = open(given["log"], "a", buffering=1)

    async def handle(message):
        if gate and message.text == "held":
            open(gate + ".reached", "w").close()
            while not os.path.exists(gate):
                await asyncio.sleep(0.01)
        await asyncio.sleep(given["pause"])
        said = [message.queue.queue_id, message.text, message.reconsume_times, message.topic]
        print(json.dumps(said), file=log)
        if failing and failing in message.text and not message.reconsume_times:
            raise RetryLater(1)

    config = ConsumerConfig(**given["config"])
    consumer = PushConsumer(
        given["nameserver"], given["group"], handle, ordered=given["ordered"], config=config
    )
    for topic, filter in given["topics"].items():
        consumer.subscribe(topic, **filter)
    async with consumer:
        print(json.dumps(consumer.client_id), flush=True)
        while await asyncio.to_thread(sys.stdin.readline) == "assignment\\n":
            queues = [(one.topic, one.queue_id) for one in consumer.assignment]
            print(json.dumps(queues), flush=True)

asyncio.run(main())
"""


class PythonMember:
    is_ours = True

    def __init__(self, name: str, home: Path, given: Mapping[str, Any], **more: Any) -> None:
        self.name = name
        self._log = home / f"{name}.heard"
        self._errors = home / f"{name}.err"
        self._log.touch()
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        config = {
            "client_ip": "127.0.0.1",
            "instance_name": f"{name}-{secrets.token_hex(4)}",
            "start": "first",
            "strategy": given["strategy"],
            "route_interval": 0.5,
            "heartbeat_interval": 0.5,
            "rebalance_interval": 1.0,
            "commit_interval": 0.2,
            "drain": 30.0,
        }
        defaults = {"failing": "", "gate": "", "pause": 0.0, "log": str(self._log)}
        self._tell(json.dumps({**given, "config": config, **defaults, **more}))
        try:
            self._answer()  # it has joined
        except BaseException:
            self.end()
            raise

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"{self.name} has gone\n{self.log()[-3000:]}"
        return line

    def share(self, topic: str) -> list[int]:
        self._tell("assignment")
        return [queue for name, queue in json.loads(self._answer()) if name == topic]

    def heard(self) -> list[Heard]:
        lines = self._log.read_text().splitlines(keepends=True)
        return [Heard(*json.loads(line)) for line in lines if line.endswith("\n")]

    def log(self) -> str:
        return self._errors.read_text()

    def leave(self) -> None:
        self._tell("leave")
        code = self._process.wait(PATIENCE)
        assert code == 0, self.log()[-3000:]
        self.end()

    def crash(self) -> None:
        self._process.kill()
        self.end()

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


class JavaMember:
    """One of the consumers of a JVM. A crash is that of the JVM."""

    is_ours = False

    def __init__(self, name: str, java: JavaClient, given: Mapping[str, Any], **more: Any) -> None:
        self.name = name
        self._java = java
        self._heard: list[Heard] | None = None
        java.push(
            name,
            given["group"],
            given["topics"],
            ordered=given["ordered"],
            strategy=given["strategy"],
            **more,
        )

    def share(self, topic: str) -> list[int]:
        return self._java.assignment(self.name, topic)

    def heard(self) -> list[Heard]:
        if self._heard is not None:
            return self._heard
        rows = self._java.received(self.name, seconds=0)
        return [
            Heard(row["queue"], row["body"], row["reconsume_times"], row["topic"]) for row in rows
        ]

    def log(self) -> str:
        return self._java.log()

    def leave(self) -> None:
        self._java.stop(self.name)
        self._heard = self.heard()

    def crash(self) -> None:
        """What it was given after it was asked here is not known any more."""
        self._heard = self.heard()
        self._java._process.kill()
        self._java._process.wait()

    def end(self) -> None:
        if self._heard is None:
            self.leave()


class Bench:
    """A cluster, and a JVM for what is no member: topics, sends, looks at the broker."""

    def __init__(self, target: Target, line: str, control: JavaClient) -> None:
        self.target = target
        self.line = line
        self.control = control
        control.producer()


# Our own broker too if asked for: two minutes more, which CI has not.
TARGETS = [*LINES, "ours"] if os.environ.get("TAMIS_MIXED_ON_OURS") else LINES


@pytest.fixture(scope="module", params=TARGETS)
def bench(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bench]:
    store = tmp_path_factory.mktemp("store") / "store"
    line = "4.9" if request.param == "ours" else request.param
    with ExitStack() as stack:
        target: Target
        if request.param == "ours":
            target = stack.enter_context(our_cluster(store, **SETTINGS))
        else:
            target = stack.enter_context(apache_cluster(store, line=line, **SETTINGS))
        control = stack.enter_context(JavaClient(line, target.nameserver))
        yield Bench(target, line, control)


class Group:
    """A group, its topic, its members, and all that was sent: bodies are never the same twice."""

    def __init__(
        self,
        bench: Bench,
        home: Path,
        *,
        queues: int = 8,
        strategy: str = "AVG",
        ordered: bool = False,
        filter: Mapping[str, str] | None = None,
    ) -> None:
        self._bench = bench
        self._home = home
        number = next(ONCE)
        self.topic = bench.control.create_topic(
            bench.target.broker, bench.control.name(f"Mixed{number}"), queues
        )
        self.group = bench.control.name(f"mixed{number}")
        self.queues = queues
        self._strategy = strategy
        self._given = {
            "nameserver": bench.target.nameserver,
            "group": self.group,
            "topics": {self.topic: dict(filter or {})},
            "ordered": ordered,
            "strategy": strategy,
        }
        self.members: dict[str, Member] = {}
        self.all: list[PythonMember | JavaMember] = []
        self.sent: dict[str, int] = {}  # body to queue
        self._numbers = itertools.count()

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        if error is not None:
            for member in self.all:
                error.add_note(f"--- {member.name}\n{member.log()[-3000:]}")
        for member in self.all:
            member.end()

    # Members come and go

    def add_python(self, name: str, **more: Any) -> PythonMember:
        member = PythonMember(name, self._home, self._given, **more)
        self.all.append(member)
        self.members[name] = member
        return member

    def add_java(self, name: str, java: JavaClient | None = None, **more: Any) -> JavaMember:
        member = JavaMember(name, java or self._bench.control, self._given, **more)
        self.all.append(member)
        self.members[name] = member
        return member

    def remove(self, name: str) -> None:
        self.members.pop(name).leave()

    def crash(self, name: str) -> None:
        self.members.pop(name).crash()

    # Messages

    def send(self, each: int = 4, queues: list[int] | None = None, **more: Any) -> list[str]:
        """So many to every queue; their bodies."""
        rows = []
        for _ in range(each):
            for queue in range(self.queues) if queues is None else queues:
                body = f"{next(self._numbers)}"
                self.sent[body] = queue
                rows.append({"topic": self.topic, "body": body, "queue": queue, **more})
        self.send_rows(*rows)
        return [row["body"] for row in rows]

    def send_rows(self, *rows: dict[str, Any]) -> None:
        done = self._bench.control.send("producer", *rows)
        assert [row.get("status") for row in done] == ["SEND_OK"] * len(rows), done

    def handlers(self) -> dict[str, list[str]]:
        """Who handled a body, by name."""
        found: dict[str, list[str]] = defaultdict(list)
        for member in self.all:
            for one in member.heard():
                found[one.body].append(member.name)
        return found

    def complete(self, seconds: float = PATIENCE) -> None:
        """All that was sent has been handled."""
        wait_for(
            lambda: sorted(set(self.sent) - set(self.handlers())), lambda gap: not gap, seconds
        )

    # Who has which queues

    def shares(self) -> dict[str, list[int]]:
        return {name: member.share(self.topic) for name, member in self.members.items()}

    def expected(self) -> dict[str, list[int]] | None:
        """By the broker's list of members; None if that is not what it has to be yet."""
        control, broker = self._bench.control, self._bench.target.broker
        answer = control.request(broker, MEMBER_IDS, {"consumerGroup": self.group})
        ids = json.loads(answer["body"] or b"{}").get("consumerIdList", [])
        queues = [MessageQueue(self.topic, "broker-a", n) for n in range(self.queues)]
        found = {}
        for name in self.members:
            mine = [one for one in ids if one.startswith(f"127.0.0.1@{name}-")]
            if len(mine) != 1:
                return None
            share = assign.assign(assign.STRATEGIES[self._strategy], queues, ids, mine[0])
            found[name] = sorted(queue.queue_id for queue in share)
        return found if len(ids) == len(found) else None

    def settle(self, seconds: float = PATIENCE) -> dict[str, list[int]]:
        """The shares, once there is no overlap, no gap, and each is what the strategy says."""

        def is_settled(seen: tuple[dict[str, list[int]], dict[str, list[int]] | None]) -> bool:
            shares, expected = seen
            one = sorted(queue for share in shares.values() for queue in share)
            return one == list(range(self.queues)) and shares == expected

        shares: dict[str, list[int]]
        shares, _ = wait_for(lambda: (self.shares(), self.expected()), is_settled, seconds)
        return shares

    def check(self, seconds: float = PATIENCE) -> None:
        """Settled: each message is handled once, by the member that has its queue."""
        owners = {queue: name for name, share in self.settle(seconds).items() for queue in share}
        self.complete()
        bodies = self.send()
        self.complete()
        handlers = self.handlers()
        wrong = {
            body: (handlers[body], owners[self.sent[body]])
            for body in bodies
            if handlers[body] != [owners[self.sent[body]]]
        }
        assert not wrong, f"handled by, and the owner: {wrong}"


# Concurrent members


@pytest.mark.parametrize("strategy", ["AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH"])
def test_members_of_both_kinds_share_the_queues_through_joins_leaves_and_crashes(
    bench: Bench, tmp_path: Path, strategy: str
) -> None:
    with (
        Group(bench, tmp_path, strategy=strategy) as group,
        JavaClient(bench.line, bench.target.nameserver) as mortal,
    ):
        group.send()
        group.add_java("b-java")
        group.check()
        group.send()
        group.add_python("a-python")
        group.check()
        group.send()
        group.add_python("d-python", pause=0.3)  # longer than between two commits
        group.check()
        group.send()
        group.add_java("c-java", mortal)
        group.check()

        [dying] = [one for one in group.all if one.name == "d-python"]
        before = len(dying.heard())
        if dying.share(group.topic):  # it dies in the middle of its work
            group.send(each=20)
            wait_for(dying.heard, lambda heard: len(heard) > before, PATIENCE)
        group.crash("d-python")
        group.send()
        group.check()

        group.crash("c-java")
        group.send()
        group.check()

        group.add_python("e-python")
        group.check()
        group.send()
        group.remove("b-java")
        group.check()
        group.send()
        group.remove("a-python")
        group.check()
        group.add_java("f-java")
        group.check()
        group.send()
        group.remove("e-python")
        group.check()


def test_a_group_goes_on_where_its_last_member_of_the_other_kind_stopped(
    bench: Bench, tmp_path: Path
) -> None:
    with Group(bench, tmp_path, queues=2) as group:
        for turn in range(4):
            bodies = group.send(each=10)  # nobody is there
            name = f"m{turn}"
            member = group.add_java(name) if turn % 2 else group.add_python(name)
            group.complete()
            group.remove(name)
            assert sorted(one.body for one in member.heard()) == sorted(bodies)
            offsets = [(turn + 1) * 10] * 2
            bench.control.await_commits(bench.target.broker, group.group, group.topic, offsets)


@pytest.mark.parametrize("ours_first", [True, False])
def test_what_a_member_of_one_kind_fails_is_retried_by_one_of_the_other(
    bench: Bench, tmp_path: Path, ours_first: bool
) -> None:
    with Group(bench, tmp_path, queues=2) as group:
        failing: PythonMember | JavaMember
        if ours_first:
            failing = group.add_python("fails", failing="bad")
        else:
            failing = group.add_java("fails", failing="bad", fail=1)
        group.settle()
        bad = {"bad-0", "bad-1"}
        group.send_rows(*({"topic": group.topic, "body": f"bad-{n}", "queue": n} for n in range(2)))
        wait_for(failing.heard, lambda heard: bad <= {one.body for one in heard}, PATIENCE)
        group.remove("fails")
        again = {(body, 1, group.topic) for body in bad - retried(failing)}
        retrying = group.add_java("retries") if ours_first else group.add_python("retries")
        wait_for(
            lambda: {one[1:] for one in retrying.heard()}, lambda seen: again <= seen, PATIENCE
        )


def retried(member: Member) -> set[str]:
    """What came back to it before it was gone."""
    return {one.body for one in member.heard() if one.reconsume_times}


@pytest.mark.parametrize(
    "filter", [{"tags": "A || B"}, {"sql": "n > 5 AND region IN ('eu', 'us')"}], ids=["tags", "sql"]
)
def test_a_group_that_filters_gets_what_matches_and_no_more(
    bench: Bench, tmp_path: Path, filter: dict[str, str]
) -> None:
    with Group(bench, tmp_path, queues=4, filter=filter) as group:
        matching, others = set[str](), set[str]()

        def send() -> None:
            """To every queue, one of each kind."""
            for tag, n, region in (
                ("A", 6, "eu"),
                ("B", 7, "us"),
                ("C", 6, "asia"),
                ("D", 5, "eu"),
            ):
                properties = {"n": f"{n}", "region": region}
                bodies = group.send(each=2, tags=tag, properties=properties)
                (matching if tag in "AB" else others).update(bodies)
                if tag not in "AB":
                    for body in bodies:
                        del group.sent[body]  # nobody is to handle it

        def check() -> None:
            owners = {queue: name for name, share in group.settle().items() for queue in share}
            group.complete()
            before = set(group.sent)
            send()
            group.complete()
            handlers = group.handlers()
            for body in set(group.sent) - before:
                assert handlers[body] == [owners[group.sent[body]]]
            assert not others & set(handlers)

        group.add_java("a-java")
        check()
        group.add_python("b-python")
        check()
        group.add_python("c-python")
        check()
        group.crash("b-python")
        send()
        check()
        group.remove("a-java")
        check()
        group.add_java("d-java")
        check()
        assert matching <= set(group.handlers())


# Ordered members


def locked_by_nobody(bench: Bench, group: Group) -> list[int]:
    """The queues whose lock a stranger is given, who then keeps it."""
    queues = [
        {"topic": group.topic, "brokerName": "broker-a", "queueId": n} for n in range(group.queues)
    ]
    body = {"consumerGroup": group.group, "clientId": "127.0.0.1@stranger", "mqSet": queues}
    answer = bench.control.request(bench.target.broker, LOCK_BATCH, body=body)
    assert answer["code"] == 0, answer
    return [queue["queueId"] for queue in json.loads(answer["body"])["lockOKMQSet"]]


def check_order(group: Group) -> None:
    """Whoever handles a queue's messages, it is in their order; what came twice came to a second
    member as its first."""
    for member in group.all:
        by_queue: dict[int, list[int]] = defaultdict(list)
        for one in member.heard():
            if one.body.isdigit():
                by_queue[one.queue].append(int(one.body))
        for queue, numbers in by_queue.items():
            assert numbers == sorted(numbers), f"{member.name}, queue {queue}: {numbers}"


def test_ordered_members_of_both_kinds_never_have_a_queue_at_a_time(
    bench: Bench, tmp_path: Path
) -> None:
    with Group(bench, tmp_path, queues=4, ordered=True) as group:
        gate = tmp_path / "gate"
        group.send(each=5)
        group.add_python("a-python", gate=str(gate), pause=0.005)
        group.check()
        assert locked_by_nobody(bench, group) == []

        # The last queue is to be the Java member's, but a message of it is still being handled.
        group.send_rows({"topic": group.topic, "body": "held", "queue": 3})
        group.send(each=1, queues=[3])
        wait_for(gate.with_suffix(".reached").exists, bool, PATIENCE)
        java = group.add_java("b-java")
        wait_for(lambda: group.members["a-python"].share(group.topic), lambda s: s == [0, 1])
        more = group.send(each=5, queues=[0, 1])
        wait_for(group.handlers, lambda seen: set(more) <= set(seen), PATIENCE)
        assert 3 not in java.share(group.topic)
        assert 3 not in {one.queue for one in java.heard()}
        gate.touch()
        group.check()
        assert group.handlers()["held"] == ["a-python"]
        assert locked_by_nobody(bench, group) == []
        check_order(group)

        for change in (
            lambda: group.add_python("c-python", pause=0.005),
            lambda: group.add_java("d-java"),
            lambda: group.remove("a-python"),
            lambda: group.remove("b-java"),
            lambda: group.add_python("e-python"),
            lambda: group.remove("d-java"),
            lambda: group.remove("c-python"),
        ):
            group.send(each=10)
            change()
            group.send(each=10)
            group.check()
            check_order(group)
            assert locked_by_nobody(bench, group) == []


def test_the_queues_of_an_ordered_member_that_dies_go_to_one_of_the_other_kind(
    bench: Bench, tmp_path: Path
) -> None:
    """Once its locks have expired at the broker."""
    if bench.line != LINES[0]:
        pytest.skip("locks take a minute to expire: shown on the first line")
    (tmp_path / "java").mkdir()
    with (
        JavaClient(bench.line, bench.target.nameserver) as mortal,
        Group(bench, tmp_path, queues=4, ordered=True) as of_ours,
        Group(bench, tmp_path / "java", queues=4, ordered=True) as of_theirs,
    ):
        of_ours.add_java("a-java")
        of_ours.add_python("b-python", pause=0.01)
        of_theirs.add_java("a-java-mortal", mortal)
        of_theirs.add_python("b-python")
        of_ours.check()
        of_theirs.check()

        [dying] = [one for one in of_ours.all if one.is_ours]
        before = len(dying.heard())
        of_ours.send(each=20)
        wait_for(dying.heard, lambda heard: len(heard) > before, PATIENCE)
        of_ours.crash("b-python")
        of_theirs.crash("a-java-mortal")
        of_ours.send()
        of_theirs.send()
        of_theirs.check(LOCKS)
        of_ours.check(LOCKS)
        check_order(of_ours)
        check_order(of_theirs)
