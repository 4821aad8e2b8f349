"""Our client and commands against our servers with access control, in the clear and where only
TLS is taken. The tests are those of `access_cases`."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from certificates import Authority
from client.access_cases import *  # noqa: F403
from client.access_cases import ACCOUNTS, Target

from tamis.client import Consumer, Message
from tamis.testing import LocalBroker, LocalCluster


def accounts(home: Path) -> str:
    file = home / "plain_acl.yml"
    file.write_text(ACCOUNTS)
    return str(file)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    home = tmp_path_factory.mktemp("plain")
    with LocalCluster(store=home / "store", acl_file=accounts(home)) as made:
        yield Target(made.nameserver, {})


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    home = tmp_path_factory.mktemp("encrypted")
    authority = Authority(home / "ca")
    issued = authority.issue()
    with LocalCluster(
        store=home / "store",
        acl_file=accounts(home),
        tls="enforcing",
        tls_cert=issued.cert,
        tls_key=issued.key,
        filter_servers=1,
    ) as made:
        yield Target(made.nameserver, {"tls_ca": authority.ca})


@pytest.fixture(scope="module", params=["plain", "encrypted"])
def cluster(request: pytest.FixtureRequest) -> Target:
    found: Target = request.getfixturevalue(request.param)
    return found


CODE = """
class Even:
    def match(self, message):
        return int(message.properties["n"]) % 2 == 0
"""


def test_filters_in_code_are_uploaded_and_judged_with_keys_and_tls(encrypted: Target) -> None:
    """Its filter server talks to the broker by a key that the broker made for it."""

    async def consume() -> None:
        topic = "T-code"
        async with encrypted.admin("admin") as admin:
            await admin.create_topic(topic, queues=1)
            while not await admin.filter_servers():
                await asyncio.sleep(0.1)
        async with encrypted.producer("writer") as producer:
            for n in range(6):
                await producer.send(Message(topic, str(n).encode(), properties={"n": str(n)}))
        config = replace(encrypted.consumer_config("reader"), code_when_unavailable="wait")
        consumer = Consumer(encrypted.nameserver, "G-code", config=config)
        consumer.subscribe(topic, code=("Even", CODE))
        found: list[bytes] = []
        async with consumer:
            while len(found) < 3:
                found += [one.body for one in await consumer.getmany(timeout=5)]
        assert found == [b"0", b"2", b"4"]
        async with encrypted.admin("reader") as admin:
            await admin.matching_lag("G-code")

    async def in_time() -> None:
        await asyncio.wait_for(consume(), 60)

    asyncio.run(in_time())


def test_a_broker_registers_with_a_name_server_that_takes_tls_only(
    encrypted: Target, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = encrypted.tls["tls_ca"]
    more = {"name": "broker-b", "nameserver_tls_ca": authority}
    with LocalBroker(tmp_path / "b", nameserver=encrypted.nameserver, **more):
        assert "not registered" not in caplog.text
    with LocalBroker(tmp_path / "c", nameserver=encrypted.nameserver, name="broker-c"):
        assert "not registered" in caplog.text
    caplog.clear()
    more = {"name": "broker-d", "tls.enable": True}
    with LocalBroker(tmp_path / "d", nameserver=encrypted.nameserver, **more):
        assert "its certificate is not signed by an authority" in caplog.text
