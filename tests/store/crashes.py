"""One store, one disaster, by a seed; then what must be true of what is left."""

import os
import random
import shutil
from dataclasses import replace
from pathlib import Path

from tamis.errors import StoreError
from tamis.message import SysFlag
from tamis.store.config import StoreConfig
from tamis.store.consumequeue import ConsumeQueue, Extension
from tamis.store.dispatch import Dispatcher, parse_delay_levels
from tamis.store.files import Files, StorePaths
from tamis.store.store import Store
from tamis.testing import Crash, LossyFiles, flip_bit
from tamis.wire import properties, record
from tamis.wire.record import Draft

DISASTERS = ("kill", "power", "flip", "full", "derived")


def run(seed: int, root: Path) -> str:
    """Raises AssertionError if a promise was broken; gives what kind of disaster it was."""
    rng = random.Random(seed)
    disaster = rng.choice(DISASTERS)
    config = StoreConfig(
        flush=rng.choice(("sync", "sync", "async")),
        extensions=rng.random() < 0.5,
        log_file_size=rng.choice((4096, 16_384, 65_536)),
        queue_file_size=rng.choice((200, 2000)),
        extension_file_size=rng.choice((256, 1024)),
        index_slots=64,
        index_entries=256,
    )
    acknowledged: dict[int, bytes] = {}  # log offset -> record
    starts = [0]  # of the log, after files of it were removed; a power cut brings some back
    attempted: set[bytes] = set()  # bodies
    rounds = rng.randrange(1, 4)
    for round_ in range(rounds):
        last = round_ == rounds - 1
        files = LossyFiles(
            rng,
            die_at=rng.randrange(1, 500) if last and disaster in ("kill", "power") else None,
            full_at=rng.randrange(1, 60) if last and disaster == "full" else None,
        )
        store = None
        try:
            try:
                store = Store(root, config, files=files)
            except StoreError:  # no room even to open it; then there is
                files.make_room()
                store = Store(root, config, files=files)
            store.many = rng.choice((1, 64))  # queues that are flushed together
            _work(store, files, rng, acknowledged, attempted, starts)
            if not last or disaster in ("flip", "derived"):
                store.close()
                store = None
        except Crash:
            pass
        if last and disaster == "power":
            files.power_cut()
        if store is not None:
            store.abandon()
    lost: set[int] = set()
    if disaster == "flip" and acknowledged:
        lost = _flip(root, config, rng, acknowledged)
    if disaster == "derived":
        _remove_derived(root, rng)
    if rng.random() < 0.5:  # and once more, while it recovers
        files = LossyFiles(rng, die_at=rng.randrange(1, 120))
        store = None
        try:
            store = Store(root, config, files=files)
            store.close()
        except Crash:
            if store is not None:
                store.abandon()
            if disaster == "power":
                files.power_cut()
    _check(root, config, acknowledged, attempted, lost, disaster, max(starts))
    return disaster


def _work(
    store: Store,
    files: LossyFiles,
    rng: random.Random,
    acknowledged: dict[int, bytes],
    attempted: set[bytes],
    starts: list[int],
) -> None:
    for _ in range(rng.randrange(5, 40)):
        act = rng.random()
        if act < 0.75:
            drafts = [_draft(rng, len(attempted) + i) for i in range(rng.choice((1, 1, 5)))]
            attempted.update(draft.body for draft in drafts)
            try:
                if len(drafts) > 1 and rng.random() < 0.5:
                    drafts = [replace(d, topic=drafts[0].topic, queue_id=0) for d in drafts]
                    items = [record.batch_item(d.body, d.properties) for d in drafts]
                    envelope = Draft(topic=drafts[0].topic, properties=b"batch\x01yes")
                    placed = store.append_batch(envelope, b"".join(items))
                else:
                    placed = store.append(drafts)
            except StoreError:
                files.make_room()
                continue
            durable = store.config.flush == "sync"
            for place in placed:
                if durable:
                    data = store.log.record(place.log_offset, place.size)
                    acknowledged[place.log_offset] = data.tobytes()
        elif act < 0.9:
            _tolerant(store.dispatch, files)
        elif act < 0.97:
            _tolerant(store.flush, files)
        elif rng.random() < 0.3:
            for path in sorted(store.paths.commit_log.glob("*"))[:1]:
                os.utime(path, (0, 0))
            start = store.log.start
            try:
                store.clean()
            finally:  # also when the process dies after a file was removed
                starts.append(store.log.start)
                for offset in [o for o in acknowledged if start <= o < store.log.start]:
                    del acknowledged[offset]


def _tolerant(step, files: LossyFiles) -> None:
    try:
        step()
    except StoreError:
        files.make_room()
        step()


def _draft(rng: random.Random, number: int) -> Draft:
    block = {"TAGS": rng.choice(("a", "b", "订单")), "KEYS": f"k{number}", "n": str(number)}
    return Draft(
        topic=rng.choice(("Orders", "Notes")),
        queue_id=rng.randrange(2),
        body=f"{number}:".encode() + rng.randbytes(rng.choice((5, 100, 700))),
        properties=properties.encode(block).encode(),
        sys_flag=rng.choice((0, 0, 0, 0, SysFlag.PREPARED, SysFlag.COMMIT)),
    )


def _flip(
    root: Path, config: StoreConfig, rng: random.Random, acknowledged: dict[int, bytes]
) -> set[int]:
    """A bit in some file of the log; the record it lies in may be lost, and must not be served."""
    path = rng.choice(sorted(StorePaths(root).commit_log.iterdir()))
    start = int(path.name)
    at = start + flip_bit(path, rng, config.log_file_size)
    return {o for o, data in acknowledged.items() if o <= at < o + len(data)}


def _remove_derived(root: Path, rng: random.Random) -> None:
    paths = StorePaths(root)
    doomed = [paths.queues, paths.extensions, paths.index, paths.checkpoint]
    doomed += list(paths.queues.glob("*/*"))
    for path in rng.sample(doomed, rng.randrange(1, len(doomed) + 1)):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _check(
    root: Path,
    config: StoreConfig,
    acknowledged: dict[int, bytes],
    attempted: set[bytes],
    lost: set[int],
    disaster: str,
    removed_before: int,
) -> None:
    store = Store(root, config)
    try:
        for offset, data in acknowledged.items():
            there = store.log.record(offset, len(data)).tobytes()
            if offset in lost:
                continue
            assert there == data, f"acknowledged record at {offset} is gone or altered"
        served = {}
        for topic, queue_id in store.queues:
            offset = 0
            while True:
                selection = store.select(topic, queue_id, offset)
                for raw in selection.records:
                    message = record.decode(memoryview(raw.tobytes()), check_crc=True)
                    assert message.body in attempted, "a record nobody appended"
                    assert (message.topic, message.queue_id) == (topic, queue_id)
                    served[message.log_offset] = message
                if selection.next_offset == offset or offset >= selection.max_offset:
                    break
                offset = selection.next_offset
        for offset, data in acknowledged.items():
            message = record.decode(data)
            if offset not in lost and not message.sys_flag & SysFlag.PREPARED:
                assert offset in served, f"acknowledged message at {offset} is in no queue"
        _check_queues(store, root, config, disaster, removed_before)
    finally:
        store.close()


def _check_queues(
    store: Store, root: Path, config: StoreConfig, disaster: str, removed_before: int
) -> None:
    """Queues are what a rebuild from the log alone gives, to the byte. Messages that were removed
    before an offset of the log may be missing from them, should their file have come back."""
    scratch = StorePaths(root.parent / f"{root.name}-rebuilt")
    shutil.rmtree(scratch.root, ignore_errors=True)
    files, queues = Files(), {}

    def queue_of(topic: str, queue_id: int) -> ConsumeQueue:
        if (topic, queue_id) not in queues:
            extension = None
            if config.extensions:
                path = scratch.extension(topic, queue_id)
                extension = Extension(path, config.extension_file_size, files)
            path = scratch.queue(topic, queue_id)
            queues[topic, queue_id] = ConsumeQueue(path, config.queue_file_size, files, extension)
        return queues[topic, queue_id]

    dispatcher = Dispatcher(queue_of, None, delays=parse_delay_levels(config.delay_levels))
    for chunk in store.sound_chunks():
        dispatcher.dispatch(chunk)
    kept = {key: queue for key, queue in store.queues.items() if queue.max_offset}
    for key in set(kept) | set(queues):
        start = store.log.start
        ours, rebuilt = _units(kept.get(key), start), _units(queues.get(key), start)
        for offset in set(ours) ^ set(rebuilt):
            if offset in rebuilt and rebuilt[offset][0] < removed_before:
                continue
            # a place in the queue of a message that was damaged since
            assert disaster == "flip", (key, offset)
            assert offset in ours
            assert not _is_sound(store, ours[offset])
        for offset in set(ours) & set(rebuilt):
            mine, theirs = ours[offset], rebuilt[offset]
            assert mine[:2] == theirs[:2], (key, offset)
            if config.extensions and mine[2] < -(2**31):
                # orphans may shift addresses; what they lead to may not differ
                unit = kept[key].extension.unit(mine[2])
                assert unit is not None
                assert unit == queues[key].extension.unit(theirs[2])
            else:
                assert mine[2] == theirs[2]
    for queue in queues.values():
        queue.close()
    shutil.rmtree(scratch.root, ignore_errors=True)


def _units(queue: ConsumeQueue | None, log_start: int) -> dict[int, tuple[int, int, int]]:
    """By queue offset, without those that only fill a gap or whose message was removed."""
    found = {}
    for start in queue.sequence.starts if queue is not None else ():
        units = queue.units(start // 20, queue.sequence.file_size // 20)
        for number, unit in enumerate(units.tolist()):
            if unit[1] != 0x7FFFFFFF and unit[0] >= log_start:
                found[start // 20 + number] = unit
    return found


def _is_sound(store: Store, unit: tuple[int, int, int]) -> bool:
    return len(store.log.sound_record(unit[0], unit[1])) > 0
