"""`tamis store`, on directories of ours."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from disks import replace_call

from tamis.store.config import StoreConfig
from tamis.store.store import Store
from tamis.wire.record import Draft

TAMIS = [sys.executable, "-c", "from tamis.cli.main import main; main()", "store"]


def tamis(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*TAMIS, *map(str, arguments)], capture_output=True, text=True)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    config = StoreConfig(
        log_file_size=8192, queue_file_size=2000, index_slots=64, index_entries=256
    )
    with Store(tmp_path / "store", config) as store:
        for i in range(90):
            block = f"TAGS\x01{'ab'[i % 2]}\x02n\x01{i}".encode()
            store.append([Draft(topic="T", queue_id=i % 3, body=b"%d" % i, properties=block)])
    return tmp_path / "store"


def test_verify_says_all_is_well(root: Path) -> None:
    done = tamis("verify", root)
    assert (done.returncode, done.stdout) == (0, f"{root}: all is well\n")


def test_verify_says_what_is_wrong_and_where(root: Path) -> None:
    log = root / "commitlog" / f"{0:020}"
    data = bytearray(log.read_bytes())
    data[100] ^= 4
    log.write_bytes(data)
    queue = root / "consumequeue" / "T" / "1" / f"{0:020}"
    units = bytearray(queue.read_bytes())
    units[45] ^= 1
    queue.write_bytes(units)
    done = tamis("verify", root)
    assert done.returncode == 1
    assert f"{log}, offset" in done.stdout
    assert "T/1: unit 2 leads to offset" in done.stdout
    rows = [json.loads(line) for line in tamis("verify", root, "--json").stdout.splitlines()]
    assert len(rows) == len(done.stdout.splitlines())


def test_cat_filters(root: Path) -> None:
    def bodies(*arguments: object) -> list[int]:
        done = tamis("cat", root, "--json", *arguments)
        assert done.returncode == 0, done.stderr
        import base64

        rows = [json.loads(line) for line in done.stdout.splitlines()]
        return [int(base64.b64decode(row["body"])) for row in rows]

    assert bodies() == list(range(90))
    assert bodies("--queue", 1) == list(range(1, 90, 3))
    assert bodies("--tags", "a", "--limit", 3) == [0, 2, 4]
    assert bodies("--sql", "n BETWEEN 10 AND 12") == [10, 11, 12]
    assert bodies("--queue", 2, "--from", 28) == [86, 89]
    assert bodies("--topic", "Other") == []
    assert "n=5" in tamis("cat", root, "--sql", "n = 5").stdout


def test_stat_counts(root: Path) -> None:
    done = tamis("stat", root)
    assert "90 messages" in done.stdout
    assert "T 2: 0 to 30" in done.stdout
    assert json.loads(tamis("stat", root, "--json").stdout)["messages"] == 90


@pytest.mark.parametrize("command", ["verify", "cat", "stat"])
def test_what_is_no_store_is_answered_in_one_line(command: str, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        done = tamis(command, path)
        assert done.returncode == 1
        assert len(done.stderr.splitlines()) == 1
        assert str(path) in done.stderr


def test_a_bad_filter_exits_2(root: Path) -> None:
    assert tamis("cat", root, "--sql", "a >").returncode == 2
    assert tamis("cat", root, "--sql", "a = 1", "--tags", "b").returncode == 2


def test_no_permission_is_answered_in_one_line(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is forbidden to root, who may be running this: the system call says no instead."""
    from tamis.cli.main import main

    real = os.open

    def forbidden(path: object, *rest: object, **named: object) -> int:
        if "commitlog" in str(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path, *rest, **named)

    replace_call(monkeypatch, root, "open", forbidden)
    monkeypatch.setattr(sys, "argv", ["tamis", "store", "verify", str(root)])
    with pytest.raises(SystemExit) as exit:
        main()
    assert exit.value.code == 1
    first = root / "commitlog" / f"{0:020}"
    assert capsys.readouterr().err == f"tamis: {first}: Permission denied\n"
