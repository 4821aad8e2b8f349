"""Requests with something wrong in each, recorded with RocketMQ's own answers, put to our servers.

The store they were recorded on is the golden one, as it was left afterwards: three messages more in
`Orders`, which one of the requests is corrected for.
"""

import asyncio
import base64
import json
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tamis.broker.broker import Broker
from tamis.broker.config import BrokerConfig
from tamis.nameserver.config import NameServerConfig
from tamis.nameserver.server import NameServer
from tamis.net.aio import Peer, connect
from tamis.wire.codes import ResponseCode
from tamis.wire.command import Command, decode
from tamis.wire.frame import FrameReader

GOLDEN = Path(__file__).parents[1] / "golden"
LINES = [json.loads(line) for line in (GOLDEN / "frames" / "errors.jsonl").read_text().splitlines()]
REQUESTS = [line for line in LINES if line["kind"] == "request" and line["to"] == "server"]
ANSWERS = {line["request_seq"]: line for line in LINES if line["kind"] == "answer"}

# RocketMQ answers both with every message; see tests/golden/frames/README.md.
TRAPS = {16: ResponseCode.SUBSCRIPTION_PARSE_FAILED, 20: ResponseCode.SUBSCRIPTION_PARSE_FAILED}
# RocketMQ's name server does not answer it at all; the recording of the broker's ends before.
UNANSWERED = {60: ResponseCode.REQUEST_CODE_NOT_SUPPORTED, 103: ResponseCode.SUCCESS}
AT_THE_END = 30  # a pull at the offset of the next message to come: 100 then, 103 now


def command_of(line: dict[str, Any]) -> Command:
    (frame,) = FrameReader().feed(base64.b64decode(line["frame"]))
    return decode(frame)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Command]:
    """Ours, by the number of the request."""
    folder = tmp_path_factory.mktemp("recorded")
    with tarfile.open(GOLDEN / "stores" / "clean.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    (store,) = (path.parent for path in folder.rglob("commitlog"))
    return asyncio.run(_ask_all(store))


async def _ask_all(store: Path) -> dict[int, Command]:
    nameserver = NameServer(NameServerConfig(port=0))
    await nameserver.start()
    broker = Broker(
        BrokerConfig(
            port=0,
            nameservers=nameserver.address,
            log_file_size=131_072,
            queue_file_size=2000,
            extension_file_size=8192,
            index_slots=64,
            index_entries=256,
            bitmaps=True,
        ),
        store,
    )
    await broker.start()
    peers: dict[tuple[str, int], Peer] = {}
    answers = {}
    try:
        for line in REQUESTS:
            key = (line["peer"], line["conn"])
            if key not in peers:
                of_broker = line["peer"] == "broker"
                peers[key] = await connect(broker.address if of_broker else nameserver.address)
            request = command_of(line)
            if line["seq"] == AT_THE_END:
                request = replace(request, fields={**(request.fields or {}), "queueOffset": "103"})
            answers[line["seq"]] = await peers[key].ask(request, 10)
    finally:
        for peer in peers.values():
            peer.close()
        await broker.close()
        await nameserver.close()
    return answers


@pytest.mark.parametrize("line", REQUESTS, ids=lambda line: f"{line['seq']}-{line['code']}")
def test_a_recorded_request_gets_the_recorded_code(
    line: dict[str, Any], answers: dict[int, Command]
) -> None:
    number = line["seq"]
    if number in TRAPS | UNANSWERED:
        assert answers[number].code == (TRAPS | UNANSWERED)[number]
        return
    assert answers[number].code == ANSWERS[number]["code"], answers[number].remark


def test_a_pull_with_sql_that_does_not_compile_is_told_what_is_wrong_and_where(
    answers: dict[int, Command],
) -> None:
    assert "'price >', column 8" in (answers[16].remark or "")


def test_where_a_filter_did_not_compile_a_registered_pull_is_told_why(
    answers: dict[int, Command],
) -> None:
    assert answers[95].code == ResponseCode.FILTER_DATA_NOT_EXIST
    assert "'price >', column 8" in (answers[95].remark or "")


@pytest.mark.parametrize("number", [0, 8, 18, 22, 24, 26, 28])
def test_a_recorded_pull_gets_the_recorded_offset_and_messages(
    number: int, answers: dict[int, Command]
) -> None:
    recorded = command_of(ANSWERS[number])
    assert answers[number].fields is not None
    assert recorded.fields is not None
    if number != 28:  # which goes to the end
        for name in ("nextBeginOffset", "minOffset", "suggestWhichBrokerId"):
            assert answers[number].fields[name] == recorded.fields[name]
    assert answers[number].body == recorded.body
    assert answers[number].remark == recorded.remark
