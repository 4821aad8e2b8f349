"""What could go wrong, once found by a hard look at the store: each did, and must not again."""

import errno
import logging
import os
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
from disks import replace_call

from tamis.errors import ConfigError, CorruptRecord, StoreError
from tamis.filter.tags import parse_tags
from tamis.store.commitlog import IllegalMessage
from tamis.store.config import StoreConfig
from tamis.store.inspect import Directory
from tamis.store.select import Limits, Status
from tamis.store.store import Store
from tamis.wire import record
from tamis.wire.record import Draft

CONFIG = StoreConfig(
    log_file_size=4096, queue_file_size=200, index_slots=64, index_entries=256, keep_hours=1.0
)


def bodies(store: Store, topic: str = "T") -> list[bytes]:
    found, offset = [], 0
    while True:
        selection = store.select(topic, 0, offset, Limits(messages=1000, count=1000))
        found += [record.decode(bytes(raw)).body for raw in selection.records]
        if selection.next_offset in (offset, selection.max_offset):
            return found
        offset = selection.next_offset


def test_a_failed_sync_is_never_taken_for_a_good_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path, CONFIG)
    store.append([Draft(topic="T", body=b"kept")])

    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        replace_call(patched, tmp_path, "fdatasync", fail)
        with pytest.raises(StoreError, match="while syncing"):
            store.append([Draft(topic="T", body=b"unknown")])
    with pytest.raises(StoreError, match="opened again"):
        store.append([Draft(topic="T", body=b"refused")])
    store.abandon()
    with Store(tmp_path, CONFIG) as store:
        store.append([Draft(topic="T", body=b"goes on")])
        store.dispatch()
        found = bodies(store)
        assert (found[0], found[-1]) == (b"kept", b"goes on")
        assert b"refused" not in found


def test_a_crowded_disk_costs_no_more_files_than_it_must(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    with Store(tmp_path, CONFIG) as store:
        for _ in range(200):
            store.append([Draft(topic="T", body=bytes(range(200)))])
        store.dispatch()
        files = len(store.log.files.starts)
        taken = (tmp_path / "commitlog" / f"{0:020}").stat().st_blocks * 512
        crowded, full = (usage(300 * taken, n * taken, (100 - n) * taken) for n in (84, 87))
        monkeypatch.setattr(shutil, "disk_usage", lambda path: crowded)
        assert store.clean() == []  # what others keep of the disk is not in use
        monkeypatch.setattr(shutil, "disk_usage", lambda path: full)
        assert len(store.clean()) == 2  # 87 % to 85 %
        assert len(store.log.files.starts) == files - 2


def test_dispatch_goes_on_where_removal_has_overtaken_it(tmp_path: Path) -> None:
    with Store(tmp_path, CONFIG) as store:
        for i in range(60):
            store.append([Draft(topic="T", body=b"%03d" % i + bytes(200))])
        for path in sorted((tmp_path / "commitlog").iterdir())[:2]:
            os.utime(path, (0, 0))
        assert len(store.clean()) == 2
        store.dispatch()
        assert [body[:3] for body in bodies(store)][-1] == b"059"
    assert not (tmp_path / "abort").exists()
    assert list(Directory(tmp_path).verify()) == []


def test_gaps_do_not_hide_what_follows_them(tmp_path: Path) -> None:
    """Damage leaves a gap in the queue; then the log's first files are removed."""
    with Store(tmp_path, CONFIG) as store:
        places = []
        for i in range(80):
            places += store.append([Draft(topic="T", body=b"%03d" % i + bytes(200))])
    hit = places[40]
    path = tmp_path / "commitlog" / f"{hit.log_offset - hit.log_offset % 4096:020}"
    data = bytearray(path.read_bytes())
    data[hit.log_offset % 4096 + 100] ^= 1
    path.write_bytes(data)
    shutil.rmtree(tmp_path / "consumequeue")
    with Store(tmp_path, CONFIG) as store:
        assert len(store.damages) == 1
        for path in sorted((tmp_path / "commitlog").iterdir())[:2]:
            os.utime(path, (0, 0))
        store.clean()
        first = store.queues["T", 0].min_offset
        assert 0 < first < 40
        selection = store.select("T", 0, first, Limits(messages=100, count=100))
        got = [int(record.decode(bytes(r)).body[:3]) for r in selection.records]
        assert got == [i for i in range(first, 80) if i != 40]


def test_a_clock_that_is_set_back_costs_nothing(tmp_path: Path) -> None:
    now = [2_000_000_000.0]
    store = Store(tmp_path, CONFIG, now=lambda: now[0])
    store.append([Draft(topic="T", body=b"late")])
    store.dispatch()
    store.flush()
    now[0] = 1_000_000_000.0
    placed = [store.append([Draft(topic="T", body=b"%03d" % i)])[0] for i in range(60)]
    times = [store.message(place.log_offset).store_timestamp for place in placed]
    assert min(times) >= 2_000_000_000_000
    store.abandon()
    shutil.rmtree(tmp_path / "consumequeue" / "T" / "0")
    (tmp_path / "consumequeue" / "T" / "0").mkdir()
    with Store(tmp_path, CONFIG, now=lambda: now[0]) as store:
        assert len(bodies(store)) >= 60


@pytest.mark.parametrize("topic", ["../../outside", "a\0b", "a/b", "a\nb", ".", "..", "\ud800"])
def test_a_topic_that_is_no_name_is_refused(tmp_path: Path, topic: str) -> None:
    with Store(tmp_path / "store", CONFIG) as store:
        with pytest.raises(IllegalMessage, match="topic"):
            store.append([Draft(topic=topic)])
        with pytest.raises(IllegalMessage, match="topic"):
            store.append_batch(Draft(topic=topic), record.batch_item(b"x"))
        for queue_id in (-1, 2**31):
            with pytest.raises(IllegalMessage, match="queue"):
                store.append([Draft(topic="T", queue_id=queue_id)])
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_an_altered_record_is_given_by_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Store(tmp_path, CONFIG) as store:
        [place] = store.append([Draft(topic="T", body=b"x", properties=b"KEYS\x01kk")])
        store.append([Draft(topic="T", body=b"y", properties=b"KEYS\x01kk")])
    log = tmp_path / "commitlog" / f"{0:020}"
    log.write_bytes(log.read_bytes().replace(b"kk", b"jk", 1))
    with caplog.at_level(logging.CRITICAL), Store(tmp_path, CONFIG) as store:
        with pytest.raises(CorruptRecord):
            store.message(place.log_offset)
        assert [m.body for m in store.query("T", "kk")] == [b"y"]
        assert bodies(store) == [b"y"]
    assert [m.body for m in Directory(tmp_path).messages()] == [b"y"]


def test_a_record_in_the_body_of_a_damaged_one_is_no_message(tmp_path: Path) -> None:
    with Store(tmp_path, CONFIG) as store:
        store.append([Draft(topic="T", body=b"first")])
        at = store.log.end + 88 + 10  # in the body of the next
        host = record.pack_host(CONFIG.store_host)
        inner = Draft(topic="T", body=b"666").encode(1, at, 5, host)
        [outer] = store.append([Draft(topic="T", body=bytes(10) + inner + bytes(10))])
        store.append([Draft(topic="T", body=b"last")])
    log = tmp_path / "commitlog" / f"{0:020}"
    data = bytearray(log.read_bytes())
    data[outer.log_offset + 88 + 5] ^= 1
    log.write_bytes(data)
    shutil.rmtree(tmp_path / "consumequeue")
    with Store(tmp_path, CONFIG) as store:
        assert bodies(store) == [b"first", b"last"]


def test_opening_again_and_again_doubles_nothing(tmp_path: Path) -> None:
    for i in range(5):
        with Store(tmp_path, CONFIG) as store:
            store.append([Draft(topic="T", body=b"%d" % i, properties=b"KEYS\x01k")])
            store.dispatch()
            assert [m.body for m in store.query("T", "k")] == [b"%d" % j for j in range(i + 1)]
    assert list(Directory(tmp_path).verify()) == []


def test_one_process_opens_a_store_once(tmp_path: Path) -> None:
    with Store(tmp_path, CONFIG), pytest.raises(StoreError, match="open already"):
        Store(tmp_path, CONFIG)
    Store(tmp_path, CONFIG).close()


def test_a_seal_of_a_record_that_was_lost_condemns_no_other(tmp_path: Path) -> None:
    now = [1_700_000_000.0]
    store = Store(tmp_path, CONFIG, now=lambda: now[0])
    store.append([Draft(topic="T", body=b"lost")])
    store.abandon()
    seals = {p: p.read_bytes() for p in (tmp_path / "tamis-seals").iterdir()}
    log = tmp_path / "commitlog" / f"{0:020}"
    log.write_bytes(bytes(4096))  # the record did not reach the disk, its seal did
    now[0] += 1
    store = Store(tmp_path, CONFIG, now=lambda: now[0])
    store.append([Draft(topic="T", body=b"kept")])
    store.abandon()
    for path, data in seals.items():
        path.write_bytes(data)  # and a second power cut brings it back
    with Store(tmp_path, CONFIG) as store:
        assert bodies(store) == [b"kept"]


def test_a_rebuild_cut_short_is_begun_again(tmp_path: Path) -> None:
    from random import Random

    from tamis.testing import Crash, LossyFiles

    with Store(tmp_path, CONFIG) as store:
        for i in range(80):
            store.append([Draft(topic="T", body=b"%03d" % i)])
    for die_at in range(1, 40, 3):
        shutil.rmtree(tmp_path / "consumequeue", ignore_errors=True)
        files = LossyFiles(Random(die_at), die_at=die_at)
        store = None
        try:
            store = Store(tmp_path, CONFIG, files=files)
            store.close()
        except Crash:
            if store is not None:
                store.abandon()
            files.power_cut()
        with Store(tmp_path, CONFIG) as store:
            assert bodies(store) == [b"%03d" % i for i in range(80)]


@pytest.mark.parametrize(
    "setting",
    [{"delay_levels": "1x"}, {"delay_levels": ""}, {"extension_file_size": 20}],
)
def test_settings_that_would_fail_later_fail_at_once(setting: dict) -> None:
    with pytest.raises(ConfigError):
        StoreConfig(**setting)
    with pytest.raises(ConfigError):
        Limits(units=0)


def test_a_queue_of_gaps_only_has_nothing(tmp_path: Path) -> None:
    with Store(tmp_path, CONFIG) as store:
        assert store.select("T", 0, 0).status is Status.NO_MESSAGE_IN_QUEUE
        assert store.count("T", 0, 0, parse_tags("a")) == 0
