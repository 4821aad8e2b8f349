"""The store as a whole: appends, flushes, delays, keeping and removing, and wrong directories."""

import os
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from tamis.errors import ConfigError, StoreError
from tamis.filter.tags import parse_tags
from tamis.message import DELAY_TOPIC, Host
from tamis.store.commitlog import IllegalMessage
from tamis.store.config import StoreConfig
from tamis.store.files import DiskFull, Files
from tamis.store.inspect import Directory
from tamis.store.select import Limits, Status
from tamis.store.store import Store
from tamis.wire import record
from tamis.wire.record import Draft

SMALL = {
    "log_file_size": 4096,
    "queue_file_size": 2000,
    "index_slots": 64,
    "index_entries": 256,
}


def small(**changes: object) -> StoreConfig:
    return StoreConfig(**{**SMALL, **changes})


def test_what_is_appended_is_there_after_a_restart(tmp_path: Path) -> None:
    with Store(tmp_path, small()) as store:
        for i in range(100):
            store.append([Draft(topic="T", queue_id=i % 2, body=b"%d" % i)])
    with Store(tmp_path, small()) as store:
        selection = store.select("T", 1, 0, Limits(messages=100, count=100))
        bodies = [record.decode(memoryview(r.tobytes())).body for r in selection.records]
        assert bodies == [b"%d" % i for i in range(1, 100, 2)]
        [place] = store.append([Draft(topic="T", queue_id=0, body=b"next")])
        assert place.queue_offset == 50


def test_a_batch_is_stored_whole_or_not_at_all(tmp_path: Path) -> None:
    with Store(tmp_path, small()) as store:
        good = Draft(topic="T", body=b"x")
        for bad, what in (
            (Draft(topic="t" * 128), "a topic of 128 bytes"),
            (Draft(topic=""), "a topic of 0 bytes"),
            (Draft(topic="T", properties=bytes(40_000)), "properties of 40000 bytes"),
            (Draft(topic="T", body=bytes(5 * 2**20)), "a body of 5242880 bytes"),
            (Draft(topic="T", body=bytes(5000)), "for files of 4096"),
        ):
            with pytest.raises(IllegalMessage, match=what):
                store.append([good, bad])
        store.dispatch()
        assert store.count("T", 0, 0) == 0


def test_a_batch_as_it_travels_is_stored_message_by_message(tmp_path: Path) -> None:
    sent = [(b"%d" % i * (i % 9), f"n\x01{i}".encode() if i % 3 else b"", i) for i in range(40)]
    batch = b"".join(record.batch_item(*item) for item in sent)
    envelope = Draft(topic="T", queue_id=1, properties=b"CLUSTER\x01c", born_timestamp=5)
    with Store(tmp_path, small(log_file_size=16_384)) as store:
        store.append([Draft(topic="T", queue_id=1, body=b"first")])
        for _ in range(5):  # some roll to the next file
            placed = store.append_batch(envelope, batch)
        assert [place.queue_offset for place in placed] == list(range(161, 201))
        for place, (body, block, flag) in zip(placed, sent, strict=True):
            message = store.message(place.log_offset)
            assert (message.body, message.flag, message.size) == (body, flag, place.size)
            expected = {"CLUSTER": "c"} | ({"n": str(flag)} if block else {})
            assert message.properties == expected
            assert (message.queue_offset, message.born_timestamp) == (place.queue_offset, 5)
        store.dispatch()
        assert store.count("T", 1, 0) == 201
        for wrong in (batch[:-1], batch + b"x", b"\0" * 30, bytes(3)):
            with pytest.raises(IllegalMessage, match="cut short or wrong"):
                store.append_batch(envelope, wrong)
        with pytest.raises(IllegalMessage, match="delayed"):
            store.append_batch(Draft(topic="T", properties=b"DELAY\x011"), batch)
        assert store.append_batch(envelope, b"") == []
    assert list(Directory(tmp_path).verify()) == []


def test_threads_share_flushes(tmp_path: Path) -> None:
    class CountingFiles(Files):
        syncs = 0

        def sync(self, path, descriptor):
            CountingFiles.syncs += 1
            super().sync(path, descriptor)

    store = Store(tmp_path, small(log_file_size=2**20), files=CountingFiles())
    before = CountingFiles.syncs

    def produce() -> None:
        for _ in range(50):
            store.append([Draft(topic="T", body=b"x")])

    threads = [threading.Thread(target=produce) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert CountingFiles.syncs - before < 400
    store.close()
    with Store(tmp_path, small(log_file_size=2**20)) as store:
        assert store.count("T", 0, 0) == 400


@pytest.mark.parametrize("address", [bytes(15) + b"\1", bytes([10, 0, 0, 7])])
def test_hosts_of_either_kind_are_stored(tmp_path: Path, address: bytes) -> None:
    config = small(store_host=Host(address, 10911))
    born = Host(bytes(12) + b"born", 4000)
    with Store(tmp_path, config) as store:
        places = store.append([Draft(topic="T", body=b"x", born_host=born), Draft(topic="T")])
        places += store.append_batch(Draft(topic="T", born_host=born), record.batch_item(b"y") * 3)
        store.dispatch()
        assert store.count("T", 0, 0) == 5
        for place in places:
            assert store.message(place.log_offset).store_host == config.store_host
        assert store.message(places[-1].log_offset).born_host == born
    assert list(Directory(tmp_path).verify()) == []


def test_a_record_of_rocketmq_5_is_named_as_such(tmp_path: Path) -> None:
    with Store(tmp_path, small()) as store:
        store.append([Draft(topic="T", body=b"x"), Draft(topic="T", body=b"y")])
    log = tmp_path / "commitlog" / f"{0:020}"
    log.write_bytes(log.read_bytes().replace(b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab", 1))
    with pytest.raises(StoreError, match="RocketMQ 5"):
        Directory(tmp_path)


def test_a_delayed_message_waits_in_the_delay_topic(tmp_path: Path) -> None:
    now = 1_700_000_000.0
    with Store(tmp_path, small(), now=lambda: now) as store:
        store.append([Draft(topic="T", queue_id=3, body=b"later", properties=b"DELAY\x0199")])
        store.dispatch()
        assert store.count("T", 3, 0) == 0
        [unit] = store.queues[DELAY_TOPIC, 17].units(0, 1).tolist()  # level 18 is the last
        assert unit[2] == int(now * 1000) + 2 * 3_600_000
        message = store.message(unit[0])
        assert message.properties["REAL_TOPIC"] == "T"
        assert message.properties["REAL_QID"] == "3"


def test_old_files_are_removed_and_reading_there_says_so(tmp_path: Path) -> None:
    with Store(tmp_path, small(keep_hours=1.0)) as store:
        for _ in range(100):
            store.append([Draft(topic="T", body=bytes(200), properties=b"KEYS\x01k")])
        store.dispatch()
        assert store.clean() == []
        for path in sorted((tmp_path / "commitlog").iterdir())[:3]:
            os.utime(path, (0, 0))
        removed = store.clean()
        assert [path.name for path in removed] == [f"{i * 4096:020}" for i in range(3)]
        first = store.queues["T", 0].min_offset
        assert first > 0
        assert store.select("T", 0, 0).status is Status.OFFSET_TOO_SMALL
        assert store.select("T", 0, 0).next_offset == first
        assert store.select("T", 0, first).status is Status.FOUND
        assert store.count("T", 0, 0) == 100 - first
        # units of messages that are gone, as before the first offset was corrected
        store.queues["T", 0].min_offset = type(first)(0)
        gone = store.select("T", 0, 0, Limits(units=5))
        assert (gone.status, gone.next_offset) == (Status.MESSAGE_WAS_REMOVING, 5)
    with Store(tmp_path, small()) as store:
        assert store.queues["T", 0].min_offset == first
        assert store.log.start == 3 * 4096
    assert list(Directory(tmp_path).verify()) == []


def test_appends_are_refused_while_the_disk_is_too_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = [95]
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: SimpleNamespace(used=usage[0], free=100 - usage[0])
    )
    with Store(tmp_path, small()) as store:
        store.clean()
        with pytest.raises(DiskFull, match="95% of the disk is in use; free some room"):
            store.append([Draft(topic="T")])
        usage[0] = 50
        store.clean()
        store.append([Draft(topic="T")])


def test_keys_are_found_exactly(tmp_path: Path) -> None:
    with Store(tmp_path, small()) as store:
        for i in range(50):
            block = f"KEYS\x01k{i} even{i % 2}\x02UNIQ_KEY\x01U{i}".encode()
            store.append([Draft(topic="T", body=b"%d" % i, properties=block)])
        store.dispatch()
        assert [m.body for m in store.query("T", "k7")] == [b"7"]
        assert [m.body for m in store.query("T", "U9")] == [b"9"]
        assert len(store.query("T", "even1", limit=64)) == 25
        assert store.query("Other", "k7") == []


def test_a_tag_filter_sees_hashes_through_extensions(tmp_path: Path) -> None:
    with Store(tmp_path, small(extensions=True, extension_file_size=1024)) as store:
        for i in range(60):
            store.append(
                [Draft(topic="T", properties=b"TAGS\x01" + (b"Aa", b"BB", b"C")[i % 3 :][0])]
            )
        store.dispatch()
        assert store.count("T", 0, 0, parse_tags("Aa")) == 40  # the two collide
        assert store.count("T", 0, 0, parse_tags("C")) == 20


def test_readers_are_not_disturbed_by_writing_dispatch_and_removal(tmp_path: Path) -> None:
    store = Store(tmp_path, small(keep_hours=-1.0, queue_file_size=200, flush="async"))
    problems: list[BaseException] = []
    stop = threading.Event()

    def read() -> None:
        offset = 0
        while not stop.is_set():
            try:
                selection = store.select("T", 0, offset)
                for raw in selection.records:
                    message = record.decode(bytes(raw), check_crc=True)
                    assert message.queue_offset >= offset
                offset = selection.next_offset if selection.records else 0
                store.count("T", 0, 0, parse_tags("a"))
            except BaseException as error:
                problems.append(error)
                return

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for i in range(600):
        store.append([Draft(topic="T", body=bytes(i % 300), properties=b"TAGS\x01a")])
        store.dispatch()
        if i % 20 == 0:
            store.clean()
    stop.set()
    for reader in readers:
        reader.join()
    assert problems == []
    store.close()


def test_only_one_process_may_open_a_store(tmp_path: Path) -> None:
    import subprocess
    import sys

    program = "import sys; from tamis.store.store import Store; Store(sys.argv[1])"
    with Store(tmp_path, small()):
        done = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True
        )
    assert "another process uses this store" in done.stderr


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda root: (root / "commitlog" / f"{0:020}").write_bytes(b"x" * 100),
            "100 bytes, where",
        ),
        (lambda root: (root / "commitlog" / f"{4096:020}").unlink(), "is missing"),
        (lambda root: (root / "consumequeue/T/0" / f"{0:020}").write_bytes(b"x"), "1 bytes, where"),
        (lambda root: (root / "config").mkdir() or _spoil_tables(root), "topics.json|Filter.json"),
    ],
)
def test_files_that_are_not_ours_are_named_and_left_alone(
    tmp_path: Path, spoil, message: str
) -> None:
    with Store(tmp_path, small()) as store:
        for _ in range(60):
            store.append([Draft(topic="T", body=bytes(200))])
    spoil(tmp_path)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file() and p.name != "lock"}
    with pytest.raises(StoreError, match=message):
        Store(tmp_path, small())
    assert before == {p: p.read_bytes() for p in before}


def _spoil_tables(root: Path) -> None:
    (root / "config" / "consumerFilter.json").write_text("{ not json")


def test_what_is_no_store_is_refused_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    for path, message in (
        (tmp_path, "not a store"),
        (tmp_path / "nowhere", "no such directory"),
    ):
        with pytest.raises(StoreError, match=message):
            Directory(path)
    with pytest.raises(StoreError):
        Store(file, small())


@pytest.mark.parametrize(
    ("setting", "value"),
    [("flush", "never"), ("queue_file_size", 30), ("log_file_size", 1), ("clean_ratio", 2.0)],
)
def test_a_wrong_setting_is_refused(setting: str, value: object) -> None:
    with pytest.raises(ConfigError):
        StoreConfig(**{setting: value})


def test_a_full_disk_loses_nothing_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    import random

    from tamis.testing import LossyFiles

    files = LossyFiles(random.Random(1), full_at=20)
    store = Store(tmp_path, small(), files=files)
    stored = 0

    def fill() -> None:
        nonlocal stored
        while True:
            store.append([Draft(topic="T", body=b"%d" % stored)])
            stored += 1

    with pytest.raises(DiskFull, match="no space left"):
        fill()
    files.make_room()
    store.append([Draft(topic="T", body=b"%d" % stored)])
    store.close()
    with Store(tmp_path, small()) as store:
        selection = store.select("T", 0, 0, Limits(messages=2000, count=2000))
        bodies = [record.decode(memoryview(r.tobytes())).body for r in selection.records]
        assert bodies == [b"%d" % i for i in range(stored + 1)]
