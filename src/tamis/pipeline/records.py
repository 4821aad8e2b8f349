"""What is known of groups, put together for the judge: history, progress and members of brokers."""

from collections.abc import Iterable, Mapping, Sequence

from ..errors import ConfigError
from ..fate import GroupFacts, GroupHistory
from ..spark.groups import BrokerGroups, Members
from .judging import GroupOfQueue, GroupRecord, Retries
from .table import near

__all__ = ["Bounds", "groups_known", "records_of"]

Bounds = Mapping[tuple[str, str, int], tuple[int, int]]  # of a queue: its first offset, its end


def groups_known(brokers: Iterable[BrokerGroups], topics: Iterable[str]) -> list[str]:
    """Return the groups that history, progress or a subscription connects with a topic."""
    wanted = set(topics)
    found: set[str] = set()
    for broker in brokers:
        found |= {group for topic, group in broker.offsets if topic in wanted}
        if broker.history is not None:
            found |= {group for group, topic in broker.history.groups if topic in wanted}
        for group, members in (broker.members or {}).items():
            if members is not None and wanted & members.subscriptions.keys():
                found.add(group)
    return sorted(group for group in found if not _is_of_a_tool(group))


def _is_of_a_tool(group: str) -> bool:
    """Whether tools and brokers use it themselves, or our Spark source if it is given none."""
    tools = ("FILTERSRV_CONSUMER", "TOOLS_CONSUMER", "SELF_TEST_C_GROUP", "tamis-spark")
    return group in tools or group.startswith("CID_RMQ_SYS_")


def choose(known: Sequence[str], asked: Sequence[str], where: str) -> list[str]:
    """Return the groups asked for, all that are known if none is. Raises ConfigError."""
    for group in asked:
        if group not in known:
            hint = near(group, known)
            raise ConfigError(
                f"{where}groups: no group {group} is known to have read the topic{hint}"
            )
    return list(dict.fromkeys(asked)) or list(known)


def records_of(
    brokers: Sequence[BrokerGroups],
    bounds: Bounds,
    groups: Iterable[str],
    retries: Mapping[str, Retries],
) -> list[GroupRecord]:
    """Return what is known of each group, on each queue of `bounds`."""
    by_name = {broker.broker: broker for broker in brokers}
    made = []
    for group in groups:
        queues = {
            (topic, broker, queue_id): _of_queue(
                by_name[broker], group, topic, queue_id, *bounds[topic, broker, queue_id]
            )
            for topic, broker, queue_id in bounds
            if broker in by_name
        }
        elsewhere = GroupFacts(group=group, online=False, committed=None)
        made.append(
            GroupRecord(
                group=group,
                elsewhere=elsewhere,
                queues=queues,
                retries=retries.get(group, Retries()),
            )
        )
    return made


def _of_queue(
    broker: BrokerGroups, group: str, topic: str, queue_id: int, first: int, end: int
) -> GroupOfQueue:
    history, since = None, None
    if broker.history is not None:
        history, since = broker.history.groups.get((group, topic)), broker.history.since
    members = (broker.members or {}).get(group)
    consume_type, message_model = _kind(members, history)
    facts = GroupFacts(
        group=group,
        online=_is_online(broker, group, history),
        committed=broker.offsets.get((topic, group), {}).get(queue_id),
        first_offset=first,
        end_offset=end,
        consume_type=consume_type,
        message_model=message_model,
        effective=None if members is None else members.subscriptions.get(topic),
        moves=() if history is None else history.moves_of(queue_id),
        first_read=None if history is None else history.first_read(queue_id),
        complete_since=since
        if history is None or since is None
        else history.complete_since(queue_id, end, since),
        lanes=broker.rules.lanes(group, topic, queue_id),
        unknown=broker.unknown,
    )
    if history is None:
        standing = broker.standing.get((group, topic, queue_id))
        if standing is None:
            return GroupOfQueue(facts=facts)
        return GroupOfQueue(facts=facts, spans=standing[:1], views={0: standing[1]})
    spans = tuple(history.queues.get(queue_id, ()))
    views = {number: history.views[number] for number in {span.view for span in spans}
             if number in history.views}  # fmt: skip
    return GroupOfQueue(
        facts=facts,
        spans=spans,
        views=views,
        known_from=history.is_known_from(queue_id),
        since_before=history.complete_since(queue_id, -1, since or history.since),
    )


def _is_online(broker: BrokerGroups, group: str, history: GroupHistory | None) -> bool:
    if broker.members is not None:
        members = broker.members.get(group)
        return members is not None and bool(members.client_ids)
    if history is None or not history.views:
        return False
    return bool(history.views[max(history.views)].filters)


def _kind(members: Members | None, history: GroupHistory | None) -> tuple[str, str]:
    if members is not None:
        return members.consume_type, members.message_model
    if history is None:
        return "", ""
    consume_type = "CONSUME_ACTIVELY" if history.is_pull else ""
    return consume_type, "BROADCASTING" if history.is_broadcasting else ""
