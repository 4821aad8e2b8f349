"""Access control at a filter server, and of a filter server at its broker."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from filterserver.consuming import EVEN, Client, run, serving, until

from tamis.client import Admin
from tamis.net.aio import connect
from tamis.security import Credentials, Security
from tamis.testing import LocalCluster
from tamis.wire.command import Command

ACCOUNTS = """\
accounts:
- accessKey: admin-key
  secretKey: admin-secret
  admin: true
- accessKey: filters-key
  secretKey: filters-secret
  defaultTopicPerm: SUB
  defaultGroupPerm: SUB
- accessKey: reader-key
  secretKey: reader-secret
  topicPerms: [T=SUB]
  groupPerms: [G=SUB]
- accessKey: other-key
  secretKey: other-secret
  topicPerms: [T=SUB]
  groupPerms: [H=SUB]
"""
ADMIN = Security(Credentials("admin-key", "admin-secret"))
FILTERS = Security(Credentials("filters-key", "filters-secret"))
READER = Security(Credentials("reader-key", "reader-secret"))
OTHER = Security(Credentials("other-key", "other-secret"))


@asynccontextmanager
async def connected(
    broker: str, server: str, at_server: Security = READER
) -> AsyncIterator[Client]:
    """As an administrator at the broker."""
    peers = [await connect(broker, security=ADMIN), await connect(server, security=at_server)]
    try:
        yield Client(*peers)
    finally:
        for peer in peers:
            peer.close()


def remark(answer: Command) -> str:
    assert answer.code == 1
    return answer.remark or ""


def test_uploads_and_pulls_need_the_topic_and_the_group(tmp_path: Path) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text(ACCOUNTS)

    async def work() -> None:
        async with (
            LocalCluster(aclFile=str(file)) as cluster,
            serving(cluster.broker, acl_file=str(file), security=FILTERS) as server,
            connected(cluster.broker, server.address) as reader,
            connected(cluster.broker, server.address, OTHER) as other,
            connected(cluster.broker, server.address, Security()) as nobody,
        ):
            await until(
                lambda: server.registration.is_registered, lambda: server.registration.failure
            )
            await reader.create_topic("T", 1)
            await reader.send(b"0", b"1", b"2", b"3")
            assert "No accessKey is configured" in remark(await nobody.upload(EVEN, "Even"))
            denied = remark(await other.upload(EVEN, "Even"))
            assert "No default permission for group:G" in denied
            assert (await reader.upload(EVEN, "Even")).code == 0
            assert (await reader.pull(0)).offsets == [0, 2]
            assert (await other.pull(0)).code == 1
            assert (await nobody.pull(0)).code == 1
            file.write_text(ACCOUNTS.replace("G=SUB", "G=DENY"))
            async with asyncio.timeout(10):
                while (await reader.pull(0)).code == 0:
                    await asyncio.sleep(0.1)

    run(work())


def test_one_without_a_key_is_not_registered_at_a_broker_that_asks_for_one(tmp_path: Path) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text(ACCOUNTS)

    async def work() -> None:
        async with LocalCluster(aclFile=str(file)) as cluster:
            for security, why in (
                (Security(), "No accessKey is configured"),
                (READER, "No default permission for group:FILTERSRV_CONSUMER"),
            ):
                async with serving(cluster.broker, security=security) as server:
                    registration = server.registration
                    await until(lambda: registration.failure)  # noqa: B023
                    assert why in server.registration.failure
                    assert not server.registration.is_registered

    run(work())


def test_those_that_a_broker_starts_have_a_key_that_nobody_sees(tmp_path: Path) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text(ACCOUNTS)

    async def work() -> None:
        async with LocalCluster(aclFile=str(file), filter_servers=1) as cluster:
            async with Admin(cluster.nameserver) as admin:
                async with asyncio.timeout(60):
                    while not (found := await admin.filter_servers()):
                        await asyncio.sleep(0.05)
            assert cluster._running is not None
            [process] = cluster._running[0].filter_processes.running.values()
            shown = Path(f"/proc/{process.pid}/cmdline").read_text()
            assert "--acl" in shown
            assert "secret" not in shown
            assert cluster._running[0]._own_secret not in shown
            async with (
                connected(cluster.broker, found[0]) as reader,
                connected(cluster.broker, found[0], Security()) as nobody,
            ):
                await reader.create_topic("T", 1)
                await reader.send(b"0", b"1", b"2", b"3")
                assert "No accessKey" in remark(await nobody.upload(EVEN, "Even"))
                answer = await reader.upload(EVEN, "Even")
                assert answer.code == 0, answer.remark
                assert (await reader.pull(0)).offsets == [0, 2]

    run(work())
