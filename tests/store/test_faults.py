"""Every system call of a store fails in turn: nothing acknowledged is lost, and nothing is
acknowledged that can't be read.

`make crash` fails each of them; a plain run, one in a few. `TAMIS_FAULT=n` fails the n-th alone.
"""

import errno
import os
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from disks import replace_call, small_disk, take_inodes

from tamis.errors import StoreError
from tamis.message import QueueOffset
from tamis.store import tables
from tamis.store.config import StoreConfig
from tamis.store.files import DiskFull
from tamis.store.select import Limits
from tamis.store.store import Store
from tamis.testing import LossyFiles
from tamis.wire import record
from tamis.wire.record import Draft

CONFIG = StoreConfig(
    log_file_size=4096,
    queue_file_size=200,
    extension_file_size=256,
    index_slots=64,
    index_entries=64,
)
ONLY = int(os.environ.get("TAMIS_FAULT", "0"))
STEP = 1 if int(os.environ.get("TAMIS_CRASHES", "0")) >= 1000 else 17

Acknowledged = dict[int, bytes]  # log offset to body


def steps(acknowledged: Acknowledged) -> Iterator[Callable[[Store, LossyFiles], None]]:
    """What a broker does with a store: each step may fail by itself."""
    number = 0

    def append(store: Store, files: LossyFiles) -> None:
        nonlocal number
        drafts = []
        for _ in range(1 + number % 3):
            drafts.append(
                Draft(
                    topic=f"T{number % 2}",
                    queue_id=number % 3 % 2,
                    body=b"%d" % number + b"." * (number * 37 % 600),
                    properties=b"KEYS\x01k%d" % number,
                )
            )
            number += 1
        for draft, place in zip(drafts, store.append(drafts), strict=True):
            acknowledged[place.log_offset] = draft.body

    def append_batch(store: Store, files: LossyFiles) -> None:
        nonlocal number
        bodies = [b"%d" % (number + i) + b"." * 150 for i in range(4)]
        number += 4
        items = b"".join(record.batch_item(body) for body in bodies)
        placed = store.append_batch(Draft(topic="T0"), items)
        acknowledged.update(zip([place.log_offset for place in placed], bodies, strict=True))

    def save(store: Store, files: LossyFiles) -> None:
        offsets = {("T0", "g"): {0: QueueOffset(number)}}
        tables.save_consumer_offsets(store.paths.config, offsets, files)

    def dispatch(store: Store, files: LossyFiles) -> None:
        store.dispatch()

    def flush(store: Store, files: LossyFiles) -> None:
        store.flush()

    for round_ in range(14):
        yield append
        if round_ % 2:
            yield append_batch
        if round_ % 3 == 2:
            yield dispatch
        if round_ % 4 == 3:
            yield flush
            yield save


def tried(act: Callable[[], object]) -> bool:
    try:
        act()
    except StoreError:
        return False
    return True


def opened(root: Path, config: StoreConfig, files: LossyFiles) -> Store:
    try:
        return Store(root, config, files=files)
    except StoreError:
        files.mend()
        return Store(root, config, files=files)


def check(store: Store, acknowledged: Acknowledged) -> None:
    """Each message can be read, by its queue and by its place."""
    store.dispatch()
    served = {}
    for topic, queue_id in store.queues:
        offset = 0
        while True:
            found = store.select(topic, queue_id, offset, Limits(messages=1000, count=1000))
            for data in found.records:
                message = record.decode(memoryview(data.tobytes()), check_crc=True)
                served[message.log_offset] = message.body
            if found.next_offset == offset or offset >= found.max_offset:
                break
            offset = found.next_offset
    for offset, body in acknowledged.items():
        assert served.get(offset) == body, f"acknowledged at {offset}: not served"
        assert store.message(offset).body == body


def run(root: Path, config: StoreConfig, fail_at: int, fault: int, lasting: bool) -> int:
    """Returns how many system calls there were."""
    rng = random.Random(fail_at)
    acknowledged: Acknowledged = {}
    files = LossyFiles(rng, fail_at=fail_at, fault=fault, lasting=lasting)
    store = opened(root, config, files)
    store.many = fail_at % 2 * 64  # queues that are flushed together
    for count, step in enumerate(steps(acknowledged)):
        tried(partial(step, store, files))
        if count == 12:  # a start after a clean stop; then after a kill
            tried(store.close)
            store = opened(root, config, files)
        if count == 20:
            store.abandon()
            store = opened(root, config, files)
    files.mend()
    try:
        check(store, acknowledged)  # 1. at once
        more = Draft(topic="T0", body=b"more")
        if not tried(lambda: store.append([more])):  # a log that was not synced is opened again
            assert any(call.startswith("sync") for call in files.failed)
            store.abandon()
            store = Store(root, config, files=files)
            check(store, acknowledged)
            [place] = store.append([more])
            acknowledged[place.log_offset] = b"more"
        if rng.random() < 0.5:
            store.flush()
    finally:
        store.abandon()
    files.power_cut()
    with Store(root, config) as store:  # 2. after a power cut
        check(store, acknowledged)
        tables.load_consumer_offsets(store.paths.config)
    with Store(root, config) as store:  # 3. after a stop in good order
        check(store, acknowledged)
    return files.calls


@pytest.mark.parametrize(
    ("fault", "lasting", "extensions"),
    [
        (errno.EIO, False, False),
        (errno.ENOSPC, False, True),
        (errno.ENOSPC, True, False),
        (errno.EMFILE, False, False),
    ],
    ids=["EIO once", "ENOSPC once", "ENOSPC from then on", "EMFILE once"],
)
def test_whichever_system_call_fails_nothing_acknowledged_is_lost(
    tmp_path: Path, fault: int, lasting: bool, extensions: bool
) -> None:
    config = StoreConfig(**{**vars(CONFIG), "extensions": extensions})
    total = run(tmp_path / "all", config, 10**9, fault, lasting)
    assert total > 300
    for fail_at in [ONLY] if ONLY else range(1 + fault % STEP, total + 1, STEP):
        try:
            run(tmp_path / str(fail_at), config, fail_at, fault, lasting)
        except BaseException as error:
            error.add_note(f"again with TAMIS_FAULT={fail_at}")
            raise


def test_the_last_inode_at_a_roll_of_the_log_loses_nothing(tmp_path: Path) -> None:
    with small_disk(tmp_path) as disk:
        store = Store(disk / "store", CONFIG)
        acknowledged: Acknowledged = {}

        def append(body: bytes) -> None:
            [place] = store.append([Draft(topic="T", body=body)])
            acknowledged[place.log_offset] = body

        append(b"first")
        store.dispatch()
        fillers = take_inodes(disk / "fill", leave=1)
        for number in range(30):
            tried(partial(append, b"%d" % number + b"." * 500))
            tried(store.dispatch)
        check(store, acknowledged)  # what was acknowledged can be read now, not later
        for path in fillers:
            path.unlink()
        store.dispatch()
        append(b"last")
        check(store, acknowledged)
        store.abandon()
        with Store(disk / "store", CONFIG) as store:
            check(store, acknowledged)
            assert len(acknowledged) > 2


def test_a_full_disk_acknowledges_only_what_can_be_read_there_and_then(tmp_path: Path) -> None:
    config = StoreConfig(**{**vars(CONFIG), "log_file_size": 2**20, "queue_file_size": 20_000})
    with small_disk(tmp_path, megabytes=8, inodes=4000) as disk:
        store = Store(disk / "store", config)
        store._is_full = False
        acknowledged: Acknowledged = {}
        refused = 0
        for number in range(4000):
            body = b"%d" % number + b"." * (number * 7 % 4000)
            try:
                [place] = store.append([Draft(topic=f"T{number % 40}", body=body)])
            except StoreError:
                refused += 1
                if refused > 20:
                    break
            else:
                acknowledged[place.log_offset] = body
            tried(store.dispatch)
        assert refused
        assert acknowledged
        check(store, acknowledged)
        store.abandon()


@pytest.mark.parametrize(
    ("call", "folder", "fault"),
    [
        ("open", "commitlog", errno.ENOSPC),
        ("pwrite", "commitlog", errno.EIO),
        ("open", "tamis-seals", errno.ENOSPC),
    ],
    ids=["the log file is not made", "its first write fails", "the seal file is not made"],
)
def test_a_roll_that_fails_leaves_the_log_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, folder: str, fault: int
) -> None:
    """The system call itself fails, as the disk of the issue did it."""
    real, first = getattr(os, call), f"{0:020}"

    def fail(target: int | Path, *arguments: int) -> int:
        path = Path(os.readlink(f"/proc/self/fd/{target}") if isinstance(target, int) else target)
        if path.parent.name == folder and path.name != first:
            raise OSError(fault, os.strerror(fault))
        return int(real(target, *arguments))

    store = Store(tmp_path, CONFIG)
    acknowledged: Acknowledged = {}

    def append(number: int) -> None:
        body = b"%d" % number + b"." * 600
        [place] = store.append([Draft(topic="T", body=body)])
        acknowledged[place.log_offset] = body

    for number in range(5):
        append(number)
    before = store.log.end, os.listdir(store.paths.commit_log)
    seen = []
    with monkeypatch.context() as patched:
        replace_call(patched, tmp_path, call, fail)
        for number in range(3):
            with suppress(StoreError, OSError):  # the log is judged here, not the error
                append(10 + number)
            seen.append((store.log.end, os.listdir(store.paths.commit_log)))
    append(20)
    check(store, acknowledged)
    assert CONFIG.log_file_size in acknowledged
    if folder == "commitlog":  # without a seal file the log goes on
        assert seen == [before] * 3
    store.close()
    with Store(tmp_path, CONFIG) as store:
        check(store, acknowledged)


def test_while_dispatch_fails_nothing_more_is_acknowledged(tmp_path: Path) -> None:
    class NoIndex(LossyFiles):
        is_broken = True

        def allocate(self, path, descriptor, offset, size):
            if self.is_broken and path.parent.name == "index":
                raise DiskFull(f"{path}: no space left on the disk")
            super().allocate(path, descriptor, offset, size)

    files = NoIndex(random.Random(0))
    store = Store(tmp_path, CONFIG, files=files)
    draft = Draft(topic="T", body=b"x", properties=b"KEYS\x01k")
    [place] = store.append([draft])
    with pytest.raises(DiskFull, match="index"):
        store.dispatch()
    with pytest.raises(StoreError, match=r"can't be put into queues.*index"):
        store.append([draft])
    files.is_broken = False
    store.dispatch()
    [other] = store.append([draft])
    check(store, {place.log_offset: b"x", other.log_offset: b"x"})
    store.close()
