"""Bodies that are small as they travel and huge when they are decompressed: their messages are
named as unreadable, memory stays small, and what follows is read."""

import asyncio
import json
import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from broker.asking import Refused, ask, close, command, route, until
from client.targets import QUICK, in_loop

from tamis.client import (
    Consumer,
    ConsumerConfig,
    MessageQueue,
    PushConsumer,
    ReceivedMessage,
    _column_arrays,
    compression,
)
from tamis.client import columns as arrow
from tamis.client.compat import PullConsumer
from tamis.client.received import dead_letter_topic
from tamis.errors import CorruptRecord, UnreadableMessage
from tamis.net.aio import connect
from tamis.testing import LocalCluster
from tamis.wire import properties
from tamis.wire.codes import RequestCode
from tamis.wire.headers import SendMessage

MIB = 2**20


def bomb(size: int) -> bytes:
    """A zlib stream of so many zeros, made without having them at once."""
    stream = zlib.compressobj(9)
    made = [stream.compress(bytes(MIB)) for _ in range(size // MIB)]
    return b"".join([*made, stream.flush()])


BOMB = bomb(512 * MIB)
FITTING = zlib.compress(b"fits" * MIB)
BODIES = [(0, b"0"), (1, BOMB), (0, b"2"), (1, FITTING), (1, b"no zlib"), (0, b"5")]
READABLE = [b"0", b"2", b"fits" * MIB, b"5"]
UNREADABLE = [1, 4]  # their offsets


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster") / "store") as made:
        yield made


async def filled(cluster: LocalCluster, topic: str) -> MessageQueue:
    """A topic of one queue with all of `BODIES`."""
    peer = await connect(cluster.broker)
    for number, (sys_flag, body) in enumerate(BODIES):
        header = SendMessage(
            producer_group="P",
            topic=topic,
            default_topic="TBW102",
            default_topic_queue_nums=1,
            queue_id=0,
            sys_flag=sys_flag,
            born_timestamp=1,
            flag=0,
            properties=properties.encode({"UNIQ_KEY": f"KEY{number}", "TAGS": "a"}),
        )
        await ask(peer, command(header, RequestCode.SEND_MESSAGE_V2, body))
    await close(peer)
    async with asyncio.timeout(20):
        await _registered(cluster, topic)
    return MessageQueue(topic, "broker-a", 0)


async def _registered(cluster: LocalCluster, topic: str) -> None:
    peer = await connect(cluster.nameserver)
    while True:
        try:
            await route(peer, topic)
            break
        except Refused:
            await asyncio.sleep(0.01)
    await close(peer)


def config(**settings: Any) -> ConsumerConfig:
    return ConsumerConfig(**(QUICK | {"hold": 1.0} | settings))


def arrow_stream(size: int, codec: str) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        for _ in range(size // MIB):
            stream.write(bytes(MIB))
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd"])
def test_no_more_is_decompressed_than_the_limit(kind: str) -> None:
    body, sys_flag = BOMB, 0x1
    if kind != "zlib":
        body, sys_flag = arrow_stream(256 * MIB, kind), {"lz4": 0x101, "zstd": 0x201}[kind]
    tracemalloc.start()
    try:
        with pytest.raises(CorruptRecord, match=r"more than 4,194,304 .*: raise max_body_size"):
            compression.decompress(body, sys_flag, 4 * MIB)
        assert tracemalloc.get_traced_memory()[1] < 16 * MIB
    finally:
        tracemalloc.stop()
    small = zlib.compress(bytes(1000))
    assert compression.decompress(small, 0x1, 1000) == bytes(1000)
    with pytest.raises(CorruptRecord, match="more than 999"):
        compression.decompress(small, 0x1, 999)


_MEASURED = """
import atexit, re, sys
def tell():
    status = open("/proc/self/status").read()
    print("peak", re.search(r"VmHWM:\\s+(\\d+)", status)[1], file=sys.stderr)
atexit.register(tell)
from tamis.cli.main import main
main()
"""


def test_consume_prints_the_others_names_it_and_stays_small(cluster: LocalCluster) -> None:
    asyncio.run(filled(cluster, "Printed"))
    # the child says itself what it took: the system counts what its parent had before it began
    line = [sys.executable, "-c", _MEASURED, "consume", "Printed", "-n", cluster.nameserver]
    child = subprocess.run(line, capture_output=True, text=True)
    rows = [json.loads(row) for row in child.stdout.splitlines()]
    said, _, peak = child.stderr.rpartition("peak ")
    assert [row["body"].encode() for row in rows] == READABLE
    assert "tamis: topic Printed, queue 0 of broker-a, offset 1 (message KEY1): the body of" in said
    assert "offset 4 (message KEY4): " in said
    assert "Traceback" not in said
    assert child.returncode == 1
    assert int(peak) < 400 * 1024  # KiB


@in_loop
async def test_a_taken_message_says_what_is_wrong_when_its_body_is_asked_for(
    cluster: LocalCluster,
) -> None:
    queue = await filled(cluster, "Taken")
    consumer = Consumer(cluster.nameserver, "taken", config=config(start="first"))
    consumer.assign([queue])
    found: list[ReceivedMessage] = []
    async with consumer:
        while len(found) < len(BODIES):
            found += await consumer.getmany(timeout=5.0)
    assert [one.offset for one in found if not one.is_readable] == UNREADABLE
    assert [one.body for one in found if one.is_readable] == READABLE
    with pytest.raises(UnreadableMessage, match=r"offset 1 \(message KEY1\).*max_body_size") as one:
        assert found[1].body
    assert (one.value.topic, one.value.queue_id, one.value.message_id) == ("Taken", 0, "KEY1")
    assert "KEY1" in repr(found[1])
    assert found[1].tags == "a"


@pytest.mark.parametrize(("limit", "is_readable"), [(4 * MIB - 1, False), (4 * MIB, True)])
@in_loop
async def test_the_limit_is_a_setting(cluster: LocalCluster, limit: int, is_readable: bool) -> None:
    queue = await filled(cluster, f"Limit-{limit}")
    consumer = Consumer(cluster.nameserver, "limit", config=config(max_body_size=limit))
    consumer.assign([queue])
    found: list[ReceivedMessage] = []
    async with consumer:
        while len(found) < 4:
            found += await consumer.getmany(timeout=5.0)
    assert found[3].is_readable == is_readable


@in_loop
async def test_many_bodies_that_are_just_allowed_come_a_few_at_a_time(
    cluster: LocalCluster,
) -> None:
    queue = await filled(cluster, "Few")
    consumer = Consumer(cluster.nameserver, "few", config=config(max_body_size=4 * MIB))
    consumer.assign([queue])
    sizes = []
    async with consumer:
        while (consumer.position(queue) or 0) < len(BODIES):
            found = await consumer.getmany(timeout=5.0)
            sizes.append(sum(len(one.body) for one in found if one.is_readable))
    assert sum(sizes) == sum(map(len, READABLE))
    assert len(sizes) > 1  # the one that fills the limit is the last of its call
    assert max(sizes) < 5 * MIB


@in_loop
async def test_batches_give_the_rows_before_and_go_on_behind(cluster: LocalCluster) -> None:
    queue = await filled(cluster, "Columns")
    consumer = Consumer(cluster.nameserver, "columns", config=config())
    consumer.assign([queue])
    rows: list[bytes] = []
    errors: list[int] = []
    async with consumer:
        while len(rows) < len(READABLE):
            try:
                async for batch in consumer.batches(idle=5.0):
                    rows += batch.column("body").to_pylist()
                    if len(rows) == len(READABLE):
                        break
            except UnreadableMessage as error:
                errors.append(error.offset)
        await consumer.commit()
        assert await consumer.committed(queue) == len(BODIES)
    assert (rows, errors) == (READABLE, UNREADABLE)


def test_a_batch_is_cut_where_its_bodies_would_be_too_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from client.test_columns import Draft, chunk

    monkeypatch.setattr(_column_arrays, "_MOST_DECOMPRESSED", 2500)
    drafts = [Draft(topic="T", body=zlib.compress(bytes([n]) * 1000), sys_flag=1) for n in range(7)]
    parts = list(arrow.decode_parts([chunk(*drafts)], columns=["offset", "body"]))
    assert [batch.num_rows for batch, _ in parts] == [2, 2, 2, 1]
    assert [is_last for _, is_last in parts] == [False, False, False, True]
    whole = arrow.decode([chunk(*drafts)], columns=["offset", "body"])
    assert pa.Table.from_batches([batch for batch, _ in parts]) == pa.Table.from_batches([whole])
    assert whole.column("body").to_pylist() == [bytes([n]) * 1000 for n in range(7)]


@pytest.mark.parametrize("ordered", [False, True])
@in_loop
async def test_a_handler_fails_on_it_and_it_is_a_dead_letter_at_once(
    cluster: LocalCluster, ordered: bool
) -> None:
    topic, group = f"Pushed-{ordered}", f"pushed-{ordered}"
    await filled(cluster, topic)
    seen: list[bytes] = []
    attempts: list[int] = []

    async def handle(message: ReceivedMessage) -> None:
        attempts.append(message.offset)
        seen.append(message.body)

    consumer = PushConsumer(
        cluster.nameserver, group, handle, ordered=ordered, config=config(commit_interval=0.1)
    )
    consumer.subscribe(topic)
    async with consumer:
        await until(lambda: len(seen) == len(READABLE), lambda: attempts)
        assert sorted(seen) == sorted(READABLE)
        reader = Consumer(
            cluster.nameserver, f"dead-{ordered}", config=config(wait_for_topics=True)
        )
        reader.subscribe(dead_letter_topic(group))
        dead: list[ReceivedMessage] = []
        async with reader, asyncio.timeout(30):
            while len(dead) < len(UNREADABLE):
                dead += await reader.getmany(timeout=1.0)
    assert sorted(attempts) == [*range(len(BODIES))]  # each once
    assert sorted(one.stored_body for one in dead) == sorted([BOMB, b"no zlib"])


def test_the_other_packages_raise_it_too(cluster: LocalCluster) -> None:
    asyncio.run(filled(cluster, "Compat"))
    consumer = PullConsumer("compat")
    consumer.set_name_server_address(cluster.nameserver)
    found, errors = [], []
    with consumer:
        for message in consumer.pull("Compat"):
            try:
                found.append(message.body)
            except UnreadableMessage as error:
                errors.append(error.offset)
                assert "unreadable" in repr(message)
    assert (found, errors) == (READABLE, UNREADABLE)
