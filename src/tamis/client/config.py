"""Settings of producers and consumers. Durations are seconds, sizes are bytes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal

from ..errors import ConfigError, InvalidName
from ..security import Security
from ..security.profile import FLAGS, SETTINGS
from ..security.settings import security_of
from ..wire.bodies import MessageModel, MessageQueue
from .compression import MAX_BODY_SIZE

__all__ = [
    "SYSTEM_TOPICS",
    "ClientConfig",
    "ConsumerConfig",
    "Moment",
    "ProducerConfig",
    "Start",
    "Strategy",
    "check_group",
    "check_topic",
    "millis",
]

Moment = float | datetime  # seconds since 1970, or a date and time
Start = Literal["first", "last"] | Moment
# Of the queues of a topic, the members of the group and oneself.
Strategy = Callable[[Sequence[MessageQueue], Sequence[str], str], list[MessageQueue]]

_OF_SECURITY: Final = tuple(name for name in SETTINGS if name != "nameserver")
_KIB: Final = 1024
_MIB: Final = 1024 * _KIB
_WHEN_UNAVAILABLE: Final = ("filter-here", "wait", "fail")
_ON_ERROR: Final = ("skip", "pass", "hold", "dead-letter")


@dataclass(frozen=True, kw_only=True)
class ClientConfig:
    """What all clients have."""

    # Who it is. The three make up the client id, by which brokers and other members know it.
    instance_name: str = ""  # a process and a number, if not given; two clients must not share one
    client_ip: str = ""  # this machine's, if not given
    unit_name: str = ""

    # With which key requests are signed, for brokers with access control; both or neither.
    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    security_token: str = field(default="", repr=False)  # of keys that are given for a while

    # TLS of all connections: to name servers, brokers and filter servers.
    tls: bool | None = None  # None: if another setting of it is given
    tls_ca: str = ""  # PEM file of authorities that vouch for servers; the system's if not given
    tls_verify: bool = True  # False: whoever answers is believed to be the server
    tls_server_name: str = ""  # in the servers' certificate, if not the host that is connected to
    tls_cert: str = ""  # PEM files of our own, for servers that ask for a certificate
    tls_key: str = ""
    tls_key_password: str = field(default="", repr=False)

    timeout: float = 3.0  # for the answer to a request, all attempts included
    connect_timeout: float = 3.0
    route_interval: float = 30.0  # between looks at the name server; a new broker is seen this late
    heartbeat_interval: float = 30.0  # brokers forget a client after 120 s
    # Bytes of a compressed body when it is decompressed: one that has more is not read, but told of
    # by UnreadableMessage. Each message that is being handled may take as much memory.
    max_body_size: int = MAX_BODY_SIZE

    def __post_init__(self) -> None:
        for name in ("timeout", "connect_timeout", "route_interval", "heartbeat_interval"):
            _check(self, name, 0.001, 3600.0)
        _check(self, "max_body_size", 1, 1024 * _MIB)
        _check_security(self)

    @property
    def security(self) -> Security:
        """What all connections have in common."""
        return security_of({name: getattr(self, name) for name in _OF_SECURITY})


@dataclass(frozen=True, kw_only=True)
class ProducerConfig(ClientConfig):
    retries: int = 2  # after the first attempt, each on another broker if there is one
    avoid_slow_brokers: bool = True  # those that failed or were slow are left alone for a while
    retry_when_not_durable: bool = False  # stored, but not flushed or copied in time: send again?
    default_topic: str = "TBW102"  # whose brokers may create a topic that is not there yet
    default_queues: int = 4  # of a topic made by sending to it

    compress_over: int = 4 * _KIB  # a body this long or longer is compressed: CPU for bytes
    compress_level: int = 5
    max_message_size: int = 4 * _MIB  # brokers refuse longer ones by default
    max_delay_level: int = (
        18  # for brokers with other levels; theirs takes a higher one for its last
    )
    check_tags: bool = True  # refuse those that no subscription can name
    max_in_flight: int = 1024  # sends without an answer yet; more wait their turn

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self, "retries", 0, 100)
        _check(self, "default_queues", 1, 10_000)
        _check(self, "compress_over", 0, 2**31)
        _check(self, "compress_level", 0, 9)
        _check(self, "max_message_size", 1, 16 * _MIB)
        _check(self, "max_in_flight", 1, 65_535)
        _check(self, "max_delay_level", 1, 1000)


@dataclass(frozen=True, kw_only=True)
class ConsumerConfig(ClientConfig):
    model: Literal["clustering", "broadcasting"] = "clustering"  # one member gets it, or each
    # Where a group begins that has no offset yet. RocketMQ's brokers give a new group the first
    # message of a topic they still hold from its beginning, whatever this says.
    start: Start = "last"
    strategy: str | Strategy = "AVG"  # who gets which queue; the same for all members of a group
    wait_for_topics: bool = False  # one that is not there yet is an error, unless this is set
    strict_subscriptions: bool = False  # refuse, not only warn, when members subscribe differently
    max_reconsume_times: int = -1  # then the dead letter topic; -1: 16, or no end if ordered
    suspend: float = 1.0  # before an ordered queue is tried again after a failure
    handler_timeout: float = 900.0  # then a message is given up and sent back to be retried
    drain: float = 10.0  # for handlers to end in when a consumer is closed
    auto_commit: bool = True  # of the pull style: what was worked off, every commit_interval
    commit_interval: float = 5.0  # what was done in it is done again after a crash
    rebalance_interval: float = 20.0  # brokers tell of changes too; this is for when they can't
    offsets_directory: str = ""  # of broadcasting consumers; ~/.rocketmq_offsets if not given

    # Filters in code. What to do while no filter server takes the code: filter in this process
    # (all messages cross the network), wait for one, or fail. None: filter here if the code was
    # given as a file or a CodeFilter; wait if it was given as text, which may be a stranger's.
    code_when_unavailable: Literal["filter-here", "wait", "fail"] | None = None
    # What happens to a message whose filter fails in this process; filter servers have their own
    # setting. Skip it, deliver it, hold its queue back and try again, or send it to the dead
    # letter topic.
    code_on_error: Literal["skip", "pass", "hold", "dead-letter"] = "skip"
    code_secret: str = field(default="", repr=False)  # that filter servers want with an upload

    concurrency: int = 20  # handlers at a time, and threads for those that are no coroutines
    handler_batch: int = 1  # messages a call; a handler is given a list if it is more than one
    pull_size: int = 32  # messages a pull; brokers give no more than their own limit
    hold: float = 15.0  # how long a broker waits for messages before it says there are none
    max_queue_messages: int = 1000  # of one queue in memory, at which it is not pulled from
    max_queue_bytes: int = 100 * _MIB
    max_span: int = 2000  # offsets between the first and the last message not consumed yet

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model not in ("clustering", "broadcasting"):
            raise ConfigError(f"model = {self.model!r}: it is clustering or broadcasting")
        if isinstance(self.start, str) and self.start not in ("first", "last"):
            raise ConfigError(
                f"start = {self.start!r}: it is 'first', 'last', seconds since 1970 or a datetime"
            )
        if not isinstance(self.start, str):
            millis(self.start)
        if self.code_when_unavailable not in (None, *_WHEN_UNAVAILABLE):
            raise ConfigError(
                f"code_when_unavailable = {self.code_when_unavailable!r}: it is one of"
                f" {', '.join(_WHEN_UNAVAILABLE)}"
            )
        if self.code_on_error not in _ON_ERROR:
            raise ConfigError(
                f"code_on_error = {self.code_on_error!r}: it is one of {', '.join(_ON_ERROR)}"
            )
        for name in ("suspend", "handler_timeout", "commit_interval", "rebalance_interval"):
            _check(self, name, 0.001, 86_400.0)
        _check(self, "drain", 0.0, 86_400.0)
        _check(self, "hold", 0.0, 600.0)
        _check(self, "max_reconsume_times", -1, 2**31 - 1)
        _check(self, "concurrency", 1, 1000)
        _check(self, "handler_batch", 1, 1024)
        _check(self, "pull_size", 1, 1024)
        _check(self, "max_queue_messages", 1, 65_535)
        _check(self, "max_queue_bytes", 1, 1024 * _MIB)
        _check(self, "max_span", 1, 65_535)

    @property
    def message_model(self) -> MessageModel:
        return MessageModel(self.model.upper())

    @property
    def is_broadcasting(self) -> bool:
        return self.model == "broadcasting"

    @property
    def start_timestamp(self) -> int | None:
        """In milliseconds, if it starts by time."""
        if isinstance(self.start, str):
            return None
        return millis(self.start)


def millis(moment: Moment) -> int:
    """As the wire has it. Raises ConfigError for what is seconds by no means."""
    seconds = moment.timestamp() if isinstance(moment, datetime) else moment
    if not 0 <= seconds < 1e11:  # the year 5138: milliseconds that were taken for seconds
        raise ConfigError(f"{seconds!r} is no time: it is seconds since 1970, or a datetime")
    return round(seconds * 1000)


def _check_security(config: ClientConfig) -> None:
    for name in _OF_SECURITY:
        value = getattr(config, name)
        wanted = bool if name in FLAGS else str
        if type(value) is not wanted and not (name == "tls" and value is None):
            kind = "True or False" if wanted is bool else "text"
            raise ConfigError(f"{name}: it takes {kind}, not {type(value).__name__}")
    _ = config.security


def _check(config: object, name: str, low: float, high: float) -> None:
    value = getattr(config, name)
    if not isinstance(value, (int, float)) or not low <= value <= high:
        raise ConfigError(f"{name} = {value!r}: it takes {low:,} to {high:,}")


_NAME: Final = frozenset("%|-_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")
SYSTEM_TOPICS: Final = frozenset(
    [
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    ]
)
_DEFAULT_GROUPS: Final = ("DEFAULT_PRODUCER", "DEFAULT_CONSUMER")


def check_group(name: str) -> str:
    """Raises InvalidName for what RocketMQ's own clients refuse (`Validators.checkGroup`)."""
    _check_name("group", name, 255)
    if name in _DEFAULT_GROUPS:
        raise InvalidName("group", name, "RocketMQ keeps it for itself; choose one of your own")
    return name


def check_topic(name: str, *, to_send: bool = False) -> str:
    """Raises InvalidName."""
    _check_name("topic", name, 127)
    if to_send and name in SYSTEM_TOPICS:
        raise InvalidName("topic", name, "RocketMQ keeps it for itself")
    return name


def _check_name(what: str, name: str, longest: int) -> None:
    if not name.strip():
        raise InvalidName(what, name, "it is empty")
    if len(name) > longest:
        raise InvalidName(what, name, f"it has {len(name)} characters, at most {longest} are taken")
    for one in name:
        if one not in _NAME:
            raise InvalidName(what, name, f"{one!r} is none of letters, digits, %, |, - and _")
