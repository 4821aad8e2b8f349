"""The fixture itself: what Apache's client sent, Apache's broker still has after a restart."""

from pathlib import Path

import pytest
from interop.cluster import ApacheCluster

SMALL_FILES = {
    "mappedFileSizeCommitLog": 131_072,
    "mappedFileSizeConsumeQueue": 2_000,
    "mappedFileSizeConsumeQueueExt": 8_192,
    "maxHashSlotNum": 64,
    "maxIndexNum": 256,
    "enableConsumeQueueExt": True,
    "enableCalcFilterBitMap": True,
    "messageDelayLevel": "1s 2s 3s",
}
TOPICS = ("Orders", "Plain", "Batches")
FILTERS = [("eu-big", "Orders", "region = 'eu' AND age > 50"), ("vip", "Orders", "vip = TRUE")]


def test_all_that_was_sent_is_there_after_a_stop_and_after_a_kill(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with ApacheCluster(store, **SMALL_FILES) as cluster:
        cluster.subscribe(*FILTERS)
        sent = cluster.produce(seed=7, count=400)
        cluster.stop()
        assert not (store / "abort").exists()
        assert len(list((store / "commitlog").iterdir())) > 1
        assert any((store / "consumequeue_ext/Orders").glob("*/0*"))
        cluster.start()
        read = cluster.consume(*TOPICS)
        assert _contents(read) == _contents(sent)
        cluster.kill()
        assert (store / "abort").exists()
        cluster.start()
        assert cluster.consume(*TOPICS) == read

        vips = [row for row in read if row["properties"].get("vip", "").upper() == "TRUE"]
        assert cluster.consume("Orders", sql="vip = TRUE") == _of("Orders", vips)
        tagged = [row for row in read if row["tags"] in ("TagA", "订单")]
        assert cluster.consume(*TOPICS, tags="TagA || 订单") == tagged
        keyed = [row for row in read if "alt3" in (row["keys"] or "").split()]
        found = cluster.query("Orders", "alt3")
        assert {row["msg_id"] for row in found} == {row["msg_id"] for row in _of("Orders", keyed)}
        cluster.kill()  # nothing to keep, and a stop takes seconds


def test_a_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    log = tmp_path / "store/commitlog" / f"{0:020}"
    log.parent.mkdir(parents=True)
    log.write_bytes(b"short")
    with pytest.raises(RuntimeError, match="length not matched message store config value"):
        ApacheCluster(tmp_path / "store", **SMALL_FILES).start()


def _contents(rows: list[dict]) -> list[list]:
    """By what both the sender and the reader of a message know of it."""
    fields = ("unique_key", "topic", "queue", "tags", "keys", "flag", "body")
    user = ("age", "region", "price", "vip")
    known = ([row[f] for f in fields] + [row["properties"].get(u) for u in user] for row in rows)
    return sorted(known, key=str)


def _of(topic: str, rows: list[dict]) -> list[dict]:
    return [row for row in rows if row["topic"] == topic]
