"""Attacks on what the broker remembers of readers, and on what it tells of them.

As those of `hostile_moves.py`, each is a function of its `Target`.
"""

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

from hostile_moves import Target
from hostile_wire import ask_frame, create_topic, heartbeat, pull, request

from tamis.wire.codes import RequestCode
from tamis.wire.command import Command
from tamis.wire.headers import UpdateConsumerOffset

__all__ = ["changing_filters", "questions_of_fates", "torn_readings"]

TOPIC = "Remembered"
Code = RequestCode


def _fill(target: Target) -> None:
    with target.stream() as stream:
        target.ask(stream, create_topic(TOPIC, 4))
        for number in range(64):
            target.send(stream, TOPIC, number % 4, b"%d" % number)


def _group(name: str, text: str, kind: str = "TAG") -> dict[str, Any]:
    one = {"topic": TOPIC, "subString": text, "expressionType": kind, "tagsSet": [], "codeSet": []}
    if kind == "TAG":
        one["tagsSet"] = [text]
    return {
        "groupName": name,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "subscriptionDataSet": [one],
    }


def changing_filters(target: Target) -> None:
    """Members of a group that change their filters with each heartbeat, some of them to long ones,
    and read after each; under `isolate` too."""
    _fill(target)
    with target.stream() as stream:
        fields = {"group": "changing-0", "policy": "isolate"}
        target.ask(stream, Command(code=Code.SET_GROUP_POLICY, fields=fields))

    def frames(name: str) -> Iterator[bytes]:
        for n in range(target.many(40_000)):
            text = f"{n}" + "x" * (20_000 if n % 50 == 0 else 0)
            group = f"changing-{n % 3}"
            client = f"{name}-{'y' * 900 if n % 7 == 0 else n % 7}"
            yield ask_frame(heartbeat(client, [_group(group, text)]))
            yield ask_frame(pull(TOPIC, n % 4, n % 16, group=group, tags=text))

    for name in ("a", "b"):
        target.pour(frames(name))
    target.hold()


def torn_readings(target: Target) -> None:
    """Two connections that read the same queues in turns, from offsets here and there, and commit
    offsets at random: each is remembered. Of groups that are made up, too."""
    _fill(target)

    def command(n: int) -> Command:
        group = "torn" if n % 4 else f"made-up-{n}"
        offset = target.rng.randrange(16)
        if n % 3:
            return pull(TOPIC, n % 4, offset, group=group, count=1)
        header = UpdateConsumerOffset(
            consumer_group=group, topic=TOPIC, queue_id=n % 4, commit_offset=offset
        )
        return request(header)

    with target.stream() as one, target.stream() as other:
        for n in range(0, target.many(200_000), 8):
            for number, stream in enumerate((one, other)):
                frames = [ask_frame(command(n + 4 * number + i)) for i in range(4)]
                stream.socket.sendall(b"".join(frames))
                target.done.requests += len(frames)
            for stream in (one, other):
                left = 4
                while left > 0:
                    left -= len(stream.receive())
            if target.is_over:
                break


def questions_of_fates(target: Target) -> None:
    """All that can be asked about fates, of everything at once, and a good part of it broken."""
    _fill(target)
    where = {"topic": TOPIC, "queueId": "0", "offset": "3"}
    deep = "[" * 500 + "]" * 500
    questions = [
        Command(code=Code.GET_HISTORY, fields={}),
        Command(code=Code.EXPLAIN_MESSAGE, fields=where),
        Command(code=Code.GET_MATCHING_LAG, fields={"timeoutMillis": "10000"}),
        Command(code=Code.GET_GROUP_RULES, fields={}),
        Command(code=Code.GET_FILTER_VERDICTS, fields={}),
        Command(code=Code.EXPLAIN_MESSAGE, fields=where | {"codeOutcomes": deep}),
        Command(code=Code.EXPLAIN_MESSAGE, fields=where | {"codeOutcomes": '{"a":{"b":1}}'}),
        Command(code=Code.EXPLAIN_MESSAGE, fields=where | {"offset": "-1"}),
        Command(code=Code.EXPLAIN_MESSAGE, fields=where | {"offset": "9" * 30}),
        Command(code=Code.SET_GROUP_POLICY, fields={"group": "x" * 5000, "policy": "reject"}),
        Command(code=Code.SET_GROUP_POLICY, fields={"group": "g", "policy": "y" * 5000}),
        Command(
            code=Code.SET_GROUP_FILTER,
            fields={"group": "g", "topic": TOPIC, "kind": "SQL92", "expression": "a >" * 5000,
                    "start": "queues:" + deep},
        ),
        Command(code=Code.GET_MATCHING_LAG, fields={"timeoutMillis": "x"}, body=b"\xff" * 1000),
    ]  # fmt: skip
    frames = itertools.cycle([ask_frame(one) for one in questions])
    with contextlib.suppress(OSError):
        target.pour(itertools.islice(frames, target.many(100_000)))
