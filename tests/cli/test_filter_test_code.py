"""`tamis filter test --code`: filters in code on given messages and on those of a cluster.

Mostly in this process, for loading the compiled loops takes seconds."""

import asyncio
import json
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from typing import Any, Protocol

import pytest
from broker.asking import ask, close, command
from client.relaying import DAMAGES, MARK, damaging

from tamis.cli import newest
from tamis.cli.main import main
from tamis.client import Message, MessageQueue, blocking
from tamis.net.aio import connect
from tamis.testing import LocalCluster
from tamis.wire.codes import RequestCode
from tamis.wire.headers import SendMessage

MAIN = "from tamis.cli.main import main; main()"
CALM = ("--limit", "wall=60", "--limit", "cpu=60", "--limit", "load_wall=60")  # a busy machine
PATIENCE = 120.0  # seconds
MIB = 2**20

FILTERS = """
import time

import pyarrow.compute as pc


class Dear:
    def match(self, message):
        return float(message.properties["price"]) > 100


class DearBatch:
    properties = ("price:double",)

    def match_batch(self, batch):
        return pc.greater(batch["price"], 100)


class Everything:
    def match(self, message, context):
        seen = (message.tags, message.keys, message.body, message.properties["n"], context.group)
        if seen != ("A", ("k", "l"), "é".encode(), "1", "shoppers"):
            raise ValueError(str(seen))
        return True


class Marked:
    columns = ("body",)

    def match(self, message):
        return message.body.startswith(b"+")


class Endless:
    def match(self, message):
        while True:
            pass


class Greedy:
    def match(self, message):
        self.kept = bytearray(2**30)
        return True


class OneAnswer:
    columns = ("offset",)

    def match_batch(self, batch):
        return [True]


class DependsOnOthers:
    columns = ("offset",)

    def match_batch(self, batch):
        return [batch.num_rows > 1] * batch.num_rows


class Undecided:
    def match(self, message):
        return None


class SleepsAtFirst:
    def __init__(self):
        time.sleep(3600)

    def match(self, message):
        return True


class Wrong:
    columns = ("colour",)

    def match(self, message):
        return True
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("filters") / "f.py"
    path.write_text(FILTERS)
    return str(path)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as made:
        yield made


Done = subprocess.CompletedProcess[str]


class Tamis(Protocol):
    def __call__(self, *arguments: str) -> Done: ...


@pytest.fixture
def tamis(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tamis:
    def run(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["tamis", "filter", "test", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return Done(arguments, ended.value.code, said.out, said.err)  # type: ignore[arg-type]

    return run


def run_process(*arguments: str, before: str = "") -> Done:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", before + MAIN, "filter", "test", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def objects(done: Done) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


# Given messages.


def test_a_match_exits_0_and_says_what_it_took(file: str) -> None:
    done = run_process("--code", f"{file}:Dear", "-p", "price=120", *CALM)
    assert (done.returncode, done.stderr) == (0, ""), done
    verdict, _, used, isolation = done.stdout.splitlines()
    assert verdict == "matched"
    assert re.search(r" m?s \(.* m?s of CPU\); at most .* MiB of 512 MiB of memory", used)
    assert used.endswith("; 0 restarts")
    assert isolation.startswith("  isolation level ")


@pytest.mark.parametrize(
    ("name", "arguments", "code", "lines"),
    [
        ("Dear", ["-p", "price=1"], 1, ["not matched"]),
        ("Dear", [], 1, ["failed", "KeyError: 'price'"]),
        ("DearBatch", ["-p", "price=120"], 0, ["matched"]),
        ("DearBatch", ["-p", "price=dear"], 1, ["not matched"]),
        ("Undecided", ["--body", "x"], 1, ["failed", "match gave None, not a boolean"]),
        (
            "Everything",
            [
                *("-p", "n=1", "--tag", "A", "--keys", "k", "--keys", "l", "--body", "é"),
                *("--group", "shoppers"),
            ],
            0,
            ["matched"],
        ),
    ],
)
def test_a_given_message_is_judged(
    tamis: Tamis, file: str, name: str, arguments: list[str], code: int, lines: list[str]
) -> None:
    done = tamis("--code", f"{file}:{name}", *arguments, *CALM)
    assert (done.returncode, done.stderr) == (code, ""), done
    assert done.stdout.partition("\n\n")[0].splitlines() == lines


@pytest.mark.parametrize(
    ("name", "limit", "reason"),
    [
        ("Endless", "wall=0.5", "took longer than 0.5 s"),
        ("Greedy", f"memory={64 * MIB}", "needs more than 64 MiB of memory"),
    ],
)
def test_a_filter_that_breaks_a_limit_fails_with_the_reason(
    tamis: Tamis, file: str, name: str, limit: str, reason: str
) -> None:
    done = tamis("--code", f"{file}:{name}", *CALM, "--limit", limit)
    assert (done.returncode, done.stderr) == (1, ""), done
    assert done.stdout.splitlines()[:2] == ["failed", reason]
    assert f"1 restart (the last: {reason})" in done.stdout


def test_json_has_the_verdict_and_what_it_took(tamis: Tamis, file: str) -> None:
    done = tamis("--code", f"{file}:Dear", "-p", "price=1", "--json", *CALM)
    (said,) = objects(done)
    assert (done.returncode, said["compile"]) == (1, "ok")
    assert (said["result"], said["matched"], said["error"]) == (False, False, None)
    assert min(said["seconds"], said["cpu_seconds"], said["peak_memory"]) > 0
    assert (said["restarts"], said["last_breach"], said["isolation"] < 4) == (0, None, True)
    (said,) = objects(tamis("--code", f"{file}:Dear", "--json", *CALM))
    assert (said["result"], said["matched"]) == ("error:KeyError: 'price'", False)
    done = tamis("--code", f"{file}:Missing", "--json")
    (said,) = objects(done)
    assert (done.returncode, said["compile"]) == (2, "error")
    assert said["error"]["message"] == f"{file} has no class Missing"


# What can't be done.


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--code", "FILE"], "write file.py:Class"),
        (["--code", "nowhere.py:Dear"], "there is no file nowhere.py"),
        (["--code", "FILE:Missing"], "has no class Missing"),
        (["--code", "FILE:Wrong"], "no column 'colour'"),
        (
            ["--code", "FILE:SleepsAtFirst", "--limit", "load_wall=0.5"],
            "took longer than 0.5 s while it was loaded",
        ),
        (["--code", "FILE:Dear", "a = 1"], "EXPR and --code exclude each other"),
        (["--code", "FILE:Dear", "--strict"], "--strict: it goes with EXPR"),
        (["--code", "FILE:Dear", "--tags"], "a message's tag is --tag"),
        (["a = 1", "--topic", "T"], "--topic: it goes with --code"),
        (["a = 1", "--limit", "wall=1"], "--limit: it goes with --code"),
        (["--code", "FILE:Dear", "--last", "3"], "--last: it goes with --topic"),
        (["--code", "FILE:Dear", "--nameserver", "a:1"], "--nameserver: it goes with --topic"),
        (["--code", "FILE:Dear", "--topic", "T", "-p", "a=1"], "--topic and --property exclude"),
        (["--code", "FILE:Dear", "--topic", "T", "--body", "b"], "--topic and --body exclude"),
        (["--code", "FILE:Dear", "--topic", "T", "--last", "0"], "--last"),
        (["--code", "FILE:Dear", "--limit", "wall=inf"], "'inf' is not a number"),
        (["--code", "FILE:Dear", "--limit", "memory=1"], "memory = 1"),
        (["--code", "FILE:Dear", "-p", "a\x01b=1"], "no property may have"),
        (["--code", "FILE:Dear", "-p", "a=" + "x" * 40_000], "32,767 fit"),
    ],
)
def test_misuse_is_answered_in_one_line(
    tamis: Tamis, file: str, arguments: list[str], line: str
) -> None:
    done = tamis(*(one.replace("FILE", file) for one in arguments))
    assert (done.returncode, done.stdout) == (2, ""), done
    assert len(done.stderr.splitlines()) == 1
    assert line in done.stderr


def test_without_isolation_nothing_is_run(file: str) -> None:
    elsewhere = "import sys, tamis.sandbox; sys.platform = 'elsewhere'; "
    done = run_process("--code", f"{file}:Dear", before=elsewhere)
    assert (done.returncode, done.stdout) == (2, ""), done
    assert done.stderr == "tamis: a sandbox needs Linux; this is elsewhere\n"


def test_isolation_can_be_switched_off_for_code_that_is_trusted(tamis: Tamis, file: str) -> None:
    done = tamis("--code", f"{file}:Dear", "-p", "price=120", "--isolation", "off", *CALM)
    assert done.returncode == 0, done
    assert "isolation level 4 of 4: limits only" in done.stdout


# Messages of a topic.


def create_topic(cluster: LocalCluster, queues: int) -> str:
    name = f"T-{uuid.uuid4().hex[:8]}"
    with blocking.Admin(cluster.nameserver) as admin:
        admin.create_topic(name, queues=queues)
    return name


def fill(cluster: LocalCluster, topic: str, *messages: tuple[int, bytes, dict[str, str]]) -> None:
    """Messages as queue, body and properties. When it is done they can be read."""
    with blocking.Producer(cluster.nameserver) as producer:
        for queue_id, body, properties in messages:
            queue = MessageQueue(topic, "broker-a", queue_id)
            producer.send(Message(topic, body, properties=properties), queue=queue)
    deadline = time.monotonic() + PATIENCE
    with blocking.Admin(cluster.nameserver) as admin:
        while (found := sum(one.end for one in admin.topic(topic).queues)) < len(messages):
            assert time.monotonic() < deadline, found


def test_the_newest_messages_of_all_queues_are_judged(cluster: LocalCluster, file: str) -> None:
    topic = create_topic(cluster, 3)
    prices = [{"price": "1"}, {"price": "200"}, {"price": "300"}, {}, {"price": "5"}]
    fill(cluster, topic, *((n % 2, b"x", named) for n, named in enumerate(prices)))
    with blocking.Admin(cluster.nameserver) as admin:
        before = admin.groups(all=True)
        given = ["--topic", topic, "--last", "4", "--nameserver", cluster.nameserver, *CALM]
        done = run_process("--code", f"{file}:Dear", *given)
        assert (done.returncode, done.stderr) == (1, ""), done
        assert admin.groups(all=True) == before
        assert admin.topic(topic).groups == []  # nobody has an offset there
    *lines, blank, counts, used, _ = done.stdout.splitlines()
    shown = [(line[:11].rstrip(), line[line.index("queue") :]) for line in lines]
    at = f"queue {{}} of {topic} at broker-a, offset {{}}"
    assert shown == [
        ("matched", at.format(1, 0)),
        ("matched", at.format(0, 1)),
        ("failed", at.format(1, 1) + ": KeyError: 'price'"),
        ("not matched", at.format(0, 2)),
    ]
    is_timed = [re.search(r"[0-9.]+ m?s .*queue", line) is not None for line in lines]
    assert is_timed == [True, True, False, True]
    assert (blank, counts) == ("", "4 messages: 2 matched, 1 not matched, 1 failed")
    assert " a message, judged together (" in used
    assert used.endswith("; 0 restarts")


def test_a_batch_filter_is_given_all_of_them_and_exits_0(
    tamis: Tamis, cluster: LocalCluster, file: str
) -> None:
    topic = create_topic(cluster, 1)
    fill(cluster, topic, *((0, b"x", {"price": str(n * 60)}) for n in range(4)))
    given = ["--topic", topic, "--nameserver", cluster.nameserver, "--json", *CALM]
    done = tamis("--code", f"{file}:DearBatch", *given)
    assert (done.returncode, done.stderr) == (0, ""), done
    *rows, summary = objects(done)
    assert [row["result"] for row in rows] == [False, False, True, True]
    assert [(row["broker"], row["queue"], row["offset"]) for row in rows] == [
        ("broker-a", 0, n) for n in range(4)
    ]
    assert all(row["seconds"] > 0 and row["memory"] >= 0 for row in rows)
    counted = ("messages", "matched", "not_matched", "failed", "unread", "contradicted")
    assert [summary[name] for name in counted] == [4, 2, 2, 0, 0, 0]
    assert (summary["peak_memory"] > 0, summary["restarts"]) == (True, 0)


def test_the_newest_are_found_where_they_are(
    tamis: Tamis, cluster: LocalCluster, file: str
) -> None:
    """Some queues have none of them, others more than are read at once."""
    topic = create_topic(cluster, 4)
    queues = [0] * 40 + [1] * 100 + [2, 1] * 5
    fill(cluster, topic, *((queue, b"+", {}) for queue in queues))
    seen = dict.fromkeys(queues, -1)
    places = []
    for queue in queues:
        seen[queue] += 1
        places.append((queue, seen[queue]))
    given = ["--topic", topic, "--last", "112", "--nameserver", cluster.nameserver, "--json"]
    done = tamis("--code", f"{file}:Marked", *given, *CALM)
    assert (done.returncode, done.stderr) == (0, ""), done
    *rows, summary = objects(done)
    assert sorted((row["queue"], row["offset"]) for row in rows) == sorted(places[-112:])
    assert [row["stored"] for row in rows] == sorted(row["stored"] for row in rows)
    assert summary["matched"] == 112


def test_messages_that_are_too_large_together_are_fewer(
    tamis: Tamis, cluster: LocalCluster, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newest, "_MOST_BYTES", 3000)
    topic = create_topic(cluster, 2)
    fill(cluster, topic, *((n % 2, b"+" * 800, {}) for n in range(8)))
    given = ["--topic", topic, "--nameserver", cluster.nameserver, "--json", *CALM]
    done = tamis("--code", f"{file}:Marked", *given)
    assert done.returncode == 0, done
    places = [(row["queue"], row["offset"]) for row in objects(done)[:-1]]
    assert places == [(1, 2), (0, 3), (1, 3)]
    assert done.stderr == "tamis: only the newest 3: together they are too large\n"


def test_an_endless_filter_fails_on_each_with_its_position(
    cluster: LocalCluster, file: str
) -> None:
    topic = create_topic(cluster, 1)
    fill(cluster, topic, *((0, b"x", {}) for _ in range(5)))
    given = ["--topic", topic, "--nameserver", cluster.nameserver, *CALM, "--limit", "wall=0.3"]
    done = run_process("--code", f"{file}:Endless", *given)
    assert (done.returncode, done.stderr) == (1, ""), done
    lines = done.stdout.splitlines()[:5]
    assert [line.split() for line in lines] == [
        f"failed queue 0 of {topic} at broker-a, offset {n}: took longer than 0.3 s".split()
        for n in range(5)
    ]
    assert "5 messages: 0 matched, 0 not matched, 5 failed" in done.stdout


def test_a_mask_that_fits_one_message_only_is_found_out(
    tamis: Tamis, cluster: LocalCluster, file: str
) -> None:
    assert tamis("--code", f"{file}:OneAnswer", *CALM).returncode == 0
    topic = create_topic(cluster, 1)
    fill(cluster, topic, *((0, b"x", {}) for _ in range(3)))
    given = ["--topic", topic, "--nameserver", cluster.nameserver, *CALM]
    done = tamis("--code", f"{file}:OneAnswer", *given)
    assert done.returncode == 1
    assert done.stdout.count("match_batch gave 1 answers for 3 rows") == 3


def test_a_verdict_that_depends_on_other_messages_is_pointed_out(
    tamis: Tamis, cluster: LocalCluster, file: str
) -> None:
    topic = create_topic(cluster, 1)
    fill(cluster, topic, *((0, b"x", {}) for _ in range(3)))
    given = ["--topic", topic, "--nameserver", cluster.nameserver, *CALM]
    done = tamis("--code", f"{file}:DependsOnOthers", *given)
    assert (done.returncode, done.stdout.count("matched   ")) == (0, 3)
    assert done.stderr.startswith("tamis: 3 of the messages get another verdict when they are")
    assert len(done.stderr.splitlines()) == 1


def test_a_topic_without_messages_and_one_that_is_not_there(
    tamis: Tamis, cluster: LocalCluster, file: str
) -> None:
    topic = create_topic(cluster, 2)
    given = ["--code", f"{file}:Dear", "--nameserver", cluster.nameserver, *CALM]
    done = tamis(*given, "--topic", topic)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == f"no messages in {topic}"
    done = tamis(*given, "--topic", "nowhere")
    assert (done.returncode, done.stdout) == (1, "")
    assert "topic nowhere is not known" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("name", ["magic", "size, too large"])
def test_a_damaged_record_is_named_and_the_others_are_judged(
    tamis: Tamis, cluster: LocalCluster, file: str, name: str
) -> None:
    topic = create_topic(cluster, 1)
    bodies = [b"+0", b"+1", MARK + b"0" * 600, b"3", b"+4"]
    fill(cluster, topic, *((0, body, {}) for body in bodies))
    with damaging(cluster, DAMAGES[name], topic) as nameserver:
        given = ["--topic", topic, "--nameserver", nameserver, "--json", *CALM]
        done = tamis("--code", f"{file}:Marked", *given)
    assert done.returncode == 1, done
    *rows, summary = objects(done)
    assert [(row["offset"], row["matched"]) for row in rows] == [
        *((0, True), (1, True)),
        *((3, False), (4, True)),
    ]
    assert (summary["unread"], summary["failed"]) == (1, 0)
    assert f"topic {topic}, queue 0 of broker-a, offset 2: damaged" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_body_that_does_not_decompress_has_no_verdict(cluster: LocalCluster, file: str) -> None:
    topic = create_topic(cluster, 1)

    async def send() -> None:
        peer = await connect(cluster.broker)
        for sys_flag, body in ((0, b"+0"), (1, b"not zlib"), (0, b"2")):
            header = SendMessage(
                producer_group="P",
                topic=topic,
                default_topic="TBW102",
                default_topic_queue_nums=1,
                queue_id=0,
                sys_flag=sys_flag,
                born_timestamp=1,
                flag=0,
            )
            await ask(peer, command(header, RequestCode.SEND_MESSAGE_V2, body))
        await close(peer)

    asyncio.run(send())
    fill(cluster, topic, (0, b"+3", {}))
    given = ["--topic", topic, "--nameserver", cluster.nameserver, "--json", *CALM]
    done = run_process("--code", f"{file}:Marked", *given)
    assert (done.returncode, done.stderr) == (1, ""), done
    results = [row["result"] for row in objects(done)[:-1]]
    assert results == [True, "error:its body can't be read", False, True]
