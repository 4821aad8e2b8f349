"""What became of each message for one group, by a plain model of RocketMQ's rules.

It knows nothing of the broker's code or its history. It keeps the truth, message by message: who
read it, what the broker's look and the client's look said then, who in the group wanted it then,
and whether its reader acknowledged it. A fate follows from that by the words of the issue.

The rules: the broker has one subscription for the group, that of the highest version, and of
equal ones the first; SQL is filed apart, with a version of its own, and outlives the members. A
pull is filtered by it, or by what the pull brings. The client looks once more at tags, by its own
subscription. A member acknowledges what it was given since it took the queue, by committing an
offset that was not committed yet.
Whoever takes a queue begins at the committed offset. A crash loses what was not committed.
A member that takes a queue anew and begins exactly where it had read to goes on, as far as anybody
else can tell: the requests are the same.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

__all__ = ["FILTERS", "Expected", "Message", "Simulator", "Wish"]

HASHES = {"Aa": "Aa=BB", "BB": "Aa=BB"}  # Java's hashes of these two are equal


@dataclass(frozen=True)
class Message:
    queue: int
    offset: int
    tag: str | None
    price: str | None


@dataclass(frozen=True)
class Wish:
    """A subscription. `tags` is None for SQL, whose verdict on a price is `sql`."""

    text: str
    tags: frozenset[str] | None = None
    sql: str = ""

    @property
    def is_sql(self) -> bool:
        return self.tags is None

    @property
    def is_valid(self) -> bool:
        return self.sql != "invalid"

    def broker_says(self, message: Message) -> str:
        """yes, no or error"""
        if self.tags is None:
            return self._sql_says(message)
        if self.text == "*":
            return "yes"
        hashes = {HASHES.get(tag, tag) for tag in self.tags}
        return "yes" if HASHES.get(message.tag or "", message.tag) in hashes else "no"

    def _sql_says(self, message: Message) -> str:
        if self.sql == "tag A":
            return "yes" if message.tag == "A" else "no"
        if self.sql == "no price":
            return "yes" if message.price is None else "no"
        if self.sql == "above 5":
            if message.price is None:
                return "no"  # NULL
            return (
                ("yes" if int(message.price) > 5 else "no") if message.price != "much" else "error"
            )
        assert self.sql == "invalid"
        return "error"

    def client_keeps(self, message: Message) -> bool:
        return not self.tags or message.tag in self.tags

    def wants(self, message: Message) -> bool:
        return self.broker_says(message) == "yes" and self.client_keeps(message)


FILTERS = [
    Wish("*", frozenset()),
    Wish("A", frozenset({"A"})),
    Wish("B", frozenset({"B"})),
    Wish("A || B", frozenset({"A", "B"})),
    Wish("Aa", frozenset({"Aa"})),
    Wish("BB", frozenset({"BB"})),
    Wish(" ", frozenset()),  # blanks are no tags: the broker finds nothing
    Wish("price > 5", sql="above 5"),
    Wish("price IS NULL", sql="no price"),
    Wish("TAGS = 'A'", sql="tag A"),
    Wish("price >", sql="invalid"),
]


@dataclass(frozen=True)
class Expected:
    """`may_be_unknown`: what a kill of the broker may have kept it from learning."""

    fate: str
    may_be_unknown: bool = False


@dataclass
class _Reading:
    """One look at one message."""

    tenure: int
    broker: str  # what its look said
    is_kept: bool  # by the client, if it was sent
    is_collision: bool  # the broker sent it for its hash only
    is_wanted: bool  # by some member of the group then
    is_acknowledged: bool = False

    @property
    def is_delivered(self) -> bool:
        return self.broker == "yes" and self.is_kept


@dataclass
class _Record:
    """All that is true of one message."""

    message: Message
    readings: list[_Reading] = field(default_factory=list)
    is_touched: bool = False  # read, acknowledged or moved past since the broker saved
    may_be_unknown: bool = False


@dataclass
class _Member:
    wish: Wish
    version: int


@dataclass
class Simulator:
    """A broker with one topic, and the members of one group."""

    queue_count: int
    records: list[list[_Record]] = field(default_factory=list)
    members: dict[str, _Member] = field(default_factory=dict)
    committed: dict[int, int] = field(default_factory=dict)
    unsaved: dict[int, set[int | None]] = field(default_factory=dict)  # committed since the save
    # the group's subscription, and its SQL, with their versions
    subscription: tuple[Wish, int] | None = None
    sql: tuple[Wish, int] | None = None
    # of the clients: by member and queue, where they go on and which tenure that is
    positions: dict[tuple[str, int], int] = field(default_factory=dict)
    tenures: dict[tuple[str, int], int] = field(default_factory=dict)
    starts: dict[tuple[str, int], int] = field(default_factory=dict)  # where the tenure began
    _read_to: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)  # and its tenure
    _tenure: Iterator[int] = field(default_factory=count)
    _killed: int = 0  # tenures before this one began before the broker was last killed

    def __post_init__(self) -> None:
        self.records = [[] for _ in range(self.queue_count)]
        self.saved()

    def end(self, queue: int) -> int:
        return len(self.records[queue])

    # Members.

    def stored(self, message: Message) -> None:
        assert message.offset == self.end(message.queue)
        self.records[message.queue].append(_Record(message))

    def heartbeat(self, name: str, wish: Wish, version: int) -> None:
        if wish.is_sql:
            self._file_sql(wish, version)
        if self.subscription is None or version > self.subscription[1]:
            self.subscription = (wish, version)
        self.members[name] = _Member(wish, version)

    def _file_sql(self, wish: Wish, version: int) -> None:
        if self.sql is not None:
            known, known_version = self.sql
            if version <= known_version:
                return
            if known == wish:
                self.sql = (wish, version)
                return
        self.sql = (wish, version) if wish.is_valid else None

    def left(self, name: str) -> None:
        """With its connection or without it."""
        del self.members[name]
        for queue in range(self.queue_count):
            self.drop(name, queue)
        if not self.members:
            self.subscription = None

    def take(self, name: str, queue: int, start: int | None = None) -> int:
        """Returns where it begins: at the committed offset, or at `start` if there is none."""
        position = self.committed.get(queue, start or 0)
        read_to, tenure = self._read_to.get((name, queue), (None, 0))
        self._go_on_at(name, queue, position)
        if position == read_to:
            self.tenures[name, queue] = tenure
        return position

    def _go_on_at(self, name: str, queue: int, position: int) -> None:
        self.positions[name, queue] = self.starts[name, queue] = position
        self.tenures[name, queue] = next(self._tenure)

    def drop(self, name: str, queue: int) -> None:
        self.positions.pop((name, queue), None)
        self.tenures.pop((name, queue), None)

    # Reading.

    def filter_of(self, name: str, brings_own: bool) -> Wish | None:
        """What the broker filters a pull by; None if it refuses it."""
        if brings_own:
            wish = self.members[name].wish
            return wish if wish.is_valid else None
        if self.subscription is None:
            return None
        if not self.subscription[0].is_sql:
            return self.subscription[0]
        return None if self.sql is None else self.sql[0]

    def pulled(self, name: str, queue: int, wish: Wish, following: int) -> list[int]:
        """A member was answered up to `following`. Returns the offsets the answer must have."""
        start = self.positions[name, queue]
        own = self.members[name].wish
        sent = []
        for record in self.records[queue][start:following]:
            message = record.message
            said = wish.broker_says(message)
            if said == "yes":
                sent.append(message.offset)
            record.is_touched = True
            record.readings.append(
                _Reading(
                    tenure=self.tenures[name, queue],
                    broker=said,
                    is_kept=own.client_keeps(message),
                    is_collision=said == "yes" and not wish.client_keeps(message),
                    is_wanted=any(m.wish.wants(message) for m in self.members.values()),
                )
            )
        self.positions[name, queue] = following
        self._read_to[name, queue] = (following, self.tenures[name, queue])
        return sent

    def commit(self, name: str, queue: int, offset: int) -> None:
        """By a member: it acknowledges what it was given since it took the queue. To say what is
        committed already says nothing: it may be where the member began."""
        if self.committed.get(queue) == offset:
            return
        tenure = self.tenures.get((name, queue))
        for record in self.records[queue][:offset]:
            for reading in record.readings:
                if reading.tenure == tenure and not reading.is_acknowledged:
                    reading.is_acknowledged = True
                    record.is_touched = True
        if tenure is not None and tenure < self._killed:
            # it may have read so far before the broker was killed: that can't be told from a seek
            for record in self.records[queue][self.committed.get(queue, 0) : offset]:
                record.may_be_unknown = True
        self.move(queue, offset)

    def move(self, queue: int, offset: int) -> None:
        """By whomever."""
        before = self.committed.get(queue, 0)
        for record in self.records[queue][min(before, offset) : max(before, offset)]:
            record.is_touched = True
        self.committed[queue] = offset
        self.unsaved[queue].add(offset)

    def reset(self, queue: int) -> None:
        """The broker was asked to set progress: whoever reads on begins anew."""
        for key in [key for key in self._read_to if key[1] == queue]:
            del self._read_to[key]

    def reset_by_member(self, name: str, queue: int, offset: int) -> None:
        """A member that is told of a reset goes on elsewhere, and commits that."""
        self._go_on_at(name, queue, offset)
        self.move(queue, offset)

    # The broker's life.

    def saved(self) -> None:
        self.unsaved = {queue: {self.committed.get(queue)} for queue in range(self.queue_count)}
        for record in self._all():
            record.is_touched = False

    def restarted(self) -> None:
        """In good order. The connections are gone, so that members have to say who they are."""
        self.saved()
        self._forget_members()

    def killed(self, committed: dict[int, int | None]) -> None:
        """`committed`: what the broker has now. It must be something that was committed."""
        for queue, offset in committed.items():
            assert offset in self.unsaved[queue], (queue, offset, self.unsaved[queue])
            self.committed.pop(queue, None)
            if offset is not None:
                self.committed[queue] = offset
        for record in self._all():
            record.may_be_unknown |= record.is_touched
        self._killed = next(self._tenure)
        self.saved()
        self._forget_members()

    def _forget_members(self) -> None:
        self.members.clear()
        self.subscription = None

    def _all(self) -> Iterator[_Record]:
        for queue in self.records:
            yield from queue

    # Fates.

    def fates(self) -> dict[tuple[int, int], Expected]:
        return {
            (record.message.queue, record.message.offset): Expected(
                self._fate(record), record.may_be_unknown
            )
            for record in self._all()
        }

    def _fate(self, record: _Record) -> str:
        message = record.message
        if message.offset >= self.committed.get(message.queue, 0):
            return "NOT_CONSUMED_YET" if self.members else "NOT_ONLINE"
        delivered = [one for one in record.readings if one.is_delivered]
        acknowledged = [one for one in record.readings if one.is_acknowledged]
        if any(one.is_acknowledged for one in delivered):
            return "CONSUMED"
        if not acknowledged:  # somebody moved progress past it
            return "SKIPPED_BY_RESET"
        if delivered:  # to one who did not acknowledge it, and may have processed it
            return "UNKNOWN"
        if any(one.is_wanted for one in acknowledged):
            return "LOST_TO_INCONSISTENCY"
        last = acknowledged[-1]
        if last.broker == "error":
            return "FILTER_FAILED"
        return "HASH_COLLISION" if last.is_collision else "FILTERED"
