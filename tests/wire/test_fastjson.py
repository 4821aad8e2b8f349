"""fastjson's dialect: keys that JSON has not, references, and texts that are nothing."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire.golden_frames import golden_frames

from tamis.wire import fastjson
from tamis.wire.fastjson import MAX_DEPTH, ObjectKey, loads, parse, render

QUEUE = ObjectKey.of({"topic": "T", "brokerName": "b", "queueId": 0})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{}", {}),
        ("[]", []),
        (' { "a" : [ 1 , null , true ] } ', {"a": [1, None, True]}),
        ('{0:"a",1:"b"}', {0: "a", 1: "b"}),
        ('{ -1 : "a" }', {-1: "a"}),
        ('{"0":"a"}', {"0": "a"}),
        ('{{"brokerName":"b","queueId":0,"topic":"T"}:5}', {QUEUE: 5}),
        ('{{"topic":"T","queueId":0,"brokerName":"b"}:{"x":1}}', {QUEUE: {"x": 1}}),
        ('{{"a":1}:1,{"a":2}:2}', {ObjectKey.of({"a": 1}): 1, ObjectKey.of({"a": 2}): 2}),
        ("{{0:1}:2}", {ObjectKey.of({"0": 1}): 2}),
        ("{{}:1}", {ObjectKey.of({}): 1}),
        ('{9223372036854775807:"a"}', {2**63 - 1: "a"}),
        ('"\\u4e2d\\/"', "中/"),
        ('"\\ud83d\\ude00"', "😀"),
        ('{"\\ud800":"a\\udc00"}', {"?": "a?"}),  # halves of pairs: no bytes could be made of them
        ("1.2345678905E9", 1234567890.5),
        ("1.0E-7", 1e-7),
        (" 5\n", 5),
    ],
)
def test_the_dialect_is_read(text: str, value: Any) -> None:
    assert parse(text) == value
    assert loads(text.encode()) == value
    assert parse(render(value)) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "{",
        "}",
        "[1,]",
        '{"a":1,}',
        '{"a"}',
        "{a:1}",
        "{'a':1}",
        "{1.5:1}",
        "{null:1}",
        "{[]:1}",
        "{12345678901234567890:1}",
        '{{"a":[]}:1}',
        '{{"a":{}}:1}',
        '{{{"a":1}:1}:1}',
        "NaN",
        "-Infinity",
        "1e400",
        "1" * 5000,
        "nul",
        "[] []",
        '"\\x"',
        '"a',
        "{" * 100_000,
        "[" * 100_000,
        '{"a":' * 100_000,
        "{{" * 20 + '"a":1' + "}:1" * 39 + "}",
    ],
    ids=lambda text: text[:20],
)
def test_what_is_not_the_dialect_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        loads(text.encode())
    with pytest.raises(ValueError):
        parse(text)


def test_it_is_read_so_deep_and_no_deeper() -> None:
    assert parse("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    with pytest.raises(ValueError, match="levels deep"):
        parse("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a":{"x":1},"b":{"$ref":"$.a"}}', {"a": {"x": 1}, "b": {"x": 1}}),
        ('{"a":[{"x":1}],"b":{"$ref":"$.a[0]"}}', {"a": [{"x": 1}], "b": {"x": 1}}),
        ('{"a":{"b":{"c":5}},"d":{"$ref":"$.a.b.c"}}', {"a": {"b": {"c": 5}}, "d": 5}),
        ('{"a":{"$ref":"$.b"},"b":{"$ref":"$.c"},"c":1}', {"a": 1, "b": 1, "c": 1}),
        # those that lead nowhere, or that we can't follow, take only themselves away
        ('{"a":{"$ref":"$.b"},"c":1}', {"c": 1}),
        ('{"a":[{"$ref":"$.b"},2]}', {"a": [2]}),
        ('{"a":{"$ref":"..","x":1}}', {"a": {"$ref": "..", "x": 1}}),
        ('{"a":{"$ref":"@"},"c":1}', {"c": 1}),
        ('{"a":{"$ref":5},"c":1}', {"c": 1}),
        ('{"t":{"c":{"$ref":"$.t.null"}},"u":{0:1}}', {"t": {}, "u": {0: 1}}),
        (
            '{"u":{{"q":0}:{"m":1},{"q":1}:{"$ref":"$.u.null"}}}',
            {"u": {ObjectKey.of({"q": 0}): {"m": 1}}},
        ),
    ],
)
def test_references_are_replaced_by_what_they_lead_to(text: str, value: Any) -> None:
    assert loads(text.encode()) == value


@pytest.mark.parametrize(
    "text",
    [
        '{"$ref":"$"}',
        '{"a":{"$ref":"$"}}',
        '{"a":{"$ref":"$.b"},"b":{"$ref":"$.a"}}',
        '{"a":[{"$ref":"$.a"}]}',
    ],
)
def test_references_that_lead_in_a_circle_are_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="circle"):
        loads(text.encode())


def test_references_that_unfold_without_end_are_a_value_error() -> None:
    """Each list is ten of the next: 10**12 values in a kilobyte."""
    lists = {str(i): [{"$ref": f"$.{i + 1}"}] * 10 for i in range(12)}
    with pytest.raises(ValueError, match="references to more than"):
        loads(json.dumps({**lists, "12": 1}).encode())


def test_references_to_one_large_value_are_counted_each_time() -> None:
    body = {"large": list(range(10_000)), "again": [{"$ref": "$.large"}] * 11}
    with pytest.raises(ValueError, match="references to more than"):
        loads(json.dumps(body).encode())
    body["again"] = [{"$ref": "$.large"}] * 5
    assert loads(json.dumps(body).encode())["again"] == [list(range(10_000))] * 5


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": None, "b": [1, 2.5, True]}, '{"a":null,"b":[1,2.5,true]}'),
        ({0: "a"}, '{0:"a"}'),
        ({QUEUE: 5}, '{{"brokerName":"b","queueId":0,"topic":"T"}:5}'),
        ({"中": "/"}, '{"中":"/"}'),
        ({}, "{}"),
        (("a",), '["a"]'),
    ],
)
def test_it_is_written_without_spaces_and_keys_as_they_are(value: Any, text: str) -> None:
    assert render(value) == text


_scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
)
_names = st.text(st.characters(exclude_categories=["Cs"]))
_keys = (
    _names | st.integers(-(2**63), 2**63 - 1) | st.dictionaries(_names, _scalars).map(ObjectKey.of)
)
_values = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_keys, inner, max_size=4),
    max_leaves=20,
)


@given(_values, st.booleans(), st.booleans())
def test_what_is_written_is_read_as_it_was(value: Any, pretty: bool, ascii_only: bool) -> None:
    assert parse(render(value, pretty=pretty, ascii_only=ascii_only)) == value


@given(st.text() | st.text('{}[]:,"0123456789-.eE\\u truefalsn$ref'))
def test_any_text_is_a_value_or_a_value_error(text: str) -> None:
    try:
        value = parse(text)
    except ValueError:
        return
    assert parse(render(value)) == value


@given(st.binary())
def test_any_bytes_are_a_value_or_a_value_error(data: bytes) -> None:
    try:
        loads(data)
    except ValueError:
        return


_BODIES = [g.frame.body for g in golden_frames() if g.frame.body.startswith(b"{")]


@given(st.data())
def test_a_damaged_body_is_a_value_or_a_value_error(data: st.DataObject) -> None:
    body = bytearray(data.draw(st.sampled_from(_BODIES)))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        value = fastjson.loads(bytes(body))
    except ValueError:
        return
    render(value).encode()
