"""The fields of each request and answer, declared once.

A class is a header: its fields are RocketMQ's `CommandCustomHeader`s under our names, which are
theirs in snake_case unless `Wire` says otherwise. A default means that the field may be missing.
Scalars travel as text; clients write booleans in several ways, of which `true` alone is true.

It is one long module because it is a list: one class for each request, without logic.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from .codes import RequestCode
from .fields import Header, Wire

__all__ = ["Header", "Wire"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Nothing(Header):
    """Fields, but none of them: some answers have an empty map where others have no map."""


# Of clients: sending, pulling, offsets.


@dataclass(frozen=True, slots=True, kw_only=True)
class SendMessage(Header):
    """`SEND_MESSAGE_V2` and `SEND_BATCH_MESSAGE` have letters for names."""

    CODE: ClassVar = RequestCode.SEND_MESSAGE
    LETTERS: ClassVar = {
        "producer_group": "a",
        "topic": "b",
        "default_topic": "c",
        "default_topic_queue_nums": "d",
        "queue_id": "e",
        "sys_flag": "f",
        "born_timestamp": "g",
        "flag": "h",
        "properties": "i",
        "reconsume_times": "j",
        "unit_mode": "k",
        "max_reconsume_times": "l",
        "batch": "m",
        "broker_name": "n",
    }
    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: int
    queue_id: int
    sys_flag: int
    born_timestamp: int
    flag: int
    properties: str | None = None
    reconsume_times: int | None = None
    unit_mode: bool = False
    max_reconsume_times: int | None = None
    batch: bool = False
    broker_name: Annotated[str | None, Wire("bname")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SendMessageResponse(Header):
    msg_id: str
    queue_id: int
    queue_offset: int
    transaction_id: str | None = None
    region: Annotated[str | None, Wire("MSG_REGION")] = None
    trace_on: Annotated[str | None, Wire("TRACE_ON")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SendRefusal(Header):
    """What comes with a code other than success: clients read it all the same."""

    region: Annotated[str, Wire("MSG_REGION")]
    trace_on: Annotated[str, Wire("TRACE_ON")]


@dataclass(frozen=True, slots=True, kw_only=True)
class PushReply(Header):
    """A reply to a request message, on its way to the client that waits for it."""

    CODE: ClassVar = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: int
    queue_id: int
    sys_flag: int
    born_timestamp: int
    flag: int
    properties: str | None = None
    reconsume_times: int | None = None
    unit_mode: bool = False
    born_host: str
    store_host: str
    store_timestamp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PullMessage(Header):
    CODE: ClassVar = RequestCode.PULL_MESSAGE
    consumer_group: str
    topic: str
    queue_id: int
    queue_offset: int
    max_msg_nums: int
    sys_flag: int
    commit_offset: int = 0
    suspend_timeout_millis: int = 0
    subscription: str | None = None
    sub_version: int = 0
    expression_type: str | None = None
    broker_name: Annotated[str | None, Wire("bname")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PullMessageResponse(Header):
    suggest_which_broker_id: int
    next_begin_offset: int
    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryMessage(Header):
    CODE: ClassVar = RequestCode.QUERY_MESSAGE
    topic: str
    key: str
    max_num: int
    begin_timestamp: int
    end_timestamp: int
    is_unique_key: Annotated[str | None, Wire("_UNIQUE_KEY_QUERY")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryMessageResponse(Header):
    index_last_update_timestamp: int
    index_last_update_phyoffset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryConsumerOffset(Header):
    CODE: ClassVar = RequestCode.QUERY_CONSUMER_OFFSET
    consumer_group: str
    topic: str
    queue_id: int
    set_zero_if_not_found: bool = True  # 5.x


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateConsumerOffset(Header):
    CODE: ClassVar = RequestCode.UPDATE_CONSUMER_OFFSET
    consumer_group: str
    topic: str
    queue_id: int
    commit_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OfQueue(Header):
    """The first and the last offset of a queue, its oldest message."""

    topic: str
    queue_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOffset(Header):
    CODE: ClassVar = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
    topic: str
    queue_id: int
    timestamp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetResponse(Header):
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimestampResponse(Header):
    timestamp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewMessage(Header):
    CODE: ClassVar = RequestCode.VIEW_MESSAGE_BY_ID
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainMessage(Header):
    """Ours. `code_outcomes` is JSON: class name to outcome, as a filter server says."""

    CODE: ClassVar = RequestCode.EXPLAIN_MESSAGE
    topic: str
    queue_id: int
    offset: int
    group: str | None = None
    code_outcomes: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetHistory(Header):
    """Ours."""

    CODE: ClassVar = RequestCode.GET_HISTORY
    topic: str | None = None
    group: str | None = None


# Of clients: groups, retries, transactions.


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterClient(Header):
    CODE: ClassVar = RequestCode.UNREGISTER_CLIENT
    client_id: Annotated[str, Wire("clientID")]
    producer_group: str | None = None
    consumer_group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OfConsumerGroup(Header):
    """The members of a group, its connections; also the notice that they changed."""

    consumer_group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OfProducerGroup(Header):
    CODE: ClassVar = RequestCode.GET_PRODUCER_CONNECTION_LIST
    producer_group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SendMessageBack(Header):
    CODE: ClassVar = RequestCode.CONSUMER_SEND_MSG_BACK
    offset: int  # in the log
    group: str
    delay_level: int
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransaction(Header):
    CODE: ClassVar = RequestCode.END_TRANSACTION
    producer_group: str
    tran_state_table_offset: int  # in the queue of half messages
    commit_log_offset: int
    commit_or_rollback: int  # SysFlag: COMMIT, ROLLBACK, or 0 for not known
    from_transaction_check: bool = False
    msg_id: str | None = None
    transaction_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckTransactionState(Header):
    CODE: ClassVar = RequestCode.CHECK_TRANSACTION_STATE
    tran_state_table_offset: int
    commit_log_offset: int
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None


# Of tools, to the broker.


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopic(Header):
    CODE: ClassVar = RequestCode.UPDATE_AND_CREATE_TOPIC
    topic: str
    default_topic: str | None = None
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_filter_type: str | None = None
    topic_sys_flag: int = 0
    order: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OfTopic(Header):
    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OfGroup(Header):
    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OfTopicAndGroup(Header):
    topic: str
    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroup(Header):
    CODE: ClassVar = RequestCode.DELETE_SUBSCRIPTIONGROUP
    group_name: str
    remove_offset: bool = False
    clean_offset: bool = False  # 5.x's name for it


@dataclass(frozen=True, slots=True, kw_only=True)
class GetConsumeStats(Header):
    CODE: ClassVar = RequestCode.GET_CONSUME_STATS
    consumer_group: str
    topic: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OfAnyGroup(Header):
    """All groups, or one."""

    group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetOffset(Header):
    """To the broker, and from it to the members of the group."""

    CODE: ClassVar = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
    topic: str
    group: str
    timestamp: int
    is_force: bool = False
    queue_id: int | None = None  # 5.x
    offset: int | None = None  # 5.x


@dataclass(frozen=True, slots=True, kw_only=True)
class GetConsumerStatus(Header):
    """To the broker, and from it to the members of the group."""

    CODE: ClassVar = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
    topic: str
    group: str
    client_addr: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetRunningInfo(Header):
    CODE: ClassVar = RequestCode.GET_CONSUMER_RUNNING_INFO
    consumer_group: str
    client_id: str
    jstack_enable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeDirectly(Header):
    CODE: ClassVar = RequestCode.CONSUME_MESSAGE_DIRECTLY
    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectOffset(Header):
    CODE: ClassVar = RequestCode.QUERY_CORRECTION_OFFSET
    topic: str
    compare_group: str
    filter_groups: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CloneGroupOffset(Header):
    CODE: ClassVar = RequestCode.CLONE_GROUP_OFFSET
    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewStats(Header):
    CODE: ClassVar = RequestCode.VIEW_BROKER_STATS_DATA
    stats_name: str
    stats_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetBrokerConsumeStats(Header):
    CODE: ClassVar = RequestCode.GET_BROKER_CONSUME_STATS
    is_order: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryConsumeQueue(Header):
    CODE: ClassVar = RequestCode.QUERY_CONSUME_QUEUE
    topic: str
    queue_id: int
    index: int
    count: int
    consumer_group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OfMessage(Header):
    CODE: ClassVar = RequestCode.RESUME_CHECK_HALF_MESSAGE
    msg_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionResponse(Header):
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterFilterServer(Header):
    CODE: ClassVar = RequestCode.REGISTER_FILTER_SERVER
    filter_server_addr: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterFilterServerResponse(Header):
    broker_name: str
    broker_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterFilterClass(Header):
    """A consumer's filter in code, to a filter server; the body is its source."""

    CODE: ClassVar = RequestCode.REGISTER_MESSAGE_FILTER_CLASS
    consumer_group: str
    topic: str
    class_name: str
    class_crc: Annotated[int, Wire("classCRC")]
    tamis_secret: str | None = None  # ours: what the server asks of those who upload


# Of the name server.


@dataclass(frozen=True, slots=True, kw_only=True)
class PutKvConfig(Header):
    CODE: ClassVar = RequestCode.PUT_KV_CONFIG
    namespace: str
    key: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OfKvConfig(Header):
    namespace: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OfNamespace(Header):
    CODE: ClassVar = RequestCode.GET_KVLIST_BY_NAMESPACE
    namespace: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueResponse(Header):
    value: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OfBroker(Header):
    """A broker that leaves, or asks whether it is known as it is."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBroker(OfBroker):
    CODE: ClassVar = RequestCode.REGISTER_BROKER
    ha_server_addr: str | None = None
    compressed: bool = False
    body_crc32: Annotated[int, Wire("bodyCrc32")] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBrokerResponse(Header):
    master_addr: str | None = None
    ha_server_addr: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataVersionResponse(Header):
    changed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GetRoute(Header):
    CODE: ClassVar = RequestCode.GET_ROUTEINFO_BY_TOPIC
    topic: str
    accept_standard_json_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicInNameServer(Header):
    CODE: ClassVar = RequestCode.DELETE_TOPIC_IN_NAMESRV
    topic: str
    cluster_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OfCluster(Header):
    CODE: ClassVar = RequestCode.GET_TOPICS_BY_CLUSTER
    cluster: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OfBrokerName(Header):
    """To take a broker's topics out of use for writing, or put them back."""

    broker_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WipeWritePermResponse(Header):
    wipe_topic_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AddWritePermResponse(Header):
    add_topic_count: int


# Ours.


@dataclass(frozen=True, slots=True, kw_only=True)
class GetMatchingLag(Header):
    """For a group, a topic, or all; what is not counted in time is said to be incomplete."""

    CODE: ClassVar = RequestCode.GET_MATCHING_LAG
    consumer_group: str | None = None
    topic: str | None = None
    timeout_millis: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CountMatches(Header):
    """Count by a filter that need not be any group's. The body is JSON, a list of
    `[queue, begin, end]`."""

    CODE: ClassVar = RequestCode.COUNT_MATCHES
    topic: str
    expression: str
    expression_type: str | None = None  # TAG or SQL92
    timeout_millis: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeRange(Header):
    """Messages from `begin` up to `end`; as many of them as are judged by then."""

    CODE: ClassVar = RequestCode.JUDGE_RANGE
    consumer_group: str
    topic: str
    queue_id: int
    begin: int
    end: int
    class_name: Annotated[str | None, Wire("class")] = None
    timeout_millis: int | None = None
    outcomes: bool = False  # list messages that matched or failed
    bitmaps: bool = False  # say which matched or failed by a bit for each message


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportCodeLag(Header):
    """All of it is in the body."""

    CODE: ClassVar = RequestCode.REPORT_CODE_LAG


# Ours: rules of groups.


@dataclass(frozen=True, slots=True, kw_only=True)
class SetGroupFilter(Header):
    """`start` is `now`, `offset:N`, `time:MILLISECONDS` or `queues:` and a JSON object of offsets.
    Without `old_kind` the old filter is what is in force."""

    CODE: ClassVar = RequestCode.SET_GROUP_FILTER
    group: str
    topic: str
    kind: str | None = None  # TAG or SQL92
    expression: str | None = None
    start: Annotated[str, Wire("from")] = "now"
    old_kind: str | None = None
    old_expression: str | None = None
    cancel: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GetGroupRules(Header):
    CODE: ClassVar = RequestCode.GET_GROUP_RULES
    group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetGroupPolicy(Header):
    CODE: ClassVar = RequestCode.SET_GROUP_POLICY
    group: str
    policy: str
