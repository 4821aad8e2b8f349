"""How fast is an audit beside a plain scan of the same messages? A part of `bench_fate.py`.

5 million messages of 170 bytes in 4 queues of a store, read by 20 groups: half of them filter by
tags, half by SQL92; two have members that disagree and lose one message in 200, four were reset
once, and queues have changed hands several times. The scan reads the columns that an audit reads,
into Spark's sink `noop`. Both run on all cores, and take turns; the best of three rounds counts.
The audit is measured from start to summary: totals and the list of lost messages; then with the
table of fates too, which has a row for each message and group, 100 million of them.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench_spark import QUEUES, TOPIC, drain, fill_store

from tamis.fate import Filter, GroupHistory, History, Move, Span, View
from tamis.spark.groups import BrokerGroups

if TYPE_CHECKING:
    pass

MESSAGES = 5_000_000
GROUPS = 20
ROUNDS = 3
SPANS = 12  # of a queue: as often it changed hands
FILE = """
[source]
store = "{store}"
topic = "{topic}"
[run]
job = "audit"
[audit]
lost = {{ format = "parquet", path = "{name}/lost" }}
{table}
"""


def figures(
    root: Path, messages: int = MESSAGES, rounds: int = ROUNDS, with_table: bool = True
) -> Iterator[dict[str, Any]]:
    """Return rows for `bench_fate.Figure`."""
    from tamis.pipeline import audit, fates, load
    from tamis.spark.session import session

    store = root / "store"
    fill_store(store, messages)
    known = BrokerGroups(
        broker="",
        history=history(messages),
        offsets={
            (TOPIC, group_name(number)): dict.fromkeys(range(QUEUES), messages)
            for number in range(GROUPS)
        },
        members=None,
    )
    spark = session("bench_fate", config={"spark.driver.memory": "4g"})
    try:
        columns = ",".join(fates.READ)

        def scan() -> None:
            reader = spark.read.format("rocketmq-log").option("columns", columns)
            drain(reader.load(str(store)))

        def audited(table: str) -> Callable[[], None]:
            name = "table" if table else "totals"
            file = root / f"{name}.toml"
            file.write_text(FILE.format(store=store, topic=TOPIC, name=name, table=table))
            config = load(file)

            def work() -> None:
                summary = audit.run(spark, config, brokers=[known])
                assert summary.messages == messages, summary
                assert summary.lost > 0, summary

            return work

        works = {"scan": scan, "totals": audited("")}
        best = measure(works, rounds)
        about = f"{messages / 1e6:g} M messages, {GROUPS} groups"
        against = {"peer": messages / best["scan"], "peer_name": "a scan of the same columns"}
        yield {
            "case": f"audit, {about}: totals, lost messages",
            "unit": "messages/s",
            "ours": messages / best["totals"],
            **against,
        }
        if with_table:
            table = 'table = { format = "parquet", path = "table/fates" }'
            best |= measure({"table": audited(table)}, 1)
            yield {
                "case": f"audit, {about}: with the table of fates",
                "unit": "messages/s",
                "ours": messages / best["table"],
                **against,
            }
    finally:
        spark.stop()


def measure(works: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Return the least seconds of each; they take turns, the first is a warm-up."""
    best: dict[str, float] = {}
    for number in range(rounds + (rounds > 1)):
        for name, work in works.items():
            began = time.perf_counter()
            work()
            passed = time.perf_counter() - began
            if number or rounds == 1:
                best[name] = min(best.get(name, passed), passed)
    return best


def group_name(number: int) -> str:
    return f"group-{number:02}"


def history(messages: int) -> History:
    """Return what a broker would know of the groups."""
    made = History(0)
    for number in range(GROUPS):
        known = GroupHistory(group_name(number), TOPIC, 0)
        filters = filters_of(number)
        known.views[0] = View(0, {by: (f"member-{at}",) for at, by in enumerate(filters)})
        end = messages // QUEUES
        for queue_id in range(QUEUES):
            first = end // 50 if number % 5 == 0 else 0
            if first:
                known.moves.append(
                    Move(time=1, queue_id=queue_id, before=0, after=first, by="an admin",
                         why="a reset")
                )  # fmt: skip
            for span in range(SPANS):
                start, stop = (first + (end - first) * (span + at) // SPANS for at in (0, 1))
                own = filters[span % len(filters)]
                known.queues.setdefault(queue_id, []).append(
                    Span(start, stop, f"member-{span % 2}", filters[-1], own, 0, 0, acked=stop)
                )
        made.groups[known.group, known.topic] = known
    return made


def filters_of(number: int) -> list[Filter]:
    """Return those of a group's members: more than one of a group that disagrees."""
    if number in (3, 4):
        return [Filter("TAG", "paid"), Filter("TAG", "paid || rare")]
    if number % 2:
        return [Filter("TAG", ("paid", "sent || open", "rare", "*")[number // 2 % 4])]
    bound = 10 * (number // 2)
    return [Filter("SQL92", f"region = 'eu' AND price >= {bound}.5")]
