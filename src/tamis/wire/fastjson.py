"""JSON as Java's fastjson 1.2 writes it, which RocketMQ uses for bodies and tables.

It is not quite JSON: a map's keys are written as what they are, so there are integers without
quotes (`{0:"127.0.0.1:10911"}`) and whole objects (`{{"queueId":0,"topic":"T"}:5}`); an object met
a second time is a reference (`{"$ref":"$.consumerTable.c"}`).
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import orjson

__all__ = ["MAX_DEPTH", "ObjectKey", "loads", "parse", "render"]

MAX_TEXT: Final = 4 * 2**20  # bytes of what only fastjson calls JSON
MAX_DEPTH: Final = 32  # of objects and arrays in each other; RocketMQ's own need 6
_SPACE = re.compile(r"[ \t\r\n]*")
_INTEGER = re.compile(r"-?[0-9]{1,19}")


class ObjectKey(tuple[tuple[str, Any], ...]):
    """An object in the place of a key: its entries, in alphabetical order."""

    __slots__ = ()

    @classmethod
    def of(cls, entries: Mapping[str, Any]) -> "ObjectKey":
        return cls(sorted(entries.items()))


def loads(data: bytes) -> Any:
    """The value in a body, references resolved. ValueError if there is none."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        if len(data) > MAX_TEXT:  # the other parser is slow
            raise ValueError(f"{len(data)} bytes that are no plain JSON: {error}") from None
        value = parse(data.decode())
    return _References(value).resolved(value, MAX_DEPTH) if b'"$ref"' in data else value


def parse(text: str) -> Any:
    """The value in a text, integers and objects taken for keys. Raises ValueError."""
    value, end = _value(text, _skip(text, 0), 0)
    if (end := _skip(text, end)) != len(text):
        raise json.JSONDecodeError("Extra data", text, end)
    return value


def _value(text: str, at: int, depth: int) -> tuple[Any, int]:
    """A value that begins at `at`, and where it ends."""
    opening = text[at : at + 1]
    if opening not in ("{", "["):
        return _scalar(text, at)
    if depth == MAX_DEPTH:
        raise json.JSONDecodeError(f"More than {MAX_DEPTH} levels deep", text, at)
    entries: dict[Any, Any] = {}
    items: list[Any] = []
    closing, result = ("}", entries) if opening == "{" else ("]", items)
    at = _skip(text, at + 1)
    if text.startswith(closing, at):
        return result, at + 1
    while True:
        if result is entries:
            key, at = _key(text, at, depth)
            entries[key], at = _value(text, at, depth + 1)
        else:
            item, at = _value(text, at, depth + 1)
            items.append(item)
        at = _skip(text, at)
        if text.startswith(closing, at):
            return result, at + 1
        if not text.startswith(",", at):
            raise json.JSONDecodeError(f"Expecting ',' or '{closing}'", text, at)
        at = _skip(text, at + 1)


def _key(text: str, at: int, depth: int) -> tuple[Any, int]:
    """A key that begins at `at`, and where its value begins."""
    key: str | int | ObjectKey
    start = at
    if number := _INTEGER.match(text, at):
        key, at = int(number[0]), number.end()
    elif text.startswith('"', at):
        key, at = _scalar(text, at)
    elif text.startswith("{", at):
        entries, at = _value(text, at, depth + 1)
        try:
            # an object within one has no name
            key = ObjectKey.of({_name(name): value for name, value in entries.items()})
            hash(key)
        except TypeError:
            reason = "Expecting plain values in an object that is a key"
            raise json.JSONDecodeError(reason, text, start) from None
    else:
        reason = "Expecting a key: a string, an integer or an object"
        raise json.JSONDecodeError(reason, text, at)
    at = _skip(text, at)
    if not text.startswith(":", at):
        raise json.JSONDecodeError("Expecting ':'", text, at)
    return key, _skip(text, at + 1)


def _name(key: str | int | ObjectKey) -> str:
    if isinstance(key, ObjectKey):
        raise TypeError
    return str(key)


def _scalar(text: str, at: int) -> tuple[Any, int]:
    try:
        value, end = _SCALARS.raw_decode(text, at)
        if isinstance(value, str) and not value.isascii():
            value = value.encode("utf-8", "replace").decode()  # half a pair is "?", as in Java
        return value, end
    except json.JSONDecodeError:
        raise
    except ValueError as error:  # NaN, or more digits than Python takes
        raise json.JSONDecodeError(str(error), text, at) from None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _float(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"{text:.40} is too large a number")
    return value


_SCALARS = json.JSONDecoder(parse_constant=_refuse, parse_float=_float)


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return space.end() if space else at


_MOST_UNFOLDED: Final = 100_000  # values that references lead to, each time they are led to


class _References:
    """Replaces references by what they lead to; those that lead nowhere are left out."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._left = _MOST_UNFOLDED

    def resolved(self, value: Any, depth: int, *, led: bool = False) -> Any:
        if not depth:
            raise ValueError("references that lead round in a circle, or too deep")
        if led:
            self._left -= 1
            if self._left < 0:
                raise ValueError(f"references to more than {_MOST_UNFOLDED} values")
        if isinstance(value, dict):
            if value.keys() == {"$ref"}:
                return self.resolved(_at(self._root, str(value["$ref"])), depth - 1, led=True)
            made = {key: self.resolved(v, depth - 1, led=led) for key, v in value.items()}
            return {key: entry for key, entry in made.items() if entry is not _NOWHERE}
        if isinstance(value, list):
            made_items = [self.resolved(item, depth - 1, led=led) for item in value]
            return [item for item in made_items if item is not _NOWHERE]
        return value


_NOWHERE: Final = object()
_STEP = re.compile(r"\.([^.\[\]]+)|\[([0-9]+)\]")


def _at(root: Any, path: str) -> Any:
    if not path.startswith("$"):
        return _NOWHERE
    value, at = root, 1
    while at < len(path):
        step = _STEP.match(path, at)
        try:
            value = value[step[1] if step[1] is not None else int(step[2])] if step else _NOWHERE
        except (KeyError, IndexError, TypeError):
            return _NOWHERE
        if value is _NOWHERE:
            return _NOWHERE
        at = step.end() if step else len(path)
    return value


def render(value: Any, *, pretty: bool = False, ascii_only: bool = False, depth: int = 0) -> str:
    """`pretty` is fastjson's own: tabs, and integer keys that begin no line."""
    kind = type(value)
    if kind is int:
        return str(value)
    if kind is bool:
        return "true" if value else "false"
    encode = _ENCODE_ASCII if ascii_only else _encode
    if kind is str:
        return encode(value)
    if isinstance(value, Mapping):
        line = "\n" + "\t" * (depth + 1) if pretty else ""
        entries = []
        for key, entry in value.items():
            text = render(entry, pretty=pretty, ascii_only=ascii_only, depth=depth + 1)
            if isinstance(key, str):
                entries.append(f"{line}{encode(key)}:{text}")
            elif isinstance(key, ObjectKey):
                entries.append(f"{render(dict(key), ascii_only=ascii_only)}:{text}")
            else:
                entries.append(f"{key:d}:{text}")
        return f"{{{','.join(entries)}{line[:-1]}}}" if entries else "{}"
    if isinstance(value, list | tuple | set | frozenset):
        items = (render(v, pretty=pretty, ascii_only=ascii_only, depth=depth + 1) for v in value)
        return f"[{','.join(items)}]"
    return encode(value)


def _encode(value: Any) -> str:
    """Ten times as fast as `json` for a string."""
    try:
        return orjson.dumps(value).decode() if type(value) is str else _ENCODE(value)
    except TypeError:  # half of a pair, which only Python takes
        return _ENCODE(value)


_ENCODE = json.JSONEncoder(allow_nan=False, ensure_ascii=False).encode
_ENCODE_ASCII = json.JSONEncoder(allow_nan=False).encode
