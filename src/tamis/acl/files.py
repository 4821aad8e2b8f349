"""The files of accounts: which there are, reading them all, and changing one so that it lasts.

As RocketMQ 4.9.4 has it: `plain_acl.yml`, and every `*.yml` and `*.yaml` in the directory `acl`
beside it. A key may be in one of them only. A file that is changed by a request loses its comments,
and has RocketMQ's `dataVersion` afterwards. All of this waits for the disk: not for an event loop.
"""

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml  # type: ignore[import-untyped]

from ..errors import ConfigError
from . import document
from .access import Accounts
from .accounts import Account, AclFile, DataVersion, read_file
from .addresses import compile_pattern
from .document import MOST_BYTES, Node

__all__ = ["AclFiles", "Loaded"]

_MOST_FILES: Final = 1000
_MOST_FOLDERS: Final = 1000
_MOST_ACCOUNTS: Final = 100_000
_SUFFIXES: Final = (".yml", ".yaml")
_TOOLS: Final = "tools.yml"  # mqadmin's own key


@dataclass(frozen=True, slots=True)
class Loaded:
    """What all files said at a time."""

    files: tuple[AclFile, ...]
    digest: bytes
    accounts: Accounts = field(repr=False)

    @property
    def warnings(self) -> list[str]:
        return [warning for file in self.files for warning in file.warnings]

    def holder(self, access_key: str) -> str | None:
        """The file that an account is in."""
        return next((file.path for file in self.files if access_key in file.lines), None)


class AclFiles:
    """`file` is the one that accounts without a file of their own are added to."""

    def __init__(self, file: Path | str, now: Callable[[], float] = time.time) -> None:
        self.file = Path(os.path.normpath(os.path.abspath(file)))
        self.folder = self.file.parent / "acl"
        self._now = now

    def paths(self) -> list[Path]:
        """Return the files that exist, in RocketMQ's order: those of the directory come first."""
        found = list[Path]()
        for number, (folder, folders, names) in enumerate(os.walk(self.folder)):
            if number >= _MOST_FOLDERS:
                raise ConfigError(f"{self.folder}: more than {_MOST_FOLDERS} directories")
            folders.sort()
            for name in sorted(names):
                path = Path(folder, name)
                if name.endswith(_SUFFIXES) and path not in (self.file, self.folder / _TOOLS):
                    found.append(path)
        if self.file.exists():
            found.append(self.file)
        if len(found) > _MOST_FILES:
            raise ConfigError(f"{self.folder}: more than {_MOST_FILES} files of accounts")
        return found

    def stamp(self) -> tuple[object, ...]:
        """Another one if a file was changed, as far as the system tells."""
        return tuple(
            (str(path), status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)
            for path in self.paths()
            for status in (path.stat(),)
        )

    def read(self) -> list[tuple[str, bytes]]:
        """Raises ConfigError for one that can't be read, or if there is none."""
        found = [(str(path), _read(path)) for path in self.paths()]
        if not found:
            raise ConfigError(
                f"{self.file}: there is no such file; it is to have the accounts (see"
                " docs/security.md)"
            )
        return found

    def load(self, contents: list[tuple[str, bytes]] | None = None) -> Loaded:
        """Raises ConfigError with file and line."""
        contents = self.read() if contents is None else contents
        files = list[AclFile]()
        accounts, where = dict[str, Account](), dict[str, str]()
        for path, data in contents:
            file = read_file(path, document.parse(data, path))
            for account in file.accounts:
                key, line = account.access_key, file.lines[account.access_key]
                if key in accounts:
                    raise ConfigError(
                        f"{path}, line {line}: accessKey {key} is in {where[key]} too"
                    )
                accounts[key], where[key] = account, path
            files.append(file)
        if len(accounts) > _MOST_ACCOUNTS:
            raise ConfigError(f"{self.file}: more than {_MOST_ACCOUNTS} accounts")
        white = tuple(compile_pattern(text) for file in files for text in file.white_addresses)
        return Loaded(tuple(files), digest_of(contents), Accounts(accounts, white))

    # Changes. Each returns what holds then. They raise ConfigError for what would be refused, and
    # OSError for what could not be written; nothing is changed then.

    def put_account(self, values: Mapping[str, Any]) -> Loaded:
        """`values` by the names of the file; what is not in it stays as it was."""
        key = values["accessKey"]

        def change(data: dict[str, Any]) -> None:
            accounts = data.get("accounts") or []
            mine = [one for one in accounts if str(one["accessKey"]) == key]
            made = dict(mine[0]) if mine else {}
            data["accounts"] = [one for one in accounts if one not in mine] + [{**made, **values}]

        return self._change(self.load().holder(key) or str(self.file), change)

    def delete_account(self, key: str) -> Loaded | None:
        """None if there is no such account."""

        def change(data: dict[str, Any]) -> None:
            data["accounts"] = [one for one in data["accounts"] if str(one["accessKey"]) != key]

        holder = self.load().holder(key)
        return None if holder is None else self._change(holder, change)

    def put_white_addresses(self, addresses: list[str], path: str = "") -> Loaded | None:
        """None if `path` is not one of the files; empty stands for the default one."""
        path = os.path.normpath(path) if path else str(self.file)
        if path not in [file.path for file in self.load().files] and path != str(self.file):
            return None

        def change(data: dict[str, Any]) -> None:
            data["globalWhiteRemoteAddresses"] = addresses

        return self._change(path, change)

    def _change(self, path: str, change: Callable[[dict[str, Any]], None]) -> Loaded:
        contents = dict(self.read())
        old = contents.get(path)
        root = document.parse(old, path) if old is not None else None
        version = read_file(path, root).version
        data: dict[str, Any] = {} if root is None or root.is_null else _plain(root)
        change(data)
        number = DataVersion(version.counter + 1, int(self._now() * 1000))
        data["dataVersion"] = [{"counter": number.counter, "timestamp": number.timestamp}]
        contents[path] = _dump(data)
        loaded = self.load(list(contents.items()))  # refused before it is written
        _replace(path, contents[path], old)
        return loaded


def digest_of(contents: list[tuple[str, bytes]]) -> bytes:
    made = hashlib.sha256()
    for path, data in sorted(contents):
        name = os.fsencode(path)
        made.update(b"%d %d " % (len(name), len(data)) + name)
        made.update(data)
    return made.digest()


def _read(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None


def _plain(node: Node) -> Any:
    """As values to be written again."""
    if node.kind == "map":
        return {name: _plain(value) for name, value in node.fields("it").items()}
    if node.kind == "seq":
        return [_plain(item) for item in node.value]
    if node.is_null:
        return None
    if node.kind == "bool":
        return node.flag("it")
    if node.kind == "int" and str(node.value).isdecimal() and str(int(node.value)) == node.value:
        return int(node.value)
    return str(node.value)


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _dump(data: Mapping[str, Any]) -> bytes:
    text: str = yaml.dump(
        dict(data), Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False
    )
    return text.encode()


def _replace(path: str, data: bytes, old: bytes | None) -> None:
    """The whole of a file at once, on the disk when this returns. Raises OSError, and then it is as
    it was."""
    path = os.path.realpath(path)
    _put(path, data)
    try:
        _sync_folder(os.path.dirname(path))
    except OSError:
        with contextlib.suppress(OSError):
            if old is None:
                os.unlink(path)
            else:
                _put(path, old)
        raise


def _put(path: str, data: bytes) -> None:
    new = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.new")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(new)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            with contextlib.suppress(FileNotFoundError):
                status = os.stat(path)
                os.fchmod(file.fileno(), status.st_mode & 0o777)
                with contextlib.suppress(PermissionError):
                    os.fchown(file.fileno(), status.st_uid, status.st_gid)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
