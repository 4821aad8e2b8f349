"""What a store takes of a process: descriptors, mappings, memory, and the size of its files."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from tamis.store import seals as seals_module
from tamis.store.config import StoreConfig
from tamis.store.files import Files
from tamis.store.select import Limits
from tamis.store.store import Store
from tamis.wire import record
from tamis.wire.record import Draft

CONFIG = StoreConfig(
    flush="async", log_file_size=2**20, queue_file_size=2000, index_slots=64, index_entries=256
)

# A process of its own: limits are for a whole process. It prints what it saw.
_MANY = """
import os, resource, sys
from tamis.store.config import StoreConfig
from tamis.store.store import Store
from tamis.wire.record import Draft
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
queues, config = int(sys.argv[2]), StoreConfig(
    flush="async", log_file_size=2**22, queue_file_size=2000, index_slots=64, index_entries=256)
store = Store(sys.argv[1], config)
for start in range(0, queues, 500):
    store.append([Draft(topic=f"T{n // 8}", queue_id=n % 8, body=b"%d" % n)
                  for n in range(start, min(start + 500, queues))])
    store.dispatch()
store.flush()
def check(store):
    for n in range(queues):
        assert store.count(f"T{n // 8}", n % 8, 0) == 1, n
    return len(os.listdir("/proc/self/fd"))
first = check(store)
store.close()
store = Store(sys.argv[1], config)  # after a clean stop
second = check(store)
store.abandon()
with Store(sys.argv[1], config) as store:  # after a kill
    third = check(store)
print(first, second, third)
"""


def test_a_store_has_many_more_queues_than_the_process_has_descriptors(tmp_path: Path) -> None:
    many = os.environ.get("TAMIS_QUEUES", "800")
    done = subprocess.run(
        [sys.executable, "-c", _MANY, str(tmp_path), many], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert all(int(count) < 128 for count in done.stdout.split())


def test_files_that_are_not_used_are_closed(tmp_path: Path) -> None:
    files = Files(most_open=40)
    with Store(tmp_path, CONFIG, files=files) as store:
        for number in range(300):
            store.append([Draft(topic=f"T{number}", body=b"%d" % number)])
            store.dispatch()
        assert files.held <= 40
        for number in range(300):
            [data] = store.select(f"T{number}", 0, 0).records
            assert record.decode(bytes(data)).body == b"%d" % number
        assert files.held <= 40
        store.flush()  # of files that were closed meanwhile, too
    with Store(tmp_path, CONFIG) as store:
        assert all(store.count(f"T{number}", 0, 0) == 1 for number in range(300))


def test_what_was_selected_stays_good_when_its_files_are_closed(tmp_path: Path) -> None:
    files = Files(most_open=4)
    with Store(tmp_path, CONFIG, files=files) as store:
        store.append([Draft(topic="T", body=b"held")])
        store.dispatch()
        queue = store.find_queue("T", 0)
        assert queue is not None
        units = queue.units(0, 1)
        place = queue.stretch(0, 1)
        for number in range(50):
            store.append([Draft(topic=f"U{number}", body=b"x")])
        store.dispatch()
        assert place is not None
        assert place.log_offset(0) == units["offset"][0] == 0


# Sizes of files


_LIMITED = """
import resource, sys
from tamis.errors import StoreError
from tamis.store.config import StoreConfig
from tamis.store.store import Store
from tamis.wire.record import Draft
config = StoreConfig(flush="async", log_file_size=4096, queue_file_size=200_000,
                     index_slots=64, index_entries=256)
def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
limit(100_000)
try:
    Store(sys.argv[1], config)
except StoreError as error:
    print(error)
limit(resource.RLIM_INFINITY)
acknowledged = 0
with Store(sys.argv[1], config) as store:
    limit(100_000)
    try:
        for number in range(20):
            store.append([Draft(topic=f"T{number}", body=bytes(400))])
            acknowledged += 1
            store.dispatch()
            assert store.count(f"T{number}", 0, 0) == 1
    except StoreError as error:
        print(error)
    limit(resource.RLIM_INFINITY)
    store.append([Draft(topic="T", body=b"goes on")])
    store.dispatch()
    assert sum(store.count(f"T{n}", 0, 0) for n in range(20)) == acknowledged
"""


def test_a_limit_of_file_sizes_is_told_at_the_start_and_before_a_message_is_stored(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LIMITED, str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    at_start, later = done.stdout.splitlines()
    assert "queue files (queue_file_size) have 200000 bytes each" in at_start
    assert "files of up to 100000; raise the limit (ulimit -f)" in at_start
    assert "ulimit -f" in later


# Memory


def test_what_is_known_of_seals_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seals_module, "_PIECE", 16)
    monkeypatch.setattr(seals_module, "_MOST_PIECES", 4)
    config = StoreConfig(**{**vars(CONFIG), "log_file_size": 16_384, "queue_file_size": 20_000})
    with Store(tmp_path, config) as store:
        for number in range(2000):
            store.append([Draft(topic="T", body=b"%d" % number)])
    with Store(tmp_path, config) as store:
        found, offset = [], 0
        while offset < 2000:
            selection = store.select("T", 0, offset, Limits(messages=100, count=100))
            found += [record.decode(bytes(data)).body for data in selection.records]
            offset = selection.next_offset
        assert found == [b"%d" % number for number in range(2000)]
        assert len(store.log.seals._pieces) <= 4
        # one by one, far apart, and in another order
        some = np.array([0, 5000, 12_000, 50_000])
        sizes = np.array([int.from_bytes(store.log.record(int(at), 4).tobytes()) for at in some])
        assert len(store.log.seals.of(0, some)[0]) <= 64
        assert sizes[0] > 0


@pytest.mark.parametrize("pieces", [16, 16_384])
def test_a_flipped_bit_is_found_by_its_seal_whichever_piece_it_is_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces: int
) -> None:
    monkeypatch.setattr(seals_module, "_PIECE", pieces)
    with Store(tmp_path, CONFIG) as store:
        placed = [
            store.append([Draft(topic="T", body=b"%d" % n, properties=b"a\x01b")])[0]
            for n in range(200)
        ]
    path = tmp_path / "commitlog" / f"{0:020}"
    data = bytearray(path.read_bytes())
    damaged = (0, 17, 100, 199)
    for number in damaged:
        at = placed[number].log_offset
        # a property of some, the store time of others: neither is covered by RocketMQ's own CRC
        data[at + placed[number].size - 1 if number % 2 else at + 63] ^= 1
    path.write_bytes(data)
    with Store(tmp_path, CONFIG) as store:
        selection = store.select("T", 0, 0, Limits(messages=300, count=300))
        bodies = [record.decode(bytes(data)).body for data in selection.records]
        assert bodies == [b"%d" % n for n in range(200) if n not in damaged]


# A process of its own: one that reads too far is ended. The page behind the record is forbidden.
_SHORT = """
import ctypes, mmap
import numpy as np
from tamis.store._walk import Column, End, walk
from tamis.wire.record import MAGIC
page = mmap.PAGESIZE
pages = mmap.mmap(-1, 2 * page)
base = ctypes.addressof(ctypes.c_char.from_buffer(pages))
at = page - 91
pages[at : at + 8] = (91).to_bytes(4) + MAGIC.to_bytes(4)
pages[at + 28 : at + 36] = at.to_bytes(8)
pages[at + 36 : at + 40] = (0x30).to_bytes(4)
assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(base + page), ctypes.c_size_t(page), 0) == 0
rows = np.empty((1, len(Column)), dtype=np.int64)
assert walk(base, at, page, 0, True, rows) == (0, at, End.SIZE)
"""


def test_a_record_too_short_for_its_own_fields_is_not_read_beyond_its_end() -> None:
    """Both hosts are v6, in 91 bytes at the very end of a page: its body's length is not in it."""
    done = subprocess.run([sys.executable, "-c", _SHORT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr or f"ended by signal {-done.returncode}"


def test_a_flush_goes_on_while_dispatch_adds_queues(tmp_path: Path) -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    failures = list[BaseException]()
    stop = threading.Event()

    def flush(store: Store) -> None:
        while not stop.is_set():
            store._flusher.has_unnoted = True  # each time there are queues that are not noted yet
            try:
                store.flush()
            except BaseException as error:
                failures.append(error)

    store = Store(tmp_path, CONFIG)
    thread = threading.Thread(target=flush, args=(store,))
    try:
        thread.start()
        for number in range(300):
            store.append([Draft(topic=f"T{number}", queue_id=n, body=b"x") for n in range(4)])
            store.dispatch()
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(interval)
        store.close()
    assert failures == []
