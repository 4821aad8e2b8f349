"""The source of a filter: read, named and summed up, never executed."""

from pathlib import Path

import pytest

from tamis.code import CodeFilter, code_filter
from tamis.errors import ConfigError


def test_a_source_is_read_from_beside_and_not_executed(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("raise SystemExit\n")
    found = code_filter("mine.py:Mine", tmp_path)
    assert found == CodeFilter("mine.py:Mine", "raise SystemExit\n")
    assert (found.file, found.class_name) == ("mine.py", "Mine")


@pytest.mark.parametrize("name", ["mine.py", ":Mine", "mine.py:", "mine.py:a-b", "none.py:Mine"])
def test_a_filter_that_is_not_there_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"write file\.py:Class|there is no file"):
        code_filter(name, tmp_path)


def test_a_source_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="can't be read"):
        code_filter("mine.py:Mine", tmp_path)


def test_the_checksum_is_rocketmq_s() -> None:
    """Its `UtilAll.crc32`: CRC-32 without the sign."""
    assert CodeFilter("a:A", "123456789").crc == 0xCBF43926 & 0x7FFFFFFF
