"""What is no message is refused in a sentence, where it is made or where it is sent."""

from typing import Any

import pytest
from client.targets import Cluster, in_loop, texts

from tamis.client import Message
from tamis.client.compat import Message as OtherMessage
from tamis.errors import InvalidMessage


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"body": 5}, "body = 5: it is bytes or text"),
        ({"body": None}, "body = None: it is bytes or text"),
        ({"body": {"a": 1}}, "body = {'a': 1}: it is bytes or text; json.dumps makes text of it"),
        ({"body": [1, 2]}, "body = [1, 2]: it is bytes or text; json.dumps makes text of it"),
        ({"body": 1.5}, "body = 1.5: it is bytes or text"),
        ({"topic": 5}, "topic = 5: it is text"),
        ({"topic": None}, "topic = None: it is text"),
        ({"topic": b"T"}, "topic = b'T': it is text"),
        ({"keys": 5}, "keys = 5: it is text, or a sequence of texts"),
        ({"keys": b"k"}, "keys = b'k': it is text, or a sequence of texts"),
        ({"keys": [5]}, "keys: 5 is not text without blanks, which separate keys"),
        ({"tags": 5}, "tags = 5: it is text"),
        ({"properties": 5}, "properties = 5: it is a mapping of names to values, both text"),
        ({"properties": [("a", "b")]}, "properties = [('a', 'b')]: it is a mapping of names to"),
        ({"properties": {"a": 5}}, "property 'a' = 5: names and values are text"),
        ({"delay_level": "3"}, "delay_level = '3': it is a whole number of 32 bits"),
    ],
)
def test_what_is_of_another_type_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidMessage) as raised:
        Message(**{"topic": "T", "body": b"x", **given})
    assert str(raised.value).startswith(said)


@pytest.mark.parametrize("body", [b"x", "x", bytearray(b"x"), memoryview(b"x")])
def test_bodies_are_bytes_or_text(body: Any) -> None:
    assert Message("T", body).body == b"x"


def test_keys_may_be_any_texts_in_a_row() -> None:
    assert Message("T", b"x", keys=(one for one in ("a", "b"))).keys == ("a", "b")  # type: ignore[arg-type]
    assert Message("T", b"x", keys="a b").keys == ("a", "b")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"delay_level": 19}, "delay_level = 19: it is 0 for none, or 1 to 18 (max_delay_level)"),
        ({"delay_level": -1}, "delay_level = -1: it is 0 for none"),
        ({"tags": "a||b"}, "tags = 'a||b': a message has one tag, and || separates tags"),
        ({"tags": "a "}, "tags = 'a ': blanks around a tag mean nothing in a subscription"),
        ({"tags": " "}, "tags = ' ': blanks around a tag"),
    ],
)
@in_loop
async def test_what_could_not_be_delivered_as_meant_is_not_sent(
    cluster: Cluster, given: dict[str, Any], said: str
) -> None:
    topic = await cluster.create_topic("Orders", queues=1)
    message = Message(topic, b"x", **given)
    async with cluster.producer() as producer:
        for send in (
            lambda: producer.send(message),
            lambda: producer.send_oneway(message),
            lambda: producer.send_batch([message]),
        ):
            with pytest.raises(InvalidMessage) as raised:
                await send()
            assert str(raised.value).startswith(said)


@in_loop
async def test_both_can_be_allowed_for_brokers_and_consumers_that_know(cluster: Cluster) -> None:
    topic = await cluster.create_topic("Orders", queues=1)
    async with cluster.producer(max_delay_level=20, check_tags=False) as producer:
        await producer.send(Message(topic, b"tag", tags="a||b"))
        await producer.send(Message(topic, b"late", delay_level=20))
    found = await cluster.read(topic, 2)
    assert sorted(texts(found)) == ["late", "tag"]
    assert {one.tags for one in found} == {"a||b", None}


def test_the_other_packages_message_is_refused_when_it_is_sent() -> None:
    made = OtherMessage("T")
    made.set_body(5)  # type: ignore[arg-type]
    with pytest.raises(InvalidMessage, match="body = 5"):
        made.made()
