"""Accounts: who there is, by which secret they are known, and what each may do.

RocketMQ's `plain_acl.yml` (4.9.4), the checks of `PlainPermissionManager` with it.
"""

import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ..errors import ConfigError
from ..java import encode_utf8
from .addresses import Pattern, compile_pattern
from .document import Node
from .permissions import DLQ, RETRY, Perm, parse_permission, parse_resource

__all__ = ["MIN_KEY", "Account", "AclFile", "DataVersion", "read_account", "read_file"]

MIN_KEY: Final = 7  # characters: RocketMQ's text says "longer than 6"
_ACCOUNT_FIELDS: Final = {
    *("accessKey", "secretKey", "whiteRemoteAddress", "admin", "defaultTopicPerm"),
    *("defaultGroupPerm", "topicPerms", "groupPerms"),
}
_FILE_FIELDS: Final = {"globalWhiteRemoteAddresses", "accounts", "dataVersion"}


class Signer:
    """Makes signatures with one secret, which is prepared once."""

    __slots__ = ("_prepared", "secret")

    def __init__(self, secret: str) -> None:
        self.secret = encode_utf8(secret)
        self._prepared = hmac.new(self.secret, digestmod="sha1")

    def digest(self, *content: bytes) -> bytes:
        made = self._prepared.copy()
        for part in content:
            made.update(part)
        return made.digest()

    def __repr__(self) -> str:
        return "Signer(...)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """`topics` and `groups`: what it may do with one; for others the default counts."""

    access_key: str
    secret_key: str = field(repr=False)
    white_address: str | None = None
    is_admin: bool = False
    default_topic: str | None = None  # as it was written
    default_group: str | None = None
    topic_perms: tuple[str, ...] | None = None
    group_perms: tuple[str, ...] | None = None

    is_white: Pattern = field(init=False, repr=False, compare=False)
    signer: Signer = field(init=False, repr=False, compare=False)
    _topics: Mapping[str, Perm] = field(init=False, repr=False, compare=False)
    _groups: Mapping[str, Perm] = field(init=False, repr=False, compare=False)
    _defaults: tuple[Perm, Perm] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Raises ConfigError, never with the secret in it."""
        if len(self.access_key) < MIN_KEY or len(self.secret_key) < MIN_KEY:
            which = "accessKey" if len(self.access_key) < MIN_KEY else "secretKey"
            raise ConfigError(f"{which} is too short: it takes {MIN_KEY} characters or more")
        put = object.__setattr__
        put(self, "is_white", compile_pattern(self.white_address))
        put(self, "signer", Signer(self.secret_key))
        put(self, "_topics", _permissions(self.topic_perms, "topicPerms"))
        put(self, "_groups", _permissions(self.group_perms, "groupPerms"))
        defaults = (self.default_topic, self.default_group)
        put(self, "_defaults", tuple(parse_permission(text) or Perm.DENY for text in defaults))

    @property
    def is_unbounded(self) -> bool:
        """An administrator whose permissions are not listed may do everything."""
        return self.is_admin and not self._topics and not self._groups

    def may(self, resource: str, needed: Perm) -> bool:
        """`resource` is a topic; that of a group is its retry topic."""
        if self.is_unbounded:
            return True
        owned = self._topics.get(resource)
        if owned is None and resource.startswith(RETRY):
            owned = self._groups.get(resource[len(RETRY) :], self._defaults[1])
        elif owned is None and needed is Perm.SUB and resource.startswith(DLQ):
            # Dead letters are their group's. RocketMQ has its default for topics here.
            owned = self._groups.get(resource[len(DLQ) :], self._defaults[1])
        elif owned is None:
            owned = self._defaults[0]
        return not owned & Perm.DENY and bool(owned & needed)


def _permissions(given: Iterable[str] | None, what: str) -> dict[str, Perm]:
    parsed = [parse_resource(text, what) for text in given or ()]
    return {name: perm or Perm.DENY for name, perm in parsed}


@dataclass(frozen=True, slots=True)
class DataVersion:
    """How often a file was changed by requests, and when last, as RocketMQ writes it there."""

    counter: int = 0
    timestamp: int = 0  # milliseconds


@dataclass(frozen=True, slots=True)
class AclFile:
    """What one file says. `warnings`: what is passed over."""

    path: str
    accounts: tuple[Account, ...] = ()
    lines: Mapping[str, int] = field(default_factory=dict)  # of accounts, by access key
    white_addresses: tuple[str, ...] = ()
    version: DataVersion = DataVersion()
    warnings: tuple[str, ...] = ()


def read_file(path: str, root: Node | None) -> AclFile:
    """Raises ConfigError with file and line."""
    if root is None or root.is_null:
        return AclFile(path)
    found = root.fields("the file")
    warnings = [
        f"{path}, line {node.line}: {name}: not known, passed over"
        for name, node in found.items()
        if name not in _FILE_FIELDS
    ]
    addresses = []
    if (listed := found.get("globalWhiteRemoteAddresses")) is not None:
        for node in listed.items("globalWhiteRemoteAddresses"):
            text = "" if node.is_null else node.text("a white address")
            with _Located(node):
                compile_pattern(text)
            addresses.append(text)
    accounts, lines = list[Account](), dict[str, int]()
    if (listed := found.get("accounts")) is not None:
        for node in listed.items("accounts"):
            account = read_account(node, warnings)
            if (first := lines.get(account.access_key)) is not None:
                raise node.wrong(
                    f"accessKey {account.access_key} is there twice; the first is in line {first}"
                )
            lines[account.access_key] = node.line
            accounts.append(account)
    version = _read_version(found.get("dataVersion"))
    return AclFile(path, tuple(accounts), lines, tuple(addresses), version, tuple(warnings))


def read_account(node: Node, warnings: list[str]) -> Account:
    """Raises ConfigError with file and line."""
    found = node.fields("an account")
    for name, value in found.items():
        if name not in _ACCOUNT_FIELDS:
            warnings.append(f"{value.file}, line {value.line}: {name}: not known, passed over")

    def text(name: str) -> str | None:
        value = found.get(name)
        return None if value is None or value.is_null else value.text(name)

    def texts(name: str) -> tuple[str, ...] | None:
        value = found.get(name)
        if value is None or value.is_null:
            return None
        made = []
        for item in value.items(name):
            given = item.text(name)
            with _Located(item):
                _, permission = parse_resource(given, name)
            if permission is None:
                warnings.append(_unknown_word(item, given))
            made.append(given)
        return tuple(made)

    for name in ("accessKey", "secretKey"):
        if not text(name):
            raise node.wrong(f"an account without {name}")
        if len(text(name) or "") < MIN_KEY:
            raise found[name].wrong(f"{name} is too short: it takes {MIN_KEY} characters or more")
    for name in ("defaultTopicPerm", "defaultGroupPerm"):
        if parse_permission(text(name)) is None:
            warnings.append(_unknown_word(found[name], name))
    admin = found.get("admin")
    with _Located(found.get("whiteRemoteAddress", node)):
        return Account(
            access_key=text("accessKey") or "",
            secret_key=text("secretKey") or "",
            white_address=text("whiteRemoteAddress"),
            is_admin=admin is not None and not admin.is_null and admin.flag("admin"),
            default_topic=text("defaultTopicPerm"),
            default_group=text("defaultGroupPerm"),
            topic_perms=texts("topicPerms"),
            group_perms=texts("groupPerms"),
        )


def _unknown_word(node: Node, what: str) -> str:
    return (
        f"{node.file}, line {node.line}: {what[:100]}: the permission is none of PUB, SUB, PUB|SUB"
        " and DENY, so it is denied"
    )


def _read_version(node: Node | None) -> DataVersion:
    if node is None or node.is_null:
        return DataVersion()
    items = node.items("dataVersion")
    if not items:
        return DataVersion()
    found = items[0].fields("dataVersion")
    numbers = {
        name: value.number(f"dataVersion: {name}")
        for name, value in found.items()
        if name in ("counter", "timestamp")
    }
    return DataVersion(numbers.get("counter", 0), numbers.get("timestamp", 0))


class _Located:
    """Adds the line to an error that has none."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        where = f"{self._node.file}, line "
        if isinstance(error, ConfigError) and not str(error).startswith(where):
            raise self._node.wrong(str(error)) from None
