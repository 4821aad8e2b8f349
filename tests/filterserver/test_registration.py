"""How a filter server is found: by its broker, in routes, and again after either was away."""

import asyncio
import logging
import re

import pytest
from filterserver.consuming import EVEN, Client, numbers, run, serving, standing, until

from tamis.client import Admin
from tamis.filterserver import FilterServerConfig
from tamis.net.aio import connect
from tamis.net.server import Server
from tamis.testing import LocalCluster


def test_clients_find_it_in_the_routes_soon() -> None:
    async def work() -> None:
        async with standing() as (cluster, server, _), Admin(cluster.nameserver) as admin:
            assert server.link.broker_name == "broker-a"
            assert server.link.broker_id == 0
            while await admin.filter_servers() != [server.address]:
                await asyncio.sleep(0.05)
            await server.link.close()  # it is gone from there as soon
            server.background.failures.clear()

    run(work())


def test_a_broker_that_is_not_there_is_waited_for_and_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "tamis.filterserver")

    async def work() -> None:
        async with LocalCluster() as cluster:
            await asyncio.to_thread(cluster.stop_broker)
            async with (
                serving(cluster.broker, register_seconds=0.1) as server,
                Client.connected(cluster.nameserver, server.address) as client,
            ):
                await until(lambda: server.registration._failures > 3)
                assert caplog.text.count("not registered with the broker") == 1
                assert "can't be reached" in server.registration.failure
                # uploads are taken all the same, and pulls are told why there is nothing
                assert (await client.upload(EVEN, "Even")).code == 0
                answer = await client.pull(0, hold=10)
                assert answer.code == 1
                assert "group G, topic T, queue 0, offset 0: the broker at" in answer.remark
                await asyncio.to_thread(cluster.start_broker)
                await until(lambda: server.registration.is_registered)
                assert caplog.text.count("registered as") == 1

    run(work())


def test_it_registers_again_and_again_for_the_broker_forgets_those_that_are_silent() -> None:
    assert FilterServerConfig().register_seconds == 10.0  # a third of the broker's patience

    async def work() -> None:
        async with standing(register_seconds=0.05) as (cluster, _, _):
            assert cluster._running is not None
            known = cluster._running[0].filter_servers._servers
            [(_, first)] = known.values()
            await until(lambda: all(seen > first for _, seen in known.values()))
            assert len(known) == 1  # over the same connection

    run(work())


def test_it_registers_again_when_the_broker_comes_back() -> None:
    async def work() -> None:
        async with standing(register_seconds=3600) as (cluster, server, client):
            await client.send(*numbers(4))
            await client.upload(EVEN, "Even")
            await asyncio.to_thread(cluster.stop_broker)
            await until(lambda: not server.registration.is_registered)
            await asyncio.to_thread(cluster.start_broker)
            await until(lambda: server.registration.is_registered)
            assert (await client.pull(0)).offsets == [0, 2]

    run(work())


def test_a_broker_without_filter_servers_is_named_as_such() -> None:
    async def work() -> None:
        five = Server({})  # as RocketMQ 5, it does not know the request
        port = await five.start("127.0.0.1", 0)
        async with serving(f"127.0.0.1:{port}") as server:
            await until(lambda: server.registration.failure)
            assert server.registration.failure.startswith("this broker takes no filter servers")
        await five.close()

    run(work())


def test_on_all_addresses_it_is_known_by_the_one_the_broker_sees() -> None:
    async def work() -> None:
        async with standing(host="0.0.0.0") as (_, server, _):
            assert re.fullmatch(r"127\.0\.0\.1:\d+", server.address)
            (await connect(server.address)).close()

    run(work())


@pytest.mark.parametrize(
    "settings",
    [
        {"broker": "nowhere"},
        {"nameservers": "a;b:1"},
        {"port": 70_000},
        {"uploads": "maybe"},
        {"isolation": "some"},
        {"on_error": "ignore"},
        {"secret": ""},
        {"host": ""},
        {"advertise": "0.0.0.0"},
        {"most_classes": 0},
        {"batch": 0},
        {"scan_seconds": 0.0},
    ],
    ids=str,
)
def test_a_setting_that_cannot_be_is_refused(settings: dict[str, object]) -> None:
    from tamis.errors import ConfigError

    with pytest.raises(ConfigError, match=next(iter(settings))):
        FilterServerConfig(**settings)  # type: ignore[arg-type]
