"""Access control of a broker, through its port: keys, permissions, changes and their limits."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from broker.running import SMALL, Client, run

from tamis.broker.broker import Broker
from tamis.broker.config import BrokerConfig
from tamis.errors import ConfigError
from tamis.security import Credentials
from tamis.security.credentials import sign
from tamis.wire.bodies import Subscription
from tamis.wire.codes import RequestCode
from tamis.wire.command import Command

FILE = """\
accounts:
- accessKey: the-admin
  secretKey: admin-secret
  admin: true
- accessKey: the-writer
  secretKey: writer-secret
  defaultTopicPerm: PUB
- accessKey: the-reader
  secretKey: reader-secret
  defaultTopicPerm: SUB
  groupPerms:
  - readers=SUB
"""
ADMIN = Credentials("the-admin", "admin-secret")
WRITER = Credentials("the-writer", "writer-secret")
READER = Credentials("the-reader", "reader-secret")


class Signing(Client):
    """A client whose requests are signed."""

    credentials: Credentials | None = None

    async def ask(self, code: int, fields: dict[str, str] | None = None, body: bytes = b"",
                  version: int = 401) -> Command:  # fmt: skip
        request = Command(code=code, fields=fields, body=body, version=version)
        if self.credentials is not None:
            sign(request, self.credentials)
        return await self.peer.ask(request, timeout=20)


@asynccontextmanager
async def running(tmp_path: Path, text: str = FILE, **settings: Any) -> AsyncIterator["Guarded"]:
    file = tmp_path / "store" / "conf" / "plain_acl.yml"
    file.parent.mkdir(parents=True, exist_ok=True)
    if not file.exists():
        file.write_text(text)
    config = BrokerConfig(port=0, acl=True, **(SMALL | settings))
    broker = Broker(config, tmp_path / "store")
    await broker.start()
    guarded = Guarded(broker, file)
    try:
        yield guarded
    finally:
        for client in guarded.clients:
            client.peer.close()
        await broker.close()


class Guarded:
    def __init__(self, broker: Broker, file: Path) -> None:
        self.broker = broker
        self.file = file
        self.clients: list[Signing] = []

    async def client(self, credentials: Credentials | None) -> Signing:
        made = await Signing.connect(self.broker.address)
        assert isinstance(made, Signing)
        made.credentials = credentials
        self.clients.append(made)
        return made


def text_of(answer: Command) -> str:
    assert answer.code == 1, answer
    assert answer.remark is not None
    before, _, why = answer.remark.partition(": ")
    assert before == "org.apache.rocketmq.acl.common.AclException"
    return why


def test_each_key_does_what_it_may_and_nothing_else(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as guarded:
            nobody = await guarded.client(None)
            wrong = await guarded.client(Credentials("the-writer", "wrong-secret"))
            unknown = await guarded.client(Credentials("stranger", "wrong-secret"))
            writer, reader = await guarded.client(WRITER), await guarded.client(READER)
            assert text_of(await nobody.send("T")) == "No accessKey is configured"
            assert text_of(await unknown.send("T")) == "No acl config for stranger"
            failed = "Check signature failed for accessKey=the-writer"
            assert text_of(await wrong.send("T")) == failed
            # twice: the second one finds a connection that is known
            for _ in range(2):
                assert (await writer.send("T")).code == 0
                assert text_of(await reader.send("T")) == "No default permission for topic:T"
                assert text_of(await wrong.send("T")) == failed
                pulled = await reader.pull("T", group="readers")
                assert pulled.code == 0
                denied = await reader.pull("T", group="others")
                assert text_of(denied) == "No default permission for group:others"
                denied = await writer.pull("T", group="readers")
                assert "No default permission" in text_of(denied)
            # what there is no handler for is not told to strangers
            assert text_of(await nobody.ask(4711)) == "No accessKey is configured"
            assert (await writer.ask(4711)).code == 3
            assert guarded.broker.acl is not None
            assert guarded.broker.acl.access.refused >= 8

    run(work())


def test_a_heartbeat_makes_no_group_that_it_may_not_join(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as guarded:
            reader = await guarded.client(READER)
            one = Subscription(topic="T", expression="*")
            assert (await reader.heartbeat("readers", one)).code == 0
            denied = await reader.heartbeat("others", one)
            assert text_of(denied) == "No default permission for group:others"
            assert "readers" in guarded.broker.groups
            assert "others" not in guarded.broker.groups

    run(work())


def test_a_change_of_the_file_holds_for_open_connections(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as guarded:
            writer = await guarded.client(WRITER)
            assert (await writer.send("T")).code == 0
            guarded.file.write_text(FILE.replace("defaultTopicPerm: PUB", "defaultTopicPerm: DENY"))
            async with asyncio.timeout(5):
                while (await writer.send("T")).code == 0:
                    await asyncio.sleep(0.05)
            assert text_of(await writer.send("T")) == "No default permission for topic:T"
            guarded.file.write_text("accounts: [")
            await asyncio.sleep(1.5)
            assert text_of(await writer.send("T")) == "No default permission for topic:T"
            guarded.file.write_text(FILE)
            async with asyncio.timeout(5):
                while (await writer.send("T")).code != 0:
                    await asyncio.sleep(0.05)

    run(work())


def test_accounts_are_changed_by_administrators_and_the_changes_last(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    new = Credentials("a-new-one", "new-secret")
    put = {
        "accessKey": "a-new-one",
        "secretKey": "new-secret",
        "admin": "false",
        "defaultTopicPerm": "PUB",
        "topicPerms": "T=DENY,U=PUB|SUB",
    }
    code = RequestCode.UPDATE_AND_CREATE_ACL_CONFIG

    async def work() -> None:
        async with running(tmp_path) as guarded:
            admin, writer = await guarded.client(ADMIN), await guarded.client(WRITER)
            assert "Need admin permission" in text_of(await writer.ask(code, put))
            assert (await admin.ask(code, put)).code == 0
            fresh = await guarded.client(new)
            assert (await fresh.send("U")).code == 0
            assert text_of(await fresh.send("T")) == "No default permission for topic:T"
            for change, why in (
                ({"accessKey": "short"}, "longer than 6"),
                ({"secretKey": "s3cr3t"}, "longer than 6"),
                ({"topicPerms": "T"}, "Parse Resource format error for T."),
                ({"topicPerms": "T=READ"}, "Parse resource permission error for T=READ."),
                ({"whiteRemoteAddress": "nowhere"}, "white address 'nowhere'"),
            ):
                refused = await admin.ask(code, put | change)
                assert refused.code == 209
                assert why in (refused.remark or "")
                assert "s3cr3t" not in (refused.remark or "")
        async with running(tmp_path) as guarded:  # again
            admin, fresh = await guarded.client(ADMIN), await guarded.client(new)
            assert (await fresh.send("U")).code == 0
            delete = RequestCode.DELETE_ACL_CONFIG
            assert (await admin.ask(delete, {"accessKey": "a-new-one"})).code == 0
            assert text_of(await fresh.send("U")) == "No acl config for a-new-one"
            gone = await admin.ask(delete, {"accessKey": "a-new-one"})
            assert gone.code == 210
            assert gone.remark == (
                "The accesskey[a-new-one] corresponding to accessConfig has been deleted failed."
            )

    with caplog.at_level(logging.DEBUG):
        run(work())
    assert "secret" not in caplog.text


def test_white_addresses_and_versions_and_accounts_are_told(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as guarded:
            admin, nobody = await guarded.client(ADMIN), await guarded.client(None)
            put = RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG
            bad = await admin.ask(put, {"globalWhiteAddrs": "nowhere"})
            assert bad.code == 211
            other = {"globalWhiteAddrs": "*", "aclFileFullPath": "/etc/hosts"}
            assert (await admin.ask(put, other)).code == 211
            given = {"globalWhiteAddrs": "10.9.9.9,127.0.0.*", "aclFileFullPath": ""}
            assert (await nobody.send("T")).code == 1
            assert (await admin.ask(put, given)).code == 0
            assert (await nobody.send("T")).code == 0
            told = await nobody.ask(RequestCode.GET_BROKER_CLUSTER_ACL_INFO)
            assert told.fields is not None
            assert told.fields["brokerName"] == "broker-a"
            assert told.fields["brokerAddr"] == guarded.broker.address
            assert json.loads(told.fields["version"])["counter"] == 1
            versions = json.loads(told.fields["allAclFileVersion"])
            assert versions[str(guarded.file)]["counter"] == 1
            found = await nobody.ask(RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG)
            body = json.loads(found.body)
            assert body["globalWhiteAddrs"] == ["10.9.9.9", "127.0.0.*"]
            assert body["plainAccessConfigs"][2] == {
                "accessKey": "the-reader",
                "secretKey": "reader-secret",
                "admin": False,
                "defaultTopicPerm": "SUB",
                "groupPerms": ["readers=SUB"],
            }

    run(work())


def test_a_pull_that_waits_is_answered_when_accounts_change(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as guarded:
            reader, writer = await guarded.client(READER), await guarded.client(WRITER)
            assert (await writer.send("T")).code == 0
            held = asyncio.ensure_future(reader.pull("T", 1, group="readers", suspend=15))
            assert (await reader.pull("T", 0, group="readers")).code == 0  # it came before
            guarded.file.write_text(FILE.replace("the-reader", "somebody"))
            answer = await asyncio.wait_for(held, 5)
            assert answer.code == 19  # nothing: whoever it is asks again, and is refused
            assert (await writer.send("T")).code == 0
            refused = await reader.pull("T", 1, group="readers", suspend=15)
            assert text_of(refused) == "No acl config for the-reader"

    run(work())


def test_a_captured_request_is_taken_on_another_connection(tmp_path: Path) -> None:
    """RocketMQ's signatures have no time and no number in them: it can't be told from the first.
    docs/security.md says so, and that TLS is what prevents it."""

    async def work() -> None:
        async with running(tmp_path) as guarded:
            writer, other = await guarded.client(WRITER), await guarded.client(None)
            sent: list[bytes] = []
            write = writer.peer.write
            writer.peer.write = lambda data: (sent.append(data), write(data))[1]  # type: ignore[method-assign]
            assert (await writer.send("T", b"once")).code == 0
            other.peer.write(sent[0])
            changed = sent[0].replace(b"once", b"then")
            other.peer.write(changed)
            reader = await guarded.client(READER)
            async with asyncio.timeout(10):
                while len(found := await reader.all_of("T", group="readers")) < 2:
                    await asyncio.sleep(0.05)
            assert [message.body for message in found] == [b"once", b"once"]

    run(work())


def test_a_hostile_file_disturbs_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bomb = ["a0: &a0 [x,x,x,x,x,x,x,x,x,x]"]
    bomb += [f"a{i}: &a{i} [" + ",".join([f"*a{i - 1}"] * 10) + "]" for i in range(1, 12)]
    files = ["x: &x [*x]", "\n".join(bomb), "[" * 2**20, "a" * 5 * 2**20, "- " * 2**19]

    async def work() -> None:
        async with running(tmp_path) as guarded:
            writer = await guarded.client(WRITER)
            for number, text in enumerate(files, 1):
                guarded.file.write_text(text)
                async with asyncio.timeout(30):
                    while caplog.text.count("stay in force") < number:
                        assert (await writer.send("T")).code == 0
                        await asyncio.sleep(0.02)

    with caplog.at_level(logging.ERROR):
        run(work())
    assert all(len(record.getMessage()) < 400 for record in caplog.records)


def test_a_broker_without_accounts_or_with_a_wrong_file_does_not_start(tmp_path: Path) -> None:
    async def start(**settings: Any) -> None:
        broker = Broker(BrokerConfig(port=0, **(SMALL | settings)), tmp_path / "store")
        await broker.start()

    with pytest.raises(ConfigError, match=r"conf/plain_acl\.yml: there is no such file"):
        run(start(acl=True))
    wrong = tmp_path / "wrong.yml"
    wrong.write_text("accounts:\n- accessKey: x\n")
    with pytest.raises(ConfigError, match=r"wrong\.yml, line 2: "):
        run(start(acl_file=str(wrong)))


def test_tools_are_told_that_there_is_no_access_control(tmp_path: Path) -> None:
    async def work() -> None:
        broker = Broker(BrokerConfig(port=0, **SMALL), tmp_path / "store")
        await broker.start()
        client = await Client.connect(broker.address)
        fields = {"accessKey": "a-new-one", "secretKey": "new-secret"}
        answer = await client.ask(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, fields)
        assert answer.code == 209
        assert "--acl" in (answer.remark or "")
        client.peer.close()
        await broker.close()

    run(work())


def test_the_setting_is_shown_and_no_secret_is(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as guarded:
            admin = await guarded.client(ADMIN)
            shown = await admin.ask(RequestCode.GET_BROKER_CONFIG)
            assert b"aclEnable=true" in shown.body
            assert b"secret" not in shown.body
            told = await admin.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
            assert b"secret" not in told.body

    run(work())
