"""`tamis filter`, as a person or a program at the shell sees it."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

TAMIS = [sys.executable, "-c", "from tamis.cli.main import main; main()"]


def tamis(*arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*TAMIS, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONIOENCODING": "utf-8", **environment},
    )


def test_a_match_exits_0_and_says_so() -> None:
    done = tamis("filter", "test", "age > 5 AND name = 'x'", "-p", "age=7", "-p", "name=x")
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "matched",
        "It matches.",
        "",
        "  true     age > 5 AND name = 'x'",
        "  true       age > 5               age is '7', read as 7",
        "  true       name = 'x'            name is 'x'",
    ]


def test_no_match_exits_1_and_says_why() -> None:
    done = tamis("filter", "test", "age > 5", "-p", "age=x")
    assert done.returncode == 1
    assert "It does not match: age > 5 fails, because 'x' can't be read as an int" in done.stdout


def test_a_bad_expression_exits_2_with_one_line_and_a_mark() -> None:
    done = tamis("filter", "test", "a = = 1")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        "tamis: column 5: expected a value or a property, found '='",
        "  a = = 1",
        "      ^",
    ]


def test_test_shows_what_lint_finds() -> None:
    done = tamis("filter", "test", "NOT a = 1", "-p", "a=2")
    assert "error at column 1: NOT binds tighter" in done.stdout
    assert "write: NOT (a = 1)" in done.stdout


def test_strict_refuses_what_lint_calls_an_error() -> None:
    done = tamis("filter", "test", "--strict", "a LIKE 'x%'", "-p", "a=xy")
    assert done.returncode == 2
    assert "«LIKE 'x%'» is ignored" in done.stderr
    assert tamis("filter", "test", "--strict", "--tags", "a,b", "-p", "TAGS=a").returncode == 2


def test_dialect_5_1_3_has_text_search() -> None:
    arguments = ("filter", "test", "a CONTAINS 'x'", "-p", "a=axb")
    assert tamis(*arguments).returncode == 1
    assert tamis(*arguments, "--dialect", "5.1.3").returncode == 0


def test_tags() -> None:
    assert tamis("filter", "test", "--tags", "a || b", "-p", "TAGS=b").returncode == 0
    done = tamis("filter", "test", "--tags", "Aa", "-p", "TAGS=BB")
    assert done.returncode == 1
    assert "client drops it" in done.stdout
    assert tamis("filter", "test", "--tags", "||", "-p", "TAGS=b").returncode == 2


def test_json_for_programs() -> None:
    done = tamis("filter", "test", "--json", "a > 5", "-p", "a=NaN")
    answer = json.loads(done.stdout)
    assert done.returncode == 1
    assert answer["compile"] == "ok"
    assert answer["result"].startswith("error:")
    assert answer["matched"] is False
    assert answer["explanation"]["operands"][0]["value"] == "NaN"
    done = tamis("filter", "test", "--json", "a >")
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["compile"], answer["error"]["column"]) == (2, "error", 4)
    answer = json.loads(tamis("filter", "test", "--json", "--tags", "a,b", "-p", "TAGS=a").stdout)
    assert (answer["matched"], answer["tags"]) == (False, ["a,b"])
    assert answer["findings"][0]["suggestion"] == "a || b"


def test_an_empty_value_counts_as_missing_as_it_does_once_stored() -> None:
    done = tamis("filter", "test", "a IS NULL", "-p", "a=")
    assert done.returncode == 0
    assert "a counts as missing" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["filter", "test", "a = 1", "-p", "a"], "'a' is not NAME=VALUE"),
        (["filter", "test"], "Missing argument 'EXPR'"),
        (["filter", "test", "a = 1", "--dialect", "9"], "'9' is not one of '4.9', '5.1.3'"),
        (["filter", "eval", "--engine", "abacus"], "'abacus' is not one of"),
        (["flter"], "No such command 'flter'"),
        (["filter", "lint", "--wrong"], "No such option"),
        (["filter", "test", "--colour", "a = 1"], "No such option"),
    ],
)
def test_misuse_is_answered_in_one_line_with_exit_code_2(arguments: list[str], line: str) -> None:
    done = tamis(*arguments)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert line in done.stderr


def test_lint_says_what_is_wrong_and_what_to_write() -> None:
    done = tamis("filter", "lint", "a LIKE 'x'", "b = 'y'")
    assert done.returncode == 1
    assert "write: a = 'x'" in done.stdout
    assert "b = 'y'  ok" in done.stdout


def test_lint_reads_expressions_from_standard_input() -> None:
    done = tamis("filter", "lint", "-", stdin="a = 'x'\n\nNOT a = 1\na !\n")
    assert done.returncode == 2
    assert "1: a = 'x'  ok" in done.stdout
    assert "3: NOT a = 1" in done.stdout
    assert "4: does not compile: column 3" in done.stdout


def test_lint_exits_0_when_there_is_nothing_worse_than_a_warning() -> None:
    assert tamis("filter", "lint", "a <> 'x'").returncode == 0
    assert tamis("filter", "lint", "--tags", "Aa || BB").returncode == 0
    assert tamis("filter", "lint", "--tags", "a,b").returncode == 1


def test_lint_gives_json_a_line_an_expression() -> None:
    done = tamis("filter", "lint", "--json", "a = 007", "a =")
    first, second = map(json.loads, done.stdout.splitlines())
    assert first["findings"][-1]["suggestion"] == "a = 7"
    assert second["compile"] == "error"


@pytest.mark.parametrize("engine", ["closures", "columnar"])
def test_eval_answers_in_order_and_reports_malformed_lines(engine: str) -> None:
    lines = [
        '{"id": 1, "expr": "a > 5", "props": {"a": "7"}}',
        "not json",
        '{"id": "two", "expr": "a > 5", "props": null}',
        '["a"]',
        "",
        '{"id": 3, "expr": "a >", "props": {}}',
        '{"id": 4, "props": {}}',
        '{"id": 5, "expr": "a > 5", "props": {"a": 7}}',
        '{"expr": "a > 5", "props": {"a": "x"}}',
        '{"id": 6, "expr": "a = 5", "props": {"a": "\\ud800"}}',
        '{"id": NaN, "expr": "a = 5", "props": {}}',
    ]
    done = tamis("filter", "eval", "--engine", engine, stdin="\n".join(lines))
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 1
    assert answers[0] == {"id": 1, "compile": "ok", "result": True, "matched": True}
    assert answers[1] == {"id": "two", "compile": "ok", "result": None, "matched": False}
    assert answers[2] == {"id": 3, "compile": "error", "result": None, "matched": False}
    assert "id" not in answers[3]
    assert answers[3]["result"].startswith("error:")
    assert answers[4]["id"] == 6
    assert len(answers) == 5
    reported = [line.split(": ", 2)[1] for line in done.stderr.splitlines()]
    assert reported == ["line 2", "line 4", "line 7", "line 8", "line 11"]


def test_eval_takes_bytes_that_are_no_text_for_a_malformed_line() -> None:
    good = b'{"expr": "TRUE", "props": {}}\n'
    done = subprocess.run(
        [*TAMIS, "filter", "eval"], input=good + b"{\xff}\n" + good, capture_output=True
    )
    assert done.returncode == 1
    assert len(done.stdout.splitlines()) == 2
    assert done.stderr.strip().endswith(b"line 2: not UTF-8 at byte 2")


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    lines = '{"expr": "TRUE", "props": {}}\n' * 50_000
    command = f"{sys.executable} -c 'from tamis.cli.main import main; main()' filter eval | head -1"
    done = subprocess.run(command, shell=True, input=lines, capture_output=True, text=True)
    assert done.stderr == ""


def test_an_expression_may_begin_with_a_minus() -> None:
    done = tamis("filter", "test", "-a > 5", "-p", "a=-7")
    assert done.returncode == 1
    assert "write: a < -5" in done.stdout
    assert "-a is always null" in tamis("filter", "lint", "-a > 5").stdout


def test_a_full_disk_is_no_traceback() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*TAMIS, "--version"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr == "tamis: No space left on device\n"


def test_what_could_upset_a_terminal_is_spelled_out() -> None:
    done = tamis("filter", "test", "a = 'x'", "-p", "a=\x1b[31m\n")
    assert "a is '\\x1b[31m\\n'" in done.stdout


def test_colour_is_for_terminals_only() -> None:
    arguments = [*TAMIS, "filter", "test", "a = 1", "-p", "a=1"]
    assert "\x1b[" not in subprocess.run(arguments, capture_output=True, text=True).stdout
    master, slave = pty.openpty()
    environment = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
    subprocess.run(arguments, stdout=slave, env=environment, check=True)
    os.close(slave)
    shown = os.read(master, 10_000).decode()
    os.close(master)
    assert "\x1b[32m" in shown


def test_a_terminal_without_the_letters_is_no_traceback() -> None:
    done = tamis("filter", "lint", "a = '中' b", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    assert "_TAMIS_COMPLETE" in tamis("completion", shell).stdout


def test_completion_completes() -> None:
    done = tamis(_TAMIS_COMPLETE="bash_complete", COMP_WORDS="tamis filter ev", COMP_CWORD="2")
    assert "eval" in done.stdout


def test_version(tmp_path: Path) -> None:
    import tamis as package

    assert tamis("--version").stdout == f"tamis {package.__version__}\n"
