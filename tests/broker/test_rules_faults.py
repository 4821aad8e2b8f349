"""Group rules and resets on disks that fail and brokers that are killed: what was answered is there
afterwards, what could not be saved is told, and saved later."""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from broker.running import Client, run, running, until
from disks import replace_call

from tamis.broker.broker import Broker
from tamis.errors import StoreError
from tamis.wire.bodies import Subscription
from tamis.wire.codes import RequestCode, ResponseCode

NOTHING: dict[str, Any] = {"groups": {}}
CALLS = ("open", "pwrite", "fdatasync", "fsync", "replace", "write")


def tags(expression: str, version: int = 1) -> Subscription:
    return Subscription(topic="T", expression=expression, version=version, tags=[expression])


@contextmanager
def broken(folder: Path, number: int, code: int) -> Iterator[list[str]]:
    """The system call of that number under a folder fails, and each after it."""
    made: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in CALLS:
            real = getattr(os, name)

            def call(*args: Any, name: str = name, real: Any = real, **more: Any) -> Any:
                made.append(name)
                if len(made) > number:
                    raise OSError(code, os.strerror(code))
                return real(*args, **more)

            replace_call(patch, folder, name, call)
        yield made


async def rules_of(client: Client, group: str) -> dict[str, Any]:
    answer = await client.ask(RequestCode.GET_GROUP_RULES, {"group": group})
    found: dict[str, Any] = orjson.loads(answer.body)["groups"][0]
    return found


@contextmanager
def killed_copy(store: Path, copy: Path) -> Iterator[Path]:
    """The store as a kill leaves it now."""
    shutil.copytree(store, copy, ignore=shutil.ignore_patterns("*.tmp"))
    (copy / "lock").unlink(missing_ok=True)
    yield copy
    shutil.rmtree(copy)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_whichever_call_fails_rules_are_saved_when_the_disk_is_well(
    tmp_path: Path, code: int
) -> None:
    """Each answer is by whether it is saved; the broker serves on."""

    async def scene() -> None:
        async with running(tmp_path / "store") as (broker, client):
            await client.send("T", tags="A")
            await client.heartbeat("g", tags("A"))
            config = tmp_path / "store" / "config"
            await broker.saver.durable("group rules", "history", "consumer offsets")
            refused = 0
            for number in range(40):
                policy = ("reject", "isolate")[number % 2]
                fields = {"group": f"g{number}", "policy": policy}
                with broken(config, number, code) as made:
                    answer = await client.ask(RequestCode.SET_GROUP_POLICY, fields)
                    assert (await client.send("T", tags="A")).code == ResponseCode.SUCCESS
                    assert (await client.pull("T", subscription="A")).code == ResponseCode.SUCCESS
                    if answer.code != ResponseCode.SUCCESS:
                        refused += 1
                        assert answer.code == ResponseCode.SYSTEM_ERROR
                        assert os.strerror(code)[:8].lower() in (answer.remark or "").lower()
                        assert "\n" not in (answer.remark or "")
                        assert any(fails for fails, _ in broker.saver.failures().values())
                    with killed_copy(tmp_path / "store", tmp_path / "copy") as copy:
                        table = copy / "config" / "tamisGroups.json"
                        saved = orjson.loads(table.read_bytes()) if table.exists() else NOTHING
                        names = set(saved["groups"])
                        assert {f"g{n}" for n in range(number)} <= names  # what was saved before
                        if answer.code == ResponseCode.SUCCESS:
                            assert f"g{number}" in names
                is_over = len(made) <= number
                await until(lambda: not any(f for f, _ in broker.saver.failures().values()))
                await broker.saver.durable("group rules", "history")
                found = await rules_of(client, f"g{number}")
                assert found["own_policy"] == policy
                if is_over:
                    break
            else:
                raise AssertionError("there is always one more")
            assert refused > 4

    run(scene())


async def divided(broker: Broker, client: Client, count: int = 10) -> Client:
    """Group g is divided into two lanes, and each has read what is there."""
    for number in range(count):
        await client.send("T", tags="AB"[number % 2])
    fields = {"group": "g", "policy": "isolate"}
    assert (await client.ask(RequestCode.SET_GROUP_POLICY, fields)).code == 0
    other = await Client.connect(broker.address)
    await client.heartbeat("g", tags("A"), client_id="a")
    await other.heartbeat("g", tags("B"), client_id="b")
    for one, tag in ((client, "A"), (other, "B")):
        pulled = await one.pull("T", subscription=tag)
        assert pulled.code == ResponseCode.SUCCESS, pulled.remark
        commit = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": str(count)}
        assert (await one.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commit)).code == 0
    await until(lambda: broker.offsets.get("g", "T", 0) == count)
    await broker.saver.durable("group rules", "consumer offsets")
    return other


async def leave(broker: Broker, *clients: Client) -> None:
    for number, client in enumerate(clients):
        fields = {"clientID": "ab"[number], "consumerGroup": "g"}
        await client.ask(RequestCode.UNREGISTER_CLIENT, fields)
    await until(lambda: "g" not in broker.consumers.groups)


async def progress(client: Client) -> list[int]:
    found = await rules_of(client, "g")
    return [one["offset"] for lane in found["lanes"] for one in lane["progress"]]


def test_a_reset_of_a_divided_group_outlives_a_kill(tmp_path: Path) -> None:
    fields = {"topic": "T", "group": "g", "timestamp": "0", "isForce": "true", "queueId": "0",
              "offset": "3"}  # fmt: skip

    async def scene() -> None:
        async with running(tmp_path / "store") as (broker, client):
            other = await divided(broker, client)
            await leave(broker, client, other)
            answer = await client.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            with killed_copy(tmp_path / "store", tmp_path / "copy") as copy:
                async with running(copy) as (_, again):
                    await again.heartbeat("g", tags("A"), client_id="a")
                    query = {"consumerGroup": "g", "topic": "T", "queueId": "0"}
                    found = await again.ask(RequestCode.QUERY_CONSUMER_OFFSET, query)
                    assert found.fields == {"offset": "3"}
                    assert await progress(again) == [3, 3]
            other.peer.close()

    run(scene())


def test_a_reset_told_to_lanes_without_members_outlives_a_kill(tmp_path: Path) -> None:
    """One lane has a member, which is told; the other has none, and is moved by the broker."""
    fields = {"topic": "T", "group": "g", "timestamp": "0", "isForce": "true", "queueId": "0",
              "offset": "3"}  # fmt: skip

    async def scene() -> None:
        async with running(tmp_path / "store") as (broker, client):
            other = await divided(broker, client)
            await other.ask(RequestCode.UNREGISTER_CLIENT,
                            {"clientID": "b", "consumerGroup": "g"})  # fmt: skip
            await until(lambda: len(broker.consumers.groups["g"].members) == 1)
            answer = await client.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            with killed_copy(tmp_path / "store", tmp_path / "copy") as copy:
                async with running(copy) as (_, again):
                    assert sorted(await progress(again)) == [3, 10]
            other.peer.close()

    run(scene())


def test_a_topic_that_is_deleted_is_forgotten_by_lanes(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path / "store") as (broker, client):
            other = await divided(broker, client)
            cut = {"group": "g", "topic": "T", "kind": "TAG", "expression": "C", "start": "now",
                   "oldKind": "TAG", "oldExpression": "A"}  # fmt: skip
            answer = await client.ask(RequestCode.SET_GROUP_FILTER, cut)
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            await leave(broker, client, other)
            answer = await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            with killed_copy(tmp_path / "store", tmp_path / "copy") as copy:
                async with running(copy) as (_, again):
                    assert await progress(again) == []
                    assert (await rules_of(again, "g"))["cutovers"] == []
            other.peer.close()

    run(scene())


def test_offsets_cloned_to_a_divided_group_outlive_a_kill(tmp_path: Path) -> None:
    fields = {"srcGroup": "source", "destGroup": "g", "topic": "T", "offline": "true"}

    async def scene() -> None:
        async with running(tmp_path / "store") as (broker, client):
            other = await divided(broker, client)
            await leave(broker, client, other)
            broker.offsets.commit("source", "T", 0, 4)
            answer = await client.ask(RequestCode.CLONE_GROUP_OFFSET, fields)
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            with killed_copy(tmp_path / "store", tmp_path / "copy") as copy:
                async with running(copy) as (_, again):
                    assert await progress(again) == [4, 4]
            other.peer.close()

    run(scene())


@pytest.mark.parametrize(
    "change",
    [
        lambda settings: settings | {"name": "another-broker"},
        lambda settings: settings | {"cluster": "another-cluster"},
    ],
)
def test_history_and_rules_go_on_under_another_name(
    tmp_path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    async def scene() -> None:
        async with running(tmp_path / "store") as (broker, client):
            other = await divided(broker, client)
            other.peer.close()
        shutil.copytree(tmp_path / "store", tmp_path / "copy")
        for store in ("store", "copy"):
            async with running(tmp_path / store, **change({})) as (broker, client):
                assert await progress(client) == [10, 10]
                header = {"topic": "T", "queueId": "0", "offset": "0"}
                answer = await client.ask(RequestCode.EXPLAIN_MESSAGE, header)
                (group,) = orjson.loads(answer.body)["groups"]
                assert group["fate"] == "CONSUMED"

    run(scene())


def test_a_history_that_can_not_be_opened_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "config" / "tamis-history.log").mkdir(parents=True)

    async def scene() -> None:
        async with running(tmp_path):
            pass

    with pytest.raises(StoreError, match=r"tamis-history.log can't be read: Is a directory"):
        run(scene())
