"""A YAML file of accounts, read with nothing taken for granted: size, depth and aliases are limited
before a tree is made of it, and each value knows its line.

PyYAML's safe loader resolves what a scalar is; no objects are made but texts, lists and mappings.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import yaml  # type: ignore[import-untyped]

from ..errors import ConfigError

__all__ = ["MOST_BYTES", "Node", "parse"]

MOST_BYTES: Final = 4 * 2**20
_MOST_EVENTS: Final = 400_000
_MOST_DEPTH: Final = 16
_MOST_ALIASES: Final = 50  # as SnakeYAML
_MOST_NODES: Final = 400_000  # with those that aliases stand for

_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # C: thirty times as fast
_TAGS: Final = frozenset(
    ("str", "int", "float", "bool", "null", "timestamp", "merge", "value", "seq", "map")
)
_KINDS: Final = {
    "bool": "true or false",
    "int": "a number",
    "float": "a number",
    "null": "nothing",
    "timestamp": "a date",
}


@dataclass(frozen=True, slots=True)
class Node:
    """A value of the file. `kind` is that of YAML: str, int, bool, null, seq, map, ..."""

    file: str
    line: int  # from 1
    kind: str
    value: Any  # the text of a scalar, or nodes

    def wrong(self, why: str) -> ConfigError:
        return ConfigError(f"{self.file}, line {self.line}: {why}")

    @property
    def is_null(self) -> bool:
        return self.kind == "null"

    def text(self, what: str) -> str:
        """Raises ConfigError for what is not text. A plain number will do, written as Java would
        write it again."""
        if self.kind == "str":
            return str(self.value)
        if self.kind == "int" and self.value == str(_decimal(self.value)):
            return str(self.value)
        if self.kind in ("seq", "map"):
            raise self.wrong(f"{what} takes text, not a {_shown(self.kind)}")
        raise self.wrong(
            f"{what}: YAML takes this for {_KINDS.get(self.kind, self.kind)}; put it in quotes"
        )

    def flag(self, what: str) -> bool:
        """Raises ConfigError."""
        text = str(self.value).lower() if self.kind in ("bool", "str") else ""
        if text in ("true", "yes", "on"):
            return True
        if text in ("false", "no", "off"):
            return False
        raise self.wrong(f"{what} takes true or false")

    def number(self, what: str) -> int:
        """Raises ConfigError."""
        found = _decimal(self.value) if self.kind in ("int", "str") else None
        if found is None or not -(2**63) <= found < 2**63:
            raise self.wrong(f"{what} takes a whole number")
        return found

    def items(self, what: str) -> "list[Node]":
        """Return the items of a list; none if there is nothing. Raises ConfigError."""
        if self.is_null:
            return []
        if self.kind != "seq":
            raise self.wrong(f"{what} takes a list: lines that begin with -")
        return list(self.value)

    def fields(self, what: str) -> "dict[str, Node]":
        """Return the entries of a mapping. Raises ConfigError, also if a name is there twice."""
        if self.kind != "map":
            raise self.wrong(f"{what} takes name: value lines, not a {_shown(self.kind)}")
        found: dict[str, Node] = {}
        for name, value in self.value:
            key = name.text("a name")
            if key in found:
                raise name.wrong(f"{key} is there twice; the first is in line {found[key].line}")
            found[key] = value
        return found


def _shown(kind: str) -> str:
    return {"seq": "list", "map": "mapping"}.get(kind, "single value")


def _decimal(text: Any) -> int | None:
    digits = text[1:] if isinstance(text, str) and text[:1] == "-" else text
    if not isinstance(digits, str) or not digits.isascii() or not digits.isdecimal():
        return None
    return int(text) if len(digits) < 20 else None


def parse(data: bytes, file: str) -> Node | None:
    """The one document of a file; None if it has none. Raises ConfigError with the file and the
    line of what is wrong."""
    if len(data) > MOST_BYTES:
        raise ConfigError(f"{file}: {len(data)} bytes: it may have up to {MOST_BYTES}")
    try:
        return _Tree(data, file).read()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{file}, line {mark.line + 1}" if mark is not None else file
        # never the text around it: that may be a secret
        why = getattr(error, "problem", None) or getattr(error, "reason", None)
        raise ConfigError(f"{where}: not valid YAML: {why or 'its characters'}") from None


class _Tree:
    """Built of the parser's events, which are flat: nothing here recurses deeper than it may."""

    def __init__(self, data: bytes, file: str) -> None:
        self._data = data
        self._file = file
        self._events = 0
        self._aliases = 0
        self._nodes = 0
        self._anchors: dict[str, tuple[Node, int]] = {}

    def read(self) -> Node | None:
        loader = _LOADER(self._data)
        try:
            self._resolve = loader.resolve
            return self._document(self._parse(loader))
        finally:
            loader.dispose()

    def _parse(self, loader: Any) -> Iterator[Any]:
        depth = 0
        while loader.check_event():
            event = loader.get_event()
            self._events += 1
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            if depth > _MOST_DEPTH:
                raise self._wrong(event, f"nested more than {_MOST_DEPTH} levels deep")
            if self._events > _MOST_EVENTS:
                raise self._wrong(event, f"more than {_MOST_EVENTS} values")
            yield event

    def _wrong(self, event: Any, why: str) -> ConfigError:
        return ConfigError(f"{self._file}, line {event.start_mark.line + 1}: {why}")

    def _document(self, events: Iterator[Any]) -> Node | None:
        found: Node | None = None
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                if found is not None:
                    raise self._wrong(event, "a second document: the file is to have one")
                found, _ = self._node(next(events), events)
        return found

    def _node(self, event: Any, events: Iterator[Any]) -> tuple[Node, int]:
        """And how many nodes it is, aliases spelled out."""
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event)
        line = event.start_mark.line + 1
        size = 1
        if isinstance(event, yaml.ScalarEvent):
            tag = event.tag
            if tag is None or tag == "!":
                tag = self._resolve(yaml.ScalarNode, event.value, event.implicit)
            made = Node(self._file, line, self._kind(event, tag), event.value)
        elif isinstance(event, yaml.SequenceStartEvent):
            items = []
            while not isinstance(inner := next(events), yaml.SequenceEndEvent):
                node, count = self._node(inner, events)
                items.append(node)
                size += count
            made = Node(self._file, line, self._kind(event, event.tag or "seq"), items)
        else:
            pairs = []
            while not isinstance(inner := next(events), yaml.MappingEndEvent):
                name, name_count = self._node(inner, events)
                value, value_count = self._node(next(events), events)
                pairs.append((name, value))
                size += name_count + value_count
            made = Node(self._file, line, self._kind(event, event.tag or "map"), pairs)
        if event.anchor is not None:
            self._anchors[event.anchor] = made, size
        return made, size

    def _kind(self, event: Any, tag: str) -> str:
        kind = tag.removeprefix("tag:yaml.org,2002:")
        if kind not in _TAGS:
            raise self._wrong(event, f"the tag {tag[:60]}: only plain values are taken")
        return kind

    def _alias(self, event: Any) -> tuple[Node, int]:
        found = self._anchors.get(event.anchor)
        if found is None:  # also one within what it stands for
            raise self._wrong(event, f"*{event.anchor[:40]} stands for nothing before it")
        self._aliases += 1
        self._nodes += found[1]
        if self._aliases > _MOST_ALIASES or self._nodes > _MOST_NODES:
            raise self._wrong(event, "too many aliases (*name): write the values out")
        return found
