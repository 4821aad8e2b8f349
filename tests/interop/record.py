"""Records `tests/corpus/sql92-5.3.3.jsonl.gz` from RocketMQ 5.3.3's engine.

    .venv/bin/python tests/interop/record.py

Expressions with the operators of dialect 5.1.3, made by the strategies of the tests, and those
recorded from 4.9.4 that name them or could be touched by them.
"""

import gzip
import hashlib
import json
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import corpora
from hypothesis import given, settings
from hypothesis import strategies as st
from interop.oracle import Oracle
from strategies import expressions, messages

from tamis.filter import render
from tamis.filter.nodes import TextMatch, walk

MADE = 3000
TOUCHED = ("unk", "syn", "real", "log", "una", "id")


def main() -> None:
    warnings.simplefilter("ignore")
    asked: dict[tuple[str, str], tuple[str, dict[str, str] | None]] = {}

    def ask(expr: str, props: dict[str, str] | None) -> None:
        asked.setdefault((expr, json.dumps(props, sort_keys=True)), (expr, props))

    @settings(max_examples=MADE, deadline=None, database=None)
    @given(expr=expressions(), rows=st.lists(messages, min_size=2, max_size=2))
    def make(expr, rows):
        if any(isinstance(node, TextMatch) for node in walk(expr)):
            for props in rows:
                ask(render(expr), props)

    make()
    for row in corpora.load("sql92"):
        words = row["expr"].upper()
        if row["id"].startswith(TOUCHED) or any(w in words for w in ("CONTAINS", "STARTS", "ENDS")):
            ask(row["expr"], row["props"])

    path = corpora.CORPUS / "sql92-5.3.3.jsonl.gz"
    with (
        Oracle("5.3") as oracle,
        path.open("wb") as raw,
        gzip.GzipFile("", "wb", 9, raw, 0) as file,
    ):
        for key, (expr, props) in asked.items():
            answer = oracle.evaluate(expr, props)
            compiled = answer != "compile-error"
            result = {"true": True, "false": False, "null": None, "compile-error": None}.get(
                answer, answer
            )
            line = {
                "id": hashlib.sha256("".join(key).encode("utf-8", "surrogatepass")).hexdigest()[
                    :12
                ],
                "expr": expr,
                "props": props,
                "compile": "ok" if compiled else "error",
                "result": result,
                "matched": result is True,
            }
            file.write(json.dumps(line).encode() + b"\n")
    print(f"{len(asked)} verdicts in {path}")


if __name__ == "__main__":
    main()
