"""How a broker behaves: RocketMQ's switches under readable names.

Each field says what RocketMQ calls it; tools that read or change a broker's configuration use those
names. Changes made while it runs last until it stops. RocketMQ's default for `flush` is async: it
acknowledges messages that a power cut within the next half second loses. Ours is sync.
"""

import asyncio
import contextlib
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from ..errors import ConfigError
from ..net.buffers import LEAST_MEMORY
from ..security import INSECURE, ClientTls, Security
from ..security.settings import security_of, uses_tls
from ..security.tls import ClientAuth, Mode
from ..store.config import StoreConfig
from ..store.dispatch import DELAY_LEVELS
from ..wire.bodies import Perm
from ..wire.frame import MAX_FRAME

__all__ = ["BrokerConfig", "Settings", "Switch"]

log = logging.getLogger(__name__)


_READ, _WRITE = int(Perm.READ), int(Perm.WRITE)
_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")  # both are names of topics too
_HOST = re.compile(r"[^\s:/]*|[0-9a-fA-F:.]+(%\w+)?")  # a name or v4; v6
_LONGEST_REGION = 128
_INT_MAX = 2**31 - 1  # what RocketMQ can hold, and its tools send back
_YEAR = 31_536_000.0  # seconds
# Lowest and highest. Of a duration the lowest is not included. A value beyond is a mistake: a
# timer of centuries, an answer that fits in no frame.
_RANGES: dict[str, tuple[float, float]] = {
    "port": (0, 65_535),
    "metrics_port": (-1, 65_535),
    "permission": (0, 7),
    "default_queues": (1, 10_000),
    "bloom_groups": (1, 10_000),
    "bloom_error_percent": (1, 99),
    "filter_keep_seconds": (0, 10 * _YEAR),
    "isolate_hold_seconds": (0, _YEAR),
    "filter_servers": (0, 64),
    "short_polling_seconds": (0, 3600),
    "pull_messages": (1, 1_000_000),
    "pull_bytes": (1, MAX_FRAME),
    "pull_scan_seconds": (0, 3600),
    "transaction_timeout": (0, _YEAR),
    "transaction_check_interval": (0, _YEAR),
    "transaction_check_max": (0, 1_000_000),
    "flush_interval": (0, 3600),
    "keep_hours": (0, 10_000_000),
    "clean_ratio": (0.1, 1),
    "full_ratio": (0.1, 1),
    "log_file_size": (64, _INT_MAX),
    "queue_file_size": (1, _INT_MAX),
    "extension_file_size": (64, _INT_MAX),
    "index_slots": (64, _INT_MAX),
    "index_entries": (64, _INT_MAX),
    "max_message_size": (1, MAX_FRAME),
    "send_backlog": (1, 10_000_000),
    "pull_backlog": (1, 10_000_000),
    "most_connections": (1, 1_000_000),
    "connection_memory": (LEAST_MEMORY, 2**40),
    "idle_seconds": (0, _YEAR),
    "most_topics": (1, 10_000_000),
    "most_groups": (1, 10_000_000),
    "most_auto_topics": (1, 10_000_000),
    "most_auto_groups": (1, 10_000_000),
    "auto_create_per_minute": (1, 10_000_000),
    "most_offsets": (1, 100_000_000),
    "heartbeat_groups": (1, 1_000_000),
    "heartbeat_subscriptions": (1, 1_000_000),
    "most_members": (1, 10_000_000),
    "history_bytes": (65_536, 2**40),
}


@dataclass(frozen=True, slots=True)
class Switch:
    """RocketMQ's name of a setting; whether it can be changed while the broker runs, and whether
    nobody is told."""

    name: str
    live: bool = False
    secret: bool = False


@dataclass(frozen=True, kw_only=True)
class BrokerConfig:
    """Durations are seconds, sizes bytes."""

    # Who it is and where.
    name: Annotated[str, Switch("brokerName")] = "broker-a"
    cluster: Annotated[str, Switch("brokerClusterName")] = "DefaultCluster"
    bind: Annotated[str, Switch("bindAddress")] = "127.0.0.1"
    port: Annotated[int, Switch("listenPort")] = 10911  # 0: the system picks one
    advertise: Annotated[str, Switch("brokerIP1")] = ""  # the host in routes; empty: `bind`
    nameservers: Annotated[str, Switch("namesrvAddr")] = ""  # host:port;host:port
    metrics_port: Annotated[int, Switch("metricsPort")] = -1  # 0: picked; -1: no metrics

    # TLS, of its port and its metrics. Files are read when it starts, and when they change.
    tls: Annotated[Mode, Switch("tls.server.mode")] = "disabled"
    tls_cert: Annotated[str, Switch("tls.server.certPath")] = ""  # with its chain
    tls_key: Annotated[str, Switch("tls.server.keyPath")] = ""
    tls_key_password: Annotated[str, Switch("tls.server.keyPassword", secret=True)] = field(
        default="", repr=False
    )
    tls_key_password_file: Annotated[str, Switch("tlsServerKeyPasswordFile")] = ""
    tls_ca: Annotated[str, Switch("tls.server.trustCertPath")] = ""  # verifies clients
    tls_client_auth: Annotated[ClientAuth, Switch("tls.server.need.client.auth")] = "none"
    # TLS of its connections to name servers; on if one of the others is given.
    nameserver_tls: Annotated[bool, Switch("tls.enable")] = False
    nameserver_tls_ca: Annotated[str, Switch("tls.client.trustCertPath")] = ""
    nameserver_tls_verify: Annotated[bool, Switch("tls.client.authServer")] = True
    nameserver_tls_server_name: Annotated[str, Switch("tlsClientServerName")] = ""
    nameserver_tls_cert: Annotated[str, Switch("tls.client.certPath")] = ""  # our own
    nameserver_tls_key: Annotated[str, Switch("tls.client.keyPath")] = ""
    nameserver_tls_key_password: Annotated[str, Switch("tls.client.keyPassword", secret=True)] = (
        field(default="", repr=False)
    )
    security: Security = INSECURE  # what these make, or what they can't say

    # What it allows.
    permission: Annotated[int, Switch("brokerPermission", live=True)] = 6  # 4 read, 2 write
    auto_create_topics: Annotated[bool, Switch("autoCreateTopicEnable", live=True)] = True
    auto_create_groups: Annotated[bool, Switch("autoCreateSubscriptionGroup", live=True)] = True
    default_queues: Annotated[int, Switch("defaultTopicQueueNums")] = 8  # of topics it makes
    reject_transactions: Annotated[bool, Switch("rejectTransactionMessage", live=True)] = False
    acl: Annotated[bool, Switch("aclEnable")] = False  # requests are to be signed
    acl_file: Annotated[str, Switch("aclFile")] = ""  # empty: conf/plain_acl.yml of the store

    # Filtering.
    sql_filters: Annotated[bool, Switch("enablePropertyFilter", live=True)] = True
    filter_retries: Annotated[bool, Switch("filterSupportRetry", live=True)] = False
    bitmaps: Annotated[bool, Switch("enableCalcFilterBitMap")] = False  # costs a pass at dispatch
    extensions: Annotated[bool, Switch("enableConsumeQueueExt")] = False  # needed by bitmaps
    bloom_groups: Annotated[int, Switch("expectConsumerNumUseFilter")] = 32
    bloom_error_percent: Annotated[int, Switch("maxErrorRateOfBloomFilter")] = 20
    filter_keep_seconds: Annotated[float, Switch("filterDataCleanTimeSpan", live=True)] = 86_400.0
    # What becomes of members of a group that subscribe differently; isolate costs, see conflicts.md
    subscription_conflicts: Annotated[
        Literal["rocketmq", "reject", "isolate"], Switch("subscriptionConflicts", live=True)
    ] = "rocketmq"
    # How long what only gone members wanted is kept for them; raising it delays the group's offset
    isolate_hold_seconds: Annotated[float, Switch("isolateHoldSeconds", live=True)] = 600.0

    # Filter servers beside it.
    filter_servers: Annotated[int, Switch("filterServerNums")] = 0  # each is a process
    filter_server_options: Annotated[str, Switch("filterServerOptions")] = ""  # of its command

    # Pulls.
    long_polling: Annotated[bool, Switch("longPollingEnable", live=True)] = True
    short_polling_seconds: Annotated[float, Switch("shortPollingTimeMills", live=True)] = 1.0
    pull_messages: Annotated[int, Switch("maxTransferCountOnMessageInMemory", live=True)] = 32
    pull_bytes: Annotated[int, Switch("maxTransferBytesOnMessageInMemory", live=True)] = 262_144
    pull_scan_seconds: Annotated[float, Switch("pullScanSeconds", live=True)] = 2.0  # for a match
    notify_members: Annotated[bool, Switch("notifyConsumerIdsChangedEnable", live=True)] = True

    # Messages that wait.
    delay_levels: Annotated[str, Switch("messageDelayLevel")] = DELAY_LEVELS
    transaction_timeout: Annotated[float, Switch("transactionTimeOut", live=True)] = 6.0
    transaction_check_interval: Annotated[float, Switch("transactionCheckInterval", live=True)] = (
        60.0
    )
    transaction_check_max: Annotated[int, Switch("transactionCheckMax", live=True)] = 15
    region: Annotated[str, Switch("regionId", live=True)] = "DefaultRegion"
    trace: Annotated[bool, Switch("traceOn", live=True)] = True

    # Keeping.
    flush: Annotated[Literal["async", "sync"], Switch("flushDiskType")] = "sync"
    flush_interval: Annotated[float, Switch("flushIntervalCommitLog", live=True)] = 0.5
    keep_hours: Annotated[float, Switch("fileReservedTime")] = 72.0
    clean_ratio: Annotated[float, Switch("diskSpaceCleanForciblyRatio")] = 0.85
    full_ratio: Annotated[float, Switch("diskSpaceWarningLevelRatio")] = 0.90
    log_file_size: Annotated[int, Switch("mappedFileSizeCommitLog")] = 2**30
    queue_file_size: Annotated[int, Switch("mappedFileSizeConsumeQueue")] = 6_000_000
    extension_file_size: Annotated[int, Switch("mappedFileSizeConsumeQueueExt")] = 48 * 2**20
    index_slots: Annotated[int, Switch("maxHashSlotNum")] = 5_000_000
    index_entries: Annotated[int, Switch("maxIndexNum")] = 20_000_000

    # Limits: raising one costs memory.
    max_message_size: Annotated[int, Switch("maxMessageSize", live=True)] = 4 * 2**20
    send_backlog: Annotated[int, Switch("sendThreadPoolQueueCapacity", live=True)] = 10_000
    pull_backlog: Annotated[int, Switch("pullThreadPoolQueueCapacity", live=True)] = 100_000
    most_connections: Annotated[int, Switch("serverChannelMaxConnections")] = 20_000
    connection_memory: Annotated[int, Switch("connectionMemory")] = 256 * 2**20  # of all of them
    idle_seconds: Annotated[float, Switch("serverChannelMaxIdleTimeSeconds")] = 120.0
    most_topics: Annotated[int, Switch("mostTopics", live=True)] = 100_000
    most_groups: Annotated[int, Switch("mostGroups", live=True)] = 100_000
    most_auto_topics: Annotated[int, Switch("mostAutoTopics", live=True)] = 10_000
    most_auto_groups: Annotated[int, Switch("mostAutoGroups", live=True)] = 10_000
    auto_create_per_minute: Annotated[int, Switch("autoCreatePerMinute", live=True)] = 1_000
    most_offsets: Annotated[int, Switch("mostOffsets", live=True)] = 500_000
    heartbeat_groups: Annotated[int, Switch("heartbeatGroups", live=True)] = 1_000
    heartbeat_subscriptions: Annotated[int, Switch("heartbeatSubscriptions", live=True)] = 10_000
    most_members: Annotated[int, Switch("mostMembers", live=True)] = 100_000
    history_bytes: Annotated[int, Switch("historyBytes", live=True)] = 16 * 2**20

    def __post_init__(self) -> None:
        for name, kind, _ in _settings():
            value = getattr(self, name)
            allowed = get_args(kind) if get_origin(kind) is Literal else None
            if allowed and value not in allowed:
                raise ConfigError(f"{name} = {value!r}: it takes {_or(allowed)}")
            if allowed is None and type(value) is not kind:
                if kind is float and type(value) is int:
                    object.__setattr__(self, name, float(value))
                else:
                    raise ConfigError(f"{name} = {value!r}: it takes {_KINDS[kind]}")
        for name, (lowest, highest) in _RANGES.items():
            value = getattr(self, name)
            is_open = type(value) is float and lowest == 0
            if not lowest <= value <= highest or (is_open and value == 0):
                begin = "more than 0, up to" if is_open else f"{lowest:.10g} to"
                raise ConfigError(f"{name} = {value:.10g}: it takes {begin} {highest:.10g}")
        is_plain = self.region.isprintable() and not set('"\\') & set(self.region)
        if not is_plain or len(self.region) > _LONGEST_REGION:
            raise ConfigError(
                f"region = {self.region!r:.140}: it takes up to {_LONGEST_REGION} characters, "
                "without quotes, backslashes and control characters"
            )
        for name in ("name", "cluster"):
            if not _NAME.fullmatch(getattr(self, name)):
                raise ConfigError(
                    f"{name} = {getattr(self, name)!r}: it takes letters, digits, - and _"
                )
        if not self.bind:
            raise ConfigError("bind = '': it takes an address; 0.0.0.0 stands for all")
        if not _HOST.fullmatch(self.advertise) or self.advertise in ("0.0.0.0", "::"):
            raise ConfigError(
                f"advertise = {self.advertise!r}: it takes a host clients know, without a port"
            )
        if self.acl_file and not self.acl:
            object.__setattr__(self, "acl", True)
        if self.security.tls is None:
            object.__setattr__(self, "security", replace(self.security, tls=self._client_tls()))
        if self.bitmaps and not self.extensions:
            object.__setattr__(self, "extensions", True)  # it would have nowhere to write them
        self.store()

    def _client_tls(self) -> ClientTls | None:
        """Raises ConfigError."""
        names = [one.name for one in fields(self) if one.name.startswith("nameserver_tls")]
        said = {name.removeprefix("nameserver_"): getattr(self, name) for name in names}
        said["tls"] = said["tls"] or uses_tls(said)
        return security_of(said).tls

    def store(self) -> StoreConfig:
        """Of the store this broker keeps. It waits for the disk itself when `flush` is sync."""
        return StoreConfig(
            flush="async",
            extensions=self.extensions,
            bitmaps=self.bitmaps,
            delay_levels=self.delay_levels,
            keep_hours=self.keep_hours,
            clean_ratio=self.clean_ratio,
            full_ratio=self.full_ratio,
            max_body=MAX_FRAME,  # the broker itself looks at `max_message_size`
            bloom_error_percent=self.bloom_error_percent,
            bloom_groups=self.bloom_groups,
            log_file_size=self.log_file_size,
            queue_file_size=self.queue_file_size,
            extension_file_size=self.extension_file_size,
            index_slots=self.index_slots,
            index_entries=self.index_entries,
        )

    @property
    def is_readable(self) -> bool:
        return bool(self.permission & _READ)

    @property
    def is_writable(self) -> bool:
        return bool(self.permission & _WRITE)

    @classmethod
    def from_text(cls, values: dict[str, str]) -> "BrokerConfig":
        """Of settings by our names or RocketMQ's. Raises ConfigError."""
        return cls()._with(values, running=False)

    def changed(self, values: dict[str, str]) -> "BrokerConfig":
        """With settings changed while it runs. Raises ConfigError for what can't be changed."""
        return self._with(values, running=True)

    def _with(self, values: dict[str, str], running: bool) -> "BrokerConfig":
        known = {}
        for name, kind, switch in _settings():
            known[name] = known[switch.name] = (name, kind, switch)
        found: dict[str, Any] = {}
        for key, text in values.items():
            if key not in known:
                raise ConfigError(f"{key}: there is no such setting")
            name, kind, switch = known[key]
            value = _read(switch, kind, key, text)
            if running and not switch.live and value != getattr(self, name):
                raise ConfigError(f"{key}: it can't be changed while the broker runs")
            found[name] = value
        return replace(self, **found)

    def shown(self) -> dict[str, str]:
        """By RocketMQ's names, as it writes them."""
        return {
            switch.name: _show(switch, getattr(self, name))
            for name, _, switch in _settings()
            if not switch.secret
        }


_MILLISECONDS = (
    "shortPollingTimeMills",
    "filterDataCleanTimeSpan",
    "transactionTimeOut",
    "transactionCheckInterval",
    "flushIntervalCommitLog",
)
_KINDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


@cache
def _settings() -> tuple[tuple[str, Any, Switch], ...]:
    hints = get_type_hints(BrokerConfig, include_extras=True)
    return tuple(
        (f.name, *get_args(hints[f.name])) for f in fields(BrokerConfig) if f.name != "security"
    )


def _read(switch: Switch, kind: Any, key: str, text: str) -> Any:
    """Under its own name RocketMQ counts milliseconds; we, seconds."""
    theirs = key == switch.name
    try:
        if get_origin(kind) is Literal:
            return text.lower().removesuffix("_flush")
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        if kind is float and switch.name in _MILLISECONDS and theirs:
            return float(text) / 1000
        return kind(text)
    except (ValueError, KeyError):
        raise ConfigError(f"{key} = {text!r}: it takes {_KINDS[kind]}") from None


def _or(values: tuple[str, ...]) -> str:
    return " or ".join(filter(None, (", ".join(values[:-1]), values[-1])))


def _show(switch: Switch, value: Any) -> str:
    if switch.name == "flushDiskType":
        return f"{value.upper()}_FLUSH"
    if isinstance(value, bool):
        return "true" if value else "false"
    if switch.name in _MILLISECONDS:
        return str(int(value * 1000))
    return f"{value:g}" if isinstance(value, float) else str(value)


class Settings:
    """The configuration in force: a broker's parts look here each time they need one."""

    def __init__(self, config: BrokerConfig) -> None:
        self.config = config
        self.on_change: Callable[[BrokerConfig, BrokerConfig], None] = lambda old, new: None
        self._sleepers: set[asyncio.Event] = set()

    def change(self, values: dict[str, str]) -> None:
        """Raises ConfigError, and then nothing is changed."""
        old, self.config = self.config, self.config.changed(values)
        log.info("settings changed: %s", values)
        for sleeper in self._sleepers:
            sleeper.set()
        self.on_change(old, self.config)

    async def sleep(self, seconds: Callable[[BrokerConfig], float]) -> None:
        """Sleeps for as long as a setting says. If that is changed meanwhile, the new value counts,
        from when the sleep began."""
        loop, changed = asyncio.get_running_loop(), asyncio.Event()
        began = loop.time()
        self._sleepers.add(changed)
        try:
            while (end := began + seconds(self.config)) > loop.time():
                changed.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(end):
                        await changed.wait()
        finally:
            self._sleepers.discard(changed)
