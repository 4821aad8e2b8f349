"""`tamis send` and `tamis consume`, as processes against a cluster."""

import base64
import json
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO, Any

import pytest

from tamis.client import ConsumerConfig, Message, SendResult, blocking
from tamis.testing import LocalCluster

TAMIS = [sys.executable, "-W", "error", "-c", "from tamis.cli.main import main; main()"]
PATIENCE = 60.0  # seconds
IN_ORDER = ("--sharding-key", "k")


@pytest.fixture(scope="module")
def nameserver() -> Iterator[str]:
    settings = {"enablePropertyFilter": True, "messageDelayLevel": "1s " * 18}
    with LocalCluster(**settings) as cluster, pytest.MonkeyPatch.context() as patch:
        patch.setenv("NAMESRV_ADDR", cluster.nameserver)
        yield cluster.nameserver


@pytest.fixture
def topic(nameserver: str) -> str:
    return create_topic(nameserver)


def create_topic(nameserver: str, queues: int = 1) -> str:
    name = f"T-{uuid.uuid4().hex[:8]}"
    with blocking.Admin(nameserver) as admin:
        admin.create_topic(name, queues=queues)
    return name


def tamis(*arguments: object, given: str | bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*TAMIS, *map(str, arguments)],
        input=given.encode() if isinstance(given, str) else given,
        capture_output=True,
        timeout=PATIENCE,
    )


def rows(done: subprocess.CompletedProcess[bytes]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done
    assert done.stderr == b""
    return [json.loads(line) for line in done.stdout.splitlines()]


def fill(nameserver: str, *messages: Message) -> list[SendResult]:
    """When it is done they can be read."""
    with blocking.Producer(nameserver) as producer:
        sent = [producer.send(one) for one in messages]
    wait_for_end(nameserver, messages[0].topic, len(messages))
    return sent


def wait_for_end(nameserver: str, topic: str, count: int) -> None:
    """A message is in its queue a little after its producer is told."""
    deadline = time.monotonic() + PATIENCE
    with blocking.Admin(nameserver) as admin:
        while (found := sum(one.end for one in admin.topic(topic).queues)) < count:
            assert time.monotonic() < deadline, found


def stored(nameserver: str, topic: str, count: int, group: str = "") -> list[Any]:
    """The first so many."""
    config = ConsumerConfig(start="first")
    consumer = blocking.Consumer(nameserver, group or f"G-{uuid.uuid4().hex[:8]}", config=config)
    consumer.assign(consumer.queues(topic))
    found: list[Any] = []
    deadline = time.monotonic() + PATIENCE
    with consumer:
        while len(found) < count:
            found += consumer.getmany(count - len(found), timeout=1.0)
            assert time.monotonic() < deadline, found
    return found


# Sending


def test_a_body_of_the_command_line_is_sent(nameserver: str, topic: str) -> None:
    given = ["--tags", "a", "--keys", "k1", "--keys", "k2", "--property", "n=1=2"]
    [row] = rows(tamis("send", topic, "hellö", *given))
    [found] = stored(nameserver, topic, 1)
    assert (found.text, found.tags, found.keys) == ("hellö", "a", ("k1", "k2"))
    assert found.properties["n"] == "1=2"
    assert row == {
        "message_id": found.message_id,
        "offset_message_id": found.offset_message_id,
        "topic": topic,
        "broker": found.queue.broker_name,
        "queue": 0,
        "offset": 0,
        "status": "SEND_OK",
    }


def test_lines_of_json_say_all_of_a_message(nameserver: str, topic: str) -> None:
    lines = [
        {"body": "ü", "tags": "a", "keys": ["x", "y"], "flag": 3, "topic": "Elsewhere"},
        {"body_base64": base64.b64encode(b"\0\xff").decode(), "keys": "x y", "tags": None},
        {"body": "p", "properties": {"s": "t", "i": 1, "f": 1.5, "b": True}, "key": "k"},
    ]
    given = "\n\n".join(map(json.dumps, lines))
    done = tamis(
        "send",
        topic,
        "--tags",
        "t",
        "--property",
        "i=0",
        "--property",
        "z=9",
        *IN_ORDER,
        given=given,
    )
    assert [row["offset"] for row in rows(done)] == [0, 1, 2]
    one, two, three = stored(nameserver, topic, 3)
    assert (one.text, one.tags, one.keys, one.flag) == ("ü", "a", ("x", "y"), 3)
    assert (two.body, two.tags, two.keys) == (b"\0\xff", "t", ("x", "y"))
    own = {name: three.properties[name] for name in "sifbz"}
    assert own == {"s": "t", "i": "1", "f": "1.5", "b": "true", "z": "9"}


def test_lines_of_text_are_bodies(nameserver: str, topic: str) -> None:
    rows(tamis("send", topic, "--text", *IN_ORDER, given=b"one\r\n{two}\n\xff three"))
    assert [one.body for one in stored(nameserver, topic, 3)] == [b"one", b"{two}", b"\xff three"]


def test_a_line_can_say_its_topic(nameserver: str, topic: str) -> None:
    other = create_topic(nameserver)
    lines = [{"topic": topic, "body": "1"}, {"topic": other, "body": "2"}, {"body": "3"}]
    done = tamis("send", "-", given="\n".join(map(json.dumps, lines)))
    assert done.returncode == 1
    assert [json.loads(line)["topic"] for line in done.stdout.splitlines()] == [topic, other]
    assert done.stderr == b'tamis: line 3: it has no "topic"\n'


def test_bad_lines_are_named_and_the_others_sent(nameserver: str, topic: str) -> None:
    given = b"""{"body": "1"}
nonsense
["body"]
{"tags": "a"}
{"body": 1}
{"body": "x", "tag": "a"}
{"body": "x", "properties": {"UNIQ_KEY": "a"}}
{"body": "x", "properties": {"a": []}}
{"body": "x", "keys": [1]}
{"body": "x", "delay_level": true}
{"body_base64": "?"}
{"body": "x", "body_base64": ""}
{"body": ""}
\xff
{"body": "2"}
"""
    done = tamis("send", topic, *IN_ORDER, given=given)
    assert done.returncode == 1
    assert len(done.stdout.splitlines()) == 2
    said = dict(line.split(": ", 2)[1:] for line in done.stderr.decode().splitlines())
    assert set(said) == {f"line {n}" for n in range(2, 15)}
    assert said["line 2"].startswith("it is no JSON")
    assert said["line 3"] == 'it is no object: write {"body": ...}'
    assert said["line 4"] == 'it needs "body", which is text, or "body_base64"'
    assert said["line 5"] == '"body" is 1: it is text'
    assert said["line 6"] == '"tag": there is no such field'
    assert "keeps this name for itself" in said["line 7"]
    assert said["line 10"] == '"delay_level" is true: it is a whole number'
    assert "has no body" in said["line 13"]
    assert [one.text for one in stored(nameserver, topic, 2)] == ["1", "2"]


def test_nothing_is_sent_after_a_failure_if_so_wanted(nameserver: str, topic: str) -> None:
    given = '{"body": "1"}\n{"body": ""}\n{"body": "2"}\n'
    done = tamis("send", topic, "--stop-on-error", given=given)
    assert (done.returncode, len(done.stdout.splitlines())) == (1, 1)
    assert done.stderr.startswith(b"tamis: line 2: ")
    wait_for_end(nameserver, topic, 1)
    assert [row["body"] for row in rows(tamis("consume", topic))] == ["1"]


def test_batches_are_sent_and_told_of_one_by_one(nameserver: str, topic: str) -> None:
    given = "".join(f'{{"body": "{n}"}}\n' for n in range(10))
    done = rows(tamis("send", topic, "--batch", 4, given=given))
    assert [row["offset"] for row in done] == list(range(10))
    assert len({row["message_id"] for row in done}) == 10
    assert [one.text for one in stored(nameserver, topic, 10)] == list("0123456789")
    done = tamis("send", topic, "--batch", 4, given='{"body": "a"}\n{"body": ""}\n{"body": "b"}\n')
    assert (done.returncode, len(done.stdout.splitlines())) == (1, 2)
    assert done.stderr.startswith(b"tamis: line 2: ")
    assert done.stderr.count(b"\n") == 1


def test_one_way_prints_nothing(nameserver: str, topic: str) -> None:
    assert rows(tamis("send", topic, "gone", "--oneway")) == []
    assert [one.text for one in stored(nameserver, topic, 1)] == ["gone"]


def test_messages_of_a_sharding_key_are_in_one_queue(nameserver: str) -> None:
    topic = create_topic(nameserver, queues=8)
    given = "".join(f"{n}\n" for n in range(20))
    done = rows(tamis("send", topic, "--text", "--sharding-key", "k", given=given))
    assert len({row["queue"] for row in done}) == 1
    assert [row["offset"] for row in done] == list(range(20))


def test_a_delayed_message_comes_later(nameserver: str, topic: str) -> None:
    before = time.time()
    rows(tamis("send", topic, "later", "--delay-level", 1))
    [found] = stored(nameserver, topic, 1)
    assert found.store_timestamp / 1000 - before >= 1


def test_an_answer_is_printed_before_the_next_line_comes(topic: str) -> None:
    with subprocess.Popen(
        [*TAMIS, "send", topic, "--text"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for n in range(3):
            process.stdin.write(b"x\n")
            process.stdin.flush()
            assert json.loads(line_of(process.stdout))["offset"] == n
        process.stdin.close()
        assert process.wait(PATIENCE) == 0


def test_an_interrupt_ends_it_when_all_is_told(nameserver: str, topic: str) -> None:
    with subprocess.Popen(
        [*TAMIS, "send", topic, "--text"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"x\n")
        process.stdin.flush()
        assert json.loads(line_of(process.stdout))["offset"] == 0
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=PATIENCE)
        assert (process.returncode, output, errors.strip()) == (130, b"", b"")


def line_of(stream: IO[bytes]) -> bytes:
    """The next one; fails if it takes too long."""
    found: list[bytes] = []
    thread = threading.Thread(target=lambda: found.append(stream.readline()), daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert found, "nothing comes"
    return found[0]


# Consuming


@pytest.fixture(scope="module")
def orders(nameserver: str) -> str:
    """A topic of six messages, that nobody adds to."""
    topic = create_topic(nameserver)
    fill(
        nameserver,
        *(
            Message(topic, b"%d" % n, tags="ab"[n % 2], keys=f"k{n}", properties={"n": str(n)})
            for n in range(5)
        ),
        Message(topic, b"\xff\n"),
    )
    return topic


def test_all_that_is_there_is_printed(nameserver: str, orders: str) -> None:
    found = rows(tamis("consume", orders))
    assert [row.get("body") for row in found] == ["0", "1", "2", "3", "4", None]
    first, last = found[0], found[-1]
    system = first.pop("system")
    assert system["UNIQ_KEY"] == first.pop("message_id")
    assert len(first.pop("offset_message_id")) == 32
    assert first.pop("born") <= first.pop("stored") + 1000
    assert first == {
        "topic": orders,
        "body": "0",
        "tags": "a",
        "keys": ["k0"],
        "properties": {"n": "0"},
        "broker": "broker-a",
        "queue": 0,
        "offset": 0,
        "reconsume_times": 0,
    }
    assert base64.b64decode(last["body_base64"]) == b"\xff\n"
    assert "tags" not in last
    with blocking.Admin(nameserver) as admin:
        assert not [name for name in admin.groups() if "consume" in name]
        assert admin.topic(orders).groups == []


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--count", 2], "01"),
        (["--tags", "b"], "13"),
        (["--tags", "a || b", "--count", 4], "0123"),
        (["--sql", "n > 2"], "34"),
        (["--sql", "n > 99"], ""),
        (["--idle", 0.3, "--tags", "a"], "024"),
        (["--timeout", 0.3, "--from", "last"], ""),
        (["--from", "1d", "--count", 1], "0"),
        (["--from", "first", "--follow", "--count", 5], "01234"),
    ],
)
def test_some_are_chosen(orders: str, given: list[object], expected: str) -> None:
    done = tamis("consume", orders, "--format", "%b", *given)
    assert (done.returncode, done.stdout.decode()) == (0, expected), done


def test_a_filter_in_code_chooses_with_and_without_a_group(
    nameserver: str, orders: str, tmp_path: Path
) -> None:
    file = tmp_path / "odd.py"
    file.write_text(
        "class Odd:\n    def match(self, message):\n        return message.tags == 'b'\n"
    )
    code = ["--code", f"{file}:Odd", "--format", "%b"]
    done = tamis("consume", orders, *code)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"13", b""), done
    done = tamis("consume", orders, *code, "--group", f"G-{uuid.uuid4().hex[:8]}")
    assert (done.returncode, done.stdout) == (0, b"13"), done
    assert "has no filter server to use" in done.stderr.decode()  # so it was filtered there
    file.write_text("class Odd:\n    def matches(self, message): ...\n")
    done = tamis("consume", orders, *code)
    assert (done.returncode, done.stdout) == (2, b""), done
    assert "class Odd has neither match nor match_batch" in done.stderr.decode()


def test_templates_show_what_is_asked_for(nameserver: str, orders: str) -> None:
    form = r"%t/%B/%q/%o %T %k %{n} %{none}| %p %r 100%% %b\t\\n\n"
    done = tamis("consume", orders, "--tags", "b", "--count", 1, "--format", form)
    expected = f'{orders}/broker-a/0/1 b k1 1 | {{"n": "1"}} 0 100% 1\t\\n\n'
    assert (done.stderr, done.stdout.decode()) == (b"", expected)
    done = tamis("consume", orders, "--format", r"%i %s\n")
    found = stored(nameserver, orders, 6)
    for line, one in zip(done.stdout.decode().splitlines(), found, strict=True):
        message_id, at = line.split()
        assert message_id == one.message_id
        assert round(datetime.fromisoformat(at).timestamp() * 1000) == one.store_timestamp
    done = tamis("consume", orders, "--format", "text")
    assert done.stdout == b"0\n1\n2\n3\n4\n\xff\n\n"


def test_what_is_consumed_can_be_sent(nameserver: str, orders: str, topic: str) -> None:
    printed = tamis("consume", orders).stdout
    rows(tamis("send", topic, *IN_ORDER, given=printed))
    for one, copy in zip(stored(nameserver, orders, 6), stored(nameserver, topic, 6), strict=True):
        assert (copy.topic, copy.body, copy.tags, copy.keys) == (
            topic,
            one.body,
            one.tags,
            one.keys,
        )
        assert copy.properties.get("n") == one.properties.get("n")
        assert copy.message_id != one.message_id


def test_a_group_goes_on_where_it_was(nameserver: str, orders: str) -> None:
    group = f"G-{uuid.uuid4().hex[:8]}"

    def bodies(*given: object) -> str:
        done = tamis("consume", orders, "--group", group, "--format", "%b", "--tags", "*", *given)
        assert done.returncode == 0, done
        return done.stdout.decode(errors="replace").strip()

    assert bodies("--count", 2) == "01"
    assert bodies("--count", 2) == "23"
    assert bodies() == "4�"
    assert bodies() == ""
    assert bodies("--from", "first", "--count", 3) == "012"
    assert bodies("--from", "committed", "--count", 1) == "3"


def test_a_member_without_a_queue_says_so(nameserver: str, topic: str) -> None:
    group = f"G-{topic}"
    fill(nameserver, Message(topic, b"1"))
    holder = blocking.PushConsumer(
        nameserver, group, print, config=ConsumerConfig(instance_name="0", client_ip="0.0.0.0")
    )
    holder.subscribe(topic)  # its id is the first: it keeps the only queue
    with holder:
        done = tamis("consume", topic, "--group", group)
    assert (done.returncode, done.stdout) == (1, b""), done
    assert f"group {group}: no queue fell to this member" in done.stderr.decode()


@contextmanager
def following(*arguments: object) -> Iterator["subprocess.Popen[bytes]"]:
    """When it reads."""
    process = subprocess.Popen(
        [*TAMIS, "consume", *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert process.stderr is not None
        said = line_of(process.stderr)
        assert b": reading " in said, said
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_commits_what_was_printed(
    nameserver: str, topic: str, number: signal.Signals
) -> None:
    group = f"G-{topic}"
    given = [topic, "--group", group, "--follow", "--format", r"%b\n"]
    with following(*given) as process:
        fill(nameserver, Message(topic, b"1"), Message(topic, b"2"))
        assert process.stdout is not None
        assert [line_of(process.stdout) for _ in range(2)] == [b"1\n", b"2\n"]
        process.send_signal(number)
        rest, errors = process.communicate(timeout=PATIENCE)
        assert (process.returncode, rest, errors) == (0, b"", b"")
    with blocking.Admin(nameserver) as admin:
        assert [one.committed for one in admin.offsets(group, topic)] == [2]


def test_from_last_shows_only_what_comes(nameserver: str, orders: str, topic: str) -> None:
    fill(nameserver, Message(topic, b"before"))
    with following(topic, "--from", "last", "--count", "2", "--format", "text") as process:
        fill(nameserver, Message(topic, b"1"), Message(topic, b"2"))
        output, errors = process.communicate(timeout=PATIENCE)
        assert (process.returncode, output, errors) == (0, b"1\n2\n", b"")


def test_an_interrupted_read_is_not_taken_for_complete(topic: str) -> None:
    with following(topic, "--follow", "--count", "5") as process:
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=PATIENCE)
        assert (process.returncode, output, errors.strip()) == (130, b"", b"")


def test_a_command_that_was_started_to_ignore_interrupts_does(nameserver: str, topic: str) -> None:
    """As shells start jobs in the background: Ctrl-C is for what is in the foreground."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with following(topic, "--follow", "--format", r"%b\n") as process:
        process.send_signal(signal.SIGINT)
        fill(nameserver, Message(topic, b"1"))
        assert process.stdout is not None
        assert line_of(process.stdout) == b"1\n"
        process.send_signal(signal.SIGTERM)
        rest, errors = process.communicate(timeout=PATIENCE)
        assert (process.returncode, rest, errors) == (0, b"", b"")


def test_a_closed_pipe_ends_both_in_silence(nameserver: str, topic: str) -> None:
    for command in (["consume", topic], ["send", topic, "--text"]):
        fill(nameserver, *(Message(topic, b"x" * 100) for _ in range(100)))
        process = subprocess.Popen(
            [*TAMIS, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout is not None
        process.stdout.close()
        process.stdout = None
        _, errors = process.communicate(b"x\n" * 100, timeout=PATIENCE)
        assert (process.returncode, errors) == (1, b""), command


def test_light_libraries_are_enough(orders: str) -> None:
    program = (
        "import sys; from tamis.cli.main import tamis\n"
        "try:\n"
        f"    tamis.main(['consume', {orders!r}, '--count', '1'], standalone_mode=False)\n"
        "finally:\n"
        "    print([m for m in ('numpy', 'pyarrow', 'numba') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines()[1:] == ["[]"], done


# What goes wrong


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["consume", "T", "--tags", "a", "--sql", "b"],
            "--tags, --sql and --code exclude each other",
        ),
        (["consume", "T", "--sql", "a", "--code", "b.py:B"], "exclude each other"),
        (["consume", "T", "--code", "b.py"], "code 'b.py': write file.py:Class"),
        (["consume", "T", "--code", "no-such.py:B"], "there is no file no-such.py"),
        (["consume", "T", "--from", "committed"], "give --group"),
        (["consume", "T", "--from", "yesterdayish"], "'yesterdayish' is no time"),
        (["consume", "T", "--format", "%z"], "there is no %z"),
        (["consume", "T", "--format", "xml"], "'xml' is none of json and text"),
        (["consume", "T", "--sql", "a >"], "column"),
        (["consume", "a b"], "'a b' can't be the name of a topic"),
        (["consume", "T", "--group", "a b"], "'a b' can't be the name of a group"),
        (["consume", "T", "-n", "here"], "'here' is not an address"),
        (["send", "T", "x", "-n", "here"], "'here' is not an address"),
        (["send", "T", "x", "--text"], "BODY excludes"),
        (["send", "-", "--text"], "don't say their topic"),
        (["send", "T", "x", "--oneway", "--batch", "2"], "--oneway excludes"),
        (["send", "T", "--batch", "2", "--delay-level", "1"], "--batch excludes --delay-level"),
        (["send", "T", "x", "--property", "a"], "'a' is not NAME=VALUE"),
        (["send", "T", "x", "--delay-level", "99"], "99 is not in the range 0<=x<=18"),
        (["send", "T", "x", "--tags", "a||b"], "a message has one tag, and || separates"),
    ],
)
def test_misuse_is_answered_in_a_line(nameserver: str, arguments: list[str], said: str) -> None:
    done = tamis(*arguments)
    assert (done.returncode, done.stdout) == (2, b""), done
    assert said in done.stderr.decode().splitlines()[0]


def test_what_is_not_there_is_named(nameserver: str, topic: str, tmp_path: Path) -> None:
    done = tamis("consume", "Nowhere")
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"Nowhere" in done.stderr
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = f"127.0.0.1:{taken.getsockname()[1]}"
    for command in (["consume", topic], ["send", topic, "x"]):
        done = tamis(*command, "-n", free)
        assert (done.returncode, done.stdout) == (1, b"")
        assert f"the name server at {free} can't be reached" in done.stderr.decode()
        assert done.stderr.count(b"\n") == 1
    done = tamis("send", topic, "")
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"BODY is empty" in done.stderr
