"""The job audit on a group whose members disagree, and the replay of what it lost."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession
from sparkling import create_topic, send_all

from tamis.cli.main import tamis
from tamis.client import blocking
from tamis.client.cluster import masters
from tamis.client.config import ClientConfig, ConsumerConfig
from tamis.client.received import ReceivedMessage
from tamis.client.session import Session
from tamis.errors import ConfigError
from tamis.message import Message
from tamis.pipeline import audit, load, replay
from tamis.pipeline.config import Config
from tamis.pipeline.runner import Report, Stop
from tamis.testing import LocalCluster
from tamis.wire.headers import ExplainMessage

PATIENCE = 60.0  # seconds
TOPIC, GROUP, OTHER = "audited", "payments", "everything"
RETRYING, FAILING = "retrying", "failing"  # each fails on a message
ISOLATED = "isolated"  # as the first, but each member is served as it wants
GROUPS = (OTHER, FAILING, ISOLATED, GROUP, RETRYING)
COUNT = 60
CONSUMER = ConsumerConfig(start="first", commit_interval=0.2, rebalance_interval=1.0)
AUDIT = """
job = "audit"
[source]
{source}
topic = "audited"
[audit]
table = {{ format = "parquet", path = "out/fates" }}
lost = {{ format = "{format}", path = "out/lost" }}
report = "audit.html"
"""
REPLAY = """
[source]
nameserver = "{nameserver}"
lost = "out/lost"
[run]
job = "replay"
checkpoint = "{checkpoint}"
[replay]
{more}
"""


@dataclass
class Scenario:
    """Two members of one group that want different tags, and a group of one member."""

    cluster: LocalCluster
    members: ExitStack = field(default_factory=ExitStack)
    received: Counter[str] = field(default_factory=Counter)  # bodies, of the group that disagrees

    def join(
        self,
        group: str,
        handler: Callable[[ReceivedMessage], object],
        config: ConsumerConfig = CONSUMER,
        **by: str,
    ) -> None:
        consumer = blocking.PushConsumer(self.cluster.nameserver, group, handler, config=config)
        consumer.subscribe(TOPIC, **by)
        self.members.enter_context(consumer)

    def receive(self, message: ReceivedMessage) -> None:
        assert message.topic == TOPIC
        self.received[message.body.decode()] += 1

    def lag(self, group: str) -> int:
        with blocking.Admin(self.cluster.nameserver) as admin:
            return sum(one.end - one.committed for one in admin.offsets(group, TOPIC))


def refuse_one(message: ReceivedMessage) -> None:
    if message.body == b"body 7":
        raise ValueError("no")


def eventually(holds: Callable[[], object], state: Callable[[], object] = lambda: "") -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, state()
        time.sleep(0.1)


@pytest.fixture(scope="module")
def scenario(local_cluster: LocalCluster) -> Iterator[Scenario]:
    create_topic(local_cluster, TOPIC, queues=4)
    made = Scenario(local_cluster)
    with blocking.Admin(local_cluster.nameserver) as admin:
        admin.create_group(ISOLATED)
        admin.set_group_policy(ISOLATED, "isolate")
    with made.members:
        for tag in "AB":
            made.join(GROUP, made.receive, tags=tag)
            made.join(ISOLATED, lambda message: None, tags=tag)
        made.join(OTHER, lambda message: None, sql="n > 5")
        made.join(RETRYING, refuse_one)
        made.join(FAILING, refuse_one, replace(CONSUMER, max_reconsume_times=0))
        with blocking.Admin(local_cluster.nameserver) as admin:
            eventually(lambda: len(admin.group(GROUP).members) == 2)
        sent = [
            Message(TOPIC, f"body {n}", tags="AB"[n % 2], properties={"n": str(n)})
            for n in range(COUNT - 1)
        ]
        sent.append(Message(TOPIC, f"body {COUNT - 1}", tags="A", properties={"n": "many"}))
        send_all(local_cluster, sent)
        eventually(lambda: sum(map(made.lag, GROUPS)) == 0, lambda: list(map(made.lag, GROUPS)))
        yield made


@pytest.fixture
def files(scenario: Scenario, tmp_path: Path) -> Callable[..., Config]:
    def make(text: str, **more: str) -> Config:
        file = tmp_path / ("audit.toml" if text.startswith(AUDIT) else "replay.toml")
        named = {
            "nameserver": scenario.cluster.nameserver,
            "source": f'nameserver = "{scenario.cluster.nameserver}"',
            "format": "parquet",
            "checkpoint": "checkpoint",
            "more": "",
        }
        file.write_text(text.format(**{**named, **more}))
        config = load(file)
        (audit if text.startswith(AUDIT) else replay).check(config)
        return config

    return make


def lost_bodies(spark: SparkSession, config: Config, path: Path) -> set[str]:
    """Of the list, found by where the messages lie."""
    places = spark.read.parquet(str(path / "out/lost"))
    assert config.source.nameserver is not None
    options = {"nameserver": config.source.nameserver, "topic": TOPIC}
    rows = spark.read.format("rocketmq").options(**options).load()
    found = rows.join(
        places.select("broker", "queue_id", "offset"), ["broker", "queue_id", "offset"]
    )
    return {bytes(row.body).decode() for row in found.collect()}


def explained(cluster: LocalCluster, places: list[tuple[int, int]]) -> dict[tuple, str]:
    """What the broker itself says, by queue, offset and group."""

    async def ask() -> dict[tuple, str]:
        session = Session("test", cluster.nameserver, ClientConfig())
        await session.start()
        told = {}
        try:
            [address] = (await masters(session)).values()
            for queue_id, offset in set(places):
                header = ExplainMessage(topic=TOPIC, queue_id=queue_id, offset=offset)
                answer = await session.ask(address, header)
                for one in json.loads(answer.body)["groups"]:
                    told[queue_id, offset, one["group"]] = one["fate"]
        finally:
            await session.close()
        return told

    return asyncio.run(ask())


def test_what_a_group_lost_is_listed_message_by_message(
    spark: SparkSession, scenario: Scenario, files: Callable[..., Config], tmp_path: Path
) -> None:
    config = files(AUDIT)
    assert "payments" in "\n".join(audit.run(spark, config, dry_run=True).lines())
    assert not (tmp_path / "out").exists()

    summary = audit.run(spark, config)
    lost = {f"body {n}" for n in range(COUNT)} - set(scenario.received)
    fates = {one.group: one.fates for one in summary.groups}
    assert fates[ISOLATED] == {"CONSUMED": COUNT}
    assert fates[RETRYING] == {"CONSUMED": COUNT - 1, "RETRYING": 1}
    assert fates[FAILING] == {"CONSUMED": COUNT - 1, "DEAD_LETTERED": 1}
    assert fates[OTHER] == {"CONSUMED": COUNT - 7, "FILTERED": 6, "FILTER_FAILED": 1}
    assert fates[GROUP] == {"CONSUMED": COUNT - len(lost), "LOST_TO_INCONSISTENCY": len(lost)}
    assert summary.lost == len(lost) > 0
    assert lost_bodies(spark, config, tmp_path) == lost

    table = spark.read.parquet(str(tmp_path / "out/fates"))
    assert table.columns == list(audit.TABLE)
    assert table.count() == len(GROUPS) * COUNT
    counted = {
        (row.group, row.fate): row["count"]
        for row in table.groupBy("group", "fate").count().collect()
    }
    assert counted == {(group, fate): n for group, own in fates.items() for fate, n in own.items()}
    [row] = spark.read.parquet(str(tmp_path / "out/lost")).limit(1).collect()
    assert row.reason.startswith("It was wanted (")
    assert row.group == GROUP

    told = explained(scenario.cluster, [(row.queue_id, row.offset) for row in table.collect()])
    assert {(row.queue_id, row.offset, row.group): row.fate for row in table.collect()} == told

    page = (tmp_path / "audit.html").read_text()
    assert f"{len(lost)} messages were lost to payments" in page
    assert "joined with tags &#x27;A&#x27;" in page
    assert page.count("<svg") == len(GROUPS)

    again = audit.run(spark, config)  # takes the place of the first
    assert again.lost == len(lost)
    assert spark.read.parquet(str(tmp_path / "out/fates")).count() == len(GROUPS) * COUNT


def test_the_files_of_a_store_tell_the_same(
    spark: SparkSession, scenario: Scenario, files: Callable[..., Config], tmp_path: Path
) -> None:
    over_the_wire = audit.run(spark, files(AUDIT))
    store = f'store = "{scenario.cluster.store}"'
    expected = {one.group: one.fates for one in over_the_wire.groups}

    def told() -> dict[str, dict[str, int]]:
        return {one.group: one.fates for one in audit.run(spark, files(AUDIT, source=store)).groups}

    eventually(lambda: told() == expected, told)  # the broker saves every few seconds


def test_what_was_lost_is_sent_once_to_the_group_that_missed_it(
    spark: SparkSession, scenario: Scenario, files: Callable[..., Config], tmp_path: Path
) -> None:
    lost = audit.run(spark, files(AUDIT)).lost
    config = files(REPLAY)
    dry = replay.run(spark, config, dry_run=True)
    assert f"{lost}" in dry.lines()[-1]
    with pytest.raises(ConfigError, match=r"members of payments subscribe differently to audited"):
        replay.run(spark, config)

    scenario.members.close()  # and then members that agree
    scenario.join(GROUP, scenario.receive, tags="A || B")
    stop = Stop()

    class Stopping(Report):
        def update(self, messages: int, lag: int | None = None, *, force: bool = False) -> None:
            stop.ask()

    first = replay.run(spark, files(REPLAY, more="rate = 10"), stop=stop, report=Stopping(None))
    assert (first.status, first.groups[0].sent) == ("stopped", 10)
    # Another checkpoint, which knows nothing: the retry topic does.
    second = replay.run(spark, files(REPLAY, checkpoint="another"))
    assert (second.status, second.groups[0].before, second.groups[0].sent) == (
        "done",
        10,
        lost - 10,
    )
    third = replay.run(spark, config)
    assert (third.groups[0].before, third.groups[0].sent) == (lost, 0)

    eventually(lambda: len(scenario.received) == COUNT, lambda: scenario.received)
    assert set(scenario.received.values()) == {1}

    def fates() -> dict[str, int]:
        return audit.run(spark, files(AUDIT)).groups[GROUPS.index(GROUP)].fates

    eventually(lambda: fates() == {"CONSUMED": COUNT}, fates)
    scenario.members.close()


def test_a_time_chooses_messages_and_a_topic_that_nobody_read_has_no_fates(
    spark: SparkSession, scenario: Scenario, files: Callable[..., Config], tmp_path: Path
) -> None:
    here = f'nameserver = "{scenario.cluster.nameserver}"'
    times = [
        row.store_timestamp
        for row in spark.read.format("rocketmq")
        .options(nameserver=scenario.cluster.nameserver, topic=TOPIC)
        .load()
        .collect()
    ]
    middle = sorted(times)[COUNT // 2]
    millis = round(middle.timestamp() * 1000)
    before = audit.run(spark, files(AUDIT, source=f"{here}\nend = {millis}")).messages
    after = audit.run(spark, files(AUDIT, source=f"{here}\nstart = {millis}")).messages
    assert (before, after) == (sum(t < middle for t in times), sum(t >= middle for t in times))

    create_topic(scenario.cluster, "unread", queues=1)
    text = AUDIT.replace("audited", "unread").replace("out/", "unread/")
    file = tmp_path / "unread.toml"
    file.write_text(text.format(source=here, format="parquet"))
    summary = audit.run(spark, load(file))
    assert "no group is known to have read the topic" in "\n".join(summary.lines())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('archive = "x"', "[source] archive: it has no progress of groups"),
        ('store = "x"\nstart = "latest"', "start = latest would audit nothing"),
        ('store = "x"\noptions = { sql = "a = 1" }', "sql would hide messages from the audit"),
        ('store = "x"\nlost = "y"', "[source] lost is for job replay, not audit"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "audit.toml"
    file.write_text(AUDIT.format(source=text, format="parquet"))
    done = CliRunner().invoke(tamis, ["pipeline", "run", str(file)])
    assert done.exit_code == 2
    assert said in done.output
    assert done.output.count("\n") == 1


def test_a_group_nobody_knows_and_a_directory_of_others_are_refused(
    scenario: Scenario, files: Callable[..., Config], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"no group paiments is known.*did you mean payments"):
        files(AUDIT + 'groups = ["paiments"]\n')
    (tmp_path / "out/lost").mkdir(parents=True)
    (tmp_path / "out/lost/mine").write_text("mine")
    with pytest.raises(ConfigError, match="it has files that are not the list of lost messages"):
        files(AUDIT)


def test_the_command_prints_totals_and_json(
    scenario: Scenario, files: Callable[..., Config], spark: SparkSession
) -> None:
    config = files(AUDIT, format="json")
    done = CliRunner().invoke(tamis, ["pipeline", "run", str(config.file), "--json"])
    assert done.exit_code == 0, done.output
    assert "LOST_TO_INCONSISTENCY" in done.stderr or "CONSUMED" in done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert {one["group"] for one in told["groups"]} == {*GROUPS}
    assert replay.run(spark, files(REPLAY), dry_run=True).messages == told["lost"]
    assert (
        CliRunner().invoke(tamis, ["pipeline", "run", str(config.file), "--continuous"]).exit_code
        == 2
    )
