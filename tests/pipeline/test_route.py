"""Route: one pass, every group's messages to its sink, through crashes and changes of the file."""

import io
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession
from sparkling import SETTINGS, create_topic, send_all

from tamis.cli.main import main
from tamis.client import blocking
from tamis.errors import ConfigError
from tamis.filter import Outcome, parse
from tamis.filter.engines.closures import compile_closure, evaluate
from tamis.message import Message
from tamis.pipeline import load, route
from tamis.pipeline.runner import JobFailed, Report, Stop
from tamis.testing import LocalCluster

PATIENCE = 300.0
NUMBERS = itertools.count()  # of topics

# Of each of these 10 messages there are as many as asked for.
ORDERS = (
    ("PAID", {"region": "eu", "price": "120"}),
    ("PAID", {"region": "eu", "price": "free"}),
    ("PAID", {"region": "us", "price": "7"}),
    ("NEW", {"region": "eu", "price": "80"}),
    ("NEW", {"region": "eu", "price": "500"}),
    ("NEW", {"region": "us", "price": "oops"}),
    ("NEW", {"region": "cn"}),
    ("REFUND", {"region": "eu"}),
    ("REFUND", {"region": "us", "price": "1"}),
    ("LOST", {}),
)

STRICT = """
class Strict:
    def match(self, message):
        return float(message.properties["price"]) < 10
"""


def send(cluster: LocalCluster, topic: str, times: int, first: int = 0) -> None:
    """Keys are numbers, from `first`; the order of a number is that of its last digit."""
    numbers = range(first, first + 10 * times)
    messages = [
        Message(topic, b"%d" % n, tags=ORDERS[n % 10][0], keys=str(n), properties=ORDERS[n % 10][1])
        for n in numbers
    ]
    send_all(cluster, messages)


def wanted(digits: str, numbers: range) -> list[int]:
    return [n for n in numbers if str(n % 10) in digits]


class Pipeline(NamedTuple):
    """A file of three groups in a folder."""

    spark: SparkSession | None
    cluster: LocalCluster
    topic: str
    folder: Path

    @property
    def file(self) -> Path:
        return self.folder / "orders.toml"

    def write(self, **changed: str) -> None:
        (self.folder / "strict.py").write_text(STRICT)
        filters = {
            "eu-big": "sql = \"region = 'eu' AND price > 100\"",
            "paid": 'tags = "PAID || REFUND"',
            "cheap": 'code = "strict.py:Strict"',
            **{name.replace("_", "-"): text for name, text in changed.items()},
        }
        text = f"""
            [source]
            nameserver = "{self.cluster.nameserver}"
            topic = "{self.topic}"
            [run]
            max_offsets_per_batch = 25
            [unmatched]
            sink = {{ format = "json", path = "rest", columns = ["keys", "offset"] }}
            """
        for group, filter in filters.items():
            text += f"""
            [[subscription]]
            group = "{group}"
            {filter}
            sink = {{ format = "parquet", path = "{group}" }}
            """
        self.file.write_text("\n".join(line.strip() for line in text.splitlines()))

    def describe(self, rest: str, of_source: str = "") -> None:
        """A file of other groups."""
        source = f'nameserver = "{self.cluster.nameserver}"\ntopic = "{self.topic}"'
        self.file.write_text(f"[source]\n{source}\n{of_source}\n{rest}")

    def run(
        self,
        stop: Stop | None = None,
        *,
        dry_run: bool = False,
        report: Report | None = None,
        out: Callable[[str], None] = print,
    ) -> route.RouteSummary:
        config = load(self.file)
        route.check(config)
        assert self.spark is not None
        return route.run(self.spark, config, stop=stop, dry_run=dry_run, report=report, out=out)

    def undo(self, batch: int) -> None:
        """As after a crash between the sinks and Spark's record of the batch."""
        for name in (str(batch), f".{batch}.crc"):
            Path(load(self.file).checkpoint, "spark", "commits", name).unlink(missing_ok=True)

    def got(self, group: str) -> list[int]:
        """Keys in the group's sink."""
        assert self.spark is not None
        form = "json" if group == "rest" else "parquet"
        rows = self.spark.read.format(form).load(str(self.folder / group)).select("keys").collect()
        return sorted(int(row["keys"]) for row in rows)


@pytest.fixture
def pipeline(
    spark: SparkSession, local_cluster: LocalCluster, tmp_path: Path, request: pytest.FixtureRequest
) -> Pipeline:
    topic = f"{request.node.originalname[:60]}-{next(NUMBERS)}"
    create_topic(local_cluster, topic, queues=2)
    return Pipeline(spark, local_cluster, topic, tmp_path)


def subscription(group: str, tags: str, sink: str) -> str:
    return f'[[subscription]]\ngroup = "{group}"\ntags = "{tags}"\nsink = {{ {sink} }}\n'


@pytest.fixture(scope="module")
def empty_topic(local_cluster: LocalCluster) -> str:
    create_topic(local_cluster, "empty", queues=2)
    return "empty"


@pytest.mark.smoke
def test_one_pass_serves_every_group_and_a_changed_file_applies_from_an_offset_on(
    pipeline: Pipeline,
) -> None:
    assert pipeline.spark is not None
    limit = "spark.sql.codegen.hugeMethodLimit"
    before = pipeline.spark.conf.get(limit)
    send(pipeline.cluster, pipeline.topic, 4)
    pipeline.write()
    summary = pipeline.run()
    assert pipeline.spark.conf.get(limit) == before  # the session may be another's
    first = range(40)
    assert summary.status == "done"
    assert (summary.messages, summary.batches) == (40, 2)
    assert pipeline.got("eu-big") == wanted("04", first)
    assert pipeline.got("paid") == wanted("01278", first)
    assert pipeline.got("cheap") == wanted("28", first)
    assert pipeline.got("rest") == wanted("3569", first)
    counts = {one.group: (one.matched, one.failed, one.total) for one in summary.groups}
    assert counts == {"eu-big": (8, 4, 8), "paid": (20, 0, 20), "cheap": (8, 20, 8)}
    assert summary.unmatched == 16
    eu_big, _, cheap = summary.groups
    assert "'free' can't be read as an int" in eu_big.samples[0].reason
    assert eu_big.samples[0].place.startswith(f"{pipeline.topic}/broker-a/")
    assert {one.reason for one in cheap.samples} <= {
        "ValueError: could not convert string to float: 'free'",
        "ValueError: could not convert string to float: 'oops'",
        "KeyError: 'price'",
    }
    assert "eu-big failed on 4 messages, such as" in "\n".join(summary.lines())

    # A group with another filter, one more, one less; and a new run that finds nothing new.
    send(pipeline.cluster, pipeline.topic, 1, first=40)
    pipeline.write(eu_big="sql = \"region = 'us'\"", far="sql = \"region IN ('cn', 'us')\"")
    summary = pipeline.run()
    assert (summary.messages, summary.batches) == (10, 1)
    [changed, new] = summary.notes
    assert changed.startswith("subscription eu-big changed: applies from")
    assert f"{pipeline.topic}/broker-a/0 at 20" in changed
    assert new.startswith("subscription far is new: applies from")
    assert pipeline.got("eu-big") == wanted("04", first) + wanted("258", range(40, 50))
    assert pipeline.got("far") == wanted("2568", range(40, 50))
    assert next(one.total for one in summary.groups if one.group == "paid") == 25
    assert pipeline.run().messages == 0


@pytest.mark.smoke
def test_a_batch_done_twice_is_written_once(pipeline: Pipeline) -> None:
    send(pipeline.cluster, pipeline.topic, 2)
    pipeline.write()
    assert pipeline.run().messages == 20
    pipeline.undo(0)  # and one sink was not reached
    shutil.rmtree(pipeline.folder / "paid" / "batch=0")
    pipeline.write(eu_big="sql = \"region = 'us'\"")  # not for that batch
    summary = pipeline.run()
    assert "batch 0 was begun by an earlier run and is done again" in summary.notes
    assert pipeline.got("eu-big") == wanted("04", range(20))
    assert pipeline.got("paid") == wanted("01278", range(20))
    assert pipeline.got("rest") == wanted("3569", range(20))
    assert {one.group: one.total for one in summary.groups}["paid"] == 10

    # Killed again, after another change: what was before that counts no more.
    shutil.rmtree(pipeline.folder / "paid")
    pipeline.write()
    text = pipeline.file.read_text().replace('"parquet", path = "paid"', '"json", path = "paid"')
    pipeline.file.write_text(text)
    send(pipeline.cluster, pipeline.topic, 1, first=20)
    assert pipeline.run().batches == 1
    pipeline.undo(1)
    summary = pipeline.run(dry_run=True)
    queues = [f"{pipeline.topic}/broker-a/{number} at 10" for number in (0, 1)]
    assert f"would begin at {', '.join(queues)}" in summary.notes
    summary = pipeline.run()
    assert "batch 1 was begun by an earlier run and is done again" in summary.notes
    assert {one.group: one.sink.split()[0] for one in summary.groups}["paid"] == "json"
    rows = [file.read_text() for file in pipeline.folder.glob("paid/batch=*/part-*")]
    assert len("".join(rows).splitlines()) == 5


@pytest.fixture
def elsewhere(spark: SparkSession) -> Iterator[None]:
    """A default file system that is not this machine's: here, one that is not there at all."""
    conf = spark._jsc.hadoopConfiguration()
    before = conf.get("fs.defaultFS")
    conf.set("fs.defaultFS", "nowhere:///")
    yield
    conf.set("fs.defaultFS", before)


@pytest.mark.parametrize("scheme", ["", "file://"])
@pytest.mark.usefixtures("elsewhere")
def test_a_kill_after_the_last_rename_and_paths_of_any_kind_do_no_harm(
    pipeline: Pipeline, tmp_path: Path, scheme: str
) -> None:
    send(pipeline.cluster, pipeline.topic, 2)
    at = f"{scheme}{tmp_path}/my files"
    sinks = {
        group: f'format = "Text", path = "{at}/{group}", columns = ["keys"]'
        for group in ("paid", "rest")
    }
    pipeline.describe(
        f'[run]\ncheckpoint = "{at}/checkpoint"\n'
        + subscription("paid", "PAID || REFUND", sinks["paid"])
        + f"[unmatched]\nsink = {{ {sinks['rest']} }}"
    )
    for counts in (20, 10, 10), (20, 10, 10), (0, 0, 10):
        summary = pipeline.run()
        [paid] = summary.groups
        assert summary.status == "done"
        assert (summary.messages, paid.matched, paid.total) == counts
        assert paid.promise == "exactly once"
        if summary.messages and not summary.notes:
            for file in (tmp_path / "my files/checkpoint/spark/commits").iterdir():
                file.unlink()
    for group, digits in ("paid", "01278"), ("rest", "34569"):
        files = (tmp_path / "my files").glob(f"{group}/batch=*/part-*")
        rows = "".join(file.read_text() for file in files).split()
        assert sorted(map(int, rows)) == wanted(digits, range(20))


def test_a_first_run_that_could_not_claim_all_sinks_can_be_run_again(pipeline: Pipeline) -> None:
    send(pipeline.cluster, pipeline.topic, 1)
    pipeline.write()
    in_the_way = pipeline.folder / "paid" / "._tamis.json.new"
    in_the_way.mkdir(parents=True)
    with pytest.raises(ConfigError, match="paid: it can't be written to: Is a directory"):
        pipeline.run()
    in_the_way.rmdir()
    assert pipeline.run().messages == 10
    assert pipeline.got("eu-big") == [0, 4]


class Watching(Report):
    """Keeps what it is told, each time it could be."""

    def __init__(self, then: Callable[[int], None]) -> None:
        super().__init__(io.StringIO(), now=itertools.count(0.0, 10.0).__next__)
        self.told: list[tuple[int, int | None]] = []
        self._then = then

    def update(self, messages: int, lag: int | None = None, *, force: bool = False) -> None:
        self.told.append((messages, lag))
        self._then(messages)


DECLARED = """
class Cheap:
    columns = ("tags",)
    properties = ("price:double", "region")

    def match(self, message, context):
        assert (context.group, context.topic) == ("cheap", {topic!r})
        assert message.properties.get("region") != "cn"
        return message.tags != "NEW" and message.properties.get("price", 100.0) < 10
"""


def test_code_gets_the_columns_it_declares_beside_filters_of_other_kinds(
    pipeline: Pipeline,
) -> None:
    send(pipeline.cluster, pipeline.topic, 2)
    (pipeline.folder / "cheap.py").write_text(DECLARED.format(topic=pipeline.topic))
    pipeline.describe(
        '[[subscription]]\ngroup = "cheap"\ncode = "cheap.py:Cheap"\n'
        'sink = { format = "parquet", path = "cheap", columns = ["keys"] }\n'
        '[[subscription]]\ngroup = "dear"\nsql = "price > 100"\n'
        'sink = { format = "parquet", path = "dear", columns = ["keys"] }\n'
    )
    cheap, dear = pipeline.run().groups
    assert pipeline.got("cheap") == wanted("28", range(20))
    assert (cheap.failed, cheap.samples[0].reason) == (2, "AssertionError")
    assert pipeline.got("dear") == wanted("04", range(20))
    assert dear.failed == 4


WAITING = """
import pathlib, time
class Waiting:
    def match(self, message):
        deadline = time.monotonic() + {patience}
        while message.keys[0] == "3" and not pathlib.Path({go!r}).exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return True
"""


def test_progress_is_told_within_a_batch_and_what_is_left_from_the_beginning(
    pipeline: Pipeline,
) -> None:
    go = pipeline.folder / "go"
    send(pipeline.cluster, pipeline.topic, 2)
    code = WAITING.format(go=str(go), patience=PATIENCE)
    (pipeline.folder / "waiting.py").write_text(code)
    pipeline.describe(
        '[[subscription]]\ngroup = "all"\ncode = "waiting.py:Waiting"\n'
        'sink = { format = "json", path = "all" }',
        of_source="options = { minPartitions = 2 }",
    )
    report = Watching(lambda messages: go.touch() if messages == 10 else None)
    assert pipeline.run(report=report).messages == 20
    assert report.told[0] == (0, 20)
    assert (10, 10) in report.told
    assert report.told == sorted(report.told, key=lambda one: one[0])


def test_a_failure_after_ctrl_c_is_told(pipeline: Pipeline) -> None:
    send(pipeline.cluster, pipeline.topic, 1)
    pipeline.describe(
        subscription("shown", "*", 'format = "console", options = { numRows = 1 }')
        + subscription("paid", "PAID", 'format = "parquet", path = "paid"')
    )
    stop = Stop()

    def out(_: str) -> None:
        stop.ask()
        shutil.rmtree(pipeline.folder / "paid")
        (pipeline.folder / "paid").touch()

    with pytest.raises(JobFailed, match="paid") as caught:
        pipeline.run(stop, out=out)
    assert caught.value.summary is not None
    assert caught.value.summary.status == "failed"


def test_looking_does_not_move_a_group_at_the_broker(pipeline: Pipeline) -> None:
    send(pipeline.cluster, pipeline.topic, 1)
    pipeline.write()
    text = pipeline.file.read_text().replace("[run]", 'options = { groupId = "lookers" }\n[run]')
    pipeline.file.write_text(text)
    offsets = {pipeline.topic: {"broker-a": {"0": 5, "1": 5}}, "": {"scanned": 10}}
    for name, content in {
        "state.json": filled(json.dumps(STATE), pipeline),
        "spark/metadata": '{"id":"1"}',
        "spark/offsets/0": OFFSETS + json.dumps(offsets),
    }.items():
        file = pipeline.folder / ".tamis" / "orders" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    route.check(load(pipeline.file))
    with blocking.Admin(pipeline.cluster.nameserver) as admin:
        assert "lookers" not in admin.groups()


def test_a_run_that_is_stopped_goes_on_with_the_next(pipeline: Pipeline) -> None:
    send(pipeline.cluster, pipeline.topic, 3)
    pipeline.write()
    stop = Stop()
    stop.ask()
    summary = pipeline.run(stop)
    assert (summary.status, summary.messages) == ("stopped", 0)
    assert pipeline.run().messages == 30
    assert pipeline.got("paid") == wanted("01278", range(30))


# Runs a file and, at the place named, says so and stays there until it is killed.
PROGRAM = """
import pathlib, sys, threading
from tamis.pipeline import files, load, route
from tamis.spark import session

file, place, reached = sys.argv[1:4]

def stay():
    pathlib.Path(reached).touch()
    threading.Event().wait()

if place == "between renames":
    rename = files._Local.rename
    def rename_one(self, path, to):
        rename(self, path, to)
        stay()
    files._Local.rename = rename_one
settings = dict(pair.split("=") for pair in sys.argv[4:])
route.run(session(master="local[2]", config=settings), load(file))
"""

SLOW = """
import pathlib, time
class Strict:
    def match(self, message):
        if message.keys[0] == "39" and pathlib.Path({hang!r}).exists():
            pathlib.Path({reached!r}).touch()
            while pathlib.Path({hang!r}).exists():
                time.sleep(0.05)
        return float(message.properties["price"]) < 10
"""


@pytest.fixture
def killed(pipeline: Pipeline) -> Iterator[Callable[[str], None]]:
    """Runs the pipeline in a process that is killed at a place in the middle of a batch."""
    hang, reached = pipeline.folder / "hang", pipeline.folder / "reached"
    processes = []

    def run(place: str) -> None:
        reached.unlink(missing_ok=True)
        if place == "in a filter":
            hang.touch()
        settings = [f"{name}={value}" for name, value in SETTINGS.items()]
        log = open(pipeline.folder / "log", "w")  # noqa: SIM115
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, pipeline.file, place, reached, *settings],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        log.close()
        processes.append(process)
        deadline = time.monotonic() + PATIENCE
        while not reached.exists():
            said = (pipeline.folder / "log").read_text()
            assert process.poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        hang.unlink(missing_ok=True)  # workers are in a group of their own

    yield run
    hang.unlink(missing_ok=True)
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test_kill_9_in_the_middle_of_a_batch_loses_and_doubles_nothing(
    pipeline: Pipeline, killed: Callable[[str], None]
) -> None:
    send(pipeline.cluster, pipeline.topic, 6)
    pipeline.write()
    slow = SLOW.format(hang=str(pipeline.folder / "hang"), reached=str(pipeline.folder / "reached"))
    (pipeline.folder / "strict.py").write_text(slow)
    killed("in a filter")
    killed("between renames")
    numbers = range(60)
    there = [path.parent.name for path in pipeline.folder.glob("*/batch=*")]
    assert there  # some of the groups have a batch that others have not
    summary = pipeline.run()
    assert summary.status == "done"
    for group, digits in ("eu-big", "04"), ("paid", "01278"), ("cheap", "28"), ("rest", "3569"):
        assert Counter(pipeline.got(group)) == Counter(wanted(digits, numbers))
    assert {one.group: one.total for one in summary.groups} == {
        "eu-big": 12,
        "paid": 30,
        "cheap": 12,
    }
    assert not list(pipeline.folder.glob("*/_staging*"))


def test_many_groups_have_one_file_each_of_a_batch_and_the_right_messages(
    pipeline: Pipeline,
) -> None:
    """Their numbers are read from text once for all; settings of the session stay as they were."""
    send(pipeline.cluster, pipeline.topic, 4)
    comparisons = ("price > 7", "price >= 7.0", "price < 500", "price BETWEEN 1 AND 80",
                   "price <> 7", "price IN ('7', '80')", "price > 100 OR region = 'us'",
                   "NOT (price > 7)", "price = 120.0 AND region IS NOT NULL")  # fmt: skip
    rest = ""
    for number, text in enumerate(comparisons):
        rest += f'[[subscription]]\ngroup = "g{number}"\nsql = "{text}"\n'
        rest += f'sink = {{ format = "parquet", path = "g{number}", columns = ["keys"] }}\n'
    pipeline.describe(rest)
    assert pipeline.spark is not None
    before = dict(pipeline.spark.conf.getAll)
    summary = pipeline.run()
    assert dict(pipeline.spark.conf.getAll) == before
    for number, text in enumerate(comparisons):
        closure = compile_closure(parse(text))
        outcomes = [evaluate(closure, properties) for _, properties in ORDERS]
        digits = "".join(str(n) for n, one in enumerate(outcomes) if one.matched)
        assert pipeline.got(f"g{number}") == wanted(digits, range(40)), text
        assert summary.groups[number].failed == 4 * outcomes.count(Outcome.ERROR), text
        assert len(list((pipeline.folder / f"g{number}" / "batch=0").glob("*.parquet"))) == 1


class Done(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def tamis(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Done]:
    def run(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["tamis", "pipeline", "run", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return Done(ended.value.code, *capsys.readouterr())

    return run


STATE = {
    "version": 1,
    "run": "x",
    "source": {"kind": "nameserver", "place": "{cluster}", "what": "topic {topic}"},
    "job": "route",
    "data": {},
}
MARK = '{"run": "y", "format": "parquet"}'
OFFSETS = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":0}\n'
GONE = OFFSETS + '{"{topic}": {"broker-a": {"0": 900, "1": 900}}, "": {"scanned": 1}}'

# Files to be there before, what of the pipeline's file is replaced by what, and what is said.
ERRORS = {
    "missing topic": ({}, ("{topic}", "nowhere"), 1, "nowhere"),
    "dead name server": (
        {},
        ('{cluster}"', '127.0.0.1:1"\noptions = { retries = 0 }'),
        1,
        "127.0.0.1:1 can't be reached",
    ),
    "bad filter": ({}, ("price > 100", "price >"), 2, "subscription eu-big: sql: column 26"),
    "unknown setting": ({}, ("[run]", "[run]\nevery = 1"), 2, "every: there is no such setting"),
    "unknown option": ({}, ("[run]", "options = { pol = 1 }\n[run]"), 2, "no option pol"),
    "no class": ({}, (":Strict", ":Lax"), 2, "cheap: code strict.py:Lax: strict.py has no class"),
    "sink in a file": ({}, ('"paid" }', '"strict.py/x" }'), 2, "strict.py is no directory"),
    "sink of others": ({"paid/data.csv": "1"}, ("", ""), 2, "it has files that this pipeline did"),
    "sink of a run": (
        {"paid/_tamis.json": '{"run": "y", "format": ""}'},
        ("", ""),
        2,
        "written by another run",
    ),
    "dead sink": (
        {},
        ('"parquet", path = "paid"', '"rocketmq", topic = "x", nameserver = "127.0.0.1:1"'),
        1,
        "sink rocketmq x: ",
    ),
    "option of a sink": (
        {},
        ('"parquet", path = "paid"', '"rocketmq", topic = "x", options = { nope = 1 }'),
        2,
        "sink rocketmq x: there is no option nope",
    ),
    "summary in a file": (
        {},
        ("[run]", '[run]\nsummary = "strict.py/summary.json"'),
        2,
        "strict.py is no directory",
    ),
    "checkpoint in a file": (
        {},
        ("[run]", '[run]\ncheckpoint = "strict.py/x"'),
        2,
        "strict.py is no directory",
    ),
    "batches gone": (
        {".tamis/orders/state.json": json.dumps({**STATE, "data": {"counted": 3}})},
        ("", ""),
        2,
        "spark can't be used: batches that were done are missing",
    ),
    "old checkpoint": (
        {
            ".tamis/orders/state.json": json.dumps(STATE),
            "paid/_tamis.json": '{"run": "x", "format": "parquet"}',
            "paid/batch=5/part": "",
        },
        ("", ""),
        2,
        "paid has batch 5, its checkpoint comes to -1",
    ),
    "no state": ({".tamis/orders/spark/metadata": "{}"}, ("", ""), 2, "state.json can't be used"),
    "bad state": ({".tamis/orders/state.json": "{"}, ("", ""), 2, "state.json can't be used"),
    "another topic": (
        {
            ".tamis/orders/state.json": json.dumps(
                {**STATE, "source": {"kind": "store", "place": "a", "what": "topic b"}}
            )
        },
        ("", ""),
        2,
        "is of store a, topic b, not of nameserver",
    ),
    "bad offsets": (
        {
            ".tamis/orders/state.json": json.dumps(STATE),
            ".tamis/orders/spark/metadata": '{"id":"1"}',
            ".tamis/orders/spark/offsets/0": OFFSETS + '{"top',
        },
        ("", ""),
        2,
        "offsets/0 can't be used: it is damaged",
    ),
    "offsets gone": (
        {
            ".tamis/orders/state.json": json.dumps(STATE),
            ".tamis/orders/spark/metadata": '{"id":"1"}',
            ".tamis/orders/spark/offsets/0": GONE,
        },
        ("", ""),
        1,
        "899 are gone",
    ),
}


def filled(text: str, pipeline: Pipeline) -> str:
    text = text.replace("{topic}", pipeline.topic)
    return text.replace("{cluster}", pipeline.cluster.nameserver)


@pytest.mark.parametrize("name", ERRORS)
def test_what_is_wrong_is_told_before_the_job_starts_and_nothing_is_written(
    local_cluster: LocalCluster,
    empty_topic: str,
    tmp_path: Path,
    tamis: Callable[..., Done],
    name: str,
) -> None:
    pipeline = Pipeline(None, local_cluster, empty_topic, tmp_path)
    files, (old, new), code, said = ERRORS[name]

    pipeline.write()
    text = pipeline.file.read_text()
    text = text.replace(filled(old, pipeline), new) if old else text
    pipeline.file.write_text(text)
    for path, content in files.items():
        (pipeline.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (pipeline.folder / path).write_text(filled(content, pipeline))
    before = {path: path.stat().st_mtime_ns for path in pipeline.folder.rglob("*")}
    done = tamis(str(pipeline.file))
    assert (done.code, done.out) == (code, ""), done.err
    lines = [line for line in done.err.splitlines() if line.startswith("tamis: ")]
    assert len(lines) == 1, done.err
    assert said in lines[0]
    assert {path: path.stat().st_mtime_ns for path in pipeline.folder.rglob("*")} == before


def test_the_command_prints_a_summary_and_a_dry_run_writes_nothing(
    pipeline: Pipeline, tamis: Callable[..., Done]
) -> None:
    send(pipeline.cluster, pipeline.topic, 1)
    pipeline.write(cheap='sql = "price < 10"')
    done = tamis(str(pipeline.file), "--dry-run")
    assert done.code == 0, done.err
    assert "all is well, nothing was done" in done.out
    assert sorted(path.name for path in pipeline.folder.iterdir()) == ["orders.toml", "strict.py"]
    done = tamis(str(pipeline.file), "--json")
    assert done.code == 0, done.err
    summary = json.loads(done.out)
    assert summary["messages"] == 10
    assert summary == json.loads((pipeline.folder / ".tamis/orders/summary.json").read_text())
    assert "paid" in done.err


def test_what_only_spark_knows_of_a_sink_is_told_before_anything_is_written(
    pipeline: Pipeline, tamis: Callable[..., Done]
) -> None:
    send(pipeline.cluster, pipeline.topic, 1)
    for format in ("parqet", "avro"):
        sinks = subscription("paid", "PAID", 'format = "json", path = "paid"')
        pipeline.describe(sinks + subscription("x", "NEW", f'format = "{format}", path = "x"'))
        for more in ([], ["--dry-run"]):
            done = tamis(str(pipeline.file), *more)
            assert (done.code, done.out) == (2, ""), done.err
            assert f"sink of format {format}: this Spark has none of that name" in done.err
            assert not (pipeline.folder / "paid").exists()


def test_a_run_that_fails_prints_its_summary_and_writes_it(
    pipeline: Pipeline, tamis: Callable[..., Done]
) -> None:
    send(pipeline.cluster, pipeline.topic, 1)
    sink = 'format = "parquet", path = "paid", options = { compression = "nope" }'
    pipeline.describe(subscription("paid", "PAID", sink))
    done = tamis(str(pipeline.file))
    assert (done.code, done.out) == (1, "")
    assert f"{pipeline.file}: route failed: 0 messages of nameserver" in done.err
    assert len([line for line in done.err.splitlines() if line.startswith("tamis: ")]) == 1
    summary = json.loads((pipeline.folder / ".tamis/orders/summary.json").read_text())
    assert (summary["status"], summary["messages"]) == ("failed", 0)


def test_a_replay_is_not_continuous_and_spark_is_not_asked(
    tmp_path: Path, tamis: Callable[..., Done]
) -> None:
    file = tmp_path / "replay.toml"
    file.write_text(
        '[source]\nstore = "store"\n[run]\njob = "replay"\n'
        '[replay]\nsink = { format = "json", path = "out" }'
    )
    done = tamis(str(file), "--continuous")
    assert (done.code, done.out) == (2, "")
    assert "a replay has an end: it can't be continuous" in done.err
