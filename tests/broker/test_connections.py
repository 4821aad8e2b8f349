"""Limits: many connections, consumers that do not read, more than can be taken at once. What is too
much is told so, and nobody else suffers."""

import asyncio
import contextlib
import logging
import resource
import socket
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from broker.asking import (
    PATIENCE,
    ask,
    close,
    create_topic,
    messages_of,
    pull_request,
    send_request,
)

from tamis.net import aio
from tamis.net.aio import Peer
from tamis.testing import LocalCluster
from tamis.wire import command
from tamis.wire.codes import ResponseCode
from tamis.wire.command import Command
from tamis.wire.headers import SendMessageResponse

CONNECTIONS = 5000
PROMPT = 3.0  # seconds: Java's clients wait no longer for an answer


def run(work: Coroutine[Any, Any, None]) -> None:
    async def patiently() -> None:
        async with asyncio.timeout(6 * PATIENCE):
            await work

    asyncio.run(patiently())


@contextlib.asynccontextmanager
async def client(cluster: LocalCluster) -> AsyncIterator[Peer]:
    peer = await aio.connect(cluster.broker, PATIENCE)
    try:
        yield peer
    finally:
        await close(peer)


def idle(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), PATIENCE)


async def metric(cluster: LocalCluster, name: str) -> float:
    def scrape() -> float:
        with urllib.request.urlopen(cluster.metrics, timeout=PATIENCE) as answer:
            lines = answer.read().decode().splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))

    return await asyncio.to_thread(scrape)


async def until_metric(cluster: LocalCluster, name: str, wanted: float) -> None:
    deadline = time.monotonic() + PATIENCE
    while (found := await metric(cluster, name)) != wanted:
        assert time.monotonic() < deadline, f"{name} is {found}, not {wanted}"
        await asyncio.sleep(0.02)


def anonymous_memory() -> int:
    """Bytes of this process that are no file's."""
    [line] = [x for x in Path("/proc/self/status").read_text().splitlines() if "RssAnon" in x]
    return int(line.split()[1]) * 1024


async def send_and_pull(peer: Peer, topic: str, count: int) -> None:
    """Each answer comes promptly; if it is that the broker is busy, a better one soon follows."""
    for number in range(count):
        body = b"%d" % number
        async with asyncio.timeout(PROMPT):
            while True:
                answer = await peer.ask(send_request(topic, 0, body), PROMPT)
                if answer.code == ResponseCode.SUCCESS:
                    break
                assert answer.code == ResponseCode.SYSTEM_BUSY, answer
                assert (answer.remark or "").startswith("["), answer
                await asyncio.sleep(0.01)
            offset = SendMessageResponse.from_fields(answer.fields).queue_offset
            pull = pull_request("g", topic, 0, offset, hold=PROMPT)
            while (found := await peer.ask(pull, PROMPT)).code == ResponseCode.PULL_OFFSET_MOVED:
                await asyncio.sleep(0.001)  # stored, and not yet in its queue
        assert [one.body for one in messages_of(found.body)] == [body], found


# Connections.


@pytest.fixture
def many_files() -> Iterator[None]:
    """Both ends of each connection are this process's."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * CONNECTIONS + 1000
    if hard != resource.RLIM_INFINITY and hard < needed:
        pytest.skip(f"a process may have {hard} open files here, {needed} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
def test_5000_idle_connections_are_held_while_others_are_served(tmp_path: Path) -> None:
    connections: list[socket.socket] = []

    async def work() -> None:
        async with LocalCluster(tmp_path, metrics_port=0) as cluster, client(cluster) as peer:

            def open_all() -> None:
                for _ in range(CONNECTIONS):
                    connections.append(idle(cluster.broker))

            await asyncio.gather(asyncio.to_thread(open_all), send_and_pull(peer, "T", 50))
            await until_metric(cluster, "tamis_connections", CONNECTIONS + 1)
            await send_and_pull(peer, "T", 200)
            half = CONNECTIONS // 2
            for one in connections[:half]:
                one.close()
            await until_metric(cluster, "tamis_connections", CONNECTIONS - half + 1)
            await send_and_pull(peer, "T", 50)
            await asyncio.to_thread(cluster.stop_broker)  # and closes the others
            for one in connections[half:]:
                assert one.recv(1) == b""

    try:
        run(work())
    finally:
        for one in connections:
            one.close()


def test_a_connection_too_many_is_closed_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with (
            LocalCluster(tmp_path, most_connections=10, metrics_port=0) as cluster,
            client(cluster) as peer,
        ):
            held = [idle(cluster.broker) for _ in range(9)]
            await until_metric(cluster, "tamis_connections", 10)
            with idle(cluster.broker) as refused:
                assert await asyncio.to_thread(refused.recv, 1) == b""
            await send_and_pull(peer, "T", 5)
            held.pop().close()
            await until_metric(cluster, "tamis_connections", 9)
            async with client(cluster) as another:
                await send_and_pull(another, "T", 5)
            for one in held:
                one.close()

    with caplog.at_level(logging.WARNING, "tamis.net"):
        run(work())
    assert "10 connections are enough" in caplog.text


# A consumer that does not read.


def test_a_consumer_that_never_reads_costs_no_memory_and_slows_nobody(tmp_path: Path) -> None:
    """It asks for a gigabyte."""

    async def work() -> None:
        async with LocalCluster(tmp_path, pull_bytes=2**20) as cluster, client(cluster) as peer:
            for _ in range(8):
                await ask(peer, send_request("Big", 0, bytes(128 * 1024)))
            pull = pull_request("slow", "Big", 0, 0, hold=PATIENCE)  # until it is queued
            await ask(peer, pull)
            before = anonymous_memory()
            with idle(cluster.broker) as slow:
                slow.setblocking(False)
                request = b"".join(
                    command.encode(Command(code=pull.code, opaque=n, fields=pull.fields))
                    for n in range(1000)
                )
                await write_what_is_taken(slow, request)
                await send_and_pull(peer, "T", 100)
                grown = anonymous_memory() - before
            assert grown < 64 * 2**20, f"{grown / 2**20:.0f} MiB"

    run(work())


def test_held_pulls_of_a_consumer_that_never_reads_cost_no_memory(tmp_path: Path) -> None:
    """They are woken all at once by a large message, and again by the next."""

    async def work() -> None:
        async with (
            LocalCluster(tmp_path, metrics_port=0) as cluster,
            client(cluster) as peer,
        ):
            await create_topic(peer, "Big", 1)
            with idle(cluster.broker) as slow:
                pull = pull_request("slow", "Big", 0, 0, hold=PATIENCE)
                request = b"".join(
                    command.encode(Command(code=pull.code, opaque=n, fields=pull.fields))
                    for n in range(2000)
                )
                await asyncio.to_thread(slow.sendall, request)
                await until_metric(cluster, "tamis_held_pulls", 2000)
                before = anonymous_memory()
                for _ in range(2):
                    await ask(peer, send_request("Big", 0, bytes(128 * 1024)))
                await send_and_pull(peer, "T", 100)
                grown = anonymous_memory() - before
            assert grown < 64 * 2**20, f"{grown / 2**20:.0f} MiB"

    run(work())


async def write_what_is_taken(connection: socket.socket, data: bytes) -> None:
    """Until nothing more is taken for a while, or all of it is."""
    quiet = time.monotonic() + 0.5
    while data and time.monotonic() < quiet:
        try:
            data = data[connection.send(data) :]
            quiet = time.monotonic() + 0.5
        except BlockingIOError:
            await asyncio.sleep(0.01)


# Too large, too many.


def test_a_message_too_large_is_refused_and_the_next_is_taken(tmp_path: Path) -> None:
    async def work() -> None:
        async with (
            LocalCluster(tmp_path, max_message_size=1000) as cluster,
            client(cluster) as peer,
        ):
            answer = await peer.ask(send_request("T", 0, bytes(1001)), PATIENCE)
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL
            assert "1000B" in (answer.remark or "")
            await ask(peer, send_request("T", 0, bytes(1000)))
            large = {"a": "x" * 40_000}
            answer = await peer.ask(send_request("T", 0, b"1", large), PATIENCE)
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL
            await send_and_pull(peer, "T", 5)

    run(work())


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_sends_beyond_the_backlog_are_told_it_is_busy(tmp_path: Path, flush: str) -> None:
    """All that was taken is stored, nothing else is, and it goes on as before."""

    async def work() -> None:
        async with (
            LocalCluster(tmp_path, flush=flush, send_backlog=8) as cluster,
            client(cluster) as peer,
        ):
            await create_topic(peer, "T", 1)
            requests = [send_request("T", 0, b"%d" % n) for n in range(500)]
            answers = await asyncio.gather(*(peer.ask(one, PATIENCE) for one in requests))
            codes = Counter(answer.code for answer in answers)
            assert set(codes) == {ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY}, codes
            for answer in answers:
                if answer.code == ResponseCode.SYSTEM_BUSY:
                    assert (answer.remark or "").startswith("["), answer.remark
                    assert (answer.fields or {}).get("MSG_REGION")  # Java's client needs it
            taken = [r.body for r, a in zip(requests, answers, strict=True) if not a.code]
            await ask(peer, send_request("T", 0, b"last"))
            assert await bodies(peer, "T", b"last") == [*taken, b"last"]
            await send_and_pull(peer, "T", 20)

    run(work())


async def bodies(peer: Peer, topic: str, last: bytes) -> list[bytes]:
    """From the first one on; what was acknowledged can be pulled a moment later."""
    found: list[bytes] = []
    while last not in found:
        answer = await ask(peer, pull_request("g", topic, 0, len(found), hold=PATIENCE))
        found += [one.body for one in messages_of(answer.body)]
    return found


def test_pulls_beyond_the_backlog_are_told_it_is_busy(tmp_path: Path) -> None:
    async def work() -> None:
        async with (
            LocalCluster(tmp_path, pull_backlog=4, metrics_port=0) as cluster,
            client(cluster) as peer,
        ):
            await create_topic(peer, "T", 1)
            for offset in range(2):  # and once more after it
                pull = pull_request("g", "T", 0, offset, hold=PATIENCE)
                held = [asyncio.create_task(peer.ask(pull, PATIENCE)) for _ in range(4)]
                await until_metric(cluster, "tamis_held_pulls", 4)
                answer = await peer.ask(pull, PATIENCE)
                assert answer.code == ResponseCode.SYSTEM_BUSY
                assert (answer.remark or "").startswith("["), answer.remark
                assert not any(task.done() for task in held)
                await ask(peer, send_request("T", 0, b"1"))
                for answer in await asyncio.gather(*held):
                    assert [one.body for one in messages_of(answer.body)] == [b"1"]
            await send_and_pull(peer, "T", 5)

    run(work())


def test_a_flood_on_one_connection_leaves_others_their_turn(tmp_path: Path) -> None:
    """One that writes without an end, and does not read: others are answered promptly."""

    async def work() -> None:
        async with LocalCluster(tmp_path) as cluster, client(cluster) as peer:
            await create_topic(peer, "Flood", 1)
            send = send_request("Flood", 0, bytes(1000))
            chunk = b"".join(
                command.encode(Command(code=send.code, opaque=n, fields=send.fields, body=b"x"))
                for n in range(200)
            )
            before = anonymous_memory()
            with idle(cluster.broker) as flood:
                flood.setblocking(False)
                writing = asyncio.create_task(_write_for(flood, chunk, 2.0))
                try:
                    await send_and_pull(peer, "T", 100)
                finally:
                    await writing
                grown = anonymous_memory() - before
            assert grown < 64 * 2**20, f"{grown / 2**20:.0f} MiB"
            await send_and_pull(peer, "T", 20)

    run(work())


async def _write_for(connection: socket.socket, chunk: bytes, seconds: float) -> None:
    end, data = time.monotonic() + seconds, chunk
    while time.monotonic() < end:
        with contextlib.suppress(BlockingIOError):
            data = data[connection.send(data) :] or chunk
        await asyncio.sleep(0.001)


def test_a_frame_too_large_ends_its_connection_alone(tmp_path: Path) -> None:
    async def work() -> None:
        async with LocalCluster(tmp_path) as cluster, client(cluster) as peer:
            with idle(cluster.broker) as rude:
                rude.sendall((2**24 + 1).to_bytes(4) + bytes(4))
                assert await asyncio.to_thread(rude.recv, 1) == b""
            await send_and_pull(peer, "T", 5)

    run(work())
