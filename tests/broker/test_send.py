"""What a broker stores of what is sent, and what it refuses."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from broker.running import run, running, until

from tamis.wire import command
from tamis.wire.bodies import GroupConfig, Perm, TopicConfig, TopicFilterType
from tamis.wire.codes import RequestCode, ResponseCode
from tamis.wire.command import Command
from tamis.wire.record import batch_item


def test_a_topic_is_made_by_sending_to_it_and_saved(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path) as (broker, client):
            answer = await client.send("Made", b"hello", tags="A")
            assert answer.code == ResponseCode.SUCCESS
            assert answer.fields is not None
            assert answer.fields["MSG_REGION"] == "DefaultRegion"
            assert broker.topics["Made"].write_queues == 4
            await until(lambda: broker.store.find_queue("Made", 0))
            (message,) = await client.all_of("Made")
            assert message.message_id == answer.fields["msgId"]
            assert (message.body, message.tag) == (b"hello", "A")
            assert message.properties["CLUSTER"] == "DefaultCluster"
        async with running(tmp_path) as (broker, _):
            assert broker.topics["Made"].write_queues == 4

    run(scene())


def test_how_the_producer_waits_is_not_stored(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path) as (broker, client):
            await client.send("T", properties={"WAIT": "true", "k": "v"})
            await until(lambda: broker.store.find_queue("T", 0))
            (message,) = await client.all_of("T")
            assert "WAIT" not in message.properties
            assert message.properties["k"] == "v"

    run(scene())


@pytest.mark.parametrize(
    ("topic", "others", "settings", "code", "part"),
    [
        ("bad topic!", {}, {}, ResponseCode.SYSTEM_ERROR, "illegal characters"),
        (" ", {}, {}, ResponseCode.SYSTEM_ERROR, "blank"),
        ("x" * 128, {}, {}, ResponseCode.SYSTEM_ERROR, "longer"),
        ("SCHEDULE_TOPIC_XXXX", {}, {}, ResponseCode.NO_PERMISSION, "forbidden"),
        ("T", {"queue_id": 77}, {}, ResponseCode.SYSTEM_ERROR, "queueId[77] is illegal"),
        ("T", {"default_topic": "None"}, {}, ResponseCode.TOPIC_NOT_EXIST, "not exist"),
        ("T", {}, {"auto_create_topics": False}, ResponseCode.TOPIC_NOT_EXIST, "not exist"),
        ("T", {"body": b"x" * 2000}, {"max_message_size": 1000}, ResponseCode.MESSAGE_ILLEGAL,
         "1000B"),
        ("T", {"properties": {"k": "v" * 32_767}}, {}, ResponseCode.MESSAGE_ILLEGAL, "32KB"),
        ("T", {"sys_flag": 2**40}, {}, ResponseCode.SYSTEM_ERROR, "32 bits"),
        ("T", {"properties": {"TRAN_MSG": "true"}}, {"reject_transactions": True},
         ResponseCode.NO_PERMISSION, "transaction"),
        ("%RETRY%nobody", {}, {"auto_create_groups": False},
         ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "nobody"),
    ],
)  # fmt: skip
def test_what_can_not_be_stored_is_refused_with_rocketmqs_code(
    tmp_path: Path,
    topic: str,
    others: dict[str, Any],
    settings: dict[str, Any],
    code: ResponseCode,
    part: str,
) -> None:
    async def scene() -> None:
        async with running(tmp_path, **settings) as (_, client):
            answer = await client.send(topic, **others)
            assert (answer.code, part in (answer.remark or "")) == (code, True), answer.remark
            assert answer.fields is not None  # clients read the region whatever the code
            good = await client.send("TBW102")  # and it goes on
            assert good.code in (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST)

    run(scene())


def test_topics_of_several_tags_mark_their_messages(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path) as (broker, client):
            broker.topics.put(TopicConfig(name="T", filter_type=TopicFilterType.MULTI_TAG))
            await client.send("T")
            await until(lambda: broker.store.find_queue("T", 0))
            (message,) = await client.all_of("T")
            assert message.sys_flag & 0x2

    run(scene())


def test_a_retry_that_was_tried_often_enough_goes_to_the_dead_letters(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path) as (broker, client):
            await client.send("%RETRY%g", b"1", reconsume_times=2, max_reconsume_times=3)
            await client.send("%RETRY%g", b"2", reconsume_times=3, max_reconsume_times=3)
            await client.send("%RETRY%g", b"3", reconsume_times=3, max_reconsume_times=3,
                              version=100)  # fmt: skip  # too old to decide: 16
            await until(lambda: broker.store.find_queue("%DLQ%g", 0))
            assert [m.body for m in await client.all_of("%RETRY%g")] == [b"1", b"3"]
            assert [m.body for m in await client.all_of("%DLQ%g")] == [b"2"]

    run(scene())


def test_a_message_sent_back_comes_again_later_and_then_never(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path, delay_levels="1s 1s") as (broker, client):
            await client.send("T", b"m", tags="A")
            await until(lambda: broker.store.find_queue("T", 0))
            (first,) = await client.all_of("T")
            assert (await client.send_back(first, "g", level=1, most=1)).code == 0
            await until(lambda: broker.store.find_queue("%RETRY%g", 0))
            (again,) = await client.all_of("%RETRY%g")
            assert again.reconsume_times == 1
            assert again.properties["RETRY_TOPIC"] == "T"
            assert again.properties["ORIGIN_MESSAGE_ID"] == first.message_id
            assert (await client.send_back(again, "g", most=1)).code == 0
            await until(lambda: broker.store.find_queue("%DLQ%g", 0))
            (dead,) = await client.all_of("%DLQ%g")
            assert (dead.body, dead.reconsume_times) == (b"m", 2)
            assert dead.properties["ORIGIN_MESSAGE_ID"] == first.message_id

    run(scene())


def test_what_can_not_be_sent_back_is_refused(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path) as (broker, client):
            await client.send("T")
            await until(lambda: broker.store.find_queue("T", 0))
            (message,) = await client.all_of("T")
            back = {"offset": "12345", "group": "g", "delayLevel": "0"}
            answer = await client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)
            assert (answer.code, "12345" in (answer.remark or "")) == (1, True)
            broker.groups.put(GroupConfig(name="none", retry_queues=0))
            assert (await client.send_back(message, "none")).code == 0
            assert "%RETRY%none" not in broker.topics
            broker.topics.put(TopicConfig(name="%RETRY%shut", perm=Perm.READ))
            assert (await client.send_back(message, "shut")).code == ResponseCode.NO_PERMISSION

    run(scene())


def test_a_reply_is_pushed_to_the_client_that_waits(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path) as (_, client):
            await client.heartbeat("", client_id="asker", producer="pg")
            to = {"b": "DefaultCluster_REPLY_TOPIC", "a": "p", "c": "TBW102", "d": "4", "e": "0",
                  "f": "0", "g": "1", "h": "0",
                  "i": "REPLY_TO_CLIENT\x01asker\x02CORRELATION_ID\x017"}  # fmt: skip
            asking = client.peer.ask(
                Command(code=RequestCode.SEND_REPLY_MESSAGE_V2, fields=to, body=b"pong"), 10
            )
            waiting = asyncio.ensure_future(asking)
            (pushed,) = await until(lambda: client.told)
            assert pushed.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
            assert pushed.body == b"pong"
            assert pushed.fields is not None
            assert "CORRELATION_ID\x017" in pushed.fields["properties"]
            client.peer.write(command.encode(Command(code=0, opaque=pushed.opaque, flag=1)))
            assert (await waiting).code == ResponseCode.SUCCESS
            lost = {**to, "i": "REPLY_TO_CLIENT\x01nobody"}
            answer = await client.ask(RequestCode.SEND_REPLY_MESSAGE_V2, lost, b"pong")
            assert (answer.code, "nobody" in (answer.remark or "")) == (1, True)

    run(scene())


def test_a_batch_gets_an_id_for_each_and_one_that_is_wrong_is_refused(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path, flush="sync") as (broker, client):
            fields = {"a": "p", "b": "T", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "1",
                      "h": "0", "i": "WAIT\x01true", "m": "true"}  # fmt: skip
            body = b"".join(batch_item(b"%d" % i, b"TAGS\x01A") for i in range(5))
            answer = await client.ask(RequestCode.SEND_BATCH_MESSAGE, fields, body)
            assert answer.fields is not None
            assert len(answer.fields["msgId"].split(",")) == 5
            await until(lambda: broker.store.find_queue("T", 1))
            found = await client.all_of("T", queue_id=1)
            assert [m.body for m in found] == [b"0", b"1", b"2", b"3", b"4"]
            assert found[0].properties["CLUSTER"] == "DefaultCluster"
            answer = await client.ask(RequestCode.SEND_BATCH_MESSAGE, fields, body[:-3])
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL

    run(scene())
