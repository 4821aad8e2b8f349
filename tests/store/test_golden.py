"""Store directories written by Apache RocketMQ 4.9.4: read back exactly, rebuilt to the byte."""

import gzip
import json
import shutil
import tarfile
from pathlib import Path

import pytest

from tamis.cli.store import _json_line
from tamis.store.config import StoreConfig
from tamis.store.inspect import Directory
from tamis.store.store import Store

GOLDEN = Path(__file__).parents[1] / "golden" / "stores"
NAMES = ("clean", "killed")
CONFIG = StoreConfig(
    log_file_size=131_072,
    queue_file_size=2000,
    extension_file_size=8192,
    index_slots=64,
    index_entries=256,
    extensions=True,
    bitmaps=True,
)


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def root(name: str, tmp_path: Path) -> Path:
    with tarfile.open(GOLDEN / f"{name}.tar.gz") as tar:
        tar.extractall(tmp_path, filter="data")
    return tmp_path / name


def rows(name: str, kind: str) -> list[dict]:
    with gzip.open(GOLDEN / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
        return [row for row in map(json.loads, file) if row["kind"] == kind]


def test_every_message_reads_back_as_apaches_decoder_has_it(name: str, root: Path) -> None:
    found = [json.loads(_json_line(message)) for message in Directory(root).messages()]
    assert found == rows(name, "message")


def test_every_unit_reads_back(name: str, root: Path) -> None:
    directory = Directory(root)
    queues = {}
    for row in rows(name, "unit"):
        key = (row["topic"], row["queue"])
        if key not in queues:
            queues[key] = directory.queue(*key)
        [unit] = queues[key].units(row["queue_offset"], 1).tolist()
        assert unit == (row["physical_offset"], row["size"], int(row["tags_code"]))
        if "ext_tags_code" in row:
            extension = queues[key].extension.unit(unit[2])
            assert extension.code == int(row["ext_tags_code"])
            assert extension.stored == row["ext_store_time"]
            assert (extension.bitmap or b"").hex() == row.get("ext_bitmap", "")
    counted = {(q.topic, q.queue_id): q.max_offset for q in directory.stat()}
    for key, queue in queues.items():
        assert counted[key] == queue.max_offset


def test_verify_finds_nothing_wrong(root: Path) -> None:
    assert list(Directory(root).verify()) == []


def test_queues_extensions_and_index_rebuilt_from_the_log_are_apaches(
    name: str, root: Path, tmp_path: Path
) -> None:
    """All but the log and the tables is deleted; what we make of them is what Apache had."""
    before = {}
    for path in sorted(root.rglob("*")):
        if path.is_file() and path.relative_to(root).parts[0].startswith("consumequeue"):
            before[path.relative_to(root)] = path.read_bytes()
    index = [p.read_bytes() for p in sorted((root / "index").glob("*"))]
    for part in ("consumequeue", "consumequeue_ext", "index", "checkpoint", "abort"):
        path = root / part
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    store = Store(root, CONFIG)
    store.flush()
    if name == "clean":
        assert [p.read_bytes() for p in sorted((root / "index").glob("[0-9]*"))] == index
    for path, data in before.items():
        made = (root / path).read_bytes()
        if name == "clean":
            assert made == data, path
        else:  # killed: it may have dispatched less than the log holds
            written = data.rstrip(b"\0")
            assert made.startswith(written), path
    store.close()


def test_a_store_of_apaches_is_opened_and_written_on(name: str, root: Path) -> None:
    from tamis.wire.record import Draft

    messages = rows(name, "message")
    with Store(root, CONFIG) as store:
        [place] = store.append([Draft(topic="Orders", queue_id=1, body=b"ours")])
        last = [m for m in messages if (m["topic"], m["queue"]) == ("Orders", 1)][-1]
        assert place.queue_offset == last["queue_offset"] + 1
        assert place.log_offset >= messages[-1]["physical_offset"] + messages[-1]["size"]
        store.dispatch()
        assert store.message(place.log_offset).body == b"ours"
    assert list(Directory(root).verify()) == []
