"""Who reads which queue: RocketMQ's strategies, as functions of queues, members and oneself.

The members of a group agree on nothing: each works out its own share from the same two lists in the
same order, so one that computes otherwise reads what another reads too. Hence strings are ordered
and hashed here as Java does it. `assign` puts the lists in order; a strategy expects that.

A client id that is listed twice (two connections with one id) counts twice among the members,
and both have the place of the first, as with Java's `indexOf`: they read the same share and nobody
reads the other. Only CONSISTENT_HASH leaves no queue out then.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from hashlib import md5
from typing import Final

from ..errors import ConfigError
from ..wire.bodies import MessageQueue
from .config import Strategy

__all__ = [
    "STRATEGIES",
    "Strategy",
    "assign",
    "average",
    "average_by_circle",
    "consistent_hash",
    "fixed",
    "machine_room",
    "machine_room_nearby",
]

VIRTUAL_NODES = 10  # places of a member on the ring


def assign(
    strategy: Strategy, queues: Iterable[MessageQueue], members: Iterable[str], me: str
) -> list[MessageQueue]:
    """The share of `me`, whatever the order of the lists.

    Empty if `me` is not among the members or a list is empty, whichever the strategy. (Java's throw
    on an empty list, and its CONFIG looks at neither.)
    """
    queues = sorted(queues, key=_queue_order)
    members = sorted(members, key=_string_order)
    if not queues or me not in members:
        return []
    return strategy(queues, members, me)


def average(queues: Sequence[MessageQueue], members: Sequence[str], me: str) -> list[MessageQueue]:
    """AVG: neighbouring queues; the first members have one more if it does not come out even."""
    if me not in members:
        return []
    index = members.index(me)
    each, more = divmod(len(queues), len(members))
    start = index * each + min(index, more)
    return list(queues[start : start + each + (index < more)])


def average_by_circle(
    queues: Sequence[MessageQueue], members: Sequence[str], me: str
) -> list[MessageQueue]:
    """AVG_BY_CIRCLE: dealt out like cards."""
    if me not in members:
        return []
    return list(queues[members.index(me) :: len(members)])


def consistent_hash(
    queues: Sequence[MessageQueue], members: Sequence[str], me: str
) -> list[MessageQueue]:
    """CONSISTENT_HASH: few queues move when a member comes or goes; the shares are uneven.

    A queue belongs to the next of the members' places on the ring. A member that is listed twice
    has twice as many.
    """
    if me not in members:
        return []
    ring = {
        _hash(f"{member}-{node}"): member
        for member, times in Counter(members).items()
        for node in range(times * VIRTUAL_NODES)
    }
    places = sorted(ring)
    return [
        queue
        for queue in queues
        if ring[places[bisect_left(places, _hash(_java_text(queue))) % len(places)]] == me
    ]


def machine_room(rooms: Collection[str]) -> Strategy:
    """MACHINE_ROOM: only queues of brokers in these rooms, each named `room@broker`.

    Neighbouring queues, an equal number to each member; then one to each of the first as long as
    there are any.
    """
    rooms = frozenset(rooms)

    def strategy(
        queues: Sequence[MessageQueue], members: Sequence[str], me: str
    ) -> list[MessageQueue]:
        if me not in members:
            return []
        index = members.index(me)
        near = [queue for queue in queues if _room_in_name(queue.broker_name) in rooms]
        each, more = divmod(len(near), len(members))
        last = len(near) - more + index
        return near[index * each : (index + 1) * each] + near[last : last + 1]

    return strategy


def fixed(queues: Iterable[MessageQueue]) -> Strategy:
    """CONFIG: these, for every member and every topic, there or not."""
    chosen = tuple(queues)
    return lambda queues, members, me: list(chosen)


def machine_room_nearby(
    inner: Strategy,
    room_of_queue: Callable[[MessageQueue], str],
    room_of_member: Callable[[str], str],
) -> Strategy:
    """MACHINE_ROOM_NEARBY: the queues of a room to the members in it, by the `inner` strategy.

    Those of a room without members are shared among all members, room by room. Who is in no known
    room is a ConfigError.
    """

    def strategy(
        queues: Sequence[MessageQueue], members: Sequence[str], me: str
    ) -> list[MessageQueue]:
        if me not in members:
            return []
        queues_of: defaultdict[str, list[MessageQueue]] = defaultdict(list)
        for queue in queues:
            queues_of[_known(room_of_queue(queue), _java_text(queue))].append(queue)
        members_of: defaultdict[str, list[str]] = defaultdict(list)
        for member in members:
            members_of[_known(room_of_member(member), f"member {member}")].append(member)

        home = room_of_member(me)
        share: list[MessageQueue] = []
        if home in queues_of:
            share += inner(queues_of[home], members_of[home], me)
        for room in sorted(queues_of.keys() - members_of.keys(), key=_string_order):
            share += inner(queues_of[room], members, me)
        return share

    return strategy


# By RocketMQ's names. The others need more to be told.
STRATEGIES: Final[dict[str, Strategy]] = {
    "AVG": average,
    "AVG_BY_CIRCLE": average_by_circle,
    "CONSISTENT_HASH": consistent_hash,
}


def _queue_order(queue: MessageQueue) -> tuple[bytes, bytes, int]:
    """`MessageQueue.compareTo`."""
    return _string_order(queue.topic), _string_order(queue.broker_name), queue.queue_id


def _string_order(text: str) -> bytes:
    """`String.compareTo`: by UTF-16 code units, where U+1F600 is before U+FF5E."""
    return text.encode("utf-16-be", "surrogatepass")


def _java_text(queue: MessageQueue) -> str:
    """`MessageQueue.toString`."""
    return (
        f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name},"
        f" queueId={queue.queue_id}]"
    )


def _hash(key: str) -> int:
    """`ConsistentHashRouter.MD5Hash`. 4.9 encodes by the platform's charset, 5.x by UTF-8."""
    digest = md5(key.encode("utf-8", "replace"), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big")


def _room_in_name(broker_name: str) -> str | None:
    """What is before the `@`, if there is one. `String.split` forgets those at the end."""
    match broker_name.rstrip("@").split("@"):
        case [room, _]:
            return room
    return None


def _known(room: str, whose: str) -> str:
    if not room:
        raise ConfigError(f"no machine room is known for {whose}")
    return room
