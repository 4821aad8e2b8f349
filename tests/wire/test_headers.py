"""Headers: each declaration works both ways, and takes what other clients write."""

import types
from dataclasses import fields
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.errors import ResponseError
from tamis.wire import command, headers
from tamis.wire import fields as wire_fields
from tamis.wire.codes import RequestCode
from tamis.wire.command import Command
from tamis.wire.frame import Encoding, FrameReader
from tamis.wire.headers import Header, PullMessage, SendMessage, UnregisterClient

HEADERS = [
    kind
    for kind in vars(headers).values()
    if isinstance(kind, type) and issubclass(kind, Header) and kind is not Header
]
each_header = pytest.mark.parametrize("kind", HEADERS, ids=lambda kind: kind.__name__)

_SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    str: st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
    int: st.integers(-(2**63), 2**63 - 1),
    bool: st.booleans(),
}


def instances(kind: type[Header]) -> st.SearchStrategy[Header]:
    hints = get_type_hints(kind)
    return st.builds(kind, **{field.name: values(hints[field.name]) for field in fields(kind)})


def values(hint: Any) -> st.SearchStrategy[Any]:
    if get_origin(hint) is types.UnionType or type(None) in get_args(hint):
        return st.none() | st.one_of(
            [_SCALARS[one] for one in get_args(hint) if one is not type(None)]
        )
    return _SCALARS[hint]


@each_header
@settings(max_examples=20)
@given(st.data())
def test_a_header_comes_back_from_its_fields(kind: type[Header], data: st.DataObject) -> None:
    header = data.draw(instances(kind))
    for letters in (False, True):
        made = header.to_fields(letters=letters)
        assert all(isinstance(value, str) for value in made.values())
        assert kind.from_fields(made, letters=letters) == header


@each_header
@settings(max_examples=20)
@given(st.data())
def test_a_header_comes_back_over_the_wire(kind: type[Header], data: st.DataObject) -> None:
    header = data.draw(instances(kind))
    for encoding in Encoding:
        sent = Command(code=10, fields=header.to_fields(), encoding=encoding)
        (frame,) = FrameReader().feed(command.encode(sent))
        assert kind.from_fields(command.decode(frame).fields) == header


@each_header
def test_the_names_of_a_header_are_apart(kind: type[Header]) -> None:
    columns = wire_fields._columns(kind)
    assert len({wire for _, wire, *_ in columns}) == len(columns)
    assert len({letter for _, _, letter, *_ in columns}) == len(columns)


@each_header
@settings(max_examples=20)
@given(st.data())
def test_any_fields_are_a_header_or_an_answer(kind: type[Header], data: st.DataObject) -> None:
    names = [wire for _, wire, *_ in wire_fields._columns(kind)]
    texts = st.text() | st.integers().map(str) | st.sampled_from(["true", "1", "", "-", "9" * 5000])
    given_fields = data.draw(st.dictionaries(st.sampled_from([*names, "other"]), texts))
    try:
        kind.from_fields(given_fields)
    except ResponseError as error:
        seen = error.code, error.remark.partition(":")[0]
    else:
        return
    assert seen == (1, kind.__name__)


def test_the_letters_of_a_send_are_rocketmqs() -> None:
    header = SendMessage(
        producer_group="g",
        topic="T",
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=2,
        sys_flag=0,
        born_timestamp=1_700_000_000_000,
        flag=3,
        properties="TAGS\x01A",
        reconsume_times=0,
        max_reconsume_times=16,
        batch=True,
        broker_name="b",
    )
    assert header.to_fields(letters=True) == {
        "a": "g",
        "b": "T",
        "c": "TBW102",
        "d": "4",
        "e": "2",
        "f": "0",
        "g": "1700000000000",
        "h": "3",
        "i": "TAGS\x01A",
        "j": "0",
        "k": "false",
        "l": "16",
        "m": "true",
        "n": "b",
    }
    assert header.to_fields()["maxReconsumeTimes"] == "16"
    assert header.to_fields()["bname"] == "b"


PULL = {
    "consumerGroup": "g",
    "topic": "T",
    "queueId": "0",
    "queueOffset": "5",
    "maxMsgNums": "32",
    "sysFlag": "2",
}


def test_fields_that_4_9_always_sends_may_be_missing() -> None:
    header = PullMessage.from_fields(PULL)
    assert header.commit_offset == header.suspend_timeout_millis == header.sub_version == 0
    assert header.subscription is header.expression_type is None


def test_fields_of_newer_clients_are_passed_over() -> None:
    more = {"maxMsgBytes": "1000", "requestSource": "0", "ns": "x", "lo": "false"}
    assert PullMessage.from_fields(PULL | more) == PullMessage.from_fields(PULL)


@pytest.mark.parametrize("missing", PULL)
def test_a_missing_field_is_answered_by_name(missing: str) -> None:
    left = {name: value for name, value in PULL.items() if name != missing}
    with pytest.raises(ResponseError, match=f"PullMessage: the field {missing} is missing"):
        PullMessage.from_fields(left)


def test_no_fields_at_all_are_answered_too() -> None:
    with pytest.raises(ResponseError, match="the field clientID is missing"):
        UnregisterClient.from_fields(None)


@pytest.mark.parametrize("text", ["", "x", "1.5", "0x10", "9223372036854775808", "null"])
def test_what_is_no_number_is_answered_by_name(text: str) -> None:
    with pytest.raises(ResponseError, match=r"queueOffset = .* is not a number it takes"):
        PullMessage.from_fields(PULL | {"queueOffset": text})


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("true", True),
        ("TRUE", True),
        ("True", True),
        ("false", False),
        ("1", False),  # as RocketMQ reads the C++ client's
        ("0", False),
        ("yes", False),
        ("", False),
    ],
)
def test_true_in_any_case_is_true_and_all_else_false(text: str, verdict: bool) -> None:
    assert headers.GetRoute.from_fields({"topic": "T", "acceptStandardJsonOnly": text}) == (
        headers.GetRoute(topic="T", accept_standard_json_only=verdict)
    )


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (UnregisterClient, {"clientID"}),
        (headers.GetRunningInfo, {"clientId"}),
        (headers.ResetOffset, {"isForce"}),
        (headers.GetBrokerConsumeStats, {"isOrder"}),
        (headers.DeleteGroup, {"removeOffset", "cleanOffset"}),
        (headers.QueryMessage, {"_UNIQUE_KEY_QUERY"}),
        (headers.SendMessageResponse, {"MSG_REGION", "TRACE_ON", "msgId"}),
        (headers.QueryMessageResponse, {"indexLastUpdatePhyoffset"}),
        (headers.RegisterBroker, {"haServerAddr", "bodyCrc32", "brokerAddr"}),
    ],
)
def test_names_that_are_easy_to_get_wrong_are_right(kind: type[Header], names: set[str]) -> None:
    assert names <= {wire for _, wire, *_ in wire_fields._columns(kind)}


def test_each_code_names_one_header() -> None:
    codes = [kind.CODE for kind in HEADERS if "CODE" in vars(kind)]
    assert len(codes) == len(set(codes))
    assert set(codes) <= set(RequestCode)
