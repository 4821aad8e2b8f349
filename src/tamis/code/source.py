"""The source of a filter in code. Nothing here executes it."""

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..errors import ConfigError

__all__ = ["MAX_SOURCE", "CodeFilter", "code_filter"]

MAX_SOURCE: Final = 2**20  # bytes


@dataclass(frozen=True, slots=True)
class CodeFilter:
    """The text of a Python file and the name of a class in it.

    `name` is `file.py:Class`; the file is only named in error messages, its text travels.
    """

    name: str
    text: str

    @property
    def file(self) -> str:
        return self.name.rpartition(":")[0]

    @property
    def class_name(self) -> str:
        return self.name.rpartition(":")[2]

    @property
    def crc(self) -> int:
        """The checksum that RocketMQ's clients send with a source (`UtilAll.crc32`)."""
        return zlib.crc32(self.text.encode()) & 0x7FFFFFFF


def code_filter(name: str, directory: str | Path = ".") -> CodeFilter:
    """Read a filter given as `file.py:Class`; the path is relative to the directory.

    Raises ConfigError.
    """
    path, colon, class_name = name.rpartition(":")
    if not colon or not path or not class_name.isidentifier():
        raise ConfigError(f"code {name!r}: write file.py:Class")
    file = Path(directory, path)
    try:
        text = file.read_text("utf-8")
    except FileNotFoundError:
        raise ConfigError(f"code {name}: there is no file {file}") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"code {name}: {file} can't be read: {error}") from None
    return CodeFilter(name, text)
