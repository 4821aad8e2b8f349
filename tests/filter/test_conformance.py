"""The recorded verdicts of the real engine, through every engine of ours."""

import io
import json

import corpora
import pytest

from tamis.cli import evaluation
from tamis.errors import ConfigError, FilterSyntaxError
from tamis.filter import Dialect, Outcome, parse, render
from tamis.filter.bloom import BloomFilter
from tamis.filter.engines import closures, columnar
from tamis.filter.tags import parse_tags
from tamis.java import string_hash
from tamis.wire import properties

RECORDED = [("sql92", Dialect.V4_9), ("sql92-5.3.3", Dialect.V5_1_3)]
ENGINES = {"closures": evaluation.with_closures, "columnar": evaluation.with_columns}


def outcome_of(row: dict) -> Outcome:
    recorded = row["result"]
    if isinstance(recorded, str):
        return Outcome.ERROR
    return Outcome.NULL if recorded is None else Outcome(recorded)


def fail(number: int, row: dict) -> None:
    pytest.fail(f"line {number} of the corpus was not taken: {row}")


@pytest.mark.parametrize(("name", "dialect"), RECORDED)
@pytest.mark.parametrize("engine", ENGINES)
def test_eval_agrees_with_the_recorded_engine(name: str, dialect: Dialect, engine: str) -> None:
    recorded = corpora.load(name)
    cases = evaluation.cases(io.BytesIO(corpora.text(name).encode()), fail)
    answers = [json.loads(line) for line in ENGINES[engine](cases, dialect)]
    assert len(answers) == len(recorded)
    for row, answer in zip(recorded, answers, strict=True):
        assert answer["id"] == row["id"]
        assert (answer["compile"], answer["matched"]) == (row["compile"], row["matched"]), row
        if engine == "closures":
            assert answer["result"] == row["result"], row
        else:
            is_error = isinstance(answer["result"], str)
            assert is_error == isinstance(row["result"], str), row
            assert is_error or answer["result"] == row["result"], row


@pytest.mark.parametrize(("name", "dialect"), RECORDED)
def test_raw_property_strings_give_the_recorded_outcome(name: str, dialect: Dialect) -> None:
    rows_of: dict[str, list[dict]] = {}
    for row in corpora.load(name):
        # an empty value does not survive in a property string
        if row["compile"] == "ok" and "" not in (row["props"] or {}).values():
            rows_of.setdefault(row["expr"], []).append(row)
    for expr, rows in rows_of.items():
        raw = [None if r["props"] is None else properties.encode(r["props"]) for r in rows]
        outcomes = columnar.compile_batch(parse(expr, dialect)).match_strings(raw)
        assert outcomes.tolist() == [outcome_of(row) for row in rows], expr


@pytest.mark.parametrize(("name", "dialect"), RECORDED)
def test_what_parses_renders_to_text_that_means_the_same(name: str, dialect: Dialect) -> None:
    for row in corpora.load(name):
        if row["compile"] == "ok":
            expr = parse(row["expr"], dialect)
            again = parse(render(expr), dialect)
            assert again == expr
            assert closures.evaluate(closures.compile_closure(again), row["props"]) == outcome_of(
                row
            )


@pytest.mark.parametrize("row", corpora.load("tags"), ids=lambda row: row["id"])
def test_tags_agree_with_the_recorded_ones(row: dict) -> None:
    if row["kind"] == "hash":
        assert string_hash(row["tag"]) == row["hash"]
    elif "error" in row:
        with pytest.raises(FilterSyntaxError):
            parse_tags(row["expr"])
    else:
        parsed = parse_tags(row["expr"])
        assert parsed.expression == row["sub_string"]
        assert (parsed.tags, parsed.codes) == (set(row["tags"]), set(row["codes"]))


@pytest.mark.parametrize("row", corpora.load("bloom"), ids=lambda row: row["id"])
def test_bloom_filters_agree_with_the_recorded_ones(row: dict) -> None:
    if "error" in row:
        with pytest.raises(ConfigError):
            BloomFilter(row["f"], row["n"])
        return
    bloom = BloomFilter(row["f"], row["n"])
    assert (bloom.bits, bloom.hashes) == (row["m"], row["k"])
    if row["kind"] == "positions":
        assert list(bloom.positions(row["str"])) == row["positions"]
    elif row["kind"] == "set":
        bits = bloom.new_bits()
        for key in row["strs"]:
            bloom.add(bloom.positions(key), bits)
        assert bytes(bits).hex() == row["bytes_hex"]
        assert [bloom.hits(bloom.positions(key), bits) for key in row["probes"]] == row["hits"]
