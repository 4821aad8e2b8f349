"""Our engines against RocketMQ's own, asked live: nothing recorded, anything goes."""

import struct
from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from interop.build import LINES
from interop.oracle import Oracle
from strategies import expressions, messages, soups, texts

from tamis.errors import FilterValueError, InvalidFilter
from tamis.filter import Dialect, Outcome, parse, render
from tamis.filter.coercion import to_double, to_int, to_long
from tamis.filter.engines.closures import compile_closure
from tamis.filter.engines.columnar import compile_batch
from tamis.filter.nodes import Expr
from tamis.wire import properties

DIALECTS = {"4.9": Dialect.V4_9, "5.3": Dialect.V5_1_3}


@pytest.fixture(scope="module", params=LINES)
def line(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def engine(line: str) -> Iterator[Oracle]:
    with Oracle(line) as oracle:
        yield oracle


@pytest.fixture(scope="module")
def decoder(line: str) -> Iterator[Oracle]:
    with Oracle(line, "decode") as oracle:
        yield oracle


@pytest.fixture(scope="module")
def numbers() -> Iterator[Oracle]:
    with Oracle("4.9", "numbers") as oracle:
        yield oracle


def our_answer(text: str, dialect: Dialect, message: dict[str, str] | None) -> str:
    """In the words of the oracle; fails if our own engines disagree."""
    try:
        expr = parse(text, dialect)
    except InvalidFilter:
        return "compile-error"
    [outcome] = compile_batch(expr).match_properties([message])
    try:
        answer = compile_closure(expr)(message or {})
    except FilterValueError as error:
        assert outcome == Outcome.ERROR
        return f"error:{error.java_class}"
    assert outcome == {False: Outcome.FALSE, True: Outcome.TRUE, None: Outcome.NULL}[answer]
    return {False: "false", True: "true", None: "null"}[answer]


@settings(max_examples=500, deadline=None)
@given(data=st.data(), message=messages)
def test_an_expression_has_the_outcome_of_the_real_engine(
    engine: Oracle, line: str, data: st.DataObject, message: dict[str, str] | None
) -> None:
    expr: Expr = data.draw(expressions(text_search=line == "5.3"))
    text = render(expr)
    assert our_answer(text, DIALECTS[line], message) == engine.evaluate(text, message)


@settings(max_examples=2000, deadline=None)
@given(text=soups, message=messages)
def test_a_soup_of_words_compiles_where_the_real_engine_compiles_it(
    engine: Oracle, line: str, text: str, message: dict[str, str] | None
) -> None:
    assert our_answer(text, DIALECTS[line], message) == engine.evaluate(text, message), text


@settings(max_examples=1000, deadline=None)
@given(text=st.text(" \t\n\r\f\x0b'-/*=<>()+,.;!%|&09aAeElLxX_$\"'\u00a0中", max_size=14))
@example("a = 1 --\n b")
@example("'a''")
@example("a = 'x'''")
@example("/**/ a = 1")
@example("/*/ a = 1")
def test_any_characters_lex_as_in_the_real_engine(engine: Oracle, line: str, text: str) -> None:
    assert our_answer(text, DIALECTS[line], {}) == engine.evaluate(text, {}), text


@settings(max_examples=1000, deadline=None)
@given(
    data=st.binary(max_size=60)
    | st.text("ab1\x01\x02中\U0001f600").map(str.encode)
    | st.lists(
        # leads and continuations of UTF-8, at the edges of what is allowed after what
        st.sampled_from(
            b"a\x01\x02\x80\x8f\x90\x9f\xa0\xbf\xc0\xc2\xe0\xe2\xed\xef\xf0\xf1\xf4\xf5\xff"
        )
    ).map(lambda some: b"a\x01" + bytes(some))
)
@example(b"a\x01\xed\xa0\x80\x02b\x01\xed\xa0")
def test_property_strings_decode_as_in_the_real_client(decoder: Oracle, data: bytes) -> None:
    assert properties.decode_bytes(data) == decoder.decode(data)


numeric_texts = texts | st.from_regex(
    r"[ \t]?[+-]?(0[xX][0-9a-fA-F]{0,20}(\.[0-9a-fA-F]{0,9})?([pP][+-]?[0-9]{0,5})?"
    r"|[0-9]{0,40}(\.[0-9]{0,40})?([eE][+-]?[0-9]{0,4})?)[fFdDlL]?[ \n]?",
    fullmatch=True,
)


@settings(max_examples=2000, deadline=None)
@given(text=numeric_texts)
def test_numbers_are_read_as_java_reads_them(numbers: Oracle, text: str) -> None:
    for kind, convert in (("int", to_int), ("long", to_long), ("double", to_double)):
        try:
            value = convert(text)
        except FilterValueError:
            ours = "error"
        else:
            ours = str(value)
            if isinstance(value, float):
                nan = 0x7FF8000000000000
                bits = nan if value != value else struct.unpack("<Q", struct.pack("<d", value))[0]
                ours = f"{bits:016x}"
        assert ours == numbers.number(kind, text), (kind, text)
