"""A connection without its socket: who asked what, and bytes that end it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire.golden_frames import golden_frames

from tamis.errors import LocalProtocolError, RemoteProtocolError
from tamis.wire import command
from tamis.wire.codes import CommandFlag
from tamis.wire.command import Command
from tamis.wire.connection import Connection
from tamis.wire.frame import Encoding


def answer(opaque: int) -> bytes:
    return command.encode(Command(code=0, opaque=opaque, flag=CommandFlag.RESPONSE))


def test_a_request_and_its_answer_find_each_other() -> None:
    client, server = Connection(), Connection()
    opaque, sent = client.ask(Command(code=105, fields={"topic": "T"}))
    (request,) = server.receive(sent)
    assert (request.code, request.opaque, request.fields) == (105, opaque, {"topic": "T"})
    assert client.outstanding == 1
    (back,) = client.receive(answer(request.opaque))
    assert back.is_response
    assert back.opaque == opaque
    assert client.outstanding == 0


def test_both_sides_ask_at_once_with_the_same_number() -> None:
    one, other = Connection(), Connection()
    (opaque, from_one), (opaque_too, from_other) = (
        one.ask(Command(code=34)),
        other.ask(Command(code=307)),
    )
    assert opaque == opaque_too
    assert [c.code for c in one.receive(from_other + answer(opaque))] == [307, 0]
    assert [c.code for c in other.receive(from_one + answer(opaque))] == [34, 0]


def test_answers_come_in_any_order() -> None:
    client = Connection()
    opaques = [client.ask(Command(code=11))[0] for _ in range(5)]
    found = client.receive(b"".join(answer(opaque) for opaque in reversed(opaques)))
    assert [one.opaque for one in found] == opaques[::-1]


def test_an_answer_nobody_waits_for_is_dropped() -> None:
    client = Connection()
    assert client.receive(answer(1)) == []
    opaque, _ = client.ask(Command(code=11))
    assert client.receive(answer(opaque + 1)) == []
    assert len(client.receive(answer(opaque) + answer(opaque))) == 1
    opaque, _ = client.ask(Command(code=11))
    assert client.settle(opaque)
    assert not client.settle(opaque)
    assert client.receive(answer(opaque)) == []


def test_a_one_way_request_waits_for_nothing() -> None:
    client = Connection()
    opaque, _ = client.ask(Command(code=15, flag=CommandFlag.ONEWAY))
    assert client.outstanding == 0
    assert client.receive(answer(opaque)) == []


def test_a_request_that_cant_be_sent_is_not_waited_for() -> None:
    client = Connection()
    with pytest.raises(LocalProtocolError):
        client.ask(Command(code=200_050, encoding=Encoding.ROCKETMQ))
    assert client.outstanding == 0


def test_the_request_given_is_left_as_it_was() -> None:
    request = Command(code=34)
    Connection().ask(request)
    assert request == Command(code=34)


def test_numbers_start_over_and_stay_positive() -> None:
    client = Connection()
    client._last_opaque = 2**31 - 2
    assert [client.ask(Command(code=34))[0] for _ in range(3)] == [2**31 - 1, 0, 1]


@given(st.lists(st.binary(max_size=100), max_size=6))
def test_any_bytes_are_commands_or_a_protocol_error(pieces: list[bytes]) -> None:
    connection = Connection(max_frame=200)
    try:
        for piece in pieces:
            connection.receive(piece)
            assert connection._frames.pending <= 200
    except RemoteProtocolError:
        return


@given(st.data())
def test_a_damaged_conversation_is_commands_or_a_protocol_error(data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.sampled_from(golden_frames()), min_size=1, max_size=4))
    stream = bytearray(b"".join(golden.raw for golden in chosen))
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(stream) - 1))
        match data.draw(st.sampled_from(["change", "cut", "insert", "repeat"])):
            case "change":
                stream[at] = data.draw(st.integers(0, 255))
            case "cut":
                del stream[at : at + data.draw(st.integers(0, 10))]
            case "insert":
                stream[at:at] = data.draw(st.binary(max_size=10))
            case "repeat":
                stream[at:at] = stream[at : at + 50]
        if not stream:
            return
    size = data.draw(st.integers(1, len(stream)))
    connection = Connection(max_frame=100_000)
    try:
        for at in range(0, len(stream), size):
            connection.receive(bytes(stream[at : at + size]))
            assert connection._frames.pending <= 100_000
    except RemoteProtocolError:
        return


@pytest.mark.parametrize("encoding", Encoding)
def test_every_recorded_request_of_a_connection_is_received(encoding: Encoding) -> None:
    requests = [
        golden
        for golden in golden_frames()
        if golden.line["kind"] == "request" and golden.frame.encoding is encoding
    ]
    found = Connection().receive(b"".join(golden.raw for golden in requests))
    assert found == [golden.command for golden in requests]
