"""Groups whose members subscribe to one topic with different tags, as scenarios for real clients.

A scenario is run against a cluster whose broker has SETTINGS and one of the policies for such
groups. It returns an `Outcome`: what was sent where, which member's listener was given what, and
which messages were lost although a member wanted them. A check given to it is called while the
cluster and the members still run.

`race` is the timeline of `client.md` §10, for RocketMQ and for our policy `rocketmq`;
`second_member_refused` is for `reject`, `each_by_its_own` for `isolate`.
"""

import itertools
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Protocol

from interop.cluster import Target
from interop.cppclient import CppClient
from interop.javaclient import JavaClient, Row, wait_for
from interop.jsclient import JsClient

# A pull that finds nothing is answered after half a second instead of fifteen: only then does a
# client commit that it has passed messages that were not for it.
SETTINGS: dict[str, object] = {"longPollingEnable": False, "shortPollingTimeMills": 500}
QUEUES = 4
PATIENCE = 60.0  # seconds for a condition to come about
HEARTBEAT, MEMBER_CONNECTIONS, COMMITTED_OFFSET = 34, 203, 14  # requests
EXPLAIN_MESSAGE = 12310  # a request of ours
NOT_ONLINE = 206  # no member has joined


class Position(NamedTuple):
    queue: int
    offset: int


@dataclass(frozen=True, order=True)
class Sent:
    """A message as it was sent."""

    position: Position
    tag: str
    message_id: str  # names the broker and the place in its log


class Member(Protocol):
    """A consumer of the group; `expression` is what it subscribes with to get its `tags`."""

    name: str
    tags: frozenset[str]
    expression: str

    def received(self) -> list[Position]:
        """All that its listener was given, in order; also after it has left."""

    def owned(self) -> list[int] | None:
        """The queues that it reads now; None if its client does not tell."""

    def leave(self) -> None:
        """Commits, says goodbye and ends."""


class JavaMember:
    def __init__(
        self,
        name: str,
        tags: Iterable[str],
        group: "Group",
        *,
        sql: bool = False,
        expression: str | None = None,
        **options: bool,
    ) -> None:
        self.name = name
        self.tags = frozenset(tags)
        self.is_sql = sql
        made = sql_expression(self.tags) if sql else tag_expression(self.tags)
        self.expression = made if expression is None else expression
        self._java = group.java
        self._topic = group.topic
        self._client = group.java.name(name)
        self._filter = {"sql" if sql else "tags": self.expression}
        self._left = False
        group.java.push(self._client, group.name, {group.topic: self._filter}, **options)

    def received(self) -> list[Position]:
        return _positions(self._java.received(self._client, seconds=0))

    def owned(self) -> list[int] | None:
        return [] if self._left else self._java.assignment(self._client, self._topic)

    def subscribe_again(self) -> None:
        """Gives its subscription a newer version than any other has."""
        self._java.subscribe(self._client, self._topic, self._filter)

    def leave(self) -> None:
        self._left = True
        self._java.stop(self._client)


class ForeignMember:
    """A consumer of the C++ or of the JavaScript client, in a process of its own."""

    def __init__(
        self,
        name: str,
        tags: Iterable[str],
        group: "Group",
        client: CppClient | JsClient,
    ) -> None:
        self.name = name
        self.tags = frozenset(tags)
        self.expression = tag_expression(self.tags)
        self._client = client
        client.ask(
            "consume",
            nameserver=group.target.nameserver,
            group=group.name,
            topic=group.topic,
            expression=self.expression,
        )

    def received(self) -> list[Position]:
        return _positions(self._client.received)

    def owned(self) -> list[int] | None:
        return None

    def leave(self) -> None:
        self._client.close()


class Group:
    """A group on a topic of its own, and all that was sent to it; a context manager that ends the
    members."""

    def __init__(
        self, target: Target, java: JavaClient, home: Path, *, queues: int = QUEUES
    ) -> None:
        java.renew()
        java.nameserver = target.nameserver
        self.target = target
        self.java = java
        self.topic = java.create_topic(target.broker, java.name("Disagreed"), queues)
        self.name = java.name("disagreeing")
        self.queues = range(queues)
        self.members: dict[str, Member] = {}  # those that have left, too
        self.sent: list[Sent] = []
        self._home = home
        self._processes = ExitStack()
        java.producer()

    def __enter__(self) -> "Group":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            error.add_note(f"--- Java client\n{self.java.log()[-3000:]}")
        self._processes.close()
        self.java.stop_all()

    def add_java(
        self,
        name: str,
        *tags: str,
        sql: bool = False,
        expression: str | None = None,
        **options: bool,
    ) -> JavaMember:
        """With options of `JavaClient.push`: `ordered`, or `post_subscription` for a member whose
        pulls bring its expression, which may be another one that gets it these tags, such as *."""
        member = JavaMember(name, tags, self, sql=sql, expression=expression, **options)
        self.members[name] = member
        return member

    def add_cpp(self, name: str, *tags: str) -> Member:
        return self._add_foreign(name, tags, CppClient(self._home / name))

    def add_js(self, name: str, *tags: str) -> Member:
        return self._add_foreign(name, tags, JsClient(self._home / name))

    def _add_foreign(
        self, name: str, tags: Iterable[str], client: CppClient | JsClient
    ) -> ForeignMember:
        self._processes.enter_context(client)
        member = ForeignMember(name, tags, self, client)
        self.members[name] = member
        return member

    def remove(self, name: str) -> None:
        """The member leaves; what it received is still known."""
        self.members[name].leave()

    def send(self, *tags: str) -> list[Sent]:
        """To each queue a message with each of the tags, in their order."""
        rows: list[Row] = [
            {"topic": self.topic, "queue": queue, "tags": tag, "body": f"{tag} in {queue}"}
            for tag, queue in itertools.product(tags, self.queues)
        ]
        results = self.java.send("producer", *rows)
        assert [result.get("status") for result in results] == ["SEND_OK"] * len(rows), results
        sent = [
            Sent(Position(result["queue"], result["offset"]), row["tags"], result["offset_msg_id"])
            for row, result in zip(rows, results, strict=True)
        ]
        self.sent += sent
        return sent

    def received(self) -> dict[str, list[Position]]:
        """What each member's listener was given, sorted."""
        return {name: sorted(member.received()) for name, member in self.members.items()}

    def owners(self) -> dict[int, list[str]]:
        """By queue, the Java members that read it."""
        owned = {name: member.owned() or [] for name, member in self.members.items()}
        return {queue: [name for name in owned if queue in owned[name]] for queue in self.queues}

    def await_owners(self, expected: Mapping[int, Sequence[str]]) -> None:
        wait_for(self.owners, lambda owners: owners == expected, PATIENCE)

    def connections(self) -> tuple[set[str], str | None]:
        """The client ids and the expression that the broker shows for the group."""
        answer = self.java.request(
            self.target.broker, MEMBER_CONNECTIONS, {"consumerGroup": self.name}
        )
        if answer["code"] == NOT_ONLINE:
            return set(), None
        body = json.loads(answer["body"])
        ids = {connection["clientId"] for connection in body["connectionSet"]}
        return ids, body["subscriptionTable"].get(self.topic, {}).get("subString")

    def winners(self) -> list[str]:
        """The members whose expression the broker shows for the whole group."""
        shown = self.connections()[1]
        return [name for name, member in self.members.items() if member.expression == shown]

    def await_winner(self, name: str) -> None:
        wait_for(self.winners, lambda winners: winners == [name], PATIENCE)

    def await_joined(self, count: int) -> None:
        wait_for(self.connections, lambda seen: len(seen[0]) == count, PATIENCE)

    def committed(self) -> list[int]:
        """The group's offset in each queue, as tools see it; -1 where there is none."""
        fields = {"consumerGroup": self.name, "topic": self.topic}
        answers = (
            self.java.request(self.target.broker, COMMITTED_OFFSET, {**fields, "queueId": queue})
            for queue in self.queues
        )
        return [int((answer["fields"] or {}).get("offset", -1)) for answer in answers]

    def ends(self) -> list[int]:
        """By queue, the offset after the last message, which a broker itself knows a little later
        than its producer."""
        offsets = [-1 for _ in self.queues]
        for message in self.sent:
            offsets[message.position.queue] = message.position.offset
        return [offset + 1 for offset in offsets]

    def await_rest(self, seconds: float = PATIENCE) -> list[int]:
        """The committed offsets, when they are the ends of the queues: tools show a Diff of 0."""
        ends = self.ends()
        wait_for(self.committed, lambda committed: committed == ends, seconds)
        return ends

    def track(self, message: Sent) -> str:
        """What `mqadmin` says of a message and this group, such as CONSUMED."""
        [output] = self.java.admin(["queryMsgById", "-i", message.message_id])
        [track] = [line for line in output.splitlines() if f"consumerGroup={self.name}," in line]
        kind: str = track.partition("trackType=")[2].partition(",")[0]
        return kind

    def explain(self, message: Sent) -> Row:
        """What our broker says became of a message for this group: `fate`, `reason`, `evidence`."""
        queue, offset = message.position
        fields = {"topic": self.topic, "queueId": queue, "offset": offset, "group": self.name}
        answer = self.java.request(self.target.broker, EXPLAIN_MESSAGE, fields)
        assert answer["code"] == 0, answer
        [explained] = json.loads(answer["body"])["groups"]
        row: Row = explained
        return row

    def heartbeat(self, client_id: str, *tags: str) -> Row:
        """The broker's answer to a heartbeat of a member by that id, written by hand."""
        subscription = {
            "topic": self.topic,
            "subString": tag_expression(tags),
            "tagsSet": list(tags),
            "codeSet": [],
            "subVersion": 2**53,
            "expressionType": "TAG",
        }
        consumer = {
            "groupName": self.name,
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "subscriptionDataSet": [subscription],
            "unitMode": False,
        }
        body = {"clientID": client_id, "producerDataSet": [], "consumerDataSet": [consumer]}
        return self.java.request(self.target.broker, HEARTBEAT, body=body)


@dataclass(frozen=True)
class Outcome:
    """What came of the messages that were sent while the members disagreed."""

    tags: dict[str, frozenset[str]]  # by member, what it wants
    winners: list[str]  # members with the expression that the broker shows for the whole group
    owners: dict[int, list[str]]  # by queue, the Java members that read it
    sent: list[Sent]  # sorted
    received: dict[str, list[Position]]  # by member, sorted
    committed: list[int]  # by queue, at rest

    @property
    def lost(self) -> list[Sent]:
        """Those that some member wanted and no member's listener was given."""
        received = {position for positions in self.received.values() for position in positions}
        return [message for message in self.wanted if message.position not in received]

    @property
    def wanted(self) -> list[Sent]:
        """Those that some member wanted."""
        tags = frozenset[str]().union(*self.tags.values())
        return [message for message in self.sent if message.tag in tags]


Check = Callable[[Group, Outcome], None]


def race(
    target: Target,
    java: JavaClient,
    home: Path,
    *,
    winner: str | None = None,
    tags: tuple[Sequence[str], Sequence[str]] = (["TagA"], ["TagB"]),
    messages: Sequence[str] = ("TagA", "TagB") * 2,
    sql: bool = False,
    post_subscription: bool = False,
    pause: float = 0.0,
    check: Check | None = None,
) -> Outcome:
    """Member a has every queue when b joins, with other `tags`, and gets half of them. Then
    `messages` are sent, by their tags, to each queue. (One of TagA and one of TagB were sent before
    b came: offsets 0 and 1.)

    The broker filters for both by the expression whose version is newest: that of `winner`, or of
    whoever was assigned its queues last.

    Without a `pause` (in seconds) before `messages`, pulls of a for the queues that it has lost are
    still held by the broker, which answers them as well as those of b; a's client ignores that.
    """
    options = {"sql": sql, "post_subscription": post_subscription}
    with Group(target, java, home) as group:
        a = group.add_java("a", *tags[0], **options)
        group.await_owners({queue: ["a"] for queue in group.queues})
        group.send("TagA", "TagB")
        group.await_rest()
        alone = [message.position for message in group.sent if message.tag in a.tags]
        assert group.received() == {"a": sorted(alone)}

        b = group.add_java("b", *tags[1], **options)
        half = len(group.queues) // 2
        group.await_owners({queue: ["a" if queue < half else "b"] for queue in group.queues})
        if winner is not None:
            _win(group, {"a": a, "b": b}[winner])
        winners = group.winners()
        time.sleep(pause)

        sent = group.send(*messages)
        group.await_rest()
        outcome = _outcome(group, sent)
        assert outcome.winners == winners, "the subscription in force changed meanwhile"
        if check is not None:
            check(group, outcome)
        return outcome


def expected_in_race(
    outcome: Outcome, *, sql: bool = False, post_subscription: bool = False
) -> dict[str, list[Position]]:
    """By the table of `client.md` §10: a listener is given what passes the broker, which filters by
    the expression in force, and then its own client, which filters by its own tags, but not by SQL.
    """
    [winner] = outcome.winners
    received: dict[str, list[Position]] = {name: [] for name in outcome.tags}
    for message in outcome.sent:
        [owner] = outcome.owners[message.position.queue]
        passes_broker = message.tag in outcome.tags[owner if post_subscription else winner]
        if passes_broker and (sql or message.tag in outcome.tags[owner]):
            received[owner].append(message.position)
    return received


def second_member_refused(
    target: Target, java: JavaClient, home: Path, *, check: Check | None = None
) -> tuple[Outcome, Outcome]:
    """Under `reject`: a, who wants TagA, is there when b, who wants TagB, tries to join; then a
    leaves. Returns what came of the messages before and after that; the check is given the latter.
    """
    with Group(target, java, home) as group:
        group.add_java("a", "TagA")
        group.await_owners({queue: ["a"] for queue in group.queues})
        group.add_java("b", "TagB")
        refused = group.heartbeat("by-hand", "TagB")
        assert refused["code"] != 0, refused
        [accepted] = group.connections()[0]
        for text in "by-hand", accepted, "TagA", "TagB":
            assert text in refused["remark"], refused

        sent = group.send("TagA", "TagB", "TagA", "TagB")
        group.await_rest()
        before = _outcome(group, sent, "a")

        group.remove("a")
        group.await_owners({queue: ["b"] for queue in group.queues})
        sent = group.send("TagB", "TagA", "TagB")
        group.await_rest()
        after = _outcome(group, sent, "b")
        if check is not None:
            check(group, after)
        return before, after


AddMembers = Callable[[Group], None]


def each_by_its_own(
    target: Target,
    java: JavaClient,
    home: Path,
    add_members: AddMembers,
    *,
    messages: Sequence[str] = ("TagA", "TagB") * 2,
    check: Check | None = None,
) -> Outcome:
    """Under `isolate`: `add_members` starts the members, each with tags of its own."""
    with Group(target, java, home) as group:
        add_members(group)
        group.await_joined(len(group.members))
        sent = group.send(*messages)
        wait_for(lambda: _outcome(group, sent).lost, lambda lost: not lost, PATIENCE)
        group.await_rest()
        outcome = _outcome(group, sent)
        if check is not None:
            check(group, outcome)
        return outcome


def _win(group: Group, winner: JavaMember) -> None:
    """Has the winner subscribe last. If the other announces its new queues only after that, the
    scenario notices at its end that another subscription is in force."""
    winner.subscribe_again()
    group.await_winner(winner.name)


def _outcome(group: Group, sent: Sequence[Sent], *members: str) -> Outcome:
    """Of these members, or of all."""
    positions = {message.position for message in sent}
    received = group.received()
    return Outcome(
        tags={name: group.members[name].tags for name in members or group.members},
        winners=group.winners(),
        owners=group.owners(),
        sent=sorted(sent),
        received={
            name: [position for position in received[name] if position in positions]
            for name in received
        },
        committed=group.committed(),
    )


def tag_expression(tags: Iterable[str]) -> str:
    return " || ".join(sorted(tags))


def sql_expression(tags: Iterable[str]) -> str:
    return "TAGS IN ({})".format(", ".join(f"'{tag}'" for tag in sorted(tags)))


def _positions(rows: Iterable[Row]) -> list[Position]:
    return [Position(row["queue"], row["offset"]) for row in rows]
