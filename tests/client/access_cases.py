"""What keys may do, as tests for any broker with the accounts of `ACCOUNTS`: right, wrong and
missing keys, each permission, each direction; and no secret is told.

A module that imports all names of this one has fixtures `cluster`, `plain` and `encrypted`.
"""

import asyncio
import json
import logging
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tamis.client import (
    Admin,
    ClientConfig,
    Consumer,
    ConsumerConfig,
    Message,
    Producer,
    ProducerConfig,
    PushConsumer,
    compat,
)
from tamis.doctor import gather
from tamis.errors import AccessDenied, Unreachable

ADMIN = ("adminkey", "adminsecret1")
READER = ("readerkey", "readersecret1")
WRITER = ("writerkey", "writersecret1")
NOBODY = ("nobodykey", "nobodysecret1")

ACCOUNTS = """
globalWhiteRemoteAddresses:
accounts:
- accessKey: adminkey
  secretKey: adminsecret1
  admin: true
- accessKey: readerkey
  secretKey: readersecret1
  admin: false
  defaultTopicPerm: SUB
  defaultGroupPerm: SUB
- accessKey: writerkey
  secretKey: writersecret1
  admin: false
  defaultTopicPerm: PUB
  defaultGroupPerm: DENY
- accessKey: nobodykey
  secretKey: nobodysecret1
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: DENY
"""

WRONG = ("adminkey", "wrong-secret1")
UNKNOWN = ("unknownkey", "unknownsecret1")
KEYS = {
    "admin": ADMIN,
    "reader": READER,
    "writer": WRITER,
    "nobody": NOBODY,
    "wrong": WRONG,
    "unknown": UNKNOWN,
    "missing": None,
}
SECRETS = [key[1] for key in KEYS.values() if key is not None]
REFUSED_KEYS = ("wrong", "unknown", "missing")
SAID = {
    "wrong": "the secret key is not the one",
    "unknown": "the broker does not know it",
    "missing": "no access key was used",
}


class Target:
    def __init__(self, nameserver: str, tls: dict[str, Any]) -> None:
        """`tls`: settings of clients."""
        self.nameserver = nameserver
        self.tls = tls

    def settings(self, who: str) -> dict[str, Any]:
        key = KEYS[who]
        keys = {} if key is None else {"access_key": key[0], "secret_key": key[1]}
        return {**keys, **self.tls}

    def admin(self, who: str) -> Admin:
        return Admin(self.nameserver, config=ClientConfig(**self.settings(who)))

    def producer(self, who: str) -> Producer:
        config = ProducerConfig(**self.settings(who))
        return Producer(self.nameserver, f"P-{who}", config=config)

    def consumer_config(self, who: str) -> ConsumerConfig:
        return ConsumerConfig(start="first", rebalance_interval=1.0, **self.settings(who))

    async def topic(self) -> str:
        """One with a message."""
        name = f"T-{uuid.uuid4().hex[:8]}"
        async with self.admin("admin") as admin:
            await admin.create_topic(name, queues=1)
        async with self.producer("admin") as producer:
            await producer.send(Message(name, b"first", keys=["k1"]))
        return name


@pytest.fixture(autouse=True)
def silence(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.DEBUG)
    yield
    for secret in SECRETS:
        assert secret not in caplog.text


def check(error: AccessDenied, who: str) -> None:
    said = str(error)
    key = KEYS[who]
    assert error.access_key == (None if key is None else key[0])
    assert SAID.get(who, "plain_acl.yml") in said or "made an admin" in said
    assert all(secret not in said + repr(error) for secret in SECRETS)
    assert "\n" not in said


@pytest.mark.parametrize("who", KEYS)
def test_who_may_send(cluster: Target, who: str) -> None:
    async def send() -> None:
        topic = await cluster.topic()
        async with cluster.producer(who) as producer:
            sends = [
                lambda: producer.send(Message(topic, b"one")),
                lambda: producer.send_batch([Message(topic, b"two"), Message(topic, b"three")]),
            ]
            if who == "writer" or who == "admin":
                for work in sends:
                    await work()
                return
            for work in sends[:1]:
                with pytest.raises(AccessDenied) as refused:
                    await work()
                check(refused.value, who)

    asyncio.run(send())


@pytest.mark.parametrize("who", KEYS)
def test_who_may_consume(cluster: Target, who: str) -> None:
    async def consume() -> None:
        topic = await cluster.topic()
        group = f"G-{uuid.uuid4().hex[:8]}"
        got: asyncio.Queue[bytes] = asyncio.Queue()

        async def handle(message: Any) -> None:
            await got.put(message.body)

        config = cluster.consumer_config(who)
        push = PushConsumer(cluster.nameserver, group, handle, config=config)
        push.subscribe(topic)
        pull = Consumer(cluster.nameserver, f"{group}-pull", config=config)
        pull.subscribe(topic)
        if who in ("reader", "admin"):
            async with push:
                assert await asyncio.wait_for(got.get(), 20) == b"first"
            async with pull:
                while not (found := await pull.getmany(timeout=20)):
                    pass
                assert [one.body for one in found] == [b"first"]
                await pull.commit()
            return
        for consumer in (push, pull):
            with pytest.raises(AccessDenied) as refused:
                async with consumer:
                    pass
            check(refused.value, who)

    asyncio.run(consume())


@pytest.mark.parametrize("who", KEYS)
def test_who_may_administer(cluster: Target, who: str) -> None:
    async def work() -> None:
        topic = await cluster.topic()
        async with cluster.admin(who) as admin:
            if who in REFUSED_KEYS:
                for ask in (admin.topics, admin.groups):
                    with pytest.raises(AccessDenied) as refused:
                        await ask()
                    check(refused.value, who)
            else:
                assert topic in await admin.topics()
            if who == "admin":
                await admin.create_group("Made")
                await admin.delete_topic(topic)
                return
            with pytest.raises(AccessDenied) as refused:
                await admin.create_topic(topic, queues=2)
            check(refused.value, who)

    asyncio.run(work())


def test_messages_are_found_by_key_by_unique_key_and_by_place(cluster: Target) -> None:
    """4.9's Java client signs a field of the second kind that its broker does not verify."""

    async def find() -> None:
        topic = await cluster.topic()
        async with cluster.producer("admin") as producer:
            sent = await producer.send(Message(topic, b"found", keys=["k2"]))
        async with cluster.admin("reader") as admin:
            for _ in range(50):
                if found := await admin.messages_by_key(topic, "k2"):
                    break
                await asyncio.sleep(0.1)
            assert [one.body for one in found] == [b"found"]
            assert (await admin.message(sent.message_id, topic=topic)).body == b"found"
            assert (await admin.message(sent.offset_message_id)).body == b"found"

    asyncio.run(find())


def test_the_doctor_and_explain_ask_with_the_key(cluster: Target) -> None:
    async def work() -> None:
        topic = await cluster.topic()
        async with cluster.admin("admin") as admin:
            await admin.create_group("Examined")
        config = ClientConfig(**cluster.settings("admin"))
        facts = await gather(cluster.nameserver, timeout=20.0, settle=0.1, config=config)
        assert list(facts.brokers) == ["broker-a"]
        assert "Examined" in facts.groups
        assert not [one for one in facts.unchecked if "denied" in one.reason]
        async with cluster.admin("admin") as admin:
            await admin.explain(topic=topic, queue_id=0, offset=0, broker="broker-a")

    asyncio.run(work())


def test_programs_of_the_rocketmq_package_send_with_their_keys(plain: Target) -> None:
    topic = asyncio.run(plain.topic())
    for key, is_good in ((WRITER, True), (WRONG, False)):
        producer = compat.Producer("P-compat")
        producer.set_name_server_address(plain.nameserver)
        producer.set_session_credentials(*key, "ALIYUN")
        producer.start()
        try:
            message = compat.Message(topic)
            message.set_body("compat")
            if is_good:
                assert producer.send_sync(message).status == compat.SendStatus.OK
            else:
                with pytest.raises(compat.ProducerSendSyncFailed, match="secret key is not"):
                    producer.send_sync(message)
        finally:
            producer.shutdown()


def test_commands_take_keys_and_tls_from_a_profile(cluster: Target, tmp_path: Path) -> None:
    topic = asyncio.run(cluster.topic())
    lines = []
    for who in ("admin", "wrong"):
        lines += [f"[profiles.{who}]", f'nameserver = "{cluster.nameserver}"']
        lines += [f"{name} = {json.dumps(v)}" for name, v in cluster.settings(who).items()]
    file = tmp_path / "config.toml"
    file.write_text("\n".join(lines))
    file.chmod(0o600)

    def tamis(*arguments: str) -> "subprocess.CompletedProcess[str]":
        done = subprocess.run(
            [sys.executable, "-m", "tamis", *arguments],
            capture_output=True,
            text=True,
            env={**os.environ, "TAMIS_CONFIG": str(file)},
            timeout=60,
        )
        assert all(secret not in done.stdout + done.stderr for secret in SECRETS)
        return done

    assert tamis("--profile", "admin", "send", topic, "second").returncode == 0
    done = tamis("--profile", "admin", "consume", topic)
    assert [json.loads(line)["body"] for line in done.stdout.splitlines()] == ["first", "second"]
    done = tamis("--profile", "wrong", "send", topic, "third")
    assert done.returncode == 1
    assert "secret key is not the one" in done.stderr
    done = tamis("--profile", "wrong", "topics", "list")
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)


def test_a_server_that_takes_tls_only_is_named_as_one(encrypted: Target) -> None:
    """And a certificate that does not fit is an error that says why."""

    async def topics(**settings: Any) -> None:
        async with Admin(encrypted.nameserver, config=ClientConfig(**settings)) as admin:
            await admin.topics()

    with pytest.raises(Unreachable, match="if it takes TLS only, set tls"):
        asyncio.run(topics())
    with pytest.raises(Unreachable, match="certificate"):
        asyncio.run(topics(tls=True))  # by the system's authorities
    with pytest.raises(Unreachable, match=r"mq\.example\.com"):
        asyncio.run(topics(**encrypted.tls, tls_server_name="mq.example.com"))
    with pytest.raises(AccessDenied):
        asyncio.run(topics(tls_verify=False))
