"""A held pull of a member that lost the queue is not given messages: its client would drop them."""

import asyncio
from pathlib import Path

import pytest
from broker.running import Client, messages, run, running

from tamis.wire.bodies import Subscription
from tamis.wire.codes import RequestCode, ResponseCode

EVERYTHING = Subscription(topic="T", expression="*", version=1)
OFFSET_QUESTION = (
    RequestCode.QUERY_CONSUMER_OFFSET,
    {"consumerGroup": "g", "topic": "T", "queueId": "0"},
)


def test_a_message_goes_to_the_new_owner_of_a_queue_only(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (broker, a):
            b = await Client.connect(broker.address)
            await a.send("T", b"first")
            for name, client in (("a", a), ("b", b)):
                await client.heartbeat("g", EVERYTHING, client_id=name)
            former = asyncio.create_task(a.pull("T", 1, suspend=1.5, subscription=None))
            await asyncio.sleep(0.05)
            new = asyncio.create_task(b.pull("T", 1, suspend=1.5, subscription=None))
            await asyncio.sleep(0.05)
            await a.send("T", b"second")
            assert [one.body for one in messages((await new).body)] == [b"second"]
            assert (await former).code == ResponseCode.PULL_NOT_FOUND  # when its time was up
            history = broker.recorder.history("g", "T")
            assert history is not None
            assert [span.member for span in history.queues[0]] == ["b"]
            b.peer.close()

    run(work())


def test_a_member_that_asks_where_to_begin_is_the_new_owner_before_it_pulls(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        async with running(tmp_path) as (broker, a):
            b = await Client.connect(broker.address)
            await a.send("T", b"first")
            for name, client in (("a", a), ("b", b)):
                await client.heartbeat("g", EVERYTHING, client_id=name)
            former = asyncio.create_task(a.pull("T", 1, suspend=1.5, subscription=None))
            await asyncio.sleep(0.05)
            await b.ask(*OFFSET_QUESTION)
            await a.send("T", b"second")
            answer = await b.pull("T", 1, suspend=1.5, subscription=None)
            assert [one.body for one in messages(answer.body)] == [b"second"]
            assert (await former).code == ResponseCode.PULL_NOT_FOUND  # when its time was up
            history = broker.recorder.history("g", "T")
            assert history is not None
            assert [span.member for span in history.queues[0]] == ["b"]
            b.peer.close()

    run(work())


def test_a_tool_that_asks_for_the_offset_takes_no_queue_over(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (broker, a):
            tool = await Client.connect(broker.address)
            await a.send("T", b"first")
            await a.heartbeat("g", EVERYTHING, client_id="a")
            pull = asyncio.create_task(a.pull("T", 1, suspend=10, subscription=None))
            await asyncio.sleep(0.05)
            await tool.ask(*OFFSET_QUESTION)
            await a.send("T", b"second")
            assert [one.body for one in messages((await pull).body)] == [b"second"]
            tool.peer.close()

    run(work())


@pytest.mark.parametrize(
    ("kind", "value"),
    [("message_model", "BROADCASTING"), ("consume_type", "CONSUME_ACTIVELY")],
)
def test_members_that_do_not_share_queues_all_get_a_message(
    tmp_path: Path, kind: str, value: str
) -> None:
    async def work() -> None:
        async with running(tmp_path) as (broker, a):
            b = await Client.connect(broker.address)
            await a.send("T", b"first")
            for name, client in (("a", a), ("b", b)):
                await client.heartbeat("g", EVERYTHING, client_id=name, **{kind: value})
            pulls = []
            for client in (a, b):
                pulls.append(
                    asyncio.create_task(client.pull("T", 1, suspend=10, subscription=None))
                )
                await asyncio.sleep(0.05)
            await a.send("T", b"second")
            for pull in pulls:
                assert [one.body for one in messages((await pull).body)] == [b"second"]
            b.peer.close()

    run(work())


def test_a_member_whose_successor_is_gone_gets_its_message(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (broker, a):
            b = await Client.connect(broker.address)
            await a.send("T", b"first")
            for name, client in (("a", a), ("b", b)):
                await client.heartbeat("g", EVERYTHING, client_id=name)
            pull = asyncio.create_task(a.pull("T", 1, suspend=10, subscription=None))
            await asyncio.sleep(0.05)
            other = asyncio.create_task(b.pull("T", 1, suspend=10, subscription=None))
            await asyncio.sleep(0.05)
            b.peer.close()
            await asyncio.sleep(0.1)
            await a.send("T", b"second")
            assert [one.body for one in messages((await pull).body)] == [b"second"]
            with pytest.raises(ConnectionError):
                await other

    run(work())
