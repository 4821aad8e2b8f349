"""Who reads the queues of a broker that keeps no history, concluded from what members say today.

See `fate.standing`: if all members have had their queues and filters since before a message was
stored, they are those by which its fate was decided. So from that moment on a queue has one span,
up to the group's progress.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from ..client import groupmembers
from ..client import offsets as client_offsets
from ..client.session import Session
from ..client.wirefacts import filter_of, members_now
from ..fate import MessageFacts, Reading, Span, View, standing_reading
from ..fate.standing import STANDING_MARGIN
from ..wire.bodies import MessageQueue

__all__ = ["CONCLUDED", "concluded_spans"]

CONCLUDED: Final = (
    "{broker} keeps no history: who read what was concluded from the versions of the members'"
    " subscriptions where these are older than the messages; members that came and left without"
    " having had a queue are not known"
)
_GROUPS: Final = 300  # that are asked about
_MEMBERS: Final = 64  # of a group that are asked
_LATER: Final = 2**62  # than any message


async def concluded_spans(
    session: Session,
    broker: str,
    topics: Iterable[str],
    groups: Sequence[str],
    offsets: Mapping[tuple[str, str], Mapping[int, int]],
) -> dict[tuple[str, str, int], tuple[Span, View]]:
    """Return the span and the view in force, by group, topic and queue, where they are certain."""
    queues = [
        queue
        for topic in topics
        for queue in await session.routes.read_queues(topic)
        if queue.broker_name == broker
    ]
    made: dict[tuple[str, str, int], tuple[Span, View]] = {}
    for group in groups[:_GROUPS]:
        for queue, reading in (await _readings(session, group, queues, offsets)).items():
            moment = reading.view.since + STANDING_MARGIN
            start = await client_offsets.offset_at(session, queue, moment)
            if start < reading.end:
                span = Span(
                    *(start, reading.end, reading.member, reading.filter, reading.own, 0),
                    *(reading.began, reading.end),
                )
                made[group, queue.topic, queue.queue_id] = span, reading.view
    return made


async def _readings(
    session: Session,
    group: str,
    queues: Sequence[MessageQueue],
    offsets: Mapping[tuple[str, str], Mapping[int, int]],
) -> dict[MessageQueue, Reading]:
    connected = await groupmembers.connections(session, group)
    some = next(iter(connected.values()), None)
    if some is None or (some.consume_type, some.message_model) != (
        "CONSUME_PASSIVELY",
        "CLUSTERING",
    ):
        return {}
    said = await groupmembers.running_infos(session, group, connected, _MEMBERS)
    everyone = {one.client_id for each in connected.values() for one in each.connections}
    if len(said) < len(everyone):
        return {}
    made = {}
    for queue in queues:
        committed = offsets.get((queue.topic, group), {}).get(queue.queue_id)
        at_broker = connected.get(queue.broker_name)
        effective = None if at_broker is None else at_broker.subscriptions.get(queue.topic)
        if committed is None or effective is None:
            continue
        message = MessageFacts(
            topic=queue.topic, queue_id=queue.queue_id, offset=0, properties=None, stored=_LATER
        )
        members = members_now(queue, connected, said)
        reading = standing_reading(
            message, committed, members, filter_of(effective), effective.version
        )
        if isinstance(reading, Reading):
            made[queue] = reading
    return made
