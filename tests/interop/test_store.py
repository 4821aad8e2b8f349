"""One directory, two brokers' worth of software: Apache RocketMQ 4.9.4 on our files, we on its."""

import base64
import shutil
import time
from pathlib import Path

from interop.cluster import ApacheCluster

from tamis.filter.tags import parse_tags
from tamis.message import Host
from tamis.store import tables
from tamis.store.config import StoreConfig
from tamis.store.inspect import Directory
from tamis.store.select import Limits
from tamis.store.store import Store
from tamis.wire import properties, record
from tamis.wire.record import Draft

SIZES = {
    "log_file_size": 131_072,
    "queue_file_size": 2000,
    "extension_file_size": 8192,
    "index_slots": 64,
    "index_entries": 256,
}
SETTINGS = {
    "mappedFileSizeCommitLog": 131_072,
    "mappedFileSizeConsumeQueue": 2000,
    "mappedFileSizeConsumeQueueExt": 8192,
    "maxHashSlotNum": 64,
    "maxIndexNum": 256,
}


def drafts(count: int) -> list[Draft]:
    made = []
    for i in range(count):
        block = {"KEYS": f"k{i} all", "UNIQ_KEY": f"U{i:08X}", "n": str(i)}
        if i % 5:
            block["TAGS"] = ("PAID", "REFUND", "订单", "with blank")[i % 4]
        if i % 3:
            block["region"] = ("eu", "us")[i % 2]
        made.append(
            Draft(
                topic=("Orders", "Notes", "Plain")[i % 3],
                queue_id=(i // 3) % (4, 2, 1)[i % 3],
                body=f"body {i} ".encode() * (i % 40),
                properties=properties.encode(block).encode(),
                flag=i,
                born_timestamp=1_700_000_000_000 + i,
                born_host=Host(b"\x7f\0\0\1", 4000 + i % 100),
                reconsume_times=i % 4,
            )
        )
    return made


def test_apaches_broker_starts_on_our_files_and_serves_every_message(tmp_path: Path) -> None:
    root = tmp_path / "store"
    written = drafts(600)
    delayed = Draft(topic="Plain", body=b"later", properties=b"DELAY\x011\x02KEYS\x01late")
    with Store(root, StoreConfig(**SIZES)) as store:
        placed = []
        for i in range(0, len(written), 7):  # alone and in batches
            placed += store.append(written[i : i + 7] if i % 2 else written[i : i + 1])
            placed += [] if i % 2 else store.append(written[i + 1 : i + 7])
        store.append([delayed])
    topics = {
        name: tables.TopicConfig(name=name, read_queues=queues, write_queues=queues)
        for name, queues in (("Orders", 4), ("Notes", 2), ("Plain", 1))
    }
    tables.save_topics(root / "config", topics, tables.DataVersion(timestamp=1, counter=1))

    with ApacheCluster(root, **SETTINGS) as cluster:
        read = cluster.consume("Orders", "Notes", "Plain")
        by_place = {row["commit_log_offset"]: row for row in read}
        for draft, place in zip(written, placed, strict=True):
            row = by_place.pop(place.log_offset)
            assert (row["topic"], row["queue"]) == (draft.topic, draft.queue_id)
            assert row["queue_offset"] == place.queue_offset
            assert base64.b64decode(row["body"]) == draft.body
            expected = properties.decode_bytes(draft.properties)
            assert {k: row["properties"].get(k) for k in expected} == expected
            assert row["flag"] == draft.flag
            assert row["born_timestamp"] == draft.born_timestamp
            assert row["reconsume_times"] == draft.reconsume_times
        # what is left is the delayed message, delivered by Apache from our delay queue
        late = [base64.b64decode(row["body"]) for row in by_place.values()]
        deadline = time.monotonic() + 30
        while not late and time.monotonic() < deadline:
            again = [base64.b64decode(row["body"]) for row in cluster.consume("Plain")]
            late = [body for body in again if body == b"later"]
        assert late == [b"later"]
        paid = cluster.consume("Orders", tags="PAID")
        assert len(paid) == sum(
            d.topic == "Orders" and b"TAGS\x01PAID" in d.properties for d in written
        )
        [found] = cluster.query("Orders", "k3")
        assert base64.b64decode(found["body"]) == written[3].body


def test_we_read_and_rebuild_what_apaches_broker_wrote(tmp_path: Path) -> None:
    root = tmp_path / "store"
    bitmaps = {"enableConsumeQueueExt": True, "enableCalcFilterBitMap": True}
    delays = {"messageDelayLevel": "1s 2s 3s"}
    with ApacheCluster(root, **SETTINGS, **bitmaps, **delays) as cluster:
        cluster.subscribe(
            ("eu", "Orders", "region = 'eu'"),
            ("vip", "Orders", "vip = TRUE AND price > 50"),
        )
        sent = cluster.produce(seed=11, count=300)
        topics = sorted({row["topic"] for row in sent})
        read = cluster.consume(*topics)
    directory = Directory(root)
    assert directory.was_closed
    assert list(directory.verify()) == []
    ours = {m.log_offset: m for m in directory.messages()}
    for row in read:
        message = ours[row["commit_log_offset"]]
        assert (message.topic, message.queue_id) == (row["topic"], row["queue"])
        assert message.queue_offset == row["queue_offset"]
        assert message.message_id == row["msg_id"]
        assert message.body_crc == row["body_crc"]

    apaches = {p.relative_to(root): p.read_bytes() for p in root.glob("consumequeue*/*/*/*")}
    assert any(path.parts[0] == "consumequeue_ext" for path in apaches)
    for part in ("consumequeue", "consumequeue_ext", "index", "checkpoint"):
        shutil.rmtree(root / part) if (root / part).is_dir() else (root / part).unlink()
    config = StoreConfig(**SIZES, extensions=True, bitmaps=True, delay_levels="1s 2s 3s")
    with Store(root, config) as store:
        store.flush()
        for path, data in apaches.items():
            assert (root / path).read_bytes() == data, path
        for topic, queue_id in store.queues:
            if topic not in topics:
                continue
            offset, served = 0, []
            while True:
                limits = Limits(messages=50, count=50)
                selection = store.select(topic, queue_id, offset, limits, parse_tags("*"))
                served += selection.records
                if selection.next_offset >= selection.max_offset:
                    break
                offset = selection.next_offset
            offsets = [record.decode(memoryview(r.tobytes())).log_offset for r in served]
            wanted = [
                row["commit_log_offset"]
                for row in read
                if (row["topic"], row["queue"]) == (topic, queue_id)
            ]
            assert offsets == sorted(wanted)
