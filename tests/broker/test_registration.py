"""A broker is known to its name servers, however many topics it has and whatever fails."""

import asyncio
import logging
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from broker.asking import Refused, route
from broker.running import Client, run, running, until

from tamis.broker import registration
from tamis.broker.broker import Broker
from tamis.broker.metrics import Exporter
from tamis.nameserver.config import NameServerConfig
from tamis.nameserver.registrations import Registrations
from tamis.nameserver.server import NameServer
from tamis.net import tasks
from tamis.net.aio import Peer, connect
from tamis.wire import frame
from tamis.wire.bodies import Subscription, TopicConfig
from tamis.wire.codes import ResponseCode
from tamis.wire.headers import RegisterBroker


@asynccontextmanager
async def nameserver(**settings: Any) -> AsyncIterator[NameServer]:
    server = NameServer(NameServerConfig(port=0, **settings))
    await server.start()
    try:
        yield server
    finally:
        await server.close()


def named(number: int) -> str:
    return f"Topic-{number:06}-".ljust(127, "x")


def fill(broker: Broker, count: int) -> None:
    for number in range(count):
        name = named(number)
        broker.topics._topics[name] = TopicConfig(name=name, sys_flag=number % 4)
    broker.topics.version = broker.topics.version.next(1)


async def is_known(server: NameServer, name: str) -> bool:
    peer = await connect(server.address)
    try:
        found = await route(peer, name)
        return bool(found.queues)
    except Refused:
        return False
    finally:
        peer.close()


async def eventually_known(server: NameServer, name: str) -> None:
    async with asyncio.timeout(60):
        while not await is_known(server, name):
            await asyncio.sleep(0.02)


def test_more_topics_than_fit_in_a_frame_are_registered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """80,000 where a frame has 16 MiB; here all is a sixteenth of that."""
    monkeypatch.setattr(frame, "MAX_FRAME", 2**20)
    monkeypatch.setattr(registration, "PART", registration.PART // 16)

    async def scene() -> None:
        async with nameserver() as server:
            settings = {"nameservers": server.address, "most_auto_topics": 10**6}
            async with running(tmp_path, **settings) as (broker, client):
                fill(broker, 5_000)
                broker.registrar.changed()
                await eventually_known(server, named(4_999))
                assert await is_known(server, named(0))
                assert len(server.table.topics()) >= 5_000
                # flags are kept, and the version is the broker's own in the end
                found = server.table.route(named(3))
                assert found is not None
                assert [queue.sys_flag for queue in found.queues] == [3]
                await until(lambda: server.table.version(broker.address) == broker.topics.version)
                assert (await client.send("T")).code == ResponseCode.SUCCESS
                await eventually_known(server, "T")  # a change goes alone
                assert not broker.background.failures

    with caplog.at_level(logging.WARNING):
        run(scene())
    assert "not registered" not in caplog.text


def test_parts_are_not_told_again_while_nothing_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "PART", 10)
    told: list[int] = []
    register = Registrations.register

    def count(self: Any, header: RegisterBroker, request: Any) -> Any:
        told.append(len(request.body))
        return register(self, header, request)

    monkeypatch.setattr(Registrations, "register", count)

    async def scene() -> None:
        async with (
            nameserver() as server,
            running(tmp_path, nameservers=server.address) as (broker, _),
        ):
            fill(broker, 35)
            [one] = broker.registrar._servers
            broker.registrar.changed()
            await eventually_known(server, named(34))
            await until(lambda: one._known == broker.registrar.state)
            before = len(told)
            broker.registrar.changed()
            await until(lambda: len(told) == before + 1)
            assert server.table.version(broker.address) == broker.topics.version

    run(scene())


def test_a_registration_that_fails_unexpectedly_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker starts all the same, and is registered a moment later."""
    failures = 0
    good = registration.Registrar._request

    def bad(self: registration.Registrar, body: bytes) -> Any:
        nonlocal failures
        failures += 1
        if failures == 1:
            raise ZeroDivisionError("nobody thought of this")
        return good(self, body)

    monkeypatch.setattr(registration.Registrar, "_request", bad)
    monkeypatch.setattr(registration, "_RETRY", (0.01,))

    async def scene() -> None:
        async with (
            nameserver() as server,
            running(tmp_path, nameservers=server.address) as (_, client),
        ):
            assert (await client.send("T")).code == ResponseCode.SUCCESS
            await eventually_known(server, "T")

    with caplog.at_level(logging.WARNING):
        run(scene())
    assert "nobody thought of this" in caplog.text


def test_a_background_task_that_fails_is_logged_counted_and_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members of a group are told of each other, though telling failed once."""
    monkeypatch.setattr(tasks, "_FIRST_PAUSE", 0.01)
    failures = 0
    tell = Peer.tell

    def bad(self: Peer, request: Any) -> None:
        nonlocal failures
        failures += 1
        if failures == 1:
            raise ZeroDivisionError("nobody thought of this")
        tell(self, request)

    monkeypatch.setattr(Peer, "tell", bad)

    async def scene() -> None:
        async with running(tmp_path, metrics_port=0) as (broker, client):
            exporter = Exporter(broker)
            one = Subscription(topic="T", expression="*")
            await client.heartbeat("g", one)
            await until(lambda: broker.background.restarts["member notices"] == 1)
            other = await Client.connect(broker.address)
            await other.heartbeat("g", one, client_id="c2")
            await until(lambda: client.told)
            url = f"http://127.0.0.1:{exporter.port}/metrics"
            page = await asyncio.to_thread(lambda: urllib.request.urlopen(url).read().decode())
            assert 'tamis_task_restarts_total{task="member notices"} 1.0' in page
            assert "tamis_connection_bytes" in page
            assert "tamis_creations_refused_total 0.0" in page
            await asyncio.to_thread(exporter.close)
            other.peer.close()

    with caplog.at_level(logging.ERROR):
        run(scene())
    assert "background task 'member notices' failed" in caplog.text
    assert "Traceback" in caplog.text


def test_a_name_server_refuses_more_brokers_and_topics_than_it_has_room_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with nameserver(most_topics=100, most_brokers=1) as server:
            settings = {"nameservers": server.address}
            async with running(tmp_path / "a", **settings) as (broker, client):
                fill(broker, 200)
                broker.registrar.changed()
                await until(lambda: "there would be more than 100 topics" in caplog.text)
                assert (await client.send("T")).code == ResponseCode.SUCCESS
                async with running(tmp_path / "b", name="broker-b", **settings):
                    await until(lambda: "1 brokers are registered, which is all" in caplog.text)

    with caplog.at_level(logging.WARNING):
        run(scene())
