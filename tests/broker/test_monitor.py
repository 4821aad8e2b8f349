"""What a broker tells of itself, and how its settings are changed."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from broker.running import run, running, until

from tamis.broker.config import BrokerConfig, Settings
from tamis.broker.handlers import monitor
from tamis.broker.handlers.monitor import FilterServers, Load
from tamis.broker.stats import Stats
from tamis.errors import ResponseError
from tamis.message import DELAY_TOPIC
from tamis.net.aio import Peer
from tamis.net.server import Request
from tamis.store.config import StoreConfig
from tamis.store.store import Store
from tamis.wire import beans
from tamis.wire.bodies import BrokerStats, KvTable, decode_properties
from tamis.wire.codes import RequestCode, ResponseCode
from tamis.wire.command import Command
from tamis.wire.headers import (
    RegisterFilterServer,
    RegisterFilterServerResponse,
    VersionResponse,
    ViewStats,
)
from tamis.wire.record import Draft

SMALL = StoreConfig(flush="async", log_file_size=65_536, index_slots=64, index_entries=256)
# The keys that remoting.md (11.8) finds RocketMQ's tools to read.
KEYS = [
    "brokerVersionDesc",
    "brokerVersion",
    "msgPutTotalYesterdayMorning",
    "msgPutTotalTodayMorning",
    "msgPutTotalTodayNow",
    "msgGetTotalYesterdayMorning",
    "msgGetTotalTodayMorning",
    "msgGetTotalTodayNow",
    "putTps",
    "getTransferedTps",
    "getTotalTps",
    "getFoundTps",
    "getMissTps",
    "sendThreadPoolQueueSize",
    "sendThreadPoolQueueCapacity",
    "pullThreadPoolQueueSize",
    "pullThreadPoolQueueCapacity",
    "queryThreadPoolQueueSize",
    "queryThreadPoolQueueCapacity",
    "EndTransactionQueueSize",
    "EndTransactionThreadPoolQueueCapacity",
    "sendThreadPoolQueueHeadWaitTimeMills",
    "pullThreadPoolQueueHeadWaitTimeMills",
    "queryThreadPoolQueueHeadWaitTimeMills",
    "pageCacheLockTimeMills",
    "dispatchBehindBytes",
    "earliestMessageTimeStamp",
    "bootTimestamp",
    "startAcceptSendRequestTimeStamp",
    "commitLogDiskRatio",
    "consumeQueueDiskRatio",
    "commitLogMinOffset",
    "commitLogMaxOffset",
    "runtime",
    "commitLogDirCapacity",
    "remainHowManyDataToFlush",
    "remainTransientStoreBufferNumbs",
    "putMessageTimesTotal",
    "putMessageFailedTimes",
    "putMessageSizeTotal",
    "putMessageAverageSize",
    "putMessageDistributeTime",
    "putMessageEntireTimeMax",
    "getMessageEntireTimeMax",
    "dispatchMaxBuffer",
    "putLatency99",
    "putLatency999",
]


class Clock:
    def __init__(self) -> None:
        self.seconds = 1_000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[Store]:
    with Store(tmp_path / "store", SMALL, now=clock) as opened:
        yield opened


def asked(body: bytes = b"", peer: Peer | None = None) -> Request:
    return Request(peer or Peer(lambda peer, requests: None), Command(code=0, body=body))


def info(store: Store, stats: Stats, clock: Clock, load: Load | None = None) -> dict[str, str]:
    answer = monitor.runtime_info(
        Settings(BrokerConfig()),
        store,
        stats,
        lambda: {1: 0, 2: 5},
        lambda: load or Load(),
        clock,
        None,
        asked(),
    )
    return beans.decode(KvTable, answer.body).table


def test_every_key_that_tools_read_is_there(store: Store, clock: Clock) -> None:
    table = info(store, Stats(now=clock), clock)
    assert [key for key in KEYS if key not in table] == []
    assert all(type(value) is str for value in table.values())
    for key in ("putTps", "getTransferedTps", "getTotalTps", "getFoundTps", "getMissTps"):
        assert len([float(part) for part in table[key].split(" ")]) == 3
    whole = [key for key in KEYS if key.startswith("msg") or key.endswith(("Mills", "Offset"))]
    for key in (*whole, "sendThreadPoolQueueSize", "sendThreadPoolQueueCapacity"):
        int(table[key])
    assert 0 <= float(table["commitLogDiskRatio"]) <= 1
    assert re.fullmatch(
        r"Total : \d+\.\d [KMGTP]iB, Free : \d+\.\d [KMGTP]iB\.", table["commitLogDirCapacity"]
    )


def test_runtime_info_tells_what_was_put_and_how_it_is(store: Store, clock: Clock) -> None:
    stats = Stats(now=clock)
    store.append([Draft(topic="T", body=b"x"), Draft(topic=DELAY_TOPIC, queue_id=1)])
    stats.put("T", 2, 300)
    stats.got("T", "g", 1, 150)
    clock.seconds += 90_061
    table = info(store, stats, clock, Load(sends=3, unflushed=1536))
    assert table["brokerVersionDesc"] == "V4_9_4"
    assert table["msgPutTotalTodayNow"] == "2"
    assert table["msgGetTotalTodayNow"] == "1"
    assert table["putMessageAverageSize"] == "150.0"
    assert table["bootTimestamp"] == table["earliestMessageTimeStamp"] == "1000000"
    assert table["runtime"] == "[ 1 days, 1 hours, 1 minutes, 1 seconds ]"
    assert table["commitLogMinOffset"] == "0"
    assert table["commitLogMaxOffset"] == table["dispatchBehindBytes"] == str(store.log.end)
    assert table["sendThreadPoolQueueSize"] == "3"
    assert table["remainHowManyDataToFlush"] == "1.5 KiB"
    store.dispatch()
    table = info(store, stats, clock)
    assert table["dispatchBehindBytes"] == "0"
    assert table["scheduleMessageOffset_1"] == "0,0"
    assert table["scheduleMessageOffset_2"] == "5,1"


def test_an_empty_store_has_no_earliest_message(store: Store, clock: Clock) -> None:
    assert info(store, Stats(now=clock), clock)["earliestMessageTimeStamp"] == "-1"


# Settings.


def test_the_configuration_is_told_under_apaches_names(store: Store, clock: Clock) -> None:
    settings = Settings(BrokerConfig(name="b", port=0, nameservers="h:9876"))
    answer = monitor.broker_config(
        settings, store, lambda: "10.0.0.1:1234", Stats(now=clock), None, asked()
    )
    found = decode_properties(answer.body)
    assert found["brokerName"] == "b"
    assert (found["brokerIP1"], found["listenPort"]) == ("10.0.0.1", "1234")
    assert found["namesrvAddr"] == "h:9876"
    assert found["enablePropertyFilter"] == "true"
    assert found["storePathRootDir"] == str(store.paths.root)
    assert isinstance(answer.header, VersionResponse)
    assert json.loads(answer.header.version) == {"counter": 0, "timestamp": 1_000_000}


def test_settings_are_changed(store: Store) -> None:
    settings = Settings(BrokerConfig())
    monitor.update_broker_config(
        settings, None, asked(b"enablePropertyFilter=false\nbrokerPermission=4\n")
    )
    assert not settings.config.sql_filters
    assert settings.config.permission == 4
    monitor.update_broker_config(settings, None, asked())  # nothing to change is no error


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"listenPort=1", "listenPort: it can't be changed while the broker runs"),
        (b"nonsense=1", "nonsense: there is no such setting"),
        (b"brokerPermission=x", "it takes a whole number"),
        (b"traceOn=false\nbrokerPermission=99", "it takes 0 to 7"),
        (b"\xff=1", "in UTF-8"),
    ],
)
def test_settings_that_can_not_be_are_refused_whole(body: bytes, why: str) -> None:
    settings = Settings(BrokerConfig())
    with pytest.raises(ResponseError) as refused:
        monitor.update_broker_config(settings, None, asked(body))
    assert refused.value.code == 1
    assert why in refused.value.remark
    assert settings.config == BrokerConfig()


# Statistics.


def test_statistics_are_told_by_name_and_key(clock: Clock) -> None:
    stats = Stats(now=clock)
    stats.put("T", 10, 100)
    stats.tick(clock())
    header = ViewStats(stats_name="TOPIC_PUT_NUMS", stats_key="T")
    answer = monitor.broker_stats(stats, header, asked())
    assert beans.decode(BrokerStats, answer.body).minute.sum == 10
    shown = json.loads(answer.body)
    assert set(shown) == {"statsMinute", "statsHour", "statsDay"}
    assert set(shown["statsDay"]) == {"sum", "tps", "avgpt"}


def test_statistics_nobody_keeps_are_1(clock: Clock) -> None:
    header = ViewStats(stats_name="TOPIC_PUT_NUMS", stats_key="T")
    with pytest.raises(ResponseError) as refused:
        monitor.broker_stats(Stats(now=clock), header, asked())
    assert refused.value.code == 1
    assert refused.value.remark == "The stats <TOPIC_PUT_NUMS> <T> not exist"


# Filter servers.


def register(servers: FilterServers, peer: Peer, address: str) -> RegisterFilterServerResponse:
    header = RegisterFilterServer(filter_server_addr=address)
    answer = monitor.register_filter_server("b", servers, header, asked(peer=peer))
    assert isinstance(answer.header, RegisterFilterServerResponse)
    return answer.header


def test_filter_servers_are_known_while_they_say_they_are_there(clock: Clock) -> None:
    servers = FilterServers(clock)
    one, two = (Peer(lambda peer, requests: None) for _ in range(2))
    said = register(servers, one, "h:1")
    assert said == RegisterFilterServerResponse(broker_name="b", broker_id=0)
    register(servers, two, "h:2")
    clock.seconds += 20
    register(servers, one, "h:1")
    assert servers.list() == ["h:1", "h:2"]
    clock.seconds += 11
    assert servers.list() == ["h:1"]
    servers.drop(one)
    servers.drop(one)
    assert servers.list() == []


def test_a_setting_that_would_do_harm_is_refused_while_the_broker_runs(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path, flush="async") as (broker, client):
            for line in ('regionId=a","code":1,"b":"', "flushIntervalCommitLog=1e300"):
                refused = await client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=line.encode())
                assert refused.code == ResponseCode.SYSTEM_ERROR
                assert "it takes" in (refused.remark or "")
            sent = await client.send("T")
            assert (sent.fields or {})["MSG_REGION"] == "DefaultRegion"
            for milliseconds in (3_600_000, 1):
                line = f"flushIntervalCommitLog={milliseconds}"
                changed = await client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=line.encode())
                assert changed.code == ResponseCode.SUCCESS
                flushes = broker.flush_latency.buckets()[-1][1]
            await until(lambda: broker.flush_latency.buckets()[-1][1] > flushes + 1)

    run(scene())
