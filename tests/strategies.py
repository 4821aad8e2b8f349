"""Hypothesis strategies: every expression the parser can give, and messages that make it think."""

from hypothesis import strategies as st

from tamis.filter.checks import why_not_between, why_not_comparable
from tamis.filter.nodes import (
    And,
    Between,
    Compare,
    Constant,
    Expr,
    In,
    IsNull,
    Negate,
    Not,
    Operator,
    Or,
    Property,
    TextMatch,
    TextOperator,
)

NAMES = (
    "a",
    "b",
    "c",
    "ab",
    "sevenxx",
    "eight_xx",
    "a_rather_long_name",
    "a_rather_long_name2",
    "$",
)

# Texts that are numbers, almost numbers, or numbers to one language and not to the other.
TELLING_TEXTS = (
    *(
        "5",
        "-5",
        "+5",
        "05",
        "5.0",
        "5.5",
        "1e3",
        "1E-3",
        ".5",
        "5.",
        ".",
        "-",
        "+",
        "0",
        "-0",
        "00",
    ),
    *(
        "-0.0",
        "0.0",
        "NaN",
        "-NaN",
        "+NaN",
        "nan",
        "Infinity",
        "-Infinity",
        "infinity",
        "inf",
        "1_0",
    ),
    *(" 5", "5 ", "\t5\n", "\x005\x00", "\u00a05", "1f", "1F", "1d", "1.5D", "1L", "1ff", "NaNf"),
    *("0x10", "0x1p3", "0X1.8P1", "0x.8p1", "0x1p", "0xp1", "0x1.p-1074", "0x1p1024", "0x1.8p0f"),
    *("2147483647", "2147483648", "-2147483648", "-2147483649", "12345678", "123456789"),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775808", "99999999999999999999"),
    *(
        "000000000000000000000000000005",
        "1.7976931348623157e308",
        "1.7976931348623159e308",
        "1e400",
    ),
    *(
        "4.9e-324",
        "2e-324",
        "1e-400",
        "0e999999999999",
        "1e99999999999",
        "1e-99999999999",
        "5e",
        "5e+",
    ),
    *("9007199254740993", "9007199254740992.99999999999999999999", "0.1", "123456.78", "1234567.8"),
    *(
        "8.5e22",
        "1e23",
        "179769313486231580793e289",
        "2.2250738585072011e-308",
        "1234567",
        "12345678.9",
    ),
    *(
        "１",
        "١٢",
        "५",
        "𝟏",
        "5１",
        "²",
        "true",
        "TRUE",
        "True",
        "tRuE",
        "trues",
        "false",
        "x",
        "abc",
    ),
    *("订单", "\U0001f600", "it's", "a\x01b", "\ufffd", "ß", "long text of more than eight bytes"),
)

texts = st.sampled_from(TELLING_TEXTS) | st.text(max_size=12)
names = st.sampled_from(NAMES)
messages = st.none() | st.dictionaries(names, texts, max_size=6)

properties = names.map(Property)
integers = st.sampled_from([0, 1, 5, 12345678, 2**31 - 1, 2**31, 2**63 - 1]) | st.integers(0, 100)
decimals = st.sampled_from([5.0, 5.5, 0.1, 4.9e-324, 1.7976931348623157e308, 2.0**53]) | st.floats(
    min_value=5e-324, allow_infinity=False
)
numbers = (integers | decimals).map(Constant)
strings = texts.map(Constant)
booleans = st.booleans().map(Constant)


def _negations(operands: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    return st.one_of(operands, operands.map(Negate), operands.map(Negate).map(Negate))


def _extend(conditions: st.SearchStrategy[Expr], text_search: bool) -> st.SearchStrategy[Expr]:
    orderable = _negations(properties | numbers) | (conditions | strings | booleans).map(Negate)
    operands = _negations(st.one_of(properties, numbers, strings, booleans, conditions))
    several = st.lists(conditions | properties, min_size=2, max_size=4).map(tuple)
    equality = st.sampled_from([Operator.EQ, Operator.NE])
    ordering = st.sampled_from([op for op in Operator if op.is_ordering])
    forms = [
        several.map(And),
        several.map(Or),
        (conditions | properties).map(Not),
        st.builds(Compare, equality, operands, operands).filter(_compiles),
        st.builds(Compare, ordering, orderable, orderable).filter(_compiles),
        st.builds(Between, orderable, orderable, orderable, st.booleans()).filter(
            lambda between: why_not_between(between) is None
        ),
        st.builds(
            In, properties, st.lists(texts, min_size=1, max_size=12).map(tuple), st.booleans()
        ),
        st.builds(IsNull, operands | st.just(Constant(None)), st.booleans()),
    ]
    if text_search:
        search = st.sampled_from(list(TextOperator))
        forms.append(st.builds(TextMatch, search, operands, texts, st.booleans()))
    return st.one_of(forms)


def _compiles(compare: Compare) -> bool:
    return why_not_comparable(compare) is None


def expressions(text_search: bool = True) -> st.SearchStrategy[Expr]:
    """Conditions as the parser gives them; with the operators of dialect 5.1.3 or without."""
    leaves = st.one_of(booleans, st.just(Constant(None)), properties)
    nested = st.recursive(leaves, lambda inner: _extend(inner, text_search), max_leaves=12)
    return nested | _extend(leaves, text_search)


# Words and scraps of the language in any order: most of it does not compile, on both sides.
soups = st.lists(
    st.sampled_from(
        [
            "a",
            "b",
            "c",
            "NOT",
            "AND",
            "OR",
            "BETWEEN",
            "IN",
            "TRUE",
            "FALSE",
            "NULL",
            "IS",
            "=",
            "<>",
            ">",
            ">=",
            "<",
            "<=",
            "(",
            ")",
            ",",
            "+",
            "-",
            "5",
            "5.5",
            "007",
            "0L",
            "1e400",
            "0.0",
            "9223372036854775808",
            "'x'",
            "'it''s'",
            "'5'",
            "LIKE",
            "CONTAINS",
            "STARTSWITH",
            "ENDSWITH",
            "not",
            "and",
            "or",
            "is",
            "null",
            "a",
            "=",
            "1",
            "|",
            "b",
            ">",
            "2",
            "|",
            "a",
            "IS",
            "NULL",
            "|",
            "a",
            "IN",
            "('x','y')",
            "|",
            "--",
            "|",
            "/*",
            "c",
            "*/",
            "|",
            ";",
            "|",
            "!",
            "|",
            "*",
            "|",
            ".",
            "|",
            "\t",
            "|",
            "中",
        ]
    ),
    min_size=1,
    max_size=14,
).map(" ".join)
