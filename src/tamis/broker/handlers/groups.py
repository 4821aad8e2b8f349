"""Groups, for tools: their settings, who is connected, how far they have consumed, and resets.

RocketMQ's `AdminBrokerProcessor` and `Broker2Client` (4.9.4).
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ...errors import ResponseError
from ...net.longwork import Steps, stepwise
from ...net.server import Answer, Request
from ...store.store import Store
from ...wire import beans
from ...wire.bodies import (
    BrokerConsumeStats,
    Connection,
    ConsumerConnection,
    ConsumerStatus,
    ConsumeStats,
    CorrectionOffsets,
    GroupConfig,
    GroupTable,
    MessageQueue,
    OffsetTable,
    OffsetWrapper,
    ProducerConnection,
    ProducerInfo,
    ProducerTable,
    QueueProgress,
    ResetOffsets,
    ResetOffsetsOfCpp,
)
from ...wire.codes import Language, RequestCode, ResponseCode, version_name
from ...wire.command import Command
from ...wire.headers import (
    CloneGroupOffset,
    CorrectOffset,
    DeleteGroup,
    GetBrokerConsumeStats,
    GetConsumerStatus,
    GetConsumeStats,
    OfConsumerGroup,
    OfGroup,
    OfProducerGroup,
    ResetOffset,
)
from ..groups import Groups
from ..history import Recorder
from ..members import ConsumerGroup, Consumers, Member, Producers
from ..offsets import Offsets
from ..stats import Stats
from ..topics import Topics
from .bodies import answer_steps, decode
from .queries import offset_at, store_time

__all__ = [
    "Progress",
    "all_consume_stats",
    "all_groups",
    "all_offsets",
    "all_producers",
    "clone_offsets",
    "consume_stats",
    "consumer_connections",
    "consumer_status",
    "correct_offsets",
    "create_group",
    "delay_offsets",
    "delete_group",
    "one_group",
    "producer_connections",
    "reset_offset",
]

log = logging.getLogger(__name__)

_LONG_MAX: Final = 2**63 - 1
_RESET_VERSION: Final = 28  # V3_0_7_SNAPSHOT: the first that knows resets and status questions
_STATUS_SECONDS: Final = 5.0  # a client has to tell its status
_ASKED_AT_ONCE: Final = 100  # clients
_MOST_STATUS: Final = 256 * 2**10  # bytes of what a client tells


# Settings.


def create_group(groups: Groups, header: None, request: Request) -> Answer:
    """Or change it."""
    group = decode(GroupConfig, request, "the settings of a group can't be read")
    if not group.name.strip():
        raise ResponseError(ResponseCode.SYSTEM_ERROR, "The specified group is blank.")
    groups.check_quota(group.name, None)
    log.info("group %s: put by %s", group.name, request.peer)
    groups.put(group)
    return Answer()


def delete_group(
    groups: Groups, offsets: Offsets, recorder: Recorder, header: DeleteGroup, request: Request
) -> Answer:
    log.info("group %s: its deletion is asked for by %s", header.group_name, request.peer)
    groups.delete(header.group_name)
    if header.remove_offset or header.clean_offset:
        for topic in offsets.topics(header.group_name):
            for queue_id, offset in offsets.of(header.group_name, topic).items():
                queue = (header.group_name, topic, queue_id)
                recorder.moved(*queue, offset, 0, str(request.peer), "the group was deleted")
        offsets.forget_group(header.group_name)
    return Answer()


@stepwise
def all_groups(groups: Groups, header: None, request: Request) -> Steps[Answer]:
    table = GroupTable(groups=groups.copy(), version=groups.version)
    return (yield from answer_steps(table))


def one_group(groups: Groups, header: OfGroup, request: Request) -> Answer:
    """5.x's tools ask for it."""
    found = groups.get(header.group)
    if found is None:
        why = f"subscription group [{header.group}] does not exist"
        raise ResponseError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, why)
    return Answer(body=beans.encode(found))


# Who is connected.


@stepwise
def consumer_connections(
    consumers: Consumers, header: OfConsumerGroup, request: Request
) -> Steps[Answer]:
    group = consumers.groups.get(header.consumer_group)
    if group is None:
        why = f"the consumer group[{header.consumer_group}] not online"
        raise ResponseError(ResponseCode.CONSUMER_NOT_ONLINE, why)
    connections = yield from _connections(group.members.values())
    body = ConsumerConnection(
        connections=connections,
        subscriptions=group.subscriptions.copy(),
        consume_type=group.consume_type,
        message_model=group.message_model,
        consume_from_where=group.consume_from_where,
    )
    return (yield from answer_steps(body))


@stepwise
def producer_connections(
    producers: Producers, header: OfProducerGroup, request: Request
) -> Steps[Answer]:
    members = producers.groups.get(header.producer_group)
    if members is None:
        why = f"the producer group[{header.producer_group}] not exist"
        raise ResponseError(ResponseCode.SYSTEM_ERROR, why)
    connections = yield from _connections(members.values())
    return (yield from answer_steps(ProducerConnection(connections=connections)))


def _connections(members: Iterable[Member]) -> Steps[list[Connection]]:
    made = []
    for member in list(members):
        made.append(
            Connection(
                client_id=member.client_id,
                client_addr=str(member.peer),
                language=member.language.name,
                version=member.version,
            )
        )
        yield None
    return made


@stepwise
def all_producers(
    producers: Producers,
    header: None,
    request: Request,
    now: Callable[[], float] = time.time,
    clock: Callable[[], float] = time.monotonic,
) -> Steps[Answer]:
    """`clock` is the one members were seen by; clients are told the time of day."""
    began = now() - clock()
    made: dict[str, list[ProducerInfo]] = {}
    for group, members in list(producers.groups.items()):
        listed = made[group] = []
        for member in list(members.values()):
            listed.append(
                ProducerInfo(
                    client_id=member.client_id,
                    remote_ip=f"/{member.peer}",  # as Java shows an address
                    language=member.language.name,
                    version=member.version,
                    last_update_timestamp=int((began + member.seen) * 1000),
                )
            )
            yield None
    return (yield from answer_steps(ProducerTable(producers=made)))


# How far they have consumed.


@dataclass(frozen=True, slots=True)
class Progress:
    """What it takes to tell how far groups are."""

    broker: str  # its name
    store: Store
    topics: Topics
    consumers: Consumers
    offsets: Offsets
    stats: Stats

    def is_left(self, group: str, topic: str) -> bool:
        """Whether the group is online and does not subscribe to the topic."""
        found = self.consumers.groups.get(group)
        return found is not None and bool(found.subscriptions) and topic not in found.subscriptions

    def of(self, group: str, topic: str, queues: int) -> Steps[dict[MessageQueue, QueueProgress]]:
        made = {}
        for queue_id in range(queues):
            queue = self.store.find_queue(topic, queue_id)
            consumed = max(self.offsets.get(group, topic, queue_id) or 0, 0)
            stored = store_time(self.store, queue, consumed - 1)
            made[MessageQueue(topic, self.broker, queue_id)] = QueueProgress(
                broker_offset=queue.max_offset if queue is not None else 0,
                consumer_offset=consumed,
                last_timestamp=max(stored, 0),
                pull_offset=consumed,  # what was given out beyond it is not kept
            )
            yield None
        return made


@stepwise
def consume_stats(progress: Progress, header: GetConsumeStats, request: Request) -> Steps[Answer]:
    group = header.consumer_group
    queues: dict[MessageQueue, QueueProgress] = {}
    rate = 0.0
    for name in _topics_asked_for(progress, header, request):
        topic = progress.topics.get(name)
        if topic is None or progress.is_left(group, name):
            continue
        queues |= yield from progress.of(group, name, topic.read_queues)
        rate += progress.stats.consume_rate(group, name)
    return (yield from answer_steps(ConsumeStats(queues=queues, consume_tps=rate)))


def _topics_asked_for(progress: Progress, header: GetConsumeStats, request: Request) -> list[str]:
    listed = (request.command.fields or {}).get("topicList", "")  # 5.x: several, `;` after each
    if listed.strip():
        return [topic for topic in listed.split(";") if topic]
    if header.topic is not None and header.topic.strip():
        return [header.topic]
    return progress.offsets.topics(header.consumer_group)


@stepwise
def all_consume_stats(
    progress: Progress,
    groups: Groups,
    address: Callable[[], str],
    header: GetBrokerConsumeStats,
    request: Request,
) -> Steps[Answer]:
    """Of all groups; `address` is the broker's own."""
    made: list[dict[str, list[ConsumeStats]]] = []
    behind = 0
    consumed: dict[str, list[str]] = {}  # topics, by group
    for topic_name, group in progress.offsets.pairs():
        consumed.setdefault(group, []).append(topic_name)
    for group in list(groups):
        of_topics = []
        yield None
        for name in consumed.get(group, ()):
            topic = progress.topics.get(name)
            if topic is None or (header.is_order and not topic.order):
                continue
            if progress.is_left(group, name):
                continue
            queues = yield from progress.of(group, name, topic.write_queues)
            behind += sum(one.broker_offset - one.consumer_offset for one in queues.values())
            rate = progress.stats.consume_rate(group, name)
            of_topics.append(ConsumeStats(queues=queues, consume_tps=rate))
        made.append({group: of_topics})
    body = BrokerConsumeStats(stats=made, broker_addr=address(), total_diff=behind)
    return (yield from answer_steps(body))


@stepwise
def all_offsets(offsets: Offsets, header: None, request: Request) -> Steps[Answer]:
    made = {}
    for topic, group in offsets.pairs():
        made[f"{topic}@{group}"] = offsets.of(group, topic)
        yield None
    return (yield from answer_steps(OffsetWrapper(offsets=made)))


def delay_offsets(
    delivered: Callable[[], Mapping[int, int]], header: None, request: Request
) -> Answer:
    """`delivered`: up to where each delay level is."""
    return Answer(body=beans.encode(OffsetTable(offsets=dict(delivered()))))


@stepwise
def correct_offsets(
    store: Store, offsets: Offsets, header: CorrectOffset, request: Request
) -> Steps[Answer]:
    """Of each queue, the least that any group has consumed; the largest number there is, where
    `compare_group` is behind that. RocketMQ means this, but forgets the offsets of the groups it is
    to leave out, and looks the compared group up under a wrong name."""
    left_out = (header.filter_groups or "").split(",")
    least: dict[int, int] = {}
    for group in offsets.groups(header.topic):
        if group in left_out:
            continue
        for queue_id, offset in offsets.of(group, header.topic).items():
            queue = store.find_queue(header.topic, queue_id)
            if queue is None or offset >= queue.min_offset:
                least[queue_id] = min(offset, least.get(queue_id, _LONG_MAX))
            yield None
    for queue_id, offset in offsets.of(header.compare_group, header.topic).items():
        if least.get(queue_id, -1) > offset:
            least[queue_id] = _LONG_MAX
    return (yield from answer_steps(CorrectionOffsets(offsets=least)))


@stepwise
def clone_offsets(
    topics: Topics,
    consumers: Consumers,
    offsets: Offsets,
    recorder: Recorder,
    header: CloneGroupOffset,
    request: Request,
) -> Steps[Answer]:
    """Of one topic, or of all the source group has offsets of."""
    source, target = header.src_group, header.dest_group
    named = header.topic is not None and bool(header.topic.strip())
    group = consumers.groups.get(source)
    for topic in [header.topic or ""] if named else offsets.topics(source):
        if topic not in topics or not offsets.of(source, topic):
            continue
        if (
            not header.offline
            and group
            and group.subscriptions
            and topic not in group.subscriptions
        ):
            continue
        before = offsets.of(target, topic)
        offsets.clone(source, target, topic)
        for queue_id, offset in offsets.of(target, topic).items():
            if before.get(queue_id) != offset:
                queue = (target, topic, queue_id)
                why = f"the offsets of group {source} were copied"
                recorder.moved(*queue, before.get(queue_id), offset, str(request.peer), why)
        yield None
        log.info("offsets of %s: given to %s as %s has them", topic, target, source)
    return Answer()


# Resets.


@stepwise
def reset_offset(
    broker: str,
    store: Store,
    topics: Topics,
    consumers: Consumers,
    offsets: Offsets,
    recorder: Recorder,
    header: ResetOffset,
    request: Request,
) -> Steps[Answer]:
    """To what was stored at a time, or to the end for -1; only backwards unless forced.

    The members of the group are told, and move; it takes them 10 s. 5.x's tools may name a queue
    and its offset: then that is what it is reset to, here if nobody is online.
    """
    topic, name = topics.get(header.topic), header.group
    if topic is None:
        why = f"[reset-offset] reset offset failed, no topic in this broker. topic={header.topic}"
        raise ResponseError(ResponseCode.SYSTEM_ERROR, why)
    log.info(
        "group %s on %s: a reset to %d is asked for by %s",
        *(name, header.topic, header.timestamp, request.peer),
    )
    group = consumers.groups.get(name)
    if header.queue_id is not None and header.queue_id >= 0 and header.offset is not None:
        if header.queue_id >= topic.write_queues or header.offset < 0:
            why = f"queue {header.queue_id}, offset {header.offset}: {header.topic} has no such"
            raise ResponseError(ResponseCode.SYSTEM_ERROR, why)
        table = {header.queue_id: header.offset}
    else:
        table = yield from _reset_to(store, offsets, header, topic.write_queues)
        group = consumers.groups.get(name)
        if group is None:
            why = (
                "Consumer not online, so can not reset offset, "
                f"Group: {name} Topic: {header.topic} Timestamp: {header.timestamp}"
            )
            raise ResponseError(ResponseCode.CONSUMER_NOT_ONLINE, why)
    if group is not None:
        _check_versions(group.members.values())
    for queue_id, offset in table.items():
        before, who = offsets.get(name, header.topic, queue_id), str(request.peer)
        if before != offset:
            recorder.moved(name, header.topic, queue_id, before, offset, who, "a reset")
    queues = {MessageQueue(header.topic, broker, i): offset for i, offset in table.items()}
    if group is not None:
        consumers.on_reset(name, header.topic, table)
        yield from _push_reset(group, header, queues)
    else:
        for queue_id, offset in table.items():
            offsets.commit(name, header.topic, queue_id, offset)
    return (yield from answer_steps(ResetOffsets(offsets=queues)))


def _reset_to(
    store: Store, offsets: Offsets, header: ResetOffset, queues: int
) -> Steps[dict[int, int]]:
    table = {}
    one = header.queue_id
    for queue_id in range(queues) if one is None or one < 0 else [one]:
        consumed = offsets.get(header.group, header.topic, queue_id)
        if consumed is None:
            why = f"THe consumer group <{header.group}> not exist"
            raise ResponseError(ResponseCode.SYSTEM_ERROR, why)
        if header.timestamp == -1:
            queue = store.find_queue(header.topic, queue_id)
            wanted = int(queue.max_offset) if queue is not None else 0
        else:
            wanted = offset_at(store, header.topic, queue_id, header.timestamp)
        table[queue_id] = wanted if header.is_force or wanted < consumed else consumed
        yield None
    return table


def _push_reset(
    group: ConsumerGroup, header: ResetOffset, queues: dict[MessageQueue, int]
) -> Steps[None]:
    fields = ResetOffset(topic=header.topic, group=group.name, timestamp=header.timestamp)
    plain = yield from beans.encode_steps(ResetOffsets(offsets=queues))
    items = []
    for queue, offset in queues.items():
        items.append(beans.to_json(queue) | {"offset": offset})
        yield None
    listed = yield from beans.encode_steps(ResetOffsetsOfCpp(offsets=items))
    for member in list(group.members.values()):
        yield None
        # RocketMQ goes by the language of who asks; but it is the member that has to read it
        body = listed if member.language is Language.CPP else plain
        code = RequestCode.RESET_CONSUMER_CLIENT_OFFSET
        member.peer.tell(Command(code=code, fields=fields.to_fields(), body=body))
        log.info("group %s on %s: %s is told of a reset", *(group.name, header.topic), member.peer)


def _check_versions(members: Iterable[Member]) -> None:
    for member in members:
        if member.version < _RESET_VERSION:
            shown = version_name(member.version)
            why = f"the client does not support this feature. version={shown}"
            raise ResponseError(ResponseCode.SYSTEM_ERROR, why)


async def consumer_status(
    consumers: Consumers, header: GetConsumerStatus, request: Request
) -> Answer:
    """How far the members themselves say they are: of all, or of the client named."""
    group = consumers.groups.get(header.group)
    if group is None:
        why = f"No Any Consumer online in the consumer group: [{header.group}]"
        raise ResponseError(ResponseCode.SYSTEM_ERROR, why)
    _check_versions(group.members.values())
    wanted = (header.client_addr or "").strip()
    asked = [m for m in group.members.values() if not wanted or m.client_id == wanted]
    made = {}
    for at in range(0, len(asked), _ASKED_AT_ONCE):
        some = asked[at : at + _ASKED_AT_ONCE]
        found = await asyncio.gather(*(_status_of(member, header) for member in some))
        for member, queues in zip(some, found, strict=True):
            if queues is not None:
                made[member.client_id] = queues
    return Answer(body=beans.encode(ConsumerStatus(by_client=made, queues={})))


async def _status_of(member: Member, header: GetConsumerStatus) -> dict[MessageQueue, int] | None:
    """None if it does not tell: the others still do."""
    fields = GetConsumerStatus(topic=header.topic, group=header.group).to_fields()
    code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
    try:
        answer = await member.peer.ask(Command(code=code, fields=fields), _STATUS_SECONDS)
        if len(answer.body) > _MOST_STATUS:
            log.warning("%s tells too much: %d bytes", member.peer, len(answer.body))
        elif answer.code == ResponseCode.SUCCESS and answer.body:
            return beans.decode(ConsumerStatus, answer.body).queues
        log.warning("%s does not tell its status: %s", member.peer, answer.remark)
    except (TimeoutError, ConnectionError, ValueError) as error:
        log.warning("%s does not tell its status: %r", member.peer, error)
    return None
