"""Tables that can't be saved: whoever must know is told, nothing is forgotten, the rest goes on."""

import asyncio
import json
import random
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from broker.asking import ask, close, command, until
from broker.child import Child
from broker.running import Client, messages, run, running
from broker.running import until as eventually
from disks import replace_call

from tamis.broker import saving
from tamis.broker.broker import Broker
from tamis.broker.config import BrokerConfig
from tamis.broker.offsets import Offsets
from tamis.broker.topics import Topics
from tamis.errors import StoreError
from tamis.net.aio import connect
from tamis.store import tables
from tamis.store.config import StoreConfig
from tamis.store.store import Store
from tamis.testing import LossyFiles
from tamis.wire import beans, headers
from tamis.wire.bodies import DataVersion, GroupConfig, TopicConfig
from tamis.wire.codes import RequestCode, ResponseCode
from tamis.wire.record import Draft

SMALL_FILES = ["--set", "log_file_size=1048576", "--set", "index_slots=1000"]
SMALL_FILES += ["--set", "index_entries=4000"]


@contextmanager
def unwritable(folder: Path) -> Iterator[None]:
    """Nothing can be written to the folder, by root either: it is away, and a file in its place."""
    away = folder.with_name(folder.name + ".away")
    folder.rename(away)
    folder.write_bytes(b"")
    yield
    folder.unlink()
    away.rename(folder)


def _failing(metrics: str) -> set[str]:
    with urllib.request.urlopen(metrics, timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    found = [line for line in lines if line.startswith("tamis_unsaved_tables{")]
    return {line.split('"')[1] for line in found if line.endswith(" 1.0")}


def test_what_could_not_be_saved_is_saved_later_and_outlives_a_kill(tmp_path: Path) -> None:
    """The tables' folder is unwritable for a while; then the process is killed."""
    offset = headers.UpdateConsumerOffset(
        consumer_group="Kept", topic="T", queue_id=0, commit_offset=7
    )
    group = beans.encode(GroupConfig(name="Kept", retry_max_times=3))
    create_group = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP

    async def scene(child: Child) -> None:
        await child.start()
        config = child.directory / "data" / "config"
        peer = await connect(child.broker)
        client = Client(peer)
        await client.send("T")
        with unwritable(config):
            made = await client.ask(create_group, body=group)
            assert made.code == ResponseCode.SYSTEM_ERROR
            assert str(config) in (made.remark or "")
            assert "\n" not in (made.remark or "")
            await ask(peer, command(offset))
            await until(lambda: "groups" in _failing(child.metrics), lambda: child.log[-500:])
        await until(
            lambda: (
                not _failing(child.metrics)
                and '"Kept"' in (config / "subscriptionGroup.json").read_text()
                and (config / "consumerOffset.json").exists()
                and "Kept" in (config / "consumerOffset.json").read_text()
            ),
            lambda: (_failing(child.metrics), sorted(config.iterdir())),
        )
        assert child.log.count("the groups can't be saved") == 1
        assert child.log.count("the groups are saved again") == 1
        await close(peer)
        child.kill()
        await child.start()
        peer = await connect(child.broker)
        client = Client(peer)
        query = headers.QueryConsumerOffset(consumer_group="Kept", topic="T", queue_id=0)
        assert (await ask(peer, command(query))).fields == {"offset": "7"}
        found = await client.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "Kept"})
        assert beans.decode(GroupConfig, found.body).retry_max_times == 3
        await close(peer)

    child = Child(tmp_path, *SMALL_FILES)
    try:
        asyncio.run(scene(child))
    finally:
        child.end()


def _create_topic(name: str) -> headers.CreateTopic:
    return headers.CreateTopic(
        topic=name, default_topic="TBW102", read_queue_nums=2, write_queue_nums=2, perm=6,
        topic_filter_type="SINGLE_TAG",
    )  # fmt: skip


def test_each_command_of_an_administrator_is_answered_by_whether_it_is_saved(
    tmp_path: Path,
) -> None:
    async def scene() -> None:
        async with running(tmp_path) as (broker, client):
            await client.send("T")
            broker.offsets.commit("Old", "T", 0, 1)
            config = tmp_path / "config"
            await eventually(lambda: (config / "topics.json").exists())
            group = beans.encode(GroupConfig(name="G"))
            commands = [
                (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, group),
                (RequestCode.DELETE_SUBSCRIPTIONGROUP, headers.DeleteGroup(group_name="G"), b""),
                (RequestCode.CLONE_GROUP_OFFSET,
                 headers.CloneGroupOffset(src_group="Old", dest_group="New", topic="T"), b""),
                (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
                 headers.ResetOffset(topic="T", group="Old", timestamp=0, queue_id=0, offset=0),
                 b""),
                (RequestCode.UPDATE_AND_CREATE_TOPIC, _create_topic("N"), b""),
                (RequestCode.DELETE_TOPIC_IN_BROKER, headers.OfTopic(topic="T"), b""),
            ]  # fmt: skip
            for is_broken in (True, False):
                for code, header, body in commands:
                    fields = header.to_fields() if header is not None else None
                    if is_broken:
                        with unwritable(config):
                            answer = await client.ask(code, fields, body)
                        assert answer.code == ResponseCode.SYSTEM_ERROR, code
                        assert str(config) in (answer.remark or ""), code
                    else:
                        answer = await client.ask(code, fields, body)
                        assert answer.code == ResponseCode.SUCCESS, code

    run(scene())


def test_a_topic_that_can_not_be_noted_is_not_made_by_half(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path) as (broker, client):
            await client.send("Known")
            await eventually(lambda: not list((tmp_path / "config").glob("tamis.topics.*")))
            journal = tmp_path / "config" / "tamis.topics.000002.log"
            journal.symlink_to("/dev/full")
            for refused in (
                await client.send("Sent"),
                await client.ask(
                    RequestCode.UPDATE_AND_CREATE_TOPIC, _create_topic("Asked").to_fields()
                ),
            ):
                assert refused.code == ResponseCode.SYSTEM_ERROR
                assert str(journal) in (refused.remark or "")
                assert "No space left on device" in (refused.remark or "")
            deleted = await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Known"})
            assert deleted.code == ResponseCode.SYSTEM_ERROR
            assert "Known" in broker.topics
            assert not {"Sent", "Asked"} & set(broker.topics)
            assert (await client.send("Known")).code == ResponseCode.SUCCESS
            journal.unlink()
            assert (await client.send("Sent", b"now")).code == ResponseCode.SUCCESS
            assert [one.body for one in await client.all_of("Sent")] == [b"now"]

    run(scene())


def test_a_line_of_the_journal_that_was_cut_short_takes_no_other_with_it(tmp_path: Path) -> None:
    made = TopicConfig(name="After", read_queues=1, write_queues=1)
    topics = Topics(tmp_path, BrokerConfig(), lambda: 1.0, {})
    topics.put(TopicConfig(name="Before", read_queues=1, write_queues=1))
    [journal] = tmp_path.glob("tamis.topics.*.log")
    journal.write_bytes(journal.read_bytes() + b'{"name":"To')
    topics = Topics(tmp_path, BrokerConfig(), lambda: 1.0, {})
    topics.put(made)
    topics = Topics(tmp_path, BrokerConfig(), lambda: 1.0, {})
    assert topics["After"] == made
    assert "Before" in topics


def _topic(name: str, queues: int = 1) -> TopicConfig:
    return TopicConfig(name=name, read_queues=queues, write_queues=queues)


def test_a_change_the_table_has_already_is_not_made_again(tmp_path: Path) -> None:
    """A power cut right after a save: of the journal, the first of two lines is left."""
    topics = Topics(tmp_path, BrokerConfig(), lambda: 1.0, {})
    topics.put(_topic("Grown", 2))
    [journal] = tmp_path.glob("tamis.topics.*.log")
    left = journal.read_bytes()
    topics.put(_topic("Grown", 8))
    topics.snapshot()()
    journal.write_bytes(left)
    topics = Topics(tmp_path, BrokerConfig(), lambda: 1.0, {})
    assert topics["Grown"].read_queues == 8
    topics.put(_topic("Later"))  # and what comes now is kept
    assert "Later" in Topics(tmp_path, BrokerConfig(), lambda: 1.0, {})


def test_what_changes_during_a_save_is_kept_and_what_was_saved_forgotten(tmp_path: Path) -> None:
    topics = Topics(tmp_path, BrokerConfig(), lambda: 1.0, {})
    topics.put(_topic("Before"))
    save = topics.snapshot()
    topics.put(_topic("During"))
    save()
    [journal] = tmp_path.glob("tamis.topics.*.log")
    assert b"Before" not in journal.read_bytes()
    assert {"Before", "During"} < set(Topics(tmp_path, BrokerConfig(), lambda: 1.0, {}))


def test_the_journal_of_an_earlier_release_is_read(tmp_path: Path) -> None:
    tables.save_topics(tmp_path, {"Gone": _topic("Gone")}, DataVersion(counter=9))
    fields = beans.to_json(_topic("Made", 3))
    lines = [{"name": "Made", "topic": fields}, {"name": "Gone", "topic": None}]
    journal = tmp_path / "tamis.topics.log"
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    topics = Topics(tmp_path, BrokerConfig(), lambda: 1.0, {"Gone": 1})
    assert topics["Made"] == _topic("Made", 3)
    assert "Gone" not in topics
    topics.snapshot()()
    assert not journal.exists()


def test_every_topic_a_tool_was_told_of_outlives_a_kill(tmp_path: Path) -> None:
    """It makes many, and most are acknowledged before the table is saved."""
    count = 1500

    async def scene(child: Child) -> None:
        await child.start()
        peer = await connect(child.broker)
        client = Client(peer)
        for first in range(0, count, 50):
            names = [f"Made-{n}" for n in range(first, first + 50)]
            answers = await asyncio.gather(
                *(
                    client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, _create_topic(name).to_fields())
                    for name in names
                )
            )
            assert {one.code for one in answers} == {ResponseCode.SUCCESS}
        await close(peer)
        child.kill()
        await child.start()
        peer = await connect(child.broker)
        found = await Client(peer).ask(RequestCode.GET_ALL_TOPIC_CONFIG)
        topics = json.loads(found.body)["topicConfigTable"]
        assert {f"Made-{n}" for n in range(count)} <= set(topics)
        await close(peer)

    child = Child(tmp_path, *SMALL_FILES)
    try:
        asyncio.run(scene(child))
    finally:
        child.end()


def test_a_journal_that_can_not_be_synced_has_the_table_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    synced: list[Path] = []
    sync = Topics.sync

    def fail_once(topics: Topics) -> None:
        synced.append(topics.path)
        if len(synced) == 1:
            raise OSError(5, "Input/output error", str(topics.path))
        sync(topics)

    async def scene() -> None:
        monkeypatch.setattr(Topics, "sync", fail_once)
        monkeypatch.setattr(saving, "_SHARE", 1e9)  # after the first save, the journal will do
        async with running(tmp_path) as (broker, client):
            await eventually(lambda: broker.topics.path.exists())
            for name, is_in_table in (("First", True), ("Second", False)):
                made = await client.ask(
                    RequestCode.UPDATE_AND_CREATE_TOPIC, _create_topic(name).to_fields()
                )
                assert made.code == ResponseCode.SUCCESS
                assert (name in broker.topics.path.read_text()) is is_in_table
            assert len(synced) == 2
        assert "Second" in broker.topics.path.read_text()  # after a clean stop
        assert not list((tmp_path / "config").glob("tamis.topics.*"))

    run(scene())
    assert "the changes of the topics can't be synced" in caplog.text


def test_after_a_sync_that_failed_the_next_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel drops what it could not write: a second fsync succeeds, and it is not there."""
    topics = Topics(tmp_path, BrokerConfig(), lambda: 1.0, {})
    topics.put(_topic("Made"))
    with monkeypatch.context() as broken:

        def fail(descriptor: int) -> None:
            raise OSError(5, "Input/output error")

        replace_call(broken, tmp_path, "fsync", fail)
        with pytest.raises(OSError, match="Input/output"):
            topics.sync()
    with pytest.raises(OSError, match="could not be synced"):
        topics.sync()
    topics.snapshot()()
    topics.put(_topic("Later"))
    topics.sync()


def test_a_deleted_topic_stays_so_if_the_list_of_those_is_not_saved(tmp_path: Path) -> None:
    topics = Topics(tmp_path, BrokerConfig(), lambda: 1.0, {})
    topics.put(TopicConfig(name="Gone", read_queues=1, write_queues=1))
    topics.snapshot()()
    topics.delete("Gone")
    (tmp_path / "tamis.deleted.json").mkdir()  # it can't be written
    with pytest.raises(StoreError, match="directory"):
        topics.snapshot()()
    (tmp_path / "tamis.deleted.json").rmdir()
    assert "Gone" not in Topics(tmp_path, BrokerConfig(), lambda: 1.0, {"Gone": 1})


def test_a_stop_saves_and_closes_all_it_can(tmp_path: Path) -> None:
    async def scene() -> None:
        settings = BrokerConfig(port=0, log_file_size=2**20, index_slots=64, index_entries=256)
        broker = Broker(settings, tmp_path)
        await broker.start()
        client = await Client.connect(broker.address)
        await client.send("T", b"kept")
        broker.offsets.commit("G", "T", 0, 1)
        await broker.saver.durable("topics")
        topics = tmp_path / "config" / "topics.json"
        topics.unlink()
        topics.mkdir()
        held = asyncio.create_task(client.pull("T", 1, suspend=60))
        await eventually(lambda: broker.holds.count)
        await broker.close()
        assert (await held).code == ResponseCode.PULL_NOT_FOUND
        assert not (tmp_path / "abort").exists()
        saved = (tmp_path / "config" / "consumerOffset.json").read_text()
        assert "T@G" in saved
        topics.rmdir()
        async with running(tmp_path) as (_, again):
            assert [one.body for one in messages((await again.pull("T")).body)] == [b"kept"]

    run(scene())


class _Unlucky(random.Random):
    """Of what was not synced, a power cut loses everything."""

    def random(self) -> float:
        return 0.0


def test_no_offset_is_on_the_disk_before_the_messages_it_has_passed(tmp_path: Path) -> None:
    files = LossyFiles(_Unlucky(1))
    config = StoreConfig(flush="async", log_file_size=2**16, index_slots=64, index_entries=256)
    store = Store(tmp_path, config, files=files)
    offsets = Offsets(store.paths.config, store)
    store.append([Draft(topic="T", body=b"%d" % number) for number in range(5)])
    store.dispatch()
    offsets.commit("G", "T", 0, 5)
    offsets.snapshot()()
    store.append([Draft(topic="T", body=b"of nobody yet")])
    store.abandon()
    files.power_cut()
    with Store(tmp_path, config) as again:
        queue = again.find_queue("T", 0)
        saved = json.loads(
            (tmp_path / "config" / "consumerOffset.json").read_text().replace("0:5", '"0":5')
        )
        assert saved == {"offsetTable": {"T@G": {"0": 5}}}
        assert queue is not None
        assert queue.max_offset >= 5
