"""Every recorded frame is read, and written again as it was."""

import json
from collections.abc import Iterable

import pytest
from wire.golden_frames import NO_REQUEST_CODE, SHAPES, Golden, Shape, golden_frames

from tamis.wire import beans, command, fastjson
from tamis.wire.bodies import TopicRoute
from tamis.wire.codes import CommandFlag
from tamis.wire.command import Fields
from tamis.wire.frame import Encoding, Frame, FrameReader
from tamis.wire.headers import Header, SendMessageResponse

# Fields that clients add to any request and no header declares.
COMMON_FIELDS = {"ReqT", "AccessKey", "Signature", "SecurityToken"}

each_frame = pytest.mark.parametrize("golden", golden_frames(), ids=lambda golden: golden.name)


def kinds(kind: str) -> pytest.MarkDecorator:
    chosen = [golden for golden in golden_frames() if golden.line["kind"] == kind]
    return pytest.mark.parametrize("golden", chosen, ids=lambda golden: golden.name)


def test_there_are_as_many_frames_as_were_recorded() -> None:
    assert len(golden_frames()) == 523


@each_frame
def test_a_frame_decodes_to_what_was_noted_of_it(golden: Golden) -> None:
    found, line = golden.command, golden.line
    assert found.encoding.name == line["header_encoding"]
    assert (found.code, found.flag, found.opaque) == (line["code"], line["flag"], line["opaque"])
    assert found.is_response == (line["kind"] == "answer")
    assert found.is_oneway == bool(line["flag"] & CommandFlag.ONEWAY)


@each_frame
def test_a_frame_is_the_same_a_byte_at_a_time(golden: Golden) -> None:
    assert fed(golden.raw[i : i + 1] for i in range(len(golden.raw))) == [golden.frame]


@each_frame
def test_a_frame_encodes_to_its_bytes_or_its_json(golden: Golden) -> None:
    again = command.encode(golden.command)
    if golden.frame.encoding is Encoding.ROCKETMQ:
        assert again == golden.raw
        return
    (made,) = FrameReader().feed(again)
    header = json.loads(golden.frame.header)
    header.setdefault("serializeTypeCurrentRPC", "JSON")  # the requests made by hand lack it
    assert json.loads(made.header) == header
    assert (made.encoding, made.body) == (Encoding.JSON, golden.frame.body)


@pytest.mark.parametrize("size", [1, 7, 8, 9, 100, 1460, 65_536])
def test_frames_joined_come_apart_whatever_the_pieces(size: int) -> None:
    stream = b"".join(golden.raw for golden in golden_frames())
    wanted = [golden.frame for golden in golden_frames()]
    reader = FrameReader()
    found = []
    for at in range(0, len(stream), size):
        found += reader.feed(stream[at : at + size])
    assert found == wanted
    assert reader.pending == 0


@pytest.mark.parametrize("trailing", [1, 7, 8, 20])
def test_bytes_of_the_next_frame_wait_for_its_rest(trailing: int) -> None:
    frames = golden_frames()[:3]
    stream = b"".join(golden.raw for golden in frames)
    following = golden_frames()[3]
    reader = FrameReader()
    assert reader.feed(stream + following.raw[:trailing]) == [golden.frame for golden in frames]
    assert reader.pending == trailing
    assert reader.feed(following.raw[trailing:]) == [following.frame]


def test_every_request_recorded_has_its_shape_declared_here() -> None:
    seen = {golden.line.get("answers", golden.line["code"]) for golden in golden_frames()}
    assert seen == {*SHAPES, NO_REQUEST_CODE}


@kinds("request")
def test_every_field_of_a_request_is_declared_and_comes_back_as_it_was(golden: Golden) -> None:
    shape = SHAPES.get(golden.line["code"], Shape())
    given = golden.command.fields or {}
    own = {name: value for name, value in given.items() if name not in COMMON_FIELDS}
    if shape.header is None:
        assert not own
    else:
        check_header(shape.header, own, letters=shape.letters)


@kinds("answer")
def test_every_field_of_an_answer_is_declared_and_comes_back_as_it_was(golden: Golden) -> None:
    shape = SHAPES.get(golden.line["answers"], Shape())
    given = golden.command.fields or {}
    if shape.answer is None or not given:
        assert not given
    elif shape.answer is SendMessageResponse and golden.line["code"] != 0:
        assert given == {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
    else:
        check_header(shape.answer, given)


@kinds("request")
def test_a_json_body_of_a_request_comes_back_as_it_was(golden: Golden) -> None:
    shape = SHAPES.get(golden.line["code"], Shape())
    if shape.body is not None:
        check_body(shape.body, golden.command.body)


@kinds("answer")
def test_a_json_body_of_an_answer_comes_back_as_it_was(golden: Golden) -> None:
    shape = SHAPES.get(golden.line["answers"], Shape())
    if shape.answer_body is not None and golden.line["code"] == 0:
        check_body(shape.answer_body, golden.command.body)


def fed(pieces: Iterable[bytes]) -> list[Frame]:
    reader = FrameReader()
    return [frame for piece in pieces for frame in reader.feed(piece)]


def check_header(kind: type[Header], given: Fields, *, letters: bool = False) -> None:
    header = kind.from_fields(given, letters=letters)
    made = header.to_fields(letters=letters)
    assert given.items() <= made.items()
    assert kind.from_fields(made, letters=letters) == header  # what is more are the defaults


def check_body(kind: type, body: bytes) -> None:
    bean = beans.decode(kind, body)
    again = bean.encode(standard=True) if isinstance(bean, TopicRoute) else beans.encode(bean)
    given, made = fastjson.loads(body), fastjson.loads(again)
    assert made == with_defaults(given, made)
    assert beans.decode(kind, again) == bean


def with_defaults(given: object, made: object) -> object:
    """What was given, and what was not as we fill it in."""
    if isinstance(given, dict) and isinstance(made, dict):
        both = {key: with_defaults(value, made.get(key)) for key, value in given.items()}
        return {**made, **both}
    if isinstance(given, list) and isinstance(made, list) and len(given) == len(made):
        return [with_defaults(one, other) for one, other in zip(given, made, strict=True)]
    return given
