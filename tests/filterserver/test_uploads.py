"""Uploads: who may, what is refused and why, replacing, and members that disagree."""

import asyncio
import errno
import json
import logging
import resource
import socket
import threading
from typing import Any

import pytest
from filterserver.consuming import EVEN, NONE, RARE, numbers, run, standing, until

from tamis.code import CodeFilter, Context, load
from tamis.code.contract import Judge
from tamis.errors import SandboxError
from tamis.filterserver import FilterServer, FilterServerConfig
from tamis.filterserver.status import status
from tamis.filterserver.uploads import _JAVA, _PYTHON, _is_loopback
from tamis.net.aio import connect
from tamis.wire.codes import ResponseCode

ODD = EVEN.replace("== 0", "== 1")
JAVA = """
package org.example;

import org.apache.rocketmq.common.filter.MessageFilter;

public class Even implements MessageFilter {
    @Override
    public boolean match(MessageExt msg, FilterContext context) {
        return true;
    }
}
"""


@pytest.mark.parametrize(
    ("settings", "upload", "code", "remark"),
    [
        ({"uploads": False}, {}, 16, "takes no uploads; who runs it can switch them on"),
        ({"secret": "s3"}, {}, 16, "need its secret, and none was given"),
        ({"secret": "s3"}, {"secret": "guess"}, 16, "need its secret, and the wrong one was given"),
        (
            {"max_source_size": 50},
            {},
            1,
            f"a source of {len(EVEN)} bytes: this filter server takes",
        ),
        ({}, {"name": "Even()"}, 1, "'Even()' is not the name of a class"),
        ({}, {"name": ""}, 1, "'' is not the name of a class"),
        ({}, {"crc": 7}, 1, "not 7 as was said"),
        ({}, {"text": " "}, 1, "the source is empty"),
        ({}, {"text": JAVA}, 1, "this is Java, and this filter server runs Python"),
        ({}, {"name": "Odd"}, 1, "code <upload>:Odd: <upload> has no class Odd"),
        ({}, {"text": "class Even:\n  def"}, 1, "code <upload>:Even: line 2: "),
        ({}, {"text": "class Even: pass"}, 1, "class Even has neither match nor match_batch"),
        ({}, {"text": EVEN + "\n1 / 0"}, 1, "ZeroDivisionError"),
        ({}, {"group": ""}, 1, "a group of 0 characters"),
        ({}, {"group": "g" * 300}, 1, "a group of 300 characters"),
        ({}, {"group": "g\nroot: all is well"}, 1, "has characters that can't be printed"),
        ({}, {"topic": "t\x1b[2J"}, 1, "has characters that can't be printed"),
    ],
)
def test_an_upload_is_refused_with_the_reason(
    settings: dict[str, Any],
    upload: dict[str, Any],
    code: int,
    remark: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "tamis.filterserver")

    async def work() -> None:
        async with standing(**settings) as (_, server, client):
            given = {"text": EVEN, "name": "Even"} | upload
            for _ in range(2):
                answer = await client.upload(**given)
                assert (answer.code, remark in (answer.remark or "")) == (code, True), answer.remark
                assert "\n" not in (answer.remark or "")
            assert len(server.classes) == 0
            assert server.uploads.refused.total() == 2
            assert caplog.text.count("refused: ") == 1  # said once

    run(work())


def test_an_upload_that_is_not_text_is_refused() -> None:
    async def work() -> None:
        async with standing() as (_, _, client):
            answer = (
                await client.upload("class Even:\n  '\ud800'", "Even", crc=0) if False else None
            )
            assert answer is None
            from tamis.wire.command import Command
            from tamis.wire.headers import RegisterFilterClass

            header = RegisterFilterClass(
                consumer_group="G", topic="T", class_name="Even", class_crc=0
            )
            request = Command(code=header.CODE, fields=header.to_fields(), body=b"\xff\xfe")
            refused = await client.server.ask(request, 20)
            assert refused.code == 1
            assert "the source is not UTF-8" in (refused.remark or "")

    run(work())


@pytest.mark.parametrize(
    "text",
    [
        "\n" * 2**20,
        "class a\n" * 2**17,
        "import a\n" * 2**16,
        "public a " * 2**17,
        "class a(" * 2**17,
    ],
    ids=["lines", "classes", "imports", "words", "brackets"],
)
def test_looking_for_java_takes_no_time_in_whatever_source(text: str) -> None:
    """One that looked through the rest of the source at each line would take hours."""
    _JAVA.search(text)
    _PYTHON.search(text)


@pytest.mark.parametrize(
    "text",
    [
        "final = 1\nclass F:\n  def match(self, m): return True\n",
        "import os;\nclass F(object):\n  def match(self, m): return True\n",
        "public = {'class': 1}\nF = type('F', (), {'match': lambda self, m: True})\n",
    ],
)
def test_python_that_looks_a_little_like_java_is_taken(text: str) -> None:
    async def work() -> None:
        async with standing() as (_, _, client):
            answer = await client.upload(text, "F")
            assert answer.code == 0, answer.remark

    run(work())


def test_with_the_secret_an_upload_is_taken() -> None:
    async def work() -> None:
        async with standing(secret="s3") as (_, server, client):
            assert (await client.upload(EVEN, "Even", secret="s3")).code == 0
            assert len(server.classes) == 1

    run(work())


def test_no_secret_is_in_a_log_a_status_or_a_remark(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def work() -> None:
        async with standing(secret="open-sesame") as (_, server, client):
            remarks = [
                (await client.upload(EVEN, "Even", secret=secret)).remark or ""
                for secret in ("open-barley", "open-sesame")
            ]
            assert len(server.classes) == 1
            shown = json.dumps(status(server)) + repr(server.config)
            assert "open-" not in "".join((caplog.text, shown, *remarks))

    run(work())


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [
        ("127.0.0.1", True), ("127.8.9.1", True), ("::1", True), ("::ffff:127.0.0.1", True),
        ("10.0.0.1", False), ("::ffff:10.0.0.1", False), ("fe80::1%eth0", False), ("", False),
    ],
)  # fmt: skip
def test_which_addresses_are_of_this_machine(host: str, is_loopback: bool) -> None:
    assert _is_loopback(host) is is_loopback


def test_uploads_from_loopback_only() -> None:
    async def work() -> None:
        async with standing(uploads="loopback", host="0.0.0.0") as (_, _, client):
            assert (await client.upload(EVEN, "Even")).code == 0
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                try:
                    probe.connect(("192.0.2.1", 9))  # nothing is sent
                except OSError:
                    return  # there is no other address here
                own = probe.getsockname()[0]
            if own.startswith("127."):
                return
            peer = await connect(f"{own}:{client.server.address[1]}")
            answer = await client.upload(RARE, "Rare", peer=peer)
            assert answer.code == ResponseCode.NO_PERMISSION
            assert "from its own machine only" in (answer.remark or "")
            peer.close()

    run(work())


def test_the_audit_log_says_who_uploaded_what(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tamis.filterserver.audit")

    async def work() -> None:
        async with standing() as (_, server, client):
            for text, name in ((EVEN, "Even"), (EVEN, "Even"), (NONE, "Nothing")):
                await client.upload(text, name)
            lines = [one.getMessage() for one in caplog.records if "audit" in one.name]
            crcs = [int(line.partition("crc ")[2].partition(",")[0]) for line in lines]
            assert crcs[1] == next(iter(server.classes)).identity.crc
            uploader = next(iter(server.classes)).uploader
            assert lines == [
                f"upload from {uploader}: group G, topic T, class Even, crc {crcs[0]},"
                f" {len(EVEN)} bytes: accepted",
                f"upload from {uploader}: group G, topic T, class Nothing, crc {crcs[1]},"
                f" {len(NONE)} bytes: replaces crc {crcs[0]} of {uploader}",
            ]

    run(work())


def test_a_java_name_with_its_package_names_the_class() -> None:
    async def work() -> None:
        async with standing() as (_, server, client):
            assert (await client.upload(EVEN, "org.example.Even")).code == 0
            assert next(iter(server.classes)).identity.class_name == "Even"

    run(work())


def test_another_source_replaces_the_class_and_one_that_fails_does_not() -> None:
    async def work() -> None:
        async with standing() as (_, server, client):
            await client.send(*numbers(6))
            await client.upload(EVEN, "Even")
            assert (await client.pull(0, most=1)).offsets == [0]
            answer = await client.upload("class Even(: pass", "Even")
            assert answer.code == 1
            assert "; the class before it stays in force" in (answer.remark or "")
            assert (await client.pull(0)).offsets == [0, 2, 4]
            assert (await client.upload(ODD, "Even")).code == 0
            # also what was kept for the next pull is of the new one
            assert (await client.pull(1)).offsets == [1, 3, 5]
            one = next(iter(server.classes))
            assert (one.tally.replacements, one.tally.failed) == (1, 0)

    run(work())


def test_a_checksum_of_zero_changes_nothing_where_there_is_a_class() -> None:
    async def work() -> None:
        async with standing() as (_, server, client):
            assert (await client.upload(EVEN, "Even", crc=0)).code == 0
            first = next(iter(server.classes)).identity
            assert (await client.upload(ODD, "Even", crc=0)).code == 0
            assert next(iter(server.classes)).identity == first

    run(work())


def test_members_that_disagree_are_a_conflict_and_not_a_ping_pong(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "tamis.filterserver")

    async def work() -> None:
        now = [1000.0]
        async with standing() as (_, server, client):
            server.classes._clock = server.uploads._clock = lambda: now[0]
            other = await connect(server.address)
            await client.send(*numbers(6))
            await client.upload(EVEN, "Even")
            await client.upload(ODD, "Even", peer=other)  # not known yet: it replaces
            for _ in range(3):
                now[0] += 30
                await client.upload(ODD, "Even", peer=other)
                answer = await client.upload(EVEN, "Even")
                assert answer.code == 0
                assert f"in force and 127.0.0.1:{_port(other)} holds it" in (answer.remark or "")
            one = next(iter(server.classes))
            assert (one.tally.replacements, one.tally.conflicts) == (1, 3)
            assert server.classes.conflicts == 3
            assert caplog.text.count("conflict: ") == 1
            assert (await client.pull(0)).offsets == [1, 3, 5]
            now[0] += 61  # the other one is gone, or has changed its mind
            answer = await client.upload(EVEN, "Even")
            assert (answer.code, answer.remark) == (0, None)
            assert (await client.pull(0)).offsets == [0, 2, 4]
            other.close()

    run(work())


def _port(peer: Any) -> int:
    return int(peer._transport.get_extra_info("sockname")[1])


def test_a_member_that_only_pulls_holds_what_it_uploaded() -> None:
    """Our client uploads once, and RocketMQ's every half minute."""

    async def work() -> None:
        now = [1000.0]
        async with standing() as (_, server, client):
            server.classes._clock = server.uploads._clock = server.puller._clock = lambda: now[0]
            other = await connect(server.address)
            await client.upload(ODD, "Even", peer=other)
            await client.upload(EVEN, "Even")
            for _ in range(4):
                now[0] += 30
                await client.pull(0)
                answer = await client.upload(ODD, "Even", peer=other)
                assert "differ" in (answer.remark or "")
            now[0] += 61
            assert (await client.upload(ODD, "Even", peer=other)).remark is None
            other.close()

    run(work())


def test_a_member_that_changes_its_mind_back_is_alone_in_it() -> None:
    async def work() -> None:
        async with standing() as (_, server, client):
            for text in (EVEN, ODD, EVEN, ODD):
                answer = await client.upload(text, "Even")
                assert (answer.code, answer.remark) == (0, answer.remark)
            assert next(iter(server.classes)).tally.replacements == 3
            assert server.classes.conflicts == 0

    run(work())


def test_there_are_so_many_classes_and_unused_ones_are_dropped() -> None:
    async def work() -> None:
        async with standing(most_classes=2, unused_seconds=0.5) as (_, server, client):
            closed = []
            for group in ("A", "B"):
                await client.upload(NONE, "Nothing", group=group)
            for one in server.classes:
                one.judge.close = lambda one=one: closed.append(one.group)  # type: ignore
            answer = await client.upload(NONE, "Nothing", group="C")
            if answer.code:  # the two may be old already, on a busy machine
                assert answer.code == ResponseCode.SYSTEM_BUSY
                assert "has 2 classes, and takes no more" in (answer.remark or "")
            await until(lambda: len(server.classes) == 0)
            await until(lambda: {*closed} >= {"A", "B"})
            assert (await client.upload(NONE, "Nothing", group="C")).code == 0

    run(work())


def test_a_source_that_failed_is_not_tried_again_at_once() -> None:
    tried = []

    def make(code: CodeFilter, context: Context) -> Judge:
        tried.append(code.class_name)
        return load(code, context)

    async def work() -> None:
        now = [1000.0]
        async with standing(make_judge=make) as (_, server, client):
            server.uploads._clock = lambda: now[0]
            for _ in range(3):
                assert (await client.upload("class F: pass", "F")).code == 1
            assert tried == ["F"]
            now[0] += 31
            assert (await client.upload("class F: pass", "F")).code == 1
            assert tried == ["F", "F"]

    run(work())


def test_a_machine_that_has_no_room_for_a_filter_is_named_to_the_uploader(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "tamis")

    def make(code: CodeFilter, context: Context) -> Judge:
        raise OSError(errno.EMFILE, "Too many open files")

    async def work() -> None:
        async with standing(make_judge=make) as (_, server, client):
            for _ in range(2):
                answer = await client.upload(EVEN, "Even")
                assert answer.code == ResponseCode.SYSTEM_ERROR
                assert "Too many open files" in (answer.remark or "")
            assert server.uploads.refused == {"code": 2}
            assert caplog.text.count("refused: ") == 1
            assert "Traceback" not in caplog.text

    run(work())


class _Loading:
    """Makes judges, each when it is told to."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.may_go = threading.Event()

    def __call__(self, code: CodeFilter, context: Context) -> Judge:
        self.begun.append(context.group)
        assert self.may_go.wait(60)
        return load(code, context)


def test_uploads_at_the_same_time_make_no_more_classes_than_there_may_be() -> None:
    loading = _Loading()

    async def work() -> None:
        async with standing(make_judge=loading, most_classes=2) as (_, server, client):
            uploads = [
                asyncio.create_task(client.upload(EVEN, "Even", group=group)) for group in "ABCD"
            ]
            await until(lambda: len(loading.begun) >= 2)
            await until(lambda: server.uploads.refused["full"] == 2)
            loading.may_go.set()
            codes = [(await one).code for one in uploads]
            assert sorted(codes) == [0, 0, ResponseCode.SYSTEM_BUSY, ResponseCode.SYSTEM_BUSY]
            assert len(server.classes) == 2
            # a member may replace its class all the same
            assert (await client.upload(ODD, "Even", group=loading.begun[0])).code == 0

    run(work())


def test_uploads_for_one_group_at_the_same_time_are_taken_one_after_the_other() -> None:
    loading = _Loading()

    async def work() -> None:
        async with standing(make_judge=loading) as (_, server, client):
            texts = [EVEN, ODD, EVEN, ODD, ODD]
            uploads = [asyncio.create_task(client.upload(one, "Even")) for one in texts]
            await until(lambda: len(loading.begun) == 1)
            loading.may_go.set()
            assert [(await one).code for one in uploads] == [0] * 5
            assert len(server.classes) == 1
            # a member that changes its mind: the fifth is the fourth again
            assert len(loading.begun) == 4
            assert server.uploads._locks == {}

    run(work())


def test_open_files_limit_how_many_classes_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has six in a sandbox, and so has each copy that answers questions. What is left is for
    connections, that of the broker too."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1024))
    config = FilterServerConfig(uploads=True)
    assert FilterServer(config).most_classes == (1024 // 4 + 100 - 60) // 6 - 8
    assert FilterServer(config, make_judge=load).most_classes == config.most_classes
    monkeypatch.setattr(resource, "getrlimit", lambda _: (2**20, 2**20))
    assert FilterServer(config).most_classes == config.most_classes


def test_no_sandbox_is_started_once_the_server_stops() -> None:
    async def work() -> None:
        server = FilterServer(FilterServerConfig(uploads=True, broker="127.0.0.1:1"))
        await server.start()
        await server.close()
        with pytest.raises(SandboxError, match="stopping"):
            server._find_sandbox()

    run(work())
