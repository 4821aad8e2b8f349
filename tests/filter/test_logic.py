"""Three-valued logic with errors: every engine gives every cell of the tables."""

from itertools import product

import pytest

from tamis.filter import Outcome, logic, parse
from tamis.filter.engines.closures import compile_closure, evaluate
from tamis.filter.engines.columnar import compile_batch

# How to bring each outcome about with a property: against `= 1`, these texts give
TEXTS = {Outcome.TRUE: "1", Outcome.FALSE: "2", Outcome.NULL: None, Outcome.ERROR: "x"}


def closures(text: str, message: dict[str, str]) -> Outcome:
    return evaluate(compile_closure(parse(text)), message)


def columnar(text: str, message: dict[str, str]) -> Outcome:
    [outcome] = compile_batch(parse(text)).match_properties([message])
    return Outcome(outcome)


ENGINES = [closures, columnar]


def message(**outcomes: Outcome) -> dict[str, str]:
    texts = {name: TEXTS[outcome] for name, outcome in outcomes.items()}
    return {name: text for name, text in texts.items() if text is not None}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("left", "right"), list(product(Outcome, repeat=2)))
def test_and_and_or_follow_the_tables(engine, left: Outcome, right: Outcome) -> None:
    properties = message(a=left, b=right)
    assert engine("a = 1 AND b = 1", properties) is logic.AND[left][right]
    assert engine("a = 1 OR b = 1", properties) is logic.OR[left][right]
    assert engine("NOT (a = 1 AND b = 1)", properties) is logic.NOT[logic.AND[left][right]]
    nested = engine("c = 1 OR (a = 1 AND b = 1)", properties | {"c": "2"})
    assert nested is logic.AND[left][right]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("a", "b", "c"), list(product(Outcome, repeat=3)))
def test_chains_are_evaluated_from_the_left(engine, a: Outcome, b: Outcome, c: Outcome) -> None:
    properties = message(a=a, b=b, c=c)
    assert engine("a = 1 AND b = 1 AND c = 1", properties) is logic.AND[logic.AND[a][b]][c]
    assert engine("a = 1 OR b = 1 OR c = 1", properties) is logic.OR[logic.OR[a][b]][c]
    assert engine("a = 1 AND b = 1 OR c = 1", properties) is logic.OR[logic.AND[a][b]][c]
    assert engine("(a = 1 OR b = 1) AND c = 1", properties) is logic.AND[logic.OR[a][b]][c]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("outcome", Outcome)
def test_not_follows_the_table(engine, outcome: Outcome) -> None:
    assert engine("NOT (a = 1)", message(a=outcome)) is logic.NOT[outcome]


def test_only_true_matches() -> None:
    assert [outcome for outcome in Outcome if outcome.matched] == [Outcome.TRUE]
