"""Commands in both encodings: known bytes, other clients' ways, and what is no command."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire.golden_frames import golden_frames

from tamis.errors import LocalProtocolError, RemoteProtocolError
from tamis.wire import command
from tamis.wire.codes import VERSION, CommandFlag, Language, RequestCode, version_name
from tamis.wire.command import Command
from tamis.wire.frame import Encoding, Frame, FrameReader


def decode(data: bytes) -> Command:
    (frame,) = FrameReader().feed(data)
    return command.decode(frame)


def decode_json(**header: Any) -> Command:
    return command.decode(Frame(Encoding.JSON, json.dumps(header).encode(), b""))


VECTORS = {
    "JSON request": (
        Command(code=34, opaque=1),
        bytes.fromhex("00000064 00000060")
        + b'{"code":34,"flag":0,"language":"JAVA","opaque":1,"serializeTypeCurrentRPC":"JSON",'
        b'"version":401}',
    ),
    "JSON answer with a remark": (
        Command(code=17, flag=CommandFlag.RESPONSE, opaque=1, remark="x"),
        bytes.fromhex("00000071 0000006d")
        + b'{"code":17,"flag":1,"language":"JAVA","opaque":1,"remark":"x",'
        b'"serializeTypeCurrentRPC":"JSON","version":401}',
    ),
    "binary request": (
        Command(
            code=105,
            language=Language.PYTHON,
            opaque=7,
            fields={"topic": "T"},
            encoding=Encoding.ROCKETMQ,
        ),
        bytes.fromhex(
            "00000025 01000021 0069 03 0191 00000007 00000000 00000000 0000000c"
            "0005 746f706963 00000001 54"
        ),
    ),
    "binary request with a remark and a body": (
        Command(
            code=105,
            language=Language.PYTHON,
            opaque=7,
            fields={"topic": "T"},
            remark="hi",
            body=b"\x01\x02",
            encoding=Encoding.ROCKETMQ,
        ),
        bytes.fromhex(
            "00000029 01000023 0069 03 0191 00000007 00000000 00000002 6869 0000000c"
            "0005 746f706963 00000001 54 0102"
        ),
    ),
}


@pytest.mark.parametrize("name", VECTORS)
def test_known_commands_are_known_bytes(name: str) -> None:
    made, data = VECTORS[name]
    assert command.encode(made) == data
    assert decode(data) == made


def test_we_say_that_we_are_4_9_4() -> None:
    assert version_name(VERSION) == "V4_9_4"
    assert decode(command.encode(Command(code=34))).version == 401


@pytest.mark.parametrize(
    ("version", "name"),
    [
        (213, "V4_0_0"),
        (232, "V4_1_0_SNAPSHOT"),
        (253, "V4_2_0"),
        (393, "V4_9_0"),
        (409, "V4_9_8"),
        (413, "V5_0_0"),
        (473, "V5_3_0"),
        (479, "V5_3_3"),
        (121, "V121"),
        (9999, "V9999"),
    ],
)
def test_versions_have_rocketmqs_names(version: int, name: str) -> None:
    assert version_name(version) == name


_int32 = st.integers(-(2**31), 2**31 - 1)
_int16 = st.integers(-(2**15), 2**15 - 1)
_texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
_fields = st.dictionaries(_texts, _texts, max_size=5)


@given(
    st.builds(
        Command,
        code=_int32,
        opaque=_int32,
        flag=_int32,
        fields=st.none() | _fields,
        body=st.binary(),
        remark=st.none() | st.text(st.characters(exclude_categories=["Cs"])),
        language=st.sampled_from(Language),
        version=_int32,
    )
)
def test_a_json_command_decodes_to_itself(made: Command) -> None:
    assert decode(command.encode(made)) == made


@given(
    st.builds(
        Command,
        code=_int16,
        opaque=_int32,
        flag=_int32,
        fields=st.none() | _fields.filter(bool),  # none and no fields are the same bytes
        body=st.binary(),
        remark=st.none() | _texts,
        language=st.sampled_from(Language),
        version=_int16,
        encoding=st.just(Encoding.ROCKETMQ),
    )
)
def test_a_binary_command_decodes_to_itself(made: Command) -> None:
    assert decode(command.encode(made)) == made


def test_numbers_and_booleans_for_fields_are_their_text() -> None:
    found = decode_json(
        code=11,
        extFields={"n": 5, "big": 2**63 - 1, "t": True, "f": False, "s": "x", "z": None, "d": 1.5},
    )
    assert found.fields == {
        "n": "5",
        "big": "9223372036854775807",
        "t": "true",
        "f": "false",
        "s": "x",
        "d": "1.5",
    }


def test_what_another_client_leaves_out_or_adds_is_no_matter() -> None:
    assert decode_json(code=105) == Command(code=105, language=Language.OTHER, version=0)
    found = decode_json(code=105, version=121, language="KLINGON", more={"a": [1]}, remark=None)
    assert found == Command(code=105, language=Language.OTHER, version=121)
    assert decode_json(code=105, language=9, extFields=None).language is Language.GO


def test_an_empty_field_is_kept_in_json_and_missing_in_binary() -> None:
    made = Command(code=105, fields={"AccessKey": "", "topic": "T"})
    assert decode(command.encode(made)).fields == {"AccessKey": "", "topic": "T"}
    made.encoding = Encoding.ROCKETMQ
    assert decode(command.encode(made)).fields == {"topic": "T"}


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"null",
        b"[]",
        b'"code"',
        b"{}",
        b'{"code":',
        b'{"code":"34"}',
        b'{"code":34.0}',
        b'{"code":true}',
        b'{"code":null}',
        b'{"code":2147483648}',
        b'{"code":34,"opaque":99999999999}',
        b'{"code":34,"flag":null}',
        b'{"code":34,"extFields":[]}',
        b'{"code":34,"extFields":"a"}',
        b'{"code":34,"extFields":5}',
        b'{"code":34,"language":[]}',
        b'{"code":34,"remark":"\xff"}',
        b'{"code":' + b"[" * 1000 + b"]" * 1000 + b"}",
        b"[" * 100_000,
        b'{"code":34,"extFields":{"a":' + b"[" * 1000 + b"]" * 1000 + b"}}",
    ],
    ids=lambda header: header[:40].decode("latin-1"),
)
def test_a_json_header_that_says_nothing_is_a_protocol_error(header: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="a JSON header"):
        command.decode(Frame(Encoding.JSON, header, b""))


FIXED = "0069 00 0191 00000007 00000000"


@pytest.mark.parametrize(
    "header",
    [
        "",
        "0069",
        FIXED,
        FIXED + "00000000",  # the length of the fields is missing
        FIXED + "00000001",
        FIXED + "ffffffff 00000000",
        FIXED + "7fffffff 00000000",
        FIXED + "00000000 ffffffff",
        FIXED + "00000000 7fffffff",
        FIXED + "00000000 00000001 00",
        FIXED + "00000000 00000004 0005 7461",
        FIXED + "00000000 00000006 ffff 00000000",
        FIXED + "00000000 00000006 0000 ffffffff",
        FIXED + "00000000 00000008 0001 74 7fffffff 54",
        FIXED + "00000000 00000003 0001 74 00000001 54",  # longer than they say
    ],
)
def test_a_binary_header_with_wrong_lengths_is_a_protocol_error(header: str) -> None:
    with pytest.raises(RemoteProtocolError, match="a binary header"):
        command.decode(Frame(Encoding.ROCKETMQ, bytes.fromhex(header), b""))


def test_text_that_is_no_utf8_is_read_as_java_reads_it() -> None:
    header = bytes.fromhex(FIXED + "00000001 ff 00000000")
    assert command.decode(Frame(Encoding.ROCKETMQ, header, b"")).remark == "�"


@given(st.sampled_from(Encoding), st.binary(max_size=200))
def test_any_header_is_a_command_or_a_protocol_error(encoding: Encoding, header: bytes) -> None:
    try:
        found = command.decode(Frame(encoding, header, b""))
    except RemoteProtocolError:
        return
    command.encode(found)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["code", "flag", "opaque", "language", "version", "extFields"]),
                inner,
            )
        ),
    )
)
def test_any_json_is_a_command_or_a_protocol_error(value: Any) -> None:
    try:
        found = command.decode(Frame(Encoding.JSON, json.dumps(value).encode(), b""))
    except RemoteProtocolError:
        return
    command.encode(found)


@given(st.data())
def test_a_damaged_header_is_a_command_or_a_protocol_error(data: st.DataObject) -> None:
    frame = data.draw(st.sampled_from(golden_frames())).frame
    header = bytearray(frame.header)
    for _ in range(data.draw(st.integers(1, 4))):
        header[data.draw(st.integers(0, len(header) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = command.decode(Frame(frame.encoding, bytes(header), frame.body))
    except RemoteProtocolError:
        return
    command.encode(found)


@pytest.mark.parametrize(
    "made",
    [
        Command(code=200_050, encoding=Encoding.ROCKETMQ),  # 16 bits
        Command(code=10, version=70_000, encoding=Encoding.ROCKETMQ),
        Command(code=10, fields={"n" * 40_000: "v"}, encoding=Encoding.ROCKETMQ),
        Command(code=10, remark="\ud800", encoding=Encoding.ROCKETMQ),
        Command(code=10, remark="\ud800"),
        Command(code=10, body=bytes(16 * 2**20)),
    ],
    ids=["code", "version", "name", "binary surrogate", "surrogate", "body"],
)
def test_what_no_frame_can_hold_is_our_own_error(made: Command) -> None:
    with pytest.raises(LocalProtocolError):
        command.encode(made)


def test_flags_are_masks_and_codes_are_apart() -> None:
    assert Command(code=10, flag=1).is_response
    assert Command(code=10, flag=2).is_oneway
    assert not Command(code=10, flag=2).is_response
    assert len(set(RequestCode)) == len(RequestCode.__members__)  # no number twice
