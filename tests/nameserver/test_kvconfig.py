"""The key-value table: what is kept, and what is left of it after trouble."""

import asyncio
import os
from pathlib import Path

import pytest
from disks import replace_call

from tamis.errors import ConfigError
from tamis.nameserver.config import NameServerConfig
from tamis.nameserver.kvconfig import FILE_NAME, KvConfig
from tamis.nameserver.server import NameServer


def test_without_a_directory_nothing_is_kept() -> None:
    async def run() -> None:
        kv = KvConfig(None)
        await kv.put("n", "k", "v")
        assert kv.get("n", "k") == "v"
        assert KvConfig(None).get("n", "k") is None

    asyncio.run(run())


def test_what_was_put_is_there_after_a_restart(tmp_path: Path) -> None:
    async def run() -> None:
        directory = tmp_path / "made" / "for it"
        kv = KvConfig(directory)
        await asyncio.gather(*(kv.put("n", f"k{i}", "é\n") for i in range(10)))
        await kv.put("m", "k", "v")
        await kv.delete("n", "k3")
        await kv.delete("m", "k")
        again = KvConfig(directory)
        assert again.namespace("n") == {f"k{i}": "é\n" for i in range(10) if i != 3}
        assert again.namespace("m") == {}
        assert again.namespace("o") is None
        assert os.listdir(directory) == [FILE_NAME]

    asyncio.run(run())


def test_the_file_is_rocketmqs(tmp_path: Path) -> None:
    async def run() -> None:
        text = '{"configTable":{"ORDER_TOPIC_CONFIG":{"T":"broker-a:4"}}}'
        (tmp_path / FILE_NAME).write_text(text)
        kv = KvConfig(tmp_path)
        assert kv.get("ORDER_TOPIC_CONFIG", "T") == "broker-a:4"
        await kv.put("ORDER_TOPIC_CONFIG", "U", "b:1")
        await kv.delete("ORDER_TOPIC_CONFIG", "U")
        assert (tmp_path / FILE_NAME).read_text() == text

    asyncio.run(run())


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"configTable":[]}', '{"configTable":{"n":{"k":[]}}}', "\0\0"]
)
def test_a_file_that_cant_be_read_is_named_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / FILE_NAME
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        NameServer(NameServerConfig(data=tmp_path))
    assert str(caught.value).startswith(f"{path} can't be read: ")
    assert "\n" not in str(caught.value)
    assert path.read_text() == text


def test_a_change_that_cant_be_saved_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no space left")

    async def run() -> None:
        kv = KvConfig(tmp_path)
        await kv.put("n", "k", "old")
        for step in "fsync", "replace":
            with monkeypatch.context() as patch:
                replace_call(patch, tmp_path, step, refuse)
                with pytest.raises(OSError, match="no space left"):
                    await kv.put("n", "k", "new")
                with pytest.raises(OSError, match="no space left"):
                    await kv.delete("n", "k")
            assert kv.get("n", "k") == KvConfig(tmp_path).get("n", "k") == "old"
        await kv.put("n", "k", "new")
        assert KvConfig(tmp_path).get("n", "k") == "new"

    asyncio.run(run())
