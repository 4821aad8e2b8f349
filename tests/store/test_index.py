"""The key index: against a real broker's files, against a plain model, and after damage."""

import errno
import json
import os
import struct
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from disks import replace_call
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.errors import StoreError
from tamis.store.files import DiskFull
from tamis.store.index import MAX_FOUND, KeyIndex, key_hash

GOLDEN = Path(__file__).parent.parent / "golden" / "index"
SLOTS, ENTRIES = 64, 256  # of the recorded files
NOON = datetime(2026, 11, 15, 12, 0).timestamp()
FOREVER = 2**63 - 1

Entry = tuple[int, int, int]  # hash, log offset, store time


def put(index: KeyIndex, *entries: Entry) -> None:
    hashes, offsets, times = zip(*entries, strict=True) if entries else ((), (), ())
    index.put(np.array(hashes, "i4"), np.array(offsets, "i8"), np.array(times, "i8"))


def contents(index: KeyIndex) -> list[bytes]:
    return [path.read_bytes() for path in index.files]


def header(path: Path) -> tuple[int, ...]:
    return struct.unpack_from(">4q2i", path.read_bytes())


def patch(path: Path, offset: int, layout: str, value: int) -> None:
    data = bytearray(path.read_bytes())
    struct.pack_into(layout, data, offset, value)
    path.write_bytes(data)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[KeyIndex]:
    """Four slots, room for five entries: one to five."""
    index = KeyIndex(tmp_path / "index", 4, 6, now=lambda: NOON)
    yield index
    index.close()


# The recorded broker


@dataclass
class Recorded:
    """A message of the log, and the keys it is indexed by."""

    topic: str
    offset: int
    stored: int
    keys: list[str]


@pytest.fixture(scope="module")
def recorded() -> list[Recorded]:
    messages = []
    for line in (GOLDEN / "clean.jsonl").read_text().splitlines():
        row = json.loads(line)
        keys = [key for key in (row["keys"] or "").split(" ") if key]
        if row["uniq_key"] is not None:
            keys.insert(0, row["uniq_key"])
        if row["sys_flag"] & 0xC != 0xC:  # a rollback is not indexed
            messages.append(Recorded(row["topic"], row["offset"], row["stored"], keys))
    return messages


@pytest.fixture
def apache(tmp_path: Path) -> Path:
    with tarfile.open(GOLDEN / "clean.tar.gz") as archive:
        archive.extractall(tmp_path / "apache", filter="data")
    return tmp_path / "apache"


@pytest.mark.parametrize("batch", [1, 100, 10_000])
def test_bytes_are_those_of_a_real_broker(
    tmp_path: Path, apache: Path, recorded: list[Recorded], batch: int
) -> None:
    entries = [(key_hash(m.topic, key), m.offset, m.stored) for m in recorded for key in m.keys]
    index = KeyIndex(tmp_path / "index", SLOTS, ENTRIES)
    for start in range(0, len(entries), batch):
        put(index, *entries[start : start + batch])
    assert contents(index) == [path.read_bytes() for path in sorted(apache.iterdir())]
    index.close()


def test_every_key_is_found_in_a_real_brokers_files(apache: Path, recorded: list[Recorded]) -> None:
    by_hash: dict[int, list[int]] = {}
    for message in recorded:
        for key in message.keys:
            by_hash.setdefault(key_hash(message.topic, key), []).insert(0, message.offset)
    index = KeyIndex(apache, SLOTS, ENTRIES, writable=False)
    for message in recorded:
        for key in message.keys:
            found = index.query(message.topic, key, MAX_FOUND, 0, FOREVER)
            assert found == by_hash[key_hash(message.topic, key)][:MAX_FOUND]
            assert message.offset in found or len(found) == MAX_FOUND
    index.close()


def test_a_real_brokers_files_are_sound(apache: Path) -> None:
    index = KeyIndex(apache, SLOTS, ENTRIES, writable=False)
    assert list(index.verify()) == []
    index.close()


def test_a_real_brokers_files_are_continued(apache: Path, recorded: list[Recorded]) -> None:
    index = KeyIndex(apache, SLOTS, ENTRIES)
    before, last = contents(index), recorded[-1]
    assert index.end_offset == max(m.offset for m in recorded if m.keys)
    put(index, *((key_hash(m.topic, k), m.offset, m.stored) for m in recorded[:-1] for k in m.keys))
    assert contents(index) == before  # all of it was in already
    put(index, (key_hash("T", "new"), last.offset + 500, last.stored + 1))
    assert index.query("T", "new", 1, 0, FOREVER) == [last.offset + 500]
    assert list(index.verify()) == []
    index.close()


# A plain model


@dataclass
class ModelFile:
    """`IndexFile` in lists and dicts."""

    slots: int
    entries: int
    begin_time: int = 0
    end_time: int = 0
    begin_offset: int = 0
    end_offset: int = 0
    heads: dict[int, int] = field(default_factory=dict)
    table: list[tuple[int, int, int, int]] = field(default_factory=list)

    @property
    def is_full(self) -> bool:
        return len(self.table) + 1 >= self.entries

    def put(self, hash_: int, offset: int, time: int) -> None:
        delta = (time - self.begin_time) // 1000 if self.begin_time > 0 else 0
        delta = min(max(delta, 0), 2**31 - 1)
        slot = hash_ % self.slots
        self.table.append((hash_, offset, delta, self.heads.get(slot, 0)))
        self.heads[slot] = len(self.table)
        if len(self.table) == 1:
            self.begin_time, self.begin_offset = time, offset
        self.end_time, self.end_offset = time, offset

    def data(self) -> bytes:
        times = self.begin_time, self.end_time
        offsets = self.begin_offset, self.end_offset
        count = len(self.table) + 1 if self.table else 0
        parts = [struct.pack(">4q2i", *times, *offsets, len(self.heads), count)]
        parts += [struct.pack(">i", self.heads.get(slot, 0)) for slot in range(self.slots)]
        parts += [bytes(20), *(struct.pack(">iqii", *entry) for entry in self.table)]
        return b"".join(parts).ljust(40 + self.slots * 4 + self.entries * 20, b"\0")


class Model:
    def __init__(self, slots: int, entries: int) -> None:
        self.slots, self.entries = slots, entries
        self.files: list[ModelFile] = []

    def put(self, hash_: int, offset: int, time: int) -> None:
        if not self.files or self.files[-1].is_full:
            new = ModelFile(self.slots, self.entries)
            if self.files:
                new.begin_time = new.end_time = self.files[-1].end_time
                new.begin_offset = new.end_offset = self.files[-1].end_offset
            self.files.append(new)
        if offset >= self.files[-1].end_offset:
            self.files[-1].put(hash_, offset, time)

    def query(self, hash_: int, limit: int, begin: int, end: int) -> list[int]:
        found: list[int] = []
        for file in reversed(self.files):
            times = file.begin_time, file.end_time
            within = any(times[0] <= border <= times[1] for border in (begin, end))
            around = begin < times[0] and times[1] < end
            number = file.heads.get(hash_ % self.slots, 0) if within or around else 0
            while number and len(found) < limit:
                entry_hash, offset, delta, number = file.table[number - 1]
                time = file.begin_time + delta * 1000
                if entry_hash == hash_ and begin <= time <= end:
                    found.append(offset)
                if time < begin:
                    break
            if file.begin_time < begin:
                break
        return found


KEYS = ["a", "b", "Aa", "BB", "", "鍵", "a b"]  # Aa and BB have one hash

steps = st.lists(
    st.tuples(
        st.sampled_from(KEYS),
        st.sampled_from([0, 1, 250, -1, -300]),  # how far on in the log; back: it is there already
        st.sampled_from([0, 1, 999, 1000, 5000, 10**12 * 3]),
    ),
    max_size=40,
)


@settings(deadline=None, max_examples=60)
@given(
    batches=st.lists(steps, max_size=4),
    slots=st.integers(1, 5),
    entries=st.integers(2, 9),
    start=st.sampled_from([0, 1, 1_700_000_000_000]),
    begin_at=st.integers(0, 50),
    end_at=st.integers(0, 50),
    limit=st.integers(-1, 70),
)
def test_index_agrees_with_a_plain_model(
    batches: list[list[tuple[str, int, int]]],
    slots: int,
    entries: int,
    start: int,
    begin_at: int,
    end_at: int,
    limit: int,
) -> None:
    model, offset, time, times = Model(slots, entries), 0, start, [0, FOREVER]
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as root:
        for batch in batches:
            index = KeyIndex(Path(root), slots, entries, now=lambda: NOON)  # reopened each time
            rows = []
            for key, forward, later in batch:
                offset, time = max(offset + forward, 0), time + later
                rows.append((key_hash("T", key), offset, time))
                times += [time, time - 1, time + 1]
            put(index, *rows)
            for row in rows:
                model.put(*row)
            assert contents(index) == [file.data() for file in model.files]
            assert list(index.verify()) == []
            begin, end = times[begin_at % len(times)], times[end_at % len(times)]
            for key in KEYS:
                hash_ = key_hash("T", key)
                found = index.query("T", key, 1000, 0, FOREVER)
                assert found == model.query(hash_, MAX_FOUND, 0, FOREVER)
                found = index.query("T", key, limit, begin, end)
                assert found == model.query(hash_, min(limit, MAX_FOUND), begin, end)
            index.close()


# Rules one by one


@pytest.mark.parametrize(
    ("topic", "key", "expected"),
    [
        ("T", "k", 84 * 31**2 + 35 * 31 + 107),
        ("T", "order-1", 1840611261),  # Java: negative
        ("T", "jllgx0D", 0),  # Java: -2^31, which has no absolute value
    ],
)
def test_hash_is_the_absolute_value_of_javas(topic: str, key: str, expected: int) -> None:
    assert key_hash(topic, key) == expected


def test_first_delta_of_a_later_file_counts_from_the_end_of_the_one_before(small: KeyIndex) -> None:
    put(small, *((7, n * 100, 50_000) for n in range(5)), (7, 500, 59_999), (7, 600, 62_000))
    first, second = small.files
    assert header(first) == (50_000, 50_000, 0, 400, 1, 6)
    assert header(second) == (59_999, 62_000, 500, 600, 1, 3)
    deltas = [struct.unpack_from(">i", second.read_bytes(), 40 + 16 + n * 20 + 12) for n in (1, 2)]
    assert deltas == [(9,), (2,)]


def test_a_file_is_named_by_local_time_and_the_next_by_the_next_free_millisecond(
    small: KeyIndex,
) -> None:
    put(small, *((1, n, 1) for n in range(11)))
    names = [path.name for path in small.files]
    assert names == ["20261115120000000", "20261115120000001", "20261115120000002"]


def test_a_clock_set_back_does_not_change_the_order_of_files(tmp_path: Path) -> None:
    clock = iter([NOON, NOON - 3600, NOON + 0.25])
    index = KeyIndex(tmp_path, 4, 2, now=lambda: next(clock))
    put(index, (1, 0, 1), (1, 1, 1), (1, 2, 1))
    names = [path.name for path in index.files]
    assert names == ["20261115120000000", "20261115120000001", "20261115120000250"]
    index.close()


def test_nothing_is_made_before_the_first_put(tmp_path: Path) -> None:
    index = KeyIndex(tmp_path / "index")
    assert (index.files, index.end_offset, index.last_timestamp) == ([], 0, 0)
    assert index.query("T", "k", 10, 0, FOREVER) == []
    put(index)
    index.flush()
    index.close()
    assert not (tmp_path / "index").exists()


def test_default_files_have_apaches_size_and_take_little_of_the_disk(tmp_path: Path) -> None:
    index = KeyIndex(tmp_path)
    put(index, (1, 0, 1))
    (path,) = index.files
    assert path.stat().st_size == 420_000_040
    assert path.stat().st_blocks * 512 < 30_000_000
    index.close()


def test_messages_before_the_end_are_skipped_and_the_one_at_the_end_is_not(small: KeyIndex) -> None:
    put(small, (1, 100, 1), (2, 200, 2))
    put(small, (1, 100, 1), (1, 199, 1), (2, 200, 2), (3, 300, 3))
    assert header(small.files[0]) == (1, 3, 100, 300, 3, 5)
    assert small.end_offset == 300


def test_a_message_may_span_two_files(small: KeyIndex) -> None:
    put(small, *((n, 700, 1) for n in range(8)))
    assert [header(path)[5] for path in small.files] == [6, 4]


@pytest.mark.parametrize("size", [0, 39, 183, 185])
def test_file_of_another_size_is_refused(tmp_path: Path, size: int) -> None:
    (tmp_path / "20261115120000000").write_bytes(bytes(size))
    with pytest.raises(StoreError) as caught:
        KeyIndex(tmp_path, 4, 6)
    message = str(caught.value)
    assert str(tmp_path / "20261115120000000") in message
    assert f"{size} bytes" in message
    assert "176" in message


def test_files_with_other_names_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "new").write_bytes(b"cut short")
    index = KeyIndex(tmp_path, 4, 6)
    assert index.files == []
    put(index, (1, 0, 1))
    assert len(list(tmp_path.iterdir())) == 1
    index.close()


def test_times_are_whole_seconds_after_the_first(small: KeyIndex) -> None:
    hash_ = key_hash("T", "k")
    put(small, (hash_, 0, 10_000), (hash_, 1, 11_900), (hash_, 2, 13_000))
    assert small.query("T", "k", 9, 10_000, 13_000) == [2, 1, 0]
    assert small.query("T", "k", 9, 11_000, 11_000) == [1]
    assert small.query("T", "k", 9, 11_001, 12_999) == []
    assert small.query("T", "k", 9, 13_001, FOREVER) == []
    assert small.query("T", "k", 2, 0, FOREVER) == [2, 1]
    assert small.query("T", "k", 0, 0, FOREVER) == []


def test_no_query_gives_more_than_64(tmp_path: Path) -> None:
    index = KeyIndex(tmp_path, 4, 50)
    put(index, *((key_hash("T", "k"), n, 1) for n in range(100)))
    assert index.query("T", "k", 1000, 0, FOREVER) == list(range(99, 35, -1))
    index.close()


@pytest.mark.parametrize("wrong", ["negative", "lengths"])
def test_arguments_that_make_no_sense_are_refused(small: KeyIndex, wrong: str) -> None:
    hashes = np.array([-1 if wrong == "negative" else 1], dtype=np.int32)
    longs = np.zeros(1 if wrong == "negative" else 2, dtype=np.int64)
    with pytest.raises(ValueError):
        small.put(hashes, longs, longs)
    assert small.files == []


@pytest.mark.parametrize(("slots", "entries"), [(0, 10), (10, 1)])
def test_sizes_that_hold_nothing_are_refused(tmp_path: Path, slots: int, entries: int) -> None:
    with pytest.raises(ValueError):
        KeyIndex(tmp_path, slots, entries)


def test_only_a_writable_index_is_written(tmp_path: Path) -> None:
    index = KeyIndex(tmp_path, 4, 6, writable=False)
    for change in (lambda: put(index, (1, 0, 1)), lambda: index.drop_after(0)):
        with pytest.raises(StoreError):
            change()
    index.flush()
    index.close()


def test_closed_index_takes_nothing(small: KeyIndex) -> None:
    put(small, (1, 0, 1))
    small.close()
    small.close()
    with pytest.raises(StoreError):
        put(small, (1, 1, 1))


def test_full_disk_is_an_error_and_what_was_put_stays(
    tmp_path: Path, small: KeyIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(small, *((key_hash("T", "k"), n, 1) for n in range(5)))

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    replace_call(monkeypatch, tmp_path, "posix_fallocate", full)
    with pytest.raises(DiskFull):
        put(small, (key_hash("T", "k"), 9, 1))
    monkeypatch.undo()
    assert small.query("T", "k", 9, 0, FOREVER) == [4, 3, 2, 1, 0]
    put(small, (key_hash("T", "k"), 9, 1))
    assert small.query("T", "k", 1, 0, FOREVER) == [9]
    assert list(small.verify()) == []


def test_checkpoint_time_is_that_of_the_last_full_file_once_flushed(small: KeyIndex) -> None:
    put(small, *((1, n, 100 + n) for n in range(5)))
    assert small.last_timestamp == 0
    small.flush()
    assert small.last_timestamp == 104
    put(small, *((1, n, 100 + n) for n in range(5, 12)))
    assert small.last_timestamp == 104
    small.flush()
    assert small.last_timestamp == 109


def test_after_a_crash_files_beyond_the_checkpoint_and_empty_ones_go(small: KeyIndex) -> None:
    put(small, *((1, n, 100 + n) for n in range(12)))
    empty = small.directory / "20261115130000000"
    empty.write_bytes(struct.pack(">4q2i", 104, 104, 4, 4, 0, 0).ljust(40 + 16 + 120, b"\0"))
    first, second, third = small.files
    index = KeyIndex(small.directory, 4, 6)
    assert index.files == [first, second, third, empty]
    index.drop_after(109)
    assert index.files == [first, second] == sorted(small.directory.iterdir())
    assert index.end_offset == 9
    index.drop_after(103)
    assert index.files == []
    index.close()


@pytest.mark.parametrize("kept", range(4))
def test_put_again_after_a_power_cut_gives_what_there_was(small: KeyIndex, kept: int) -> None:
    """The last file's slots and entries reached the disk, its header only as of `kept` entries."""
    entries = [(n % 3, n * 10, 1000 * n) for n in range(13)]
    put(small, *entries[:10])
    small.flush()
    put(small, *entries[10 : 10 + kept])
    inherited = struct.pack(">4q2i", 9000, 9000, 90, 90, 0, 0)
    torn = small.files[-1].read_bytes()[:40] if kept else inherited
    put(small, *entries[10 + kept :])
    whole = contents(small)
    small.files[-1].write_bytes(torn + whole[-1][40:])

    index = KeyIndex(small.directory, 4, 6)
    index.drop_after(small.last_timestamp)
    assert index.files == small.files[:2]
    put(index, *(entry for entry in entries if entry[1] > index.end_offset))
    assert contents(index) == whole
    index.close()


def test_expired_files_go_but_never_the_last(small: KeyIndex) -> None:
    put(small, *((1, n * 10, 1) for n in range(12)))
    first, second, third = small.files  # end at 40, 90 and 110
    small.drop_before(40)
    assert small.files == [first, second, third]
    small.drop_before(90)
    assert small.files == [second, third] == sorted(small.directory.iterdir())
    small.drop_before(1_000_000)
    assert small.files == [third]


def test_expiry_stops_at_the_first_file_that_stays(small: KeyIndex) -> None:
    put(small, *((1, n * 10, 1) for n in range(12)))
    patch(small.files[0], 24, ">q", 500)
    small.drop_before(95)
    assert len(small.files) == 3


def test_put_query_flush_and_expiry_may_run_at_once(tmp_path: Path) -> None:
    index, done, failures = KeyIndex(tmp_path, 4, 50), threading.Event(), []
    hash_ = key_hash("T", "k")

    def beside() -> None:
        try:
            while not done.is_set():
                found = index.query("T", "k", 10, 0, FOREVER)
                assert found == sorted(found, reverse=True)
                index.flush()
                index.drop_before(index.end_offset - 200)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=beside) for _ in range(2)]
    for thread in threads:
        thread.start()
    for start in range(0, 2000, 100):
        put(index, *((hash_, n, n) for n in range(start, start + 100)))
    done.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert index.query("T", "k", 3, 0, FOREVER) == [1999, 1998, 1997]
    index.close()


# Damage. Slot 3 of 4 has the chain 3, 2, 1; entry n lies at 56 + 20n: hash, offset, delta, previous


@pytest.mark.parametrize(
    ("offset", "layout", "value", "problem", "found"),
    [
        (36, ">i", 7, "next entry is 7, beyond the 6", [2, 1, 0]),
        (36, ">i", 2, "no entry below 2: 1, first 3", []),
        (36, ">i", -5, "no entry below 1: 1, first 3", []),
        (32, ">i", 3, "1 slots are used, the header says 3", [2, 1, 0]),
        (24, ">q", 77, "offsets are 0 to 2, the header says 0 to 77", [2, 1, 0]),
        (40 + 12, ">i", 4, "no entry below 4: 1, first 3", []),
        (40 + 12, ">i", 6, "no entry below 4: 1, first 3", []),
        (40 + 12, ">i", -1, "no entry below 4: 1, first 3", []),
        (40 + 8, ">i", 2, "another slot's: 1, first 2", [2, 1, 0]),
        (56 + 60 + 16, ">i", 3, "does not lead backwards: 1, first 3", [2]),
        (56 + 40 + 16, ">i", 3, "does not lead backwards: 1, first 2", [2, 1]),
        (56 + 40 + 16, ">i", -1, "does not lead backwards: 1, first 2", [2, 1]),
        (56 + 40, ">i", 9, "another slot's: 2, first 2", [2, 0]),
        (56 + 40 + 12, ">i", -1, "negative time: 1, first 2", [2]),
    ],
)
def test_damage_is_named_and_a_query_ends_at_it(
    tmp_path: Path, offset: int, layout: str, value: int, problem: str, found: list[int]
) -> None:
    hash_ = key_hash("T", "n")
    assert hash_ % 4 == 3
    index = KeyIndex(tmp_path, 4, 6)
    put(index, *((hash_, n, 1000) for n in range(3)))
    (path,) = index.files
    index.close()
    patch(path, offset, layout, value)
    damaged = KeyIndex(tmp_path, 4, 6, writable=False)
    before = path.read_bytes()
    problems = [text for where, text in damaged.verify() if where == path]
    assert path.read_bytes() == before
    assert any(problem in text for text in problems)
    assert damaged.query("T", "n", 9, 0, FOREVER) == found
    damaged.close()


@settings(deadline=None, max_examples=100)
@given(data=st.binary(min_size=176, max_size=176), key=st.sampled_from(KEYS))
def test_no_bytes_make_it_hang_or_leave_the_file(data: bytes, key: str) -> None:
    with tempfile.TemporaryDirectory() as root:
        (Path(root) / "20261115120000000").write_bytes(data)
        index = KeyIndex(Path(root), 4, 6)
        list(index.verify())
        assert len(index.query("T", key, 100, -FOREVER, FOREVER)) <= 6
        put(index, *((key_hash("T", key), FOREVER, n) for n in range(20)))
        index.close()
