"""Filters in code, as a consumer has them: checked, uploaded, pulled through filter servers, and
what is done when those fail or are not there."""

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from broker.asking import close, pull_request, until
from client.filterservers import named, stubs
from client.relaying import DAMAGES, MARK, damaging
from client.targets import Cluster, Seen, in_loop, take, texts

from tamis.client import (
    Consumer,
    ConsumerConfig,
    Message,
    PushConsumer,
    ReceivedMessage,
    blocking,
    compat,
)
from tamis.client.codefilters import _CONFLICT, _NOT_REGISTERED
from tamis.client.received import dead_letter_topic
from tamis.code import CodeFilter
from tamis.errors import CodeError, ConfigError, SubscriptionMismatch
from tamis.message import StoredMessage
from tamis.net.aio import connect
from tamis.net.server import Answer
from tamis.testing import LocalCluster
from tamis.wire.codes import PullFlag
from tamis.wire.headers import PullMessageResponse

# Messages whose body is an even number.
EVEN = CodeFilter(
    "even.py:Even",
    """
class Even:
    def match(self, message):
        return int(message.text) % 2 == 0
""",
)
EVEN_BATCH = CodeFilter(
    "even.py:Even",
    """
import pyarrow.compute as pc

class Even:
    properties = ("number:long",)

    def match_batch(self, batch):
        return pc.equal(pc.bit_wise_and(batch.column("number"), 1), 0)
""",
)
ODD = CodeFilter("odd.py:Odd", EVEN.text.replace("== 0", "== 1").replace("Even", "Odd"))
OTHER_EVEN = CodeFilter(EVEN.name, EVEN.text + "# another text\n")
SOON = {"route_interval": 0.3, "heartbeat_interval": 0.3, "hold": 1.0}


def is_even(message: StoredMessage) -> bool:
    return int(message.body) % 2 == 0


def numbers(*bounds: int) -> list[str]:
    return [str(n) for n in range(*bounds)]


@pytest.fixture
def served(cluster: Cluster) -> Cluster:
    if cluster.target == "5.3":
        pytest.skip("brokers of 5.x take no filter servers")
    return cluster


# Where it is written


@pytest.mark.parametrize(
    ("code", "kind", "why"),
    [
        ("even.py", ConfigError, "write file.py:Class"),
        ("nowhere.py:Even", ConfigError, "there is no file"),
        (5, ConfigError, "it takes 'file.py:Class'"),
        (("Even", "class Even:\n  def match(self, m) return True"), CodeError, "line 2: "),
        (("Even", "class Odd:\n  def match(self, m): return True"), CodeError, "no class Even"),
        (("Even", "class Even:\n  def matches(self, m): return True"), CodeError, "neither match"),
        (("Even", "def f():\n  class Even:\n    match = 1"), CodeError, "no class Even"),
        (("Even", "class Even:\n  match = 1\0"), CodeError, "null byte"),
        (("Ev en", "x = 1"), CodeError, "can't be the name of a class"),
        (("Even", "class Even:\n  match = 1\n" + "#" * 2**20), CodeError, "at most 1,048,576"),
    ],
)
@pytest.mark.parametrize("kind_of_consumer", [PushConsumer, Consumer])
def test_bad_code_fails_where_it_is_written(
    kind_of_consumer: type, code: Any, kind: type[Exception], why: str
) -> None:
    async def subscribe() -> None:
        more = (print,) if kind_of_consumer is PushConsumer else ()
        kind_of_consumer("127.0.0.1:1", "Group", *more).subscribe("Orders", code=code)

    with pytest.raises(kind, match=why):
        asyncio.run(subscribe())


@pytest.mark.parametrize(
    "text",
    [
        "class Even:\n  def match(self, m): return True",
        "class Even:\n  async def match_batch(self, b): ...",
        "class Even(Base): pass",  # unknown until it is executed, as what follows
        "@decorated\nclass Even: pass",
        "from other import Even",
        "from other import *",
        "Even = make()",
        "try:\n  import numpy\nexcept ImportError:\n  class Even:\n    match = len",
        "if True:\n  class Even:\n    if True:\n      def match(self, m): ...",
        "match 1:\n  case 1:\n    class Even:\n      match = len",
    ],
)
def test_code_that_may_have_the_class_is_taken_and_not_executed(text: str) -> None:
    async def subscribe() -> Any:
        consumer = Consumer("127.0.0.1:1", "Group")
        consumer.subscribe("Orders", code=("Even", "raise SystemExit('executed')\n" + text))
        return consumer.subscriptions["Orders"]

    one = asyncio.run(subscribe())
    assert (one.expression, one.expression_type, one.class_filter_mode) == ("Even", "TAG", True)
    assert (one.tags, one.codes) == ([], [])


def test_code_is_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "even.py"
    file.write_text(EVEN.text)
    consumer = blocking.Consumer("127.0.0.1:1", "Group")
    consumer.subscribe("Orders", code=f"{file}:Even")
    assert consumer.subscriptions["Orders"].code_crc == EVEN.crc
    assert consumer.code_status["Orders"].servers == ()


def test_a_subscription_has_one_filter() -> None:
    consumer = blocking.Consumer("127.0.0.1:1", "Group")
    with pytest.raises(ConfigError, match="tags, sql or code, a subscription has one of them"):
        consumer.subscribe("Orders", tags="A", code=EVEN)
    push = compat.PushConsumer("Group")
    push.set_name_server_address("127.0.0.1:1")
    push.subscribe("Orders", print, "A", code=EVEN)
    with pytest.raises(compat.ConsumerException, match="one of them"):
        push.start()


@in_loop
async def test_java_is_for_filter_servers_only(cluster: Cluster) -> None:
    java = ("org.example.Even", "package org.example; public class Even {}")
    consumer = cluster.consumer("Group", code_when_unavailable="filter-here")
    with pytest.raises(CodeError, match="it is not Python"):
        consumer.subscribe("Orders", code=java)
    consumer = cluster.consumer("Group")
    consumer.subscribe("Orders", code=java)
    assert consumer.subscriptions["Orders"].expression == "org.example.Even"


# Through filter servers


@in_loop
async def test_a_class_is_uploaded_once_and_pulled_through(served: Cluster) -> None:
    async with stubs(served, 2, is_even) as servers:
        topic = await served.create_topic("Orders")
        await named(served, topic, *(one.address for one in servers))
        await served.fill(topic, *numbers(60))
        group, seen = served.name("Group"), Seen()
        consumer = served.push(group, seen, **SOON)
        consumer.subscribe(topic, code=EVEN)
        async with consumer:
            await seen.until(*numbers(0, 60, 2))
            info = await asyncio.to_thread(_group, served, group)
            [one] = [one for one in info.subscriptions.values() if one.topic == topic]
            assert (one.expression, one.expression_type) == ("Even", "TAG")
            assert (one.class_filter_mode, one.tags, one.codes) == (True, [], [])
            status = consumer.code_status[topic]
            assert [one.has_class for one in status.servers] == [True, True]
            assert (status.is_here, status.failovers) == (False, 0)
            beats = 3 * SOON["heartbeat_interval"]
            await asyncio.sleep(beats)  # nothing is sent again in that time
        for server in servers:
            [(header, body)] = server.uploads
            assert (header.consumer_group, header.topic) == (group, topic)
            assert (header.class_name, header.class_crc) == ("Even", EVEN.crc)
            assert body == EVEN.text.encode()
            assert header.tamis_secret is None
            assert {pull.topic for pull in server.pulls} == {topic}
            assert {pull.sys_flag for pull in server.pulls} == {
                PullFlag.CLASS_FILTER | PullFlag.SUSPEND
            }
            assert {pull.subscription for pull in server.pulls} == {None}
            assert server.others == []  # no heartbeats, and it need not be told that we go


def _group(cluster: Cluster, group: str) -> Any:
    with blocking.Admin(cluster.nameserver) as admin:
        return admin.group(group)


@in_loop
async def test_a_pull_consumer_goes_through_filter_servers_too(served: Cluster) -> None:
    async with stubs(served, 1, is_even) as [server]:
        topic = await served.create_topic("Orders")
        await named(served, topic, server.address)
        await served.fill(topic, *numbers(40))
        consumer = served.consumer(served.name("Group"), code_secret="hush", **SOON)
        consumer.subscribe(topic, code=EVEN)
        async with consumer:
            found = await take(consumer, 20)
        assert sorted(map(int, texts(found))) == [*range(0, 40, 2)]
        assert [header.tamis_secret for header, _ in server.uploads] == ["hush"]
        assert {pull.subscription for pull in server.pulls} == {None}


@in_loop
async def test_a_class_is_uploaded_again_to_a_server_that_lost_it(served: Cluster) -> None:
    async with stubs(served, 1, is_even) as [server]:
        topic = await served.create_topic("Orders")
        await named(served, topic, server.address)
        seen = Seen()
        consumer = served.push(served.name("Group"), seen, **SOON)
        consumer.subscribe(topic, code=("Even", EVEN.text))  # it waits if there is no server
        async with consumer:
            await served.fill(topic, *numbers(4))
            await seen.until("0", "2")
            assert len(server.uploads) == 1
            server.classes.clear()  # nobody used it for long
            await served.fill(topic, *numbers(4, 8))
            await seen.until("0", "2", "4", "6")
            assert len(server.uploads) == 2
            server.hang_up()  # it may be another process at the same address
            await until(lambda: len(server.uploads) == 3, lambda: server.uploads)
            await served.fill(topic, *numbers(8, 12))
            await seen.until(*numbers(0, 12, 2))
            consumer.subscribe(topic, code=("Even", OTHER_EVEN.text))
            await until(lambda: len(server.uploads) == 4, lambda: server.uploads)
            assert server.uploads[-1][0].class_crc == OTHER_EVEN.crc
        assert consumer.code_status[topic].is_here is False


@in_loop
async def test_a_class_that_is_changed_is_uploaded_to_all_servers(served: Cluster) -> None:
    async with stubs(served, 2, is_even) as servers:
        topic = await served.create_topic("Orders")
        await named(served, topic, *(one.address for one in servers))
        consumer = served.push(served.name("Group"), Seen(), **SOON)
        consumer.subscribe(topic, code=EVEN)
        async with consumer:
            changed = CodeFilter("even.py:Even", EVEN.text + "# changed\n")
            consumer.subscribe(topic, code=changed)
            crcs = [EVEN.crc, changed.crc]
            await until(
                lambda: all(
                    [head.class_crc for head, _ in server.uploads] == crcs for server in servers
                ),
                lambda: [server.uploads for server in servers],
            )
            await asyncio.sleep(2 * SOON["heartbeat_interval"])
        for server in servers:
            assert [head.class_crc for head, _ in server.uploads] == crcs


@in_loop
async def test_a_failed_message_is_retried_past_the_filter(served: Cluster) -> None:
    """The retry topic is the broker's: the message was filtered before."""
    matched = ["0", "2"]

    def match(message: StoredMessage) -> bool:
        return message.body.decode() in matched

    async with stubs(served, 1, match) as [server]:
        topic = await served.create_topic("Orders", queues=1)
        await named(served, topic, server.address)
        await served.fill(topic, *numbers(4))

        def fail(message: ReceivedMessage) -> bool | None:
            matched.clear()  # the filter would not let it pass a second time
            return False if message.reconsume_times == 0 else None

        seen = Seen(fail)
        consumer = served.push(served.name("Group"), seen, **SOON)
        consumer.subscribe(topic, code=EVEN)
        async with consumer:
            await seen.until("0", "0", "2", "2")
        assert {pull.topic for pull in server.pulls} == {topic}


def _error(header: Any) -> Answer:
    return Answer(code=1, remark="the filter is not run")


@pytest.mark.parametrize("failure", ["error", "hang up", "stop"])
@in_loop
async def test_another_server_takes_over_and_nothing_is_lost_or_doubled(
    served: Cluster, failure: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with stubs(served, 2, is_even) as servers:
        good, bad = servers
        topic = await served.create_topic("Orders")
        await named(served, topic, good.address, bad.address)
        seen = Seen()
        consumer = served.push(served.name("Group"), seen, **SOON)
        consumer.subscribe(topic, code=("Even", EVEN.text))
        async with consumer:
            for start in range(0, 400, 40):
                await served.fill(topic, *numbers(start, start + 40))
                if start == 120:
                    await until(lambda: bool(bad.pulls), lambda: "no pull")
                    if failure == "error":
                        bad.answer_pull = _error
                    elif failure == "hang up":
                        bad.answer_pull = lambda header: bad.hang_up() or _error(header)
                    else:
                        await bad.stop()
            await seen.until(*numbers(0, 400, 2))
            status = consumer.code_status[topic]
            if failure == "stop":  # there may have been no pull just then
                assert [one.address for one in status.servers if one.has_class] == [good.address]
            else:
                assert status.failovers > 0
            assert not status.is_here
        lines = [one for one in caplog.messages if f"filter server {bad.address}" in one]
        assert 0 < len(lines) < 4, lines  # what changes, not each pull


@in_loop
async def test_what_all_servers_refuse_is_not_got_round(served: Cluster) -> None:
    """A message that is held back by the servers' policy is not to be filtered here instead."""
    async with stubs(served, 2, is_even) as servers:
        topic = await served.create_topic("Orders", queues=1)
        await named(served, topic, *(one.address for one in servers))
        await served.fill(topic, *numbers(4))
        seen = Seen()
        for server in servers:
            server.answer_pull = lambda header: Answer(code=1, remark="offset 0: held back: no")
        consumer = served.push(served.name("Group"), seen, **SOON)
        consumer.subscribe(topic, code=EVEN)
        async with consumer:
            await until(lambda: all(len(one.pulls) > 1 for one in servers), lambda: seen.texts)
            assert seen.texts == []
            assert consumer.code_status[topic].seen == 0
            assert "held back" in consumer.code_status[topic].servers[0].said
            for server in servers:
                server.answer_pull = lambda header: None
            await seen.until("0", "2")


@in_loop
async def test_a_servers_remark_about_failures_is_shown(
    served: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with stubs(served, 1, is_even) as [server]:
        topic = await served.create_topic("Orders", queues=1)
        await named(served, topic, server.address)
        said = "the filter failed on 1 message, skipped: queue 0, offset 1: ValueError: no"

        def answer(header: Any) -> Answer | None:
            server.answer_pull = lambda header: None
            head = PullMessageResponse(
                suggest_which_broker_id=0, next_begin_offset=0, min_offset=0, max_offset=0
            )
            return Answer(head, code=20, remark=said)

        server.answer_pull = answer
        await served.fill(topic, "0")
        seen = Seen()
        consumer = served.push(served.name("Group"), seen, **SOON)
        consumer.subscribe(topic, code=EVEN)
        async with consumer:
            await seen.until("0")
            assert said in consumer.code_status[topic].last_failure
        assert [one for one in caplog.messages if said in one]


# When no server can be used


@in_loop
async def test_a_refusal_is_shown_and_messages_are_filtered_here(
    served: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with stubs(served, 1, is_even) as [server]:
        topic = await served.create_topic("Orders")
        await named(served, topic, server.address)
        server.answer_upload = lambda: Answer(code=16, remark="no uploads here")
        await served.fill(topic, *numbers(20))
        seen = Seen()
        consumer = served.push(served.name("Group"), seen, **SOON)
        consumer.subscribe(topic, code=EVEN)
        async with consumer:
            await seen.until(*numbers(0, 20, 2))
            status = consumer.code_status[topic]
            assert status.is_here
            assert (status.seen, status.matched, status.failed) == (20, 10, 0)
            [one] = status.servers
            assert (one.has_class, one.said) == (False, "no uploads here")
            await asyncio.sleep(3 * SOON["heartbeat_interval"])
        assert server.pulls == []  # it may have another class of the group
        assert len(server.uploads) == 1  # it is left alone for a while
        assert len([one for one in caplog.messages if "refused it: no uploads here" in one]) == 1


@in_loop
async def test_with_fail_the_start_says_why_no_server_can_be_used(served: Cluster) -> None:
    async with stubs(served, 1, is_even) as [server]:
        topic = await served.create_topic("Orders")
        await named(served, topic, server.address)
        server.answer_upload = lambda: Answer(code=1, remark="line 3: no")
        consumer = served.push(served.name("Group"), Seen(), code_when_unavailable="fail")
        consumer.subscribe(topic, code=EVEN)
        with pytest.raises(CodeError, match=rf"even.py:Even.*{server.address}: line 3: no"):
            await consumer.start()


@in_loop
async def test_with_fail_a_consumer_ends_when_the_last_server_is_gone(served: Cluster) -> None:
    async with stubs(served, 1, is_even) as [server]:
        topic = await served.create_topic("Orders", queues=1)
        await named(served, topic, server.address)
        await served.fill(topic, "0")
        consumer = served.consumer(served.name("Group"), code_when_unavailable="fail", **SOON)
        consumer.subscribe(topic, code=EVEN)
        async with consumer:
            assert texts(await take(consumer, 1)) == ["0"]
            await server.stop()
            with pytest.raises(CodeError, match="has no filter server to use"):
                await take(consumer, 1)


@in_loop
async def test_with_wait_messages_wait_for_a_server(served: Cluster) -> None:
    async with stubs(served, 1, is_even) as [server]:
        topic = await served.create_topic("Orders")
        await named(served, topic, server.address)
        await served.fill(topic, *numbers(20))
        await server.stop()
        seen = Seen()
        consumer = served.push(served.name("Group"), seen, code_when_unavailable="wait", **SOON)
        consumer.subscribe(topic, code=EVEN)
        async with consumer:
            await until(
                lambda: "can't be reached" in consumer.code_status[topic].servers[0].said,
                lambda: consumer.code_status,
            )
            await asyncio.sleep(0.5)
            assert seen.texts == []
            await server.start()
            await seen.until(*numbers(0, 20, 2))
            assert consumer.code_status[topic].seen == 0


@in_loop
async def test_a_consumer_goes_to_the_servers_when_they_come_and_here_when_they_go(
    served: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    topic = await served.create_topic("Orders")
    await served.fill(topic, *numbers(20))
    seen = Seen()
    consumer = served.push(served.name("Group"), seen, **SOON)
    consumer.subscribe(topic, code=EVEN)
    async with consumer:
        await seen.until(*numbers(0, 20, 2))
        here = consumer.code_status[topic]
        assert (here.is_here, here.pulls) == (True, 0)
        async with stubs(served, 1, is_even) as [server]:
            await named(served, topic, server.address)
            await until(lambda: bool(server.pulls), lambda: consumer.code_status)
            await served.fill(topic, *numbers(20, 40))
            await seen.until(*numbers(0, 40, 2))
            await until(
                lambda: not consumer.code_status[topic].is_here, lambda: consumer.code_status
            )
            assert consumer.code_status[topic].pulls > 0
        await served.fill(topic, *numbers(40, 60))
        await seen.until(*numbers(0, 60, 2))
        assert consumer.code_status[topic].is_here
    told = [one for one in caplog.messages if "filtered in this process" in one]
    assert len(told) == 2, told


@in_loop
async def test_a_server_that_is_silent_holds_up_nobody_for_good(
    served: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tamis.client.codefilters._UPLOAD_TIMEOUT", 0.3)
    async with stubs(served, 1, is_even) as [server]:
        topic = await served.create_topic("Orders")
        await named(served, topic, server.address)
        server.is_silent = True
        await served.fill(topic, *numbers(20))
        seen = Seen()
        consumer = served.push(served.name("Group"), seen, **SOON)
        consumer.subscribe(topic, code=EVEN)
        async with consumer:
            await seen.until(*numbers(0, 20, 2))
            assert "no answer within" in consumer.code_status[topic].servers[0].said


# Filtering here


async def fill_numbers(cluster: Cluster, topic: str, count: int, queues: int = 1) -> None:
    """The first of them to the first queue, and so on."""
    async with cluster.producer() as producer:
        found = (await producer.queues(topic))[:queues]
        for number, queue in enumerate(found):
            some = range(count * number // queues, count * (number + 1) // queues)
            sent = await producer.send_batch(
                (Message(topic, str(n), properties={"number": str(n)}) for n in some), queue=queue
            )
            await cluster.wait_for_queues(sent)


@pytest.mark.parametrize("code", [EVEN, EVEN_BATCH], ids=["match", "match_batch"])
@in_loop
async def test_messages_are_filtered_here_in_order(cluster: Cluster, code: CodeFilter) -> None:
    topic = await cluster.create_topic("Orders", queues=1)
    await fill_numbers(cluster, topic, 3000)
    consumer = cluster.consumer(cluster.name("Group"))
    consumer.subscribe(topic, code=code)
    async with consumer:
        found = await take(consumer, 1500)
        assert texts(found) == numbers(0, 3000, 2)
        assert await consumer.getmany(1, timeout=0.2) == []
        status = consumer.code_status[topic]
        assert (status.seen, status.matched, status.failed) == (3000, 1500, 0)
        await consumer.commit()
        await cluster.wait_for_offsets(consumer.group, topic, 3000)


@in_loop
async def test_batches_are_filtered_here(cluster: Cluster) -> None:
    topic = await cluster.create_topic("Orders")
    await fill_numbers(cluster, topic, 500)
    consumer = cluster.consumer(cluster.name("Group"))
    consumer.subscribe(topic, code=EVEN_BATCH)
    found: list[str] = []
    async with consumer:
        async for batch in consumer.batches(columns=["body"], idle=1.0):
            found += [body.decode() for body in batch.column("body").to_pylist()]
    assert sorted(map(int, found)) == [*range(0, 500, 2)]


@in_loop
async def test_an_assigned_consumer_filters_here_and_uploads_nothing(served: Cluster) -> None:
    async with stubs(served, 1, is_even) as [server]:
        topic = await served.create_topic("Orders")
        await named(served, topic, server.address)
        await served.fill(topic, *numbers(20))
        found = await served.read(topic, 10, code=EVEN)
        assert sorted(map(int, texts(found))) == [*range(0, 20, 2)]
        assert server.uploads == server.pulls == []


@in_loop
async def test_code_that_can_not_be_loaded_fails_the_start(cluster: Cluster) -> None:
    topic = await cluster.create_topic("Orders")
    consumer = cluster.consumer(cluster.name("Group"))
    text = "import no_such_module\n" + EVEN.text
    consumer.subscribe(topic, code=CodeFilter("even.py:Even", text))
    with pytest.raises(CodeError, match="No module named 'no_such_module'"):
        await consumer.start()


FAILING = CodeFilter(
    "failing.py:Failing",
    """
class Failing:
    def match(self, message):
        if message.text == "3":
            raise ValueError("three")
        return int(message.text) % 2 == 0
""",
)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("skip", [0, 2, 4, 6]),
        ("pass", [0, 2, 3, 4, 6]),
        ("hold", [0, 2]),
        ("dead-letter", [0, 2, 4, 6]),
    ],
)
@in_loop
async def test_a_message_the_filter_fails_on_is_treated_by_policy(
    cluster: Cluster, policy: Any, expected: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    topic, group = await cluster.create_topic("Orders", queues=1), cluster.name("Group")
    await cluster.fill(topic, *numbers(8))
    consumer = cluster.consumer(group, code_on_error=policy)
    consumer.subscribe(topic, code=FAILING)
    async with consumer:
        assert [int(text) for text in texts(await take(consumer, len(expected)))] == expected
        assert await consumer.getmany(1, timeout=0.5) == []
        if policy == "hold":  # it is tried again a few times
            await until(lambda: _attempts(consumer, topic) > 2, lambda: "not tried again")
        status = consumer.code_status[topic]
        assert (status.seen, status.matched) == (3 if policy == "hold" else 8, len(expected))
        assert status.failed == 1
        assert "offset 3: ValueError: three" in status.last_failure
        await consumer.commit()
        await cluster.wait_for_offsets(group, topic, 3 if policy == "hold" else 8)
    assert len([one for one in caplog.messages if "failed on 1 message here" in one]) == 1
    if policy == "dead-letter":
        assert texts(await cluster.read(dead_letter_topic(group), 1)) == ["3"]


def _attempts(consumer: Any, topic: str) -> int:
    holds = consumer._member.code._wanted[topic].here._holds
    return max((attempts for _, attempts in holds.values()), default=0)


@in_loop
async def test_one_bad_message_does_not_fail_its_whole_batch(cluster: Cluster) -> None:
    topic = await cluster.create_topic("Orders", queues=1)
    await fill_numbers(cluster, topic, 300)
    text = """
class Picky:
    columns = ("body",)

    def match_batch(self, batch):
        texts = [body.decode() for body in batch.column("body").to_pylist()]
        assert "123" not in texts
        return [int(text) % 2 == 1 for text in texts]
"""
    consumer = cluster.consumer(cluster.name("Group"))
    consumer.subscribe(topic, code=CodeFilter("picky.py:Picky", text))
    async with consumer:
        found = await take(consumer, 149)
        assert [int(text) for text in texts(found)] == [n for n in range(1, 300, 2) if n != 123]
        assert consumer.code_status[topic].failed == 1


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("ours")) as cluster:
        yield cluster


@pytest.mark.parametrize("name", DAMAGES)
@in_loop
async def test_damaged_records_are_named_when_filtering_here(ours: LocalCluster, name: str) -> None:
    cluster = Cluster("tamis", ours.nameserver, ours.broker)
    topic = await cluster.create_topic("Orders", queues=1)
    await cluster.fill(topic, "0", "1", "2", MARK.decode(), "4", "5", "6")
    seen, errors = Seen(), list[Any]()
    with damaging(ours, DAMAGES[name], topic) as nameserver:
        consumer = PushConsumer(
            nameserver,
            cluster.name("Group"),
            seen,
            on_unreadable=errors.append,
            config=ConsumerConfig(start="first"),
        )
        consumer.subscribe(topic, code=EVEN)
        async with consumer:
            await seen.until("0", "2", "4", "6")
            assert [one.offset for one in errors] == [3]


# Members of a group


@pytest.mark.parametrize(
    ("other", "shown"),
    [
        ({"code": ODD}, "code 'Odd'"),
        ({"code": OTHER_EVEN}, f"CRC {OTHER_EVEN.crc:08x}"),
        ({"tags": "Even"}, "tags 'Even'"),
        ({}, r"tags '\*'"),
    ],
    ids=["class", "source", "tags", "nothing"],
)
@in_loop
async def test_members_with_different_code_are_told_of_each_other(
    cluster: Cluster, other: dict[str, Any], shown: str
) -> None:
    topic, group = await cluster.create_topic("Orders"), cluster.name("Group")
    first = cluster.push(group, Seen())
    first.subscribe(topic, **other)
    async with first:
        second = cluster.push(group, Seen(), strict_subscriptions=True)
        second.subscribe(topic, code=EVEN)
        with pytest.raises(SubscriptionMismatch, match=rf"code 'Even' .*with {shown}|{shown}"):
            await second.start()


@in_loop
async def test_members_with_the_same_code_share_a_topic(cluster: Cluster) -> None:
    topic, group = await cluster.create_topic("Orders"), cluster.name("Group")
    seen = Seen()
    members = [cluster.push(group, seen, strict_subscriptions=True) for _ in range(2)]
    for one in members:
        one.subscribe(topic, code=EVEN)
    async with members[0], members[1]:
        await until(
            lambda: all(len(one.assignment) > 1 for one in members),
            lambda: [one.assignment for one in members],
        )
        await cluster.fill(topic, *numbers(40))
        await seen.until(*numbers(0, 40, 2))


@in_loop
async def test_a_conflict_at_a_filter_server_is_told(
    served: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    said = "not taken, for the members of the group differ: 10.0.0.1:5 holds class Even"
    async with stubs(served, 1, is_even) as [server]:
        topic = await served.create_topic("Orders")
        await named(served, topic, server.address)
        server.answer_upload = lambda: Answer(remark=said)
        consumer = served.push(served.name("Group"), Seen(), **SOON)
        consumer.subscribe(topic, code=EVEN)
        async with consumer:
            assert consumer.code_status[topic].servers[0].said == said
            await until(lambda: bool(server.pulls), lambda: "no pull")
        assert len([one for one in caplog.messages if said in one]) == 1
        strict = served.push(served.name("Group"), Seen(), strict_subscriptions=True)
        strict.subscribe(topic, code=EVEN)
        with pytest.raises(CodeError, match="holds class Even"):
            await strict.start()


# Real filter servers, each a process


class ServerProcess:
    """`tamis filterserver`, with its sandbox; `with` ends it, if it was not killed before."""

    def __init__(self, broker: str) -> None:
        options = ["--uploads", "--isolation=best-effort", "--with-stdin", "--log-level=error"]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tamis", "filterserver", "--broker", broker, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        found = re.search(r"filter server (\S+) for broker", said)
        assert found, said
        self.address = found[1]

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate("", timeout=20)


@in_loop
async def test_nothing_is_lost_or_doubled_when_a_filter_server_is_killed(served: Cluster) -> None:
    count, group, seen = 20_000, served.name("Group"), Seen()
    with ServerProcess(served.broker) as first, ServerProcess(served.broker) as second:
        topic = await served.create_topic("Orders", queues=4)
        await named(served, topic, first.address, second.address)
        await fill_numbers(served, topic, count, queues=4)
        consumer = served.push(group, seen, code_when_unavailable="wait", **SOON)
        consumer.subscribe(topic, code=EVEN_BATCH)
        consumer.pause()
        async with consumer:
            await until(  # on a busy machine a sandbox may take its time to start
                lambda: all(one.has_class for one in consumer.code_status[topic].servers),
                lambda: consumer.code_status,
            )
            consumer.resume()
            await until(lambda: len(seen.messages) > 1000, lambda: len(seen.messages))
            second.kill()
            assert len(seen.messages) < count // 2
            await until(lambda: len(seen.messages) >= count // 2, lambda: len(seen.messages), 40)
            status = consumer.code_status[topic]
            with_class = [one.address for one in status.servers if one.has_class]
            assert with_class == [first.address]
            assert status.seen == 0
        assert sorted(map(int, seen.texts)) == [*range(0, count, 2)]
        await served.wait_for_offsets(group, topic, *[count // 4] * 4)


@in_loop
async def test_what_a_filter_server_says_is_understood(served: Cluster) -> None:
    """A conflict, and a class that is not there: only its remarks tell them."""
    with ServerProcess(served.broker) as server:
        topic, group = await served.create_topic("Orders"), served.name("Group")
        await named(served, topic, server.address)
        seen = Seen()
        members = [served.push(group, seen, **SOON) for _ in range(3)]
        for member, code in zip(members, (EVEN, OTHER_EVEN, EVEN), strict=True):
            member.subscribe(topic, code=("Even", code.text))
        async with members[0], members[1], members[2]:  # the second replaces the first's class
            [said] = [one.said for one in members[2].code_status[topic].servers]
            assert _CONFLICT in said
            assert str(OTHER_EVEN.crc) in said
            await served.fill(topic, *numbers(20))
            await seen.until(*numbers(0, 20, 2))
            assert not any(one.code_status[topic].is_here for one in members)
        peer = await connect(server.address)
        answer = await peer.ask(pull_request("Another", topic, 0, 0, expression=None), 20)
        await close(peer)
        assert _NOT_REGISTERED.search(answer.remark or ""), answer
