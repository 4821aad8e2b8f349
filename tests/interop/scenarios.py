"""What users of RocketMQ do, as scripts for Apache's Java client.

A scenario is run against a cluster and returns what it saw, in plain values without names, ids or
times: run against Apache's servers and against ours, the results must be equal.

    .venv/bin/python tests/interop/scenarios.py --list
    .venv/bin/python tests/interop/scenarios.py 127.0.0.1:9876 push_ordered tags --line 5.3
    .venv/bin/python tests/interop/scenarios.py ours rebalance     (starts our servers)
    .venv/bin/python tests/interop/scenarios.py apache rebalance   (starts RocketMQ 4.9.4)
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from interop.cluster import Target, apache_cluster, our_cluster
from interop.javaclient import PATIENCE, JavaClient, JavaError, Row, wait_for

SETTINGS: dict[str, object] = {
    "messageDelayLevel": "1s 2s 1s 1s",
    "transactionTimeOut": 1000,  # ms, as is the next
    "transactionCheckInterval": 1000,
}
STRICT: dict[str, object] = {
    "autoCreateSubscriptionGroup": False,
    "autoCreateTopicEnable": False,
    "enablePropertyFilter": False,
}


Scenario = Callable[[Target, JavaClient], Any]
SCENARIOS: dict[str, Scenario] = {}  # need a broker with SETTINGS
STRICT_SCENARIOS: dict[str, Scenario] = {}  # need a broker with STRICT


def scenario(function: Scenario) -> Scenario:
    SCENARIOS[function.__name__] = function
    return function


def strict_scenario(function: Scenario) -> Scenario:
    STRICT_SCENARIOS[function.__name__] = function
    return function


def run(name: str, target: Target, java: JavaClient) -> Any:
    """One scenario, with names of its own, leaving no client behind."""
    java.renew()
    java.nameserver = target.nameserver
    try:
        return (SCENARIOS | STRICT_SCENARIOS)[name](target, java)
    finally:
        java.stop_all()


# sending


@scenario
def sends(target: Target, java: JavaClient) -> Any:
    topic = java.create_topic(target.broker, java.name("Sends"), queues=6)
    java.producer(compress_over=2000)

    def message(body: str, **rest: object) -> Row:
        return {"topic": topic, "body": body, **rest}

    rich = {"tags": "PAID", "keys": "k1 k2", "flag": 7, "properties": {"region": "亚太", "n": "1"}}
    results = {
        "sync": java.send("producer", message("s0", queue=0, **rich), message("s1", queue=0)),
        "async": java.send(
            "producer", *(message(f"a{i}", queue=1) for i in range(5)), mode="async"
        ),
        "oneway": java.send(
            "producer", *(message(f"o{i}", queue=2) for i in range(5)), mode="oneway"
        ),
        "batch": java.send(
            "producer",
            *(message(f"b{i}", queue=3, tags=f"T{i % 2}", keys=f"b{i}") for i in range(5)),
            mode="batch",
        ),
        "ordered": java.send("producer", *(message(f"r{i}", shard=4) for i in range(5))),
        "large": java.send(
            "producer", message("x" * 100_000, queue=5), message("订单" * 999, queue=5)
        ),
    }
    java.puller("reader", java.name("reader"))
    _await_messages(java, target.broker, topic, 6, 24)
    read = java.pull_all("reader", topic)
    ids = [row["offset_msg_id"] for row in read]
    batch = results["batch"][0]
    return {
        "results": {
            mode: sorted((r["status"], r["queue"], r["offset"]) for r in rows if r is not None)
            for mode, rows in results.items()
        },
        "batch ids": [len(batch[kind].split(",")) for kind in ("msg_id", "offset_msg_id")],
        "sent ids are stored ids": [r["offset_msg_id"] in ids for r in results["sync"]],
        "unique keys are message ids": all(
            row["properties"]["UNIQ_KEY"] == row["msg_id"] for row in read
        ),
        "read": sorted(_content(row) for row in read),
        "in order": {q: bodies for q, bodies in _in_order(read).items() if q in (0, 3, 4)},
    }


@scenario
def topics_made_by_sending(target: Target, java: JavaClient) -> Any:
    topic = java.name("Made")
    java.producer()
    first = java.send("producer", {"topic": topic, "body": "first"})
    java.puller("reader", java.name("reader"))
    wait_for(
        lambda: java.request(target.nameserver, 105, {"topic": topic}), lambda r: r["code"] == 0
    )
    _await_messages(java, target.broker, topic, 4, 1)
    return {
        "status": first[0]["status"],
        "queues": java.queues("reader", topic),
        "bodies": _bodies(java.pull_all("reader", topic)),
    }


@scenario
def delays(target: Target, java: JavaClient) -> Any:
    topic = java.create_topic(target.broker, java.name("Delays"), queues=1)
    java.push("consumer", java.name("group"), {topic: {}})
    java.producer()
    messages = [
        {"topic": topic, "body": f"level {level}", "delay": level, "tags": "T", "keys": "k"}
        for level in (2, 1, 9)  # the highest level is 4
    ]
    statuses = [r["status"] for r in java.send("producer", *messages)]
    java.send("producer", {"topic": topic, "body": "at once"})
    rows = java.received("consumer", 4)
    waited = {row["body"]: row["stored"] - row["born"] for row in rows}
    least = {"level 1": 1000, "level 2": 2000, "level 9": 1000, "at once": 0}
    late = {body: waited.get(body) for body in least if waited.get(body, 1e9) > least[body] + 2000}
    return {
        "statuses": statuses,
        "contents": sorted(_content(row) for row in rows),
        "too early": [body for body in least if waited.get(body, 1e9) < least[body]],
        "too late": late,
    }


@scenario
def transactions(target: Target, java: JavaClient) -> Any:
    topic = java.create_topic(target.broker, java.name("Transactions"), queues=2)
    java.producer("bank", java.name("bank"), transactional=True)
    java.push("consumer", java.name("group"), {topic: {}})

    def message(body: str, decision: str, **rest: object) -> Row:
        return {"topic": topic, "body": body, "decision": decision, "tags": "T", **rest}

    sent = java.send(
        "bank",
        message("committed", "commit", keys="k1"),
        message("rolled back", "rollback"),
        message("commit when asked", "unknown", check="commit", properties={"p": "1"}),
        message("rollback when asked", "unknown", check="rollback"),
        message("commit when asked twice", "unknown", check="unknown,commit"),
        mode="transaction",
    )
    asked = java.checks("bank", 4)
    rows = java.received("consumer", 3)
    java.puller("reader", java.name("reader"))
    read = java.pull_all("reader", topic)
    return {
        "statuses": [row["status"] for row in sent],
        "asked": sorted({_content(row)[0] for row in asked}),
        "asked twice": sum(row["body"] == "commit when asked twice" for row in asked) >= 2,
        "received": sorted({row["body"] for row in rows}),
        "stored": _bodies(read),
        "reserved properties": sorted(
            (row["body"], sorted(k for k in row["properties"] if k in TRANSACTION_PROPERTIES))
            for row in read
        ),
    }


TRANSACTION_PROPERTIES = (
    "TRAN_MSG",
    "PGROUP",
    "REAL_TOPIC",
    "REAL_QID",
    "UNIQ_KEY",
    "__transactionId__",
)


# receiving


@scenario
def push_concurrent(target: Target, java: JavaClient) -> Any:
    topic = java.create_topic(target.broker, java.name("Push"))
    java.producer()
    java.send("producer", *_numbered(topic, 0, 20))
    java.push("early", java.name("early"), {topic: {}})
    java.push("batches", java.name("batches"), {topic: {}}, batch=8)
    java.received("early", 20)
    java.send("producer", *_numbered(topic, 20, 40))
    return {
        name: sorted((row["queue"], row["offset"], row["body"]) for row in java.received(name, 40))
        for name in ("early", "batches")
    }


@scenario
def push_from_the_end(target: Target, java: JavaClient) -> Any:
    """A group that is new starts a topic it has never read at its beginning, wherever it says."""
    topic = java.create_topic(target.broker, java.name("End"), queues=1)
    java.producer()
    java.send("producer", *_numbered(topic, 0, 5, queue=0))
    java.push("late", java.name("late"), {topic: {}}, origin="CONSUME_FROM_LAST_OFFSET")
    wait_for(lambda: java.assignment("late", topic), lambda queues: queues == [0])
    java.send("producer", *_numbered(topic, 5, 10, queue=0))
    return _bodies(java.received("late", 10))


@scenario
def push_ordered(target: Target, java: JavaClient) -> Any:
    topic = java.create_topic(target.broker, java.name("Ordered"), queues=3)
    java.producer()
    java.send("producer", *({"topic": topic, "body": f"{i}", "shard": i} for i in range(15)))
    java.push("consumer", java.name("group"), {topic: {}}, ordered=True, fail=2, failing="7")
    java.send("producer", *({"topic": topic, "body": f"{i}", "shard": i} for i in range(15, 30)))
    deliveries = 30 + 2 * 3  # 7, 17 and 27 are delivered three times
    rows = java.received("consumer", deliveries)
    order = defaultdict(list)
    for row in rows:
        order[row["queue"]].append(row["body"] + (" failed" if row["failed"] else ""))
    return dict(sorted(order.items()))


@scenario
def broadcast(target: Target, java: JavaClient) -> Any:
    topic = java.create_topic(target.broker, java.name("Broadcast"))
    group = java.name("group")
    for name in "a", "b":
        java.push(name, group, {topic: {}}, broadcast=True)
        wait_for(lambda name=name: java.assignment(name, topic), lambda queues: len(queues) == 4)
    java.producer()
    java.send("producer", *_numbered(topic, 0, 12))
    return {name: _bodies(java.received(name, 12)) for name in ("a", "b")}


@scenario
def pulls(target: Target, java: JavaClient) -> Any:
    topic = java.create_topic(target.broker, java.name("Pulls"), queues=2)
    group = java.name("group")
    java.producer()
    java.send("producer", *_numbered(topic, 0, 10, queue=0))
    java.puller("consumer", group)
    _await_messages(java, target.broker, topic, 1, 10)

    def pull(queue: int, offset: int, **rest: Any) -> list[object]:
        seen = java.pull("consumer", topic, queue, offset, **rest)
        return [*(seen[k] for k in ("status", "next", "min", "max")), _bodies(seen["messages"])]

    results: dict[str, object] = {
        "all": pull(0, 0),
        "some": pull(0, 2, count=3),
        "at the end": pull(0, 10),
        "beyond the end": pull(0, 99),
        "an empty queue": pull(1, 0),
        "an empty queue, beyond": pull(1, 5),
        "tag": pull(0, 0, tags="odd"),
        "no such tag": pull(0, 0, tags="none"),
        "sql": pull(0, 0, sql="n BETWEEN 3 AND 5"),
        "no offset": java.offset("consumer", topic, 0, "fetch"),
    }
    java.offset("consumer", topic, 0, "update", offset=6)
    results["offset"] = java.offset("consumer", topic, 0, "fetch")
    stored = [row["stored"] for row in java.pull("consumer", topic, 0, 0)["messages"]]
    results["search"] = [
        java.offset("consumer", topic, 0, "search", timestamp=stored[0] - 100_000),
        java.offset("consumer", topic, 0, "search", timestamp=stored[-1] + 100_000),
        java.offset("consumer", topic, 1, "search", timestamp=stored[0]),
    ]
    results["ends"] = [
        java.offset("consumer", topic, queue, what) for queue in (0, 1) for what in ("min", "max")
    ]
    started = time.monotonic()
    results["held, then nothing"] = pull(0, 10, block=True, tags="*")
    results["held long enough"] = time.monotonic() - started >= 1
    java.send_back("consumer", topic, 0, 4)
    retry = f"%RETRY%{group}"
    _await_messages(java, target.broker, retry, 1, 1)
    [back] = java.pull_all("consumer", retry)
    again = (back["body"], back["reconsume_times"], java.stem(back["properties"]["RETRY_TOPIC"]))
    results["sent back"] = again
    return results


@scenario
def lite_pulls(target: Target, java: JavaClient) -> Any:
    topic = java.create_topic(target.broker, java.name("Lite"), queues=2)
    group = java.name("group")
    java.producer()
    java.send("producer", *_numbered(topic, 0, 10, queue=0), *_numbered(topic, 10, 20, queue=1))
    results: dict[str, object] = {}
    java.lite("first", group, {topic: {}}, auto_commit=False)
    results["first"] = _in_order(java.poll("first", 20))
    java.commit("first")
    results["committed"] = java.committed("first", topic)
    java.stop("first")
    java.await_commits(target.broker, group, topic, [10, 10])
    java.send("producer", *_numbered(topic, 20, 24, queue=0))
    java.lite("second", group, {topic: {}})
    results["second"] = _in_order(java.poll("second", 4))
    java.lite("tagged", java.name("tagged"), {topic: {"tags": "odd"}})
    results["tagged"] = _in_order(java.poll("tagged", 12))
    java.lite("sql", java.name("sql"), {topic: {"sql": "n > 17"}})
    results["sql"] = _in_order(java.poll("sql", 6))
    java.lite("assigned", java.name("assigned"), {})
    java.assign("assigned", topic, [1])
    results["assigned"] = _in_order(java.poll("assigned", 10))
    java.seek("assigned", topic, 1, 7)
    results["sought"] = _in_order(java.poll("assigned", 3))
    return results


# filters


@scenario
def tags(target: Target, java: JavaClient) -> Any:
    topic = java.create_topic(target.broker, java.name("Tags"), queues=2)
    expressions = ["*", "PAID", "PAID || 订单", "Aa", "PAID||REFUND || ", "NOBODY"]
    for i, expression in enumerate(expressions):
        java.push(f"c{i}", java.name(f"group{i}"), {topic: {"tags": expression}})
    java.producer()
    given = ["PAID", "REFUND", "Aa", "BB", "订单", "paid", None]  # Aa and BB have one hash
    messages = [{"topic": topic, "body": f"{tag} {i}"} for i in range(2) for tag in given]
    for message, tag in zip(messages, given * 2, strict=True):
        if tag:
            message["tags"] = tag
    java.send("producer", *messages)
    counts = [14, 2, 4, 2, 4, 0]
    return {
        expression: _bodies(java.received(f"c{i}", counts[i]))
        for i, expression in enumerate(expressions)
    }


SQL = [
    "n > 5",
    "n BETWEEN 2 AND 4 OR region = 'eu'",
    "region IN ('eu', '亚太') AND n IS NOT NULL",
    "vip = TRUE",
    "price >= 1.5",
    "TAGS = 'PAID'",
    "missing IS NULL AND NOT (n < 9)",
    "n > 1000",
]


@scenario
def sql(target: Target, java: JavaClient) -> Any:
    topic = java.create_topic(target.broker, java.name("Sql"), queues=2)
    for i, expression in enumerate(SQL):
        java.push(f"c{i}", java.name(f"group{i}"), {topic: {"sql": expression}})
    java.push("all", java.name("all"), {topic: {}})
    java.producer()
    messages: list[Row] = []
    for i in range(12):
        properties = {"n": f"{i}"} if i % 4 else {}
        properties |= {"region": ("eu", "us", "亚太")[i % 3], "price": f"{i / 4}"}
        properties |= {"vip": "true"} if i % 5 == 0 else {}
        message = {"topic": topic, "body": f"{i}", "properties": properties}
        messages.append(message | ({"tags": "PAID"} if i % 2 else {}))
    java.send("producer", *messages)
    java.received("all", 12)
    found: dict[str, object] = {}
    for i, expression in enumerate(SQL):
        expected = EXPECTED_SQL[i]
        found[expression] = _bodies(java.received(f"c{i}", expected))
    try:
        java.push("bad", java.name("bad"), {topic: {"sql": "n >"}})
        found["bad"] = "accepted"
    except JavaError as error:
        found["bad"] = (error.error, error.code)
    return found


EXPECTED_SQL = [5, 5, 6, 3, 6, 6, 3, 0]  # how many to wait for


# failures


@scenario
def retries(target: Target, java: JavaClient) -> Any:
    topic = java.create_topic(target.broker, java.name("Retries"), queues=2)
    group = java.name("group")
    java.push("consumer", group, {topic: {"tags": "T"}}, fail=2, failing="bad")
    java.producer()
    messages = [{"topic": topic, "body": b, "tags": "T"} for b in ("good", "bad 1", "bad 2")]
    java.send("producer", *messages)
    rows = java.received("consumer", 1 + 2 * 3)
    deliveries = defaultdict(list)
    for row in rows:
        deliveries[row["body"]].append((row["reconsume_times"], row["failed"]))
    return {
        "deliveries": dict(sorted(deliveries.items())),
        "topics": sorted({java.stem(row["topic"]) for row in rows}),
        "tags": sorted({row["tags"] for row in rows}),
    }


@scenario
def dead_letters(target: Target, java: JavaClient) -> Any:
    topic = java.create_topic(target.broker, java.name("Dead"), queues=2)
    group, orderly = java.name("group"), java.name("orderly")
    java.push("consumer", group, {topic: {}}, fail=-1, failing="bad", max_reconsume=1)
    java.push(
        "orderly", orderly, {topic: {}}, ordered=True, fail=-1, failing="bad", max_reconsume=1
    )
    java.producer()
    java.send(
        "producer", *({"topic": topic, "body": b, "keys": b[-1]} for b in ("ok", "bad 1", "bad 2"))
    )
    rows = java.received("consumer", 1 + 2 * 2)
    java.puller("reader", java.name("reader"))
    dead = {}
    for name, of in ("concurrent", group), ("orderly", orderly):
        letters = f"%DLQ%{of}"
        _await_messages(java, target.broker, letters, 1, 2)
        wait_for(
            lambda of=letters: java.request(target.nameserver, 105, {"topic": of}),
            lambda route: route["code"] == 0,
        )
        dead[name] = sorted(
            (row["body"], row["keys"], row["queue"], java.stem(row["properties"]["RETRY_TOPIC"]))
            for row in java.pull_all("reader", letters)
        )
    return {
        "deliveries": sorted((r["body"], r["reconsume_times"], r["failed"]) for r in rows),
        "dead": dead,
    }


# members, offsets


@scenario
def rebalance(target: Target, java: JavaClient) -> Any:
    """Members come and go while messages are sent; redelivery is allowed, loss is not."""
    topic = java.create_topic(target.broker, java.name("Rebalance"), queues=8)
    group = java.name("group")
    java.producer()
    shares: list[list[int]] = []
    sent = 0

    def settle(*members: str) -> None:
        nonlocal sent
        java.send("producer", *_numbered(topic, sent, sent + 16))
        sent += 16
        wait_for(
            lambda: [java.assignment(member, topic) for member in members],
            lambda seen: (
                sorted(queue for queues in seen for queue in queues) == list(range(8))
                and max(map(len, seen)) - min(map(len, seen)) <= 1
            ),
        )
        shares.append(sorted(len(java.assignment(member, topic)) for member in members))
        java.send("producer", *_numbered(topic, sent, sent + 16))
        sent += 16

    for members in ("a",), ("a", "b"), ("a", "b", "c"):
        java.push(members[-1], group, {topic: {}})
        settle(*members)
    java.stop("a")
    settle("b", "c")
    java.stop("b")
    settle("c")

    everyone = ("a", "b", "c")
    seen = wait_for(
        lambda: {int(row["body"]) for name in everyone for row in java.received(name)},
        lambda seen: len(seen) == sent,
    )
    return {"shares": shares, "missing": sorted(set(range(sent)) - seen)}


@scenario
def rebalance_ordered(target: Target, java: JavaClient) -> Any:
    """A queue changes hands between ordered consumers: each queue's order holds throughout."""
    topic = java.create_topic(target.broker, java.name("OrderedRebalance"), queues=4)
    group = java.name("group")
    java.producer()
    java.push("a", group, {topic: {}}, ordered=True)

    def send(first: int) -> None:
        java.send(
            "producer",
            *({"topic": topic, "body": f"{i}", "shard": i} for i in range(first, first + 20)),
        )

    send(0)
    java.received("a", 20)
    java.push("b", group, {topic: {}}, ordered=True)
    wait_for(
        lambda: [java.assignment(member, topic) for member in ("a", "b")],
        lambda seen: sorted(map(len, seen)) == [2, 2],
    )
    send(20)
    wait_for(lambda: len(java.received("a")) + len(java.received("b")), lambda count: count >= 40)
    java.stop("a")
    wait_for(lambda: java.assignment("b", topic), lambda queues: len(queues) == 4)
    send(40)
    wait_for(lambda: len(java.received("a")) + len(java.received("b")), lambda n: n >= 60)
    first, second = _in_order(java.received("a")), _in_order(java.received("b"))
    return {
        queue: list(dict.fromkeys(first.get(queue, []) + second.get(queue, [])))
        for queue in range(4)
    }


@scenario
def offsets_after_a_client_restart(target: Target, java: JavaClient) -> Any:
    topic = java.create_topic(target.broker, java.name("Resume"), queues=2)
    group = java.name("group")
    java.producer()
    results = []
    for round in range(3):
        java.send("producer", *_numbered(topic, round * 10, round * 10 + 10))
        java.push(f"c{round}", group, {topic: {}})
        results.append(_bodies(java.received(f"c{round}", 10)))
        java.stop(f"c{round}")
        java.await_commits(target.broker, group, topic, [(round + 1) * 5] * 2)
    return results


@scenario
def offsets_after_a_broker_restart(target: Target, java: JavaClient) -> Any:
    """One group is there all the time, one is away; a delayed message waits all through it."""
    topic = java.create_topic(target.broker, java.name("Restart"), queues=2)
    java.producer(retries=5)
    java.push("stays", java.name("stays"), {topic: {}})
    java.push("leaves", java.name("leaves"), {topic: {"sql": "n >= 0"}})
    java.send("producer", *_numbered(topic, 0, 10))
    java.received("stays", 10)
    before = _bodies(java.received("leaves", 10))
    java.stop("leaves")
    java.await_commits(target.broker, java.name("leaves"), topic, [5, 5])
    java.send("producer", {"topic": topic, "body": "delayed", "delay": 2, "properties": {"n": "1"}})
    target.restart_broker()
    sent = [
        wait_for(
            lambda message=message: java.send("producer", message)[0],
            lambda row: row.get("status") == "SEND_OK",
        )["status"]
        for message in _numbered(topic, 10, 15)
    ]
    java.push("returns", java.name("leaves"), {topic: {"sql": "n >= 0"}})
    after = _bodies(java.received("returns", 6))
    # 4.9 does not see that the connection of a held pull is gone, and waits for 30 s.
    stays = wait_for(
        lambda: {row["body"] for row in java.received("stays")},
        lambda seen: len(seen) == 16,
        2 * PATIENCE,
    )
    return {
        "sent": sent,
        "stays": sorted(stays),
        "before": before,
        "after": after,
    }


@scenario
def queries(target: Target, java: JavaClient) -> Any:
    topic = java.create_topic(target.broker, java.name("Queries"), queues=2)
    java.producer()
    messages = _numbered(topic, 0, 6)
    for i, message in enumerate(messages):
        message["keys"] = f"k{i} all"
    sent = java.send("producer", *messages)
    java.puller("reader", java.name("reader"))

    def query(key: str, **rest: int) -> list[str]:
        return _bodies(java.query("reader", topic, key, **rest))

    wait_for(lambda: query("all"), lambda bodies: len(bodies) == 6)
    missing = "7F000001" + "0" * 24
    try:
        nobody: object = java.view("reader", topic, missing)["body"]
    except JavaError as error:
        nobody = error.error
    return {
        "k3": query("k3"),
        "all": query("all"),
        "two": len(query("all", count=2)),
        "nobody": query("nobody"),
        "too late": query("all", begin=2**62 - 1),
        "by unique key": java.view("reader", topic, sent[2]["msg_id"])["body"],
        "by offset id": java.view("reader", topic, sent[4]["offset_msg_id"])["body"],
        "no such id": nobody,
    }


# refusals


@scenario
def refused_sends(target: Target, java: JavaClient) -> Any:
    topic = java.create_topic(target.broker, java.name("Refusals"), queues=2)
    read_only = java.create_topic(target.broker, java.name("ReadOnly"), queues=1, perm=4)
    answers: dict[str, object] = {}

    def send(what: str, to: str, body: bytes = b"x", **changed: object) -> None:
        fields = {"a": "p", "b": to, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 0, "h": 0}
        fields |= {"i": "", "j": 0, "k": False, "m": False} | changed
        answers[what] = java.request(target.broker, 310, fields, body)["code"]

    send("plain", topic)
    send("any queue", topic, e=-1)
    send("queue out of range", topic, e=2)
    send("unknown topic, unknown template", java.name("Nowhere"), c=java.name("NoTemplate"))
    send("illegal topic", "a b*")
    send("empty topic", "")
    send("long topic", "t" * 128)
    send("read only", read_only)
    send("body too large", topic, b"x" * (4 * 1024 * 1024 + 1))
    send("body just fits", topic, b"x" * (4 * 1024 * 1024))
    send("properties too long", topic, i="k\1" + "v" * 32767)
    for reserved in (
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "TBW102",
    ):
        send(reserved, reserved)
    java.producer()
    [large] = java.send("producer", {"topic": topic, "body": _noise(4 * 1024 * 1024 + 1)})
    answers["too large, by the producer"] = (large["error"], large.get("code"))
    return answers


@scenario
def refused_pulls(target: Target, java: JavaClient) -> Any:
    topic = java.create_topic(target.broker, java.name("Refusals"), queues=2)
    write_only = java.create_topic(target.broker, java.name("WriteOnly"), queues=1, perm=2)
    java.producer()
    java.send("producer", *_numbered(topic, 0, 3, queue=0))
    _await_messages(java, target.broker, topic, 1, 3)
    ask = _Raw(java, target.broker, topic)
    answers = ask.answers
    ask.pull("all", "g")
    ask.pull("at the end", "g", queueOffset=3)
    ask.pull("beyond the end", "g", queueOffset=4)
    ask.pull("far beyond the end", "g", queueOffset=2**40)
    ask.pull("before the start", "g", queueOffset=-1)
    ask.pull("an empty queue", "g", queueId=1)
    ask.pull("an empty queue, beyond", "g", queueId=1, queueOffset=1)
    ask.pull("queue out of range", "g", queueId=2)
    ask.pull("negative queue", "g", queueId=-1)
    ask.pull("unknown topic", "g", topic=java.name("Nowhere"))
    ask.pull("write only", "g", topic=write_only)
    ask.pull("group without subscription", "nobody", sysFlag=0)
    ask.pull("bad sql in the pull", "g", subscription="n >", expressionType="SQL92")

    ask.heartbeat("tags", "PAID", version=1000)
    ask.pull("registered", "tags", sysFlag=0, subVersion=1000)
    ask.pull("topic not subscribed", "tags", sysFlag=0, subVersion=1000, topic=write_only)
    ask.pull("older than registered", "tags", sysFlag=0, subVersion=999)
    ask.pull("newer than registered", "tags", sysFlag=0, subVersion=1001)
    other = java.create_topic(target.broker, java.name("Other"), queues=1)
    ask.pull("other topic", "tags", sysFlag=0, subVersion=1000, topic=other)

    ask.heartbeat("sql", "n > 0", "SQL92", version=1000)
    ask.pull("sql", "sql", sysFlag=0, subVersion=1000, expressionType="SQL92")
    ask.pull("sql, newer", "sql", sysFlag=0, subVersion=1001, expressionType="SQL92")
    ask.heartbeat("sql", "", "SQL92", version=2000)  # the filter stays at 1000
    ask.pull("good sql, then none", "sql", sysFlag=0, subVersion=2000, expressionType="SQL92")
    ask.heartbeat("sql", "n >", "SQL92", version=3000)
    ask.pull("good sql, then bad", "sql", sysFlag=0, subVersion=3000, expressionType="SQL92")
    ask.heartbeat("bad", "n >", "SQL92", version=1000)
    ask.pull("bad sql from the start", "bad", sysFlag=0, subVersion=1000, expressionType="SQL92")
    ask.check("good sql", "n > 0", "SQL92")
    ask.check("bad sql", "n >", "SQL92")
    ask.check("tags", "A || B", "TAG")
    ask.check("unknown type", "x", "GROOVY")
    return answers


@scenario
def refused_requests(target: Target, java: JavaClient) -> Any:
    topic = java.create_topic(target.broker, java.name("Refusals"), queues=1)
    broker, nobody = target.broker, java.name("nobody")

    def code(address: str, code: int, body: Any = None, **fields: object) -> object:
        return java.request(address, code, fields, body)["code"]

    return {
        "unknown code": code(broker, 9999),
        "a code of old": code(broker, 13),
        "route of an unknown topic": code(target.nameserver, 105, topic=java.name("Nowhere")),
        "view nothing": code(broker, 33, offset=2**40),
        "query nothing": code(
            broker, 12, topic=topic, key="k", maxNum=1, beginTimestamp=0, endTimestamp=2**62
        ),
        "offset of a new group": code(broker, 14, consumerGroup=nobody, topic=topic, queueId=0),
        "consumers of an unknown group": code(broker, 38, consumerGroup=nobody),
        "connections of an unknown group": code(broker, 203, consumerGroup=nobody),
        "producers of an unknown group": code(broker, 204, producerGroup=nobody),
        "stats of an unknown topic": code(broker, 202, topic=java.name("Nowhere")),
        "send back nothing": code(
            broker, 36, group=nobody, offset=2**40, delayLevel=1, originTopic=topic
        ),
        "end no transaction": code(
            broker,
            37,
            producerGroup=nobody,
            tranStateTableOffset=0,
            commitLogOffset=2**40,
            commitOrRollback=8,
            msgId="x",
        ),
        "make a topic with an illegal name": code(
            broker,
            17,
            topic="a b*",
            defaultTopic="TBW102",
            readQueueNums=1,
            writeQueueNums=1,
            perm=6,
            topicFilterType="SINGLE_TAG",
            order=False,
        ),
        "delete a system topic": code(broker, 215, topic="TBW102"),
        "reset a group that is away": code(
            broker, 222, topic=topic, group=nobody, timestamp=0, isForce=True
        ),
        "no key-value": code(target.nameserver, 101, namespace="N", key="k"),
    }


@strict_scenario
def refused_when_strict(target: Target, java: JavaClient) -> Any:
    """No groups and no topics by themselves, and no SQL."""
    topic = java.create_topic(target.broker, java.name("Strict"), queues=1)
    ask = _Raw(java, target.broker, topic)
    ask.pull("unknown group", "unknown")
    group = {"groupName": java.name("known"), "consumeEnable": True, "retryQueueNums": 1}
    ask.answers["make a group"] = java.request(target.broker, 200, {}, group)["code"]
    ask.pull("known group", "known")
    ask.pull("sql in the pull", "known", subscription="n > 0", expressionType="SQL92")
    ask.heartbeat("known", "n > 0", "SQL92", version=1000)
    ask.pull("sql registered", "known", sysFlag=0, subVersion=1000, expressionType="SQL92")
    ask.check("sql", "n > 0", "SQL92")
    ask.check("bad sql", "n >", "SQL92")
    fields = {"group": java.name("unknown"), "offset": 0, "delayLevel": 1, "originTopic": topic}
    ask.answers["send back"] = java.request(target.broker, 36, fields)["code"]
    java.producer()
    [row] = java.send("producer", {"topic": java.name("Nowhere"), "body": "x"})
    ask.answers["send to an unknown topic"] = (row["error"], row.get("code"))
    try:
        java.push("sql", java.name("known"), {topic: {"sql": "n > 0"}})
    except JavaError as error:
        ask.answers["subscribe by sql"] = (error.error, error.code)
    return ask.answers


class _Raw:
    """Requests written by hand, and the codes they were answered with."""

    def __init__(self, java: JavaClient, broker: str, topic: str) -> None:
        self.java = java
        self.broker = broker
        self.topic = topic
        self.answers: dict[str, object] = {}

    def pull(self, what: str, group: str, **changed: object) -> None:
        fields: dict[str, object] = {
            "consumerGroup": self.java.name(group),
            "topic": self.topic,
            "queueId": 0,
            "queueOffset": 0,
            "maxMsgNums": 32,
            "sysFlag": 4,  # the subscription is in the request, and the broker need not wait
            "commitOffset": 0,
            "suspendTimeoutMillis": 0,
            "subscription": "*",
            "subVersion": 0,
            "expressionType": "TAG",
        }
        answer = self.java.request(self.broker, 11, fields | changed)
        offsets = (
            [answer["fields"][k] for k in OFFSETS] if answer["code"] in (0, 19, 20, 21) else []
        )
        self.answers[what] = [answer["code"], *offsets]

    def heartbeat(self, group: str, expression: str, kind: str = "TAG", *, version: int) -> None:
        consumer = {
            "groupName": self.java.name(group),
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "subscriptionDataSet": [self._subscription(expression, kind, version)],
            "unitMode": False,
        }
        body = {"clientID": "by-hand", "consumerDataSet": [consumer], "producerDataSet": []}
        answer = self.java.request(self.broker, 34, {}, body)
        self.answers[f"heartbeat of {group}, {expression}"] = answer["code"]

    def check(self, what: str, expression: str, kind: str) -> None:
        body = {
            "clientId": "by-hand",
            "group": self.java.name("checked"),
            "subscriptionData": self._subscription(expression, kind, 1000),
        }
        self.answers[f"check of {what}"] = self.java.request(self.broker, 46, {}, body)["code"]

    def _subscription(self, expression: str, kind: str, version: int) -> dict[str, object]:
        tags = [t.strip() for t in expression.split("||")] if kind == "TAG" else []
        codes = [_java_hash(tag) for tag in tags]
        return {
            "topic": self.topic,
            "subString": expression,
            "expressionType": kind,
            "tagsSet": tags,
            "codeSet": codes,
            "subVersion": version,
            "classFilterMode": False,
        }


OFFSETS = ("nextBeginOffset", "minOffset", "maxOffset")


def _java_hash(text: str) -> int:
    h = 0
    for c in text:
        h = (31 * h + ord(c)) & 0xFFFFFFFF
    return h - (1 << 32) if h >> 31 else h


def _numbered(topic: str, first: int, end: int, **rest: object) -> list[Row]:
    """Dealt out to the queues in turn, or all to one `queue`."""
    return [
        {
            "topic": topic,
            "body": f"{i}",
            "tags": ("even", "odd")[i % 2],
            "properties": {"n": f"{i}"},
            **(rest or {"shard": i}),
        }
        for i in range(first, end)
    ]


def _await_messages(java: JavaClient, broker: str, topic: str, queues: int, count: int) -> None:
    """A broker may acknowledge a message a moment before it can be pulled."""

    def stored() -> list[int]:
        answers = (java.request(broker, 30, {"topic": topic, "queueId": q}) for q in range(queues))
        return [int(answer["fields"]["offset"]) for answer in answers]

    wait_for(stored, lambda seen: sum(seen) == count)


def _noise(size: int) -> str:
    """Text that compresses badly enough to stay above a limit."""
    letters = "".join(chr(c) for c in range(33, 127))
    return "".join(random.Random(1).choices(letters, k=2 * size))


def _bodies(rows: list[Row]) -> list[str]:
    return sorted(row["body"] for row in rows)


def _in_order(rows: list[Row]) -> dict[int, list[str]]:
    """The bodies of each queue, as they came."""
    order: dict[int, list[str]] = defaultdict(list)
    for row in rows:
        order[row["queue"]].append(row["body"])
    return dict(sorted(order.items()))


def _content(row: Row) -> tuple[object, ...]:
    """Of a message, what its sender gave."""
    properties = {k: v for k, v in row["properties"].items() if k.islower()}
    body = row["body"] if len(row["body"]) < 100 else f"{row['body'][:4]}... {len(row['body'])}"
    return body, row["queue"], str(row["tags"]), str(row["keys"]), row["flag"], str(properties)


# from the shell


class _Given:
    """Somebody else's cluster: the broker is asked for, and not ours to restart."""

    def __init__(self, nameserver: str, java: JavaClient) -> None:
        self.nameserver = nameserver
        answer = java.request(nameserver, 105, {"topic": "SELF_TEST_TOPIC"})
        assert answer["code"] == 0, answer
        self.broker: str = json.loads(answer["body"])["brokerDatas"][0]["brokerAddrs"]["0"]

    def restart_broker(self) -> None:
        raise RuntimeError("this broker was not started here")


@contextmanager
def _target(where: str, strict: bool, java: JavaClient) -> Iterator[Target]:
    if ":" in where:
        yield _Given(where, java)
        return
    settings = STRICT if strict else SETTINGS
    with (
        tempfile.TemporaryDirectory() as directory,
        (apache_cluster if where == "apache" else our_cluster)(
            Path(directory) / "store", **settings
        ) as cluster,
    ):
        yield cluster


def main() -> None:
    parser = argparse.ArgumentParser(description="Run scenarios against a cluster.")
    parser.add_argument("where", nargs="?", help="a name server's host:port, `ours` or `apache`")
    parser.add_argument("names", nargs="*", help="scenarios; all that need no strict broker")
    parser.add_argument("--line", default="4.9", choices=("4.9", "5.3"), help="of the client")
    parser.add_argument("--list", action="store_true", help="name the scenarios")
    arguments = parser.parse_args()
    if arguments.list or arguments.where is None:
        print(*SCENARIOS, sep="\n")
        print(*(f"{name} (strict broker)" for name in STRICT_SCENARIOS), sep="\n")
        return
    names = arguments.names or list(SCENARIOS)
    strict = all(name in STRICT_SCENARIOS for name in names)
    with JavaClient(arguments.line) as java, _target(arguments.where, strict, java) as target:
        for name in names:
            started = time.monotonic()
            try:
                result = run(name, target, java)
            except (AssertionError, JavaError, RuntimeError) as error:
                result = f"{type(error).__name__}: {error}"
            took = time.monotonic() - started
            print(f"{name} ({took:.1f} s)")
            print(json.dumps(result, ensure_ascii=False, default=str))


if __name__ == "__main__":
    main()
