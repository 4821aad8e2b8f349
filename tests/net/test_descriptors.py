"""Connections leave descriptors for the rest of the process."""

import contextlib
import logging
import resource
import socket

import pytest
from net.harness import run, serving, stream, until

from tamis.net import descriptors, rarely
from tamis.net.server import Answer, Route, needless_header
from tamis.wire.command import Command

ECHO = 1000
ROUTES = {ECHO: Route(None, needless_header(lambda request: Answer()))}


@pytest.fixture
def few_files(monkeypatch: pytest.MonkeyPatch) -> int:
    """A soft limit that leaves room for that many connections. It is only said to be so: other
    tests of this process may have more files open, and servers with connections of their own."""
    monkeypatch.setattr(resource, "getrlimit", lambda which: (160, 160))
    monkeypatch.setattr(descriptors, "_counted", [])
    return 20


def test_a_quarter_of_the_limit_and_a_hundred_are_for_others(few_files: int) -> None:
    assert descriptors.room() == few_files


def test_connections_beyond_the_descriptors_are_closed_at_once_and_others_served(
    few_files: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with serving(ROUTES) as (it, address), stream(address) as good:
            host, _, port = address.rpartition(":")
            with contextlib.ExitStack() as held:
                for _ in range(few_files + 10):
                    held.enter_context(socket.create_connection((host, int(port)), 20))
                await until(lambda: it.refused == 11, lambda: (it.refused, len(it.peers)))
                assert len(it.peers) == few_files
                good.send(Command(code=ECHO, opaque=1))
                assert (await good.answer()).opaque == 1
            await until(lambda: len(it.peers) == 1, lambda: len(it.peers))
            async with stream(address) as another:
                another.send(Command(code=ECHO, opaque=1))
                assert (await another.answer()).opaque == 1

    with caplog.at_level(logging.WARNING, "tamis.net"):
        run(main())
    lines = [one.getMessage() for one in caplog.records if "limit of open files" in one.message]
    assert "leaves room for 20 (ulimit -n)" in lines[0]


def test_refusals_are_logged_once_a_second(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rarely, "_SECONDS", 3600.0)

    async def main() -> None:
        async with serving(ROUTES, most_connections=1) as (it, address), stream(address):
            await until(lambda: len(it.peers) == 1, lambda: it.peers)
            for count in range(1, 6):
                async with stream(address) as refused:
                    assert await refused.rest() == b""
                await until(lambda count=count: it.refused == count, lambda: it.refused)

    with caplog.at_level(logging.WARNING, "tamis.net"):
        run(main())
    assert len([one for one in caplog.records if "are enough" in one.message]) == 1
