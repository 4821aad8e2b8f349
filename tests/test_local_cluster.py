"""The cluster for tests: it comes, serves, stops and starts again, and leaves nothing behind."""

import asyncio
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tamis.errors import ConfigError, StoreError
from tamis.net.aio import connect
from tamis.testing import LocalBroker, LocalCluster, LocalNameServer
from tamis.wire.bodies import decode_properties
from tamis.wire.codes import PullFlag, RequestCode, ResponseCode
from tamis.wire.command import Command
from tamis.wire.headers import GetRoute, Header, OfQueue, PullMessage, SendMessage

PATIENCE = 20.0  # seconds


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    threads, files = threading.active_count(), _descriptors()
    yield
    assert threading.active_count() == threads, threading.enumerate()
    assert _descriptors() == files


def _descriptors() -> list[str]:
    """Sockets and files of a store; libraries may open others, once."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            target = str(link.readlink())
        except FileNotFoundError:  # that of the listing itself
            continue
        if "socket" in target or "tamis" in target:
            found.append(target)
    return sorted(found)


def ask(address: str, header: Header | None = None, code: int = 0, body: bytes = b"") -> Command:
    async def ask_once() -> Command:
        peer = await connect(address, PATIENCE)
        try:
            fields = header.to_fields() if header is not None else None
            number = code or getattr(header, "CODE", 0)
            return await peer.ask(Command(code=number, fields=fields, body=body), PATIENCE)
        finally:
            peer.close()
            while not peer.is_closed:
                await asyncio.sleep(0.001)

    return asyncio.run(ask_once())


def send(broker: str, body: bytes, topic: str = "T") -> Command:
    header = SendMessage(
        producer_group="p",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=1,
        queue_id=0,
        sys_flag=0,
        born_timestamp=1,
        flag=0,
        properties="",
    )
    return ask(broker, header, body=body)


def pull(broker: str, topic: str = "T") -> Command:
    """Waits for a message, as clients do."""
    header = PullMessage(
        consumer_group="g",
        topic=topic,
        queue_id=0,
        queue_offset=0,
        max_msg_nums=32,
        sys_flag=PullFlag.SUBSCRIPTION | PullFlag.SUSPEND,
        suspend_timeout_millis=10_000,
        subscription="*",
    )
    return ask(broker, header)


def settings_of(broker: str) -> dict[str, str]:
    return decode_properties(ask(broker, code=RequestCode.GET_BROKER_CONFIG).body)


def test_what_is_sent_is_pulled() -> None:
    with LocalCluster() as cluster:
        assert send(cluster.broker, b"hello").code == ResponseCode.SUCCESS
        answer = pull(cluster.broker)
        assert answer.code == ResponseCode.SUCCESS
        assert b"hello" in answer.body


def test_the_name_server_knows_the_broker() -> None:
    with LocalCluster() as cluster:
        route = ask(cluster.nameserver, GetRoute(topic="TBW102"))
        assert route.code == ResponseCode.SUCCESS
        assert cluster.broker.encode() in route.body


def test_a_restarted_broker_has_its_port_and_its_messages() -> None:
    with LocalCluster() as cluster:
        send(cluster.broker, b"kept")
        before = cluster.broker
        cluster.restart_broker()
        assert cluster.broker == before
        assert b"kept" in pull(cluster.broker).body


def test_a_stopped_broker_is_not_there_until_it_is_started() -> None:
    with LocalCluster() as cluster:
        cluster.stop_broker()
        cluster.stop_broker()
        host, _, port = cluster.broker.partition(":")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)), PATIENCE).close()
        route = ask(cluster.nameserver, GetRoute(topic="TBW102"))
        assert route.code == ResponseCode.TOPIC_NOT_EXIST
        cluster.start_broker()
        cluster.start_broker()
        assert send(cluster.broker, b"x").code == ResponseCode.SUCCESS


def test_data_are_in_the_directory_given_and_stay(tmp_path: Path) -> None:
    with LocalCluster(store=tmp_path / "store") as cluster:
        send(cluster.broker, b"kept")
    assert (tmp_path / "store" / "commitlog").is_dir()
    assert not (tmp_path / "store" / "abort").exists()
    with LocalCluster(store=tmp_path / "store") as cluster:
        assert b"kept" in pull(cluster.broker).body


def test_a_directory_of_its_own_goes_with_it() -> None:
    with LocalCluster() as cluster:
        store = cluster.store
        assert store is not None
        assert store.is_dir()
    assert not store.exists()


def test_settings_go_by_our_names_or_by_rocketmqs() -> None:
    settings = {"enablePropertyFilter": False, "default_queues": 3, "flush_interval": 0.25}
    with LocalCluster(brokerName="b-7", transactionTimeOut=1500, **settings) as cluster:
        shown = settings_of(cluster.broker)
    assert shown["brokerName"] == "b-7"
    assert shown["enablePropertyFilter"] == "false"
    assert shown["defaultTopicQueueNums"] == "3"
    assert shown["flushIntervalCommitLog"] == "250"
    assert shown["transactionTimeOut"] == "1500"
    assert shown["flushDiskType"] == "ASYNC_FLUSH"  # not the broker's default: tests are in a hurry


def test_two_clusters_run_side_by_side() -> None:
    with LocalCluster() as one, LocalCluster() as other:
        assert one.nameserver != other.nameserver
        send(one.broker, b"one")
        send(other.broker, b"other")
        assert b"other" not in pull(one.broker).body


def test_the_halves_run_alone_and_find_each_other() -> None:
    with LocalNameServer() as names, LocalBroker(nameserver=names.nameserver) as one:
        assert one.nameserver == names.nameserver
        route = ask(names.nameserver, GetRoute(topic="TBW102"))
        assert one.broker.encode() in route.body


def test_it_is_an_async_context_manager_too() -> None:
    async def run() -> None:
        async with LocalCluster() as cluster:
            answer = await asyncio.to_thread(send, cluster.broker, b"x")
            assert answer.code == ResponseCode.SUCCESS

    asyncio.run(run())


def test_a_start_that_fails_raises_in_the_caller(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such setting"):
        LocalCluster(no_such_setting=1)
    with pytest.raises(ConfigError, match="default_queues"):
        LocalCluster(default_queues=0)
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="not a directory"), LocalCluster(tmp_path / "file"):
        pass
    with (
        LocalCluster() as cluster,
        pytest.raises(OSError, match="in use"),
        LocalBroker(port=int(cluster.broker.partition(":")[2])),
    ):
        pass


def test_a_test_that_fails_ends_it_too() -> None:
    with pytest.raises(ZeroDivisionError), LocalCluster() as cluster:
        raise ZeroDivisionError
    host, _, port = cluster.broker.partition(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), PATIENCE).close()


def test_messages_survive_a_stop_while_others_are_sent() -> None:
    """What was answered for is there after a stop in good order, whoever was sending."""
    with LocalCluster() as cluster:
        sent = 0
        stopping = threading.Event()

        def go_on() -> None:
            nonlocal sent
            while not stopping.is_set():
                try:
                    if send(cluster.broker, b"%d" % sent).code == ResponseCode.SUCCESS:
                        sent += 1
                except OSError:
                    return

        sender = threading.Thread(target=go_on)
        sender.start()
        deadline = time.monotonic() + PATIENCE
        while sent < 20 and time.monotonic() < deadline:
            time.sleep(0.001)
        cluster.stop_broker()
        stopping.set()
        sender.join()
        cluster.start_broker()
        answer = ask(
            cluster.broker, code=RequestCode.GET_MAX_OFFSET, header=OfQueue(topic="T", queue_id=0)
        )
        assert answer.fields is not None
        assert int(answer.fields["offset"]) >= sent >= 20


def test_importing_it_loads_no_broker() -> None:
    program = (
        "import sys, tamis.testing\n"
        "print([m for m in ('numba', 'pyarrow', 'pyspark', 'uvloop', 'prometheus_client')"
        " if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr
