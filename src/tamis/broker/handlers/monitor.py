"""The broker about itself: how it is, its configuration, its statistics, its filter servers.

RocketMQ's `AdminBrokerProcessor` and `FilterServerManager` (4.9.4).
"""

import logging
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from ...errors import ConfigError, ResponseError
from ...message import DELAY_TOPIC
from ...net.aio import Peer, parse_address
from ...net.server import Answer, Request
from ...store.retention import disk_used
from ...store.store import Store
from ...wire import beans, record
from ...wire.bodies import DataVersion, KvTable, decode_properties, encode_properties
from ...wire.codes import VERSION, ResponseCode, version_name
from ...wire.headers import (
    RegisterFilterServer,
    RegisterFilterServerResponse,
    VersionResponse,
    ViewStats,
)
from ..config import Settings
from ..stats import Stats
from .queries import record_time

__all__ = [
    "FilterServers",
    "Load",
    "broker_config",
    "broker_stats",
    "register_filter_server",
    "runtime_info",
    "update_broker_config",
]

log = logging.getLogger(__name__)

FILTER_SERVER_SECONDS: Final = 30.0  # of silence, after which it is no longer named to clients
_MOST_FILTER_SERVERS: Final = 100  # they are named in every route
_MOST_ADDRESS: Final = 255  # characters
_MOST_SETTINGS: Final = 65_536  # bytes of changes at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What waits at this moment."""

    sends: int = 0  # messages put and not yet answered
    pulls: int = 0  # requests to pull that nobody has looked at; held ones are none
    unflushed: int = 0  # bytes of the log that are not on the disk


def runtime_info(
    settings: Settings,
    store: Store,
    stats: Stats,
    delivered: Callable[[], Mapping[int, int]],
    load: Callable[[], Load],
    now: Callable[[], float],
    header: None,
    request: Request,
) -> Answer:
    """All that RocketMQ's tools know to show; `delivered`: up to where each delay level is."""
    table = {
        **_about_stats(stats, now()),
        **_about_store(store, delivered()),
        **_about_load(settings, load()),
    }
    return Answer(body=beans.encode(KvTable(table={k: str(v) for k, v in table.items()})))


def _about_stats(stats: Stats, now: float) -> dict[str, object]:
    put, got = stats.put_total, stats.got_total
    found, missed = stats.rates("found"), stats.rates("missed")
    return {
        "brokerVersionDesc": version_name(VERSION),
        "brokerVersion": VERSION,
        "bootTimestamp": int(stats.started * 1000),
        "runtime": _span(now - stats.started),
        "msgPutTotalYesterdayMorning": stats.yesterday_morning[0],
        "msgPutTotalTodayMorning": stats.this_morning[0],
        "msgPutTotalTodayNow": put.messages,
        "msgGetTotalYesterdayMorning": stats.yesterday_morning[1],
        "msgGetTotalTodayMorning": stats.this_morning[1],
        "msgGetTotalTodayNow": got.messages,
        "putMessageTimesTotal": put.messages,
        "putMessageFailedTimes": stats.failed,
        "putMessageSizeTotal": put.bytes,
        "putMessageAverageSize": put.bytes / max(put.messages, 1),
        "putMessageDistributeTime": stats.latencies(),
        "putMessageEntireTimeMax": int(stats.slowest_put * 1000),
        "getMessageEntireTimeMax": int(stats.slowest_get * 1000),
        "putLatency99": f"{stats.latency(0.99):.2f}",
        "putLatency999": f"{stats.latency(0.999):.2f}",
        "putTps": _shown(stats.rates("put")),
        "getFoundTps": _shown(found),
        "getMissTps": _shown(missed),
        "getTotalTps": _shown([a + b for a, b in zip(found, missed, strict=True)]),
        "getTransferedTps": _shown(stats.rates("got")),
        "dispatchMaxBuffer": 0,
        "startAcceptSendRequestTimeStamp": 0,
    }


def _about_store(store: Store, delivered: Mapping[int, int]) -> dict[str, object]:
    usage = shutil.disk_usage(store.paths.root)
    ratio = disk_used(store.paths.root)
    made: dict[str, object] = {
        "commitLogDiskRatio": ratio,
        f"commitLogDiskRatio_{store.paths.commit_log}": ratio,
        "consumeQueueDiskRatio": ratio,
        "commitLogDirCapacity": f"Total : {_size(usage.total)}, Free : {_size(usage.free)}.",
        "commitLogMinOffset": int(store.log.start),
        "commitLogMaxOffset": int(store.log.end),
        "dispatchBehindBytes": max(store.log.end - store.dispatched, 0),
        "earliestMessageTimeStamp": _oldest(store),
        "remainTransientStoreBufferNumbs": 2**31 - 1,  # as without such a pool
        "pageCacheLockTimeMills": 0,
    }
    for level, offset in delivered.items():
        queue = store.find_queue(DELAY_TOPIC, level - 1)
        last = queue.max_offset if queue is not None else 0
        made[f"scheduleMessageOffset_{level}"] = f"{offset},{last}"
    return made


def _about_load(settings: Settings, load: Load) -> dict[str, object]:
    """Threads and their queues we have none of: what waits stands for them."""
    config = settings.config
    return {
        "sendThreadPoolQueueSize": load.sends,
        "sendThreadPoolQueueCapacity": config.send_backlog,
        "sendThreadPoolQueueHeadWaitTimeMills": 0,
        "pullThreadPoolQueueSize": load.pulls,
        "pullThreadPoolQueueCapacity": config.pull_backlog,
        "pullThreadPoolQueueHeadWaitTimeMills": 0,
        "queryThreadPoolQueueSize": 0,
        "queryThreadPoolQueueCapacity": 20_000,
        "queryThreadPoolQueueHeadWaitTimeMills": 0,
        "EndTransactionQueueSize": 0,
        "EndTransactionThreadPoolQueueCapacity": 100_000,
        "remainHowManyDataToFlush": _size(load.unflushed),
    }


def _oldest(store: Store) -> int:
    """When the first message of the log was stored; -1 if there is none."""
    head = store.log.files.view(store.log.start)
    if len(head) < record.FIXED_SIZE:
        return -1
    return record_time(store, store.log.start, record.record_size(memoryview(head.data)))


def _span(seconds: float) -> str:
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"[ {days} days, {hour} hours, {minute} minutes, {second} seconds ]"


def _shown(rates: list[float]) -> str:
    return " ".join(map(str, rates))


def _size(count: int) -> str:
    if count < 1024:
        return f"{count} B"
    power = min((count.bit_length() - 1) // 10, 6)
    return f"{count / 1024**power:.1f} {' KMGTPE'[power]}iB"


# Configuration.


def broker_config(
    settings: Settings,
    store: Store,
    address: Callable[[], str],
    stats: Stats,
    header: None,
    request: Request,
) -> Answer:
    """`address` is the broker's own, as routes have it."""
    host, port = parse_address(address())
    shown = settings.config.shown() | {
        "brokerIP1": host,
        "listenPort": str(port),
        "brokerId": "0",
        "brokerRole": "ASYNC_MASTER",
        "storePathRootDir": str(store.paths.root),
        "storePathCommitLog": str(store.paths.commit_log),
    }
    version = DataVersion(timestamp=int(stats.started * 1000))
    return Answer(VersionResponse(version=beans.encode(version).decode()), encode_properties(shown))


def update_broker_config(settings: Settings, header: None, request: Request) -> Answer:
    if len(request.body) > _MOST_SETTINGS:
        why = f"{len(request.body)} bytes of settings: the broker takes {_MOST_SETTINGS} at once"
        raise ResponseError(ResponseCode.SYSTEM_ERROR, why)
    try:
        values = decode_properties(request.body)
        if values:
            log.info("a change of settings is asked for by %s: %s", request.peer, values)
            settings.change(values)
    except UnicodeDecodeError:
        why = "settings that can't be read: they are lines of name=value, in UTF-8"
        raise ResponseError(ResponseCode.SYSTEM_ERROR, why) from None
    except ConfigError as error:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, str(error)) from None
    return Answer()


def broker_stats(stats: Stats, header: ViewStats, request: Request) -> Answer:
    found = stats.item(header.stats_name, header.stats_key)
    if found is None:
        why = f"The stats <{header.stats_name}> <{header.stats_key}> not exist"
        raise ResponseError(ResponseCode.SYSTEM_ERROR, why)
    return Answer(body=beans.encode(found))


# Filter servers.


class FilterServers:
    """Those that have said they are there: by connection, as long as they go on saying so.
    `on_change` is told when one comes or goes, so that routes name it soon."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self.on_change: Callable[[], None] = lambda: None
        self.is_closing = False  # then those that go are not missed
        self._servers: dict[Peer, tuple[str, float]] = {}  # address, when last heard of

    def register(self, peer: Peer, address: str) -> None:
        """Raises ResponseError if there are too many."""
        known = self._servers.get(peer)
        if len(address) > _MOST_ADDRESS:
            why = f"an address of {len(address)} characters"
            raise ResponseError(ResponseCode.SYSTEM_ERROR, why)
        if known is None and len(self._servers) >= _MOST_FILTER_SERVERS:
            why = f"there are {_MOST_FILTER_SERVERS} filter servers, the broker takes no more"
            raise ResponseError(ResponseCode.SYSTEM_ERROR, why)
        if known is None:
            log.info("filter server %s at %s: registered", address, peer)
        self._servers[peer] = (known[0] if known is not None else address, self._now())
        if known is None:
            self.on_change()

    def knows(self, peer: Peer) -> bool:
        return peer in self._servers

    def drop(self, peer: Peer) -> None:
        """Its connection is gone."""
        known = self._servers.pop(peer, None)
        if known is not None:
            level = logging.INFO if self.is_closing else logging.WARNING
            log.log(level, "filter server %s: its connection is gone", known[0])
            self.on_change()

    def list(self) -> list[str]:
        """Their addresses. Those that fell silent are dropped, and their connections closed."""
        oldest = self._now() - FILTER_SERVER_SECONDS
        for peer, (address, seen) in list(self._servers.items()):
            if seen < oldest:
                log.warning("filter server %s: silent for too long, dropped", address)
                del self._servers[peer]
                peer.close()
        return [address for address, _ in self._servers.values()]


def register_filter_server(
    broker: str, servers: FilterServers, header: RegisterFilterServer, request: Request
) -> Answer:
    servers.register(request.peer, header.filter_server_addr)
    return Answer(RegisterFilterServerResponse(broker_name=broker, broker_id=0))
