"""What each request asks for: RocketMQ's own table (`PlainAccessValidator.parse`, `ADMIN_CODE` of
`Permission`, 4.9.4), and where ours differs.

A request that is not in it needs a valid signature and nothing else. Ours is stricter in a few
places, each with its reason in `STRICTER`; docs/security.md has the whole table.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from ..wire.bodies import Heartbeat
from ..wire.codes import RequestCode
from .permissions import RETRY, Perm

__all__ = [
    "ADMIN",
    "FILTER_SERVER_GROUP",
    "STRICTER",
    "Needs",
    "asks_for_admin",
    "names_of",
    "of_heartbeat",
    "of_request",
]

Needs = dict[str, Perm]  # by topic; a group is named by its retry topic
Fields = Mapping[str, str]

FILTER_SERVER_GROUP: Final = "FILTERSRV_CONSUMER"
_code = RequestCode

ADMIN: Final = frozenset(
    {
        _code.UPDATE_AND_CREATE_TOPIC,
        _code.UPDATE_BROKER_CONFIG,
        _code.DELETE_TOPIC_IN_BROKER,
        _code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        _code.DELETE_SUBSCRIPTIONGROUP,
        # RocketMQ asks for no more than a valid signature here: any account may make itself an
        # administrator, or read all secrets.
        _code.UPDATE_AND_CREATE_ACL_CONFIG,
        _code.DELETE_ACL_CONFIG,
        _code.GET_BROKER_CLUSTER_ACL_INFO,
        _code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
        _code.GET_BROKER_CLUSTER_ACL_CONFIG,
        # ours
        _code.SET_GROUP_FILTER,
        _code.SET_GROUP_POLICY,
    }
)

STRICTER: Final = {
    _code.UPDATE_AND_CREATE_ACL_CONFIG: "any account could make itself an administrator",
    _code.DELETE_ACL_CONFIG: "any account could delete the others",
    _code.GET_BROKER_CLUSTER_ACL_INFO: "it goes with the others of its kind",
    _code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: "any account could open the broker to everybody",
    _code.GET_BROKER_CLUSTER_ACL_CONFIG: "any account could read all secrets",
    _code.SEND_BATCH_MESSAGE: "an account that may only read could send; RocketMQ 5 checks it too",
    _code.REGISTER_MESSAGE_FILTER_CLASS: "whose class filters for a group decides what it reads",
    _code.REGISTER_FILTER_SERVER: "any account could have clients pull through a server of its own",
}


def of_request(code: int, fields: Fields | None) -> Needs:
    """Without those of a heartbeat, which are in its body (`of_heartbeat`)."""
    needs = _NEEDS.get(code)
    return needs[1](fields) if needs is not None and fields is not None else {}


def names_of(code: int) -> tuple[str, ...]:
    """The fields that decide what such a request asks for."""
    needs = _NEEDS.get(code)
    return needs[0] if needs is not None else ()


def asks_for_admin(code: int, needs: Needs) -> bool:
    """Some of ours do so if they name neither a topic nor a group: all are meant."""
    return code in ADMIN or (code in _OF_ALL and not needs)


def of_heartbeat(data: Heartbeat) -> Needs:
    made = Needs()
    for consumer in data.consumers:
        made[RETRY + consumer.group] = Perm.SUB
        for subscription in consumer.subscriptions:
            made[subscription.topic] = Perm.SUB
    return made


_Need = tuple[tuple[str, ...], Callable[[Fields], Needs]]


def _sub(topics: Iterable[str] = (), groups: Iterable[str] = ()) -> _Need:
    """SUB on the topics and groups that are in these fields; one that is missing is not asked
    about, for the request will be refused."""

    topic_names, group_names = tuple(topics), tuple(groups)

    def needs(fields: Fields) -> Needs:
        made = {topic: Perm.SUB for name in topic_names if (topic := fields.get(name))}
        for name in group_names:
            if group := fields.get(name):
                made[RETRY + group] = Perm.SUB
        return made

    return (*topic_names, *group_names), needs


def _send(topic_name: str, group_name: str) -> _Need:
    """To a retry topic SUB, on the group that is named: RocketMQ's rule. That the group is the
    topic's own is ours: whoever sends names the group, and could name any."""

    def needs(fields: Fields) -> Needs:
        topic = fields.get(topic_name)
        if topic is None:
            return {}
        if not topic.startswith(RETRY):
            return {topic: Perm.PUB}
        group = fields.get(group_name)
        return {topic: Perm.SUB} | ({} if group is None else {RETRY + group: Perm.SUB})

    return (topic_name, group_name), needs


_FILTER_SERVER: Final[_Need] = ((), lambda fields: {RETRY + FILTER_SERVER_GROUP: Perm.SUB})
_TOPIC, _GROUP = ("topic",), ("group",)

_NEEDS: Final[dict[int, _Need]] = {
    _code.SEND_MESSAGE: _send("topic", "group"),
    _code.SEND_MESSAGE_V2: _send("b", "a"),
    _code.SEND_BATCH_MESSAGE: _send("b", "a"),
    _code.CONSUMER_SEND_MSG_BACK: _sub(groups=_GROUP),
    _code.PULL_MESSAGE: _sub(_TOPIC, ("consumerGroup",)),
    _code.LITE_PULL_MESSAGE: _sub(_TOPIC, ("consumerGroup",)),
    _code.QUERY_MESSAGE: _sub(_TOPIC),
    _code.UNREGISTER_CLIENT: _sub(groups=("consumerGroup",)),
    _code.GET_CONSUMER_LIST_BY_GROUP: _sub(groups=("consumerGroup",)),
    _code.UPDATE_CONSUMER_OFFSET: _sub(_TOPIC, ("consumerGroup",)),
    # Filter servers: of those that clients ask, and that ask brokers.
    _code.REGISTER_MESSAGE_FILTER_CLASS: _sub(_TOPIC, ("consumerGroup",)),
    _code.JUDGE_RANGE: _sub(_TOPIC, ("consumerGroup",)),
    _code.REGISTER_FILTER_SERVER: _FILTER_SERVER,
    _code.REPORT_CODE_LAG: _FILTER_SERVER,
    # Ours.
    _code.EXPLAIN_MESSAGE: _sub(_TOPIC, _GROUP),
    _code.GET_HISTORY: _sub(_TOPIC, _GROUP),
    _code.GET_MATCHING_LAG: _sub(_TOPIC, ("consumerGroup",)),
    _code.COUNT_MATCHES: _sub(_TOPIC),
    _code.GET_GROUP_RULES: _sub(groups=_GROUP),
    _code.GET_FILTER_VERDICTS: _sub(groups=_GROUP),
}
_OF_ALL: Final = frozenset(
    {
        _code.GET_HISTORY,
        _code.GET_MATCHING_LAG,
        _code.GET_GROUP_RULES,
        _code.GET_FILTER_VERDICTS,
    }
)
