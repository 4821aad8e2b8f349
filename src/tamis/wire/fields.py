"""How a header travels: the fields of a dataclass as text, under RocketMQ's names, both ways."""

import types
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Self,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from ..errors import ResponseError
from .codes import RequestCode, ResponseCode
from .command import Fields

__all__ = ["Header", "Wire", "camel"]


@dataclass(frozen=True, slots=True)
class Wire:
    """A field's name on the wire, where it is not ours in camelCase."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Knows its own fields. `LETTERS` is a second encoding: another name for each."""

    CODE: ClassVar[RequestCode]
    LETTERS: ClassVar[dict[str, str]] = {}

    def to_fields(self, *, letters: bool = False) -> Fields:
        made = Fields()
        for name, wire, letter, _, show, _ in _columns(type(self)):
            value = getattr(self, name)
            if value is not None:
                made[letter if letters else wire] = show(value)
        return made

    @classmethod
    def from_fields(cls, source: Fields | None, *, letters: bool = False) -> Self:
        """Raises ResponseError if a field is missing or is no number: what to answer."""
        table, needed = _readers(cls, letters)
        values: dict[str, Any] = {}
        for key, text in source.items() if source else ():
            column = table.get(key)
            if column is not None:
                name, read = column
                try:
                    values[name] = text if read is None else read(text)
                except ValueError:
                    why = f"{cls.__name__}: {key} = {text!r:.40} is not a number it takes"
                    raise ResponseError(ResponseCode.SYSTEM_ERROR, why) from None
        if not needed <= values.keys():
            lacks = sorted(
                key for key, (name, _) in table.items() if name in needed - values.keys()
            )
            why = f"{cls.__name__}: the field {lacks[0]} is missing"
            raise ResponseError(ResponseCode.SYSTEM_ERROR, why)
        return cls(**values)


_Column = tuple[str, str, str, Callable[[str], Any], Callable[[Any], str], bool]
_COLUMNS: Final[dict[type[Header], tuple[_Column, ...]]] = {}


def _columns(header: type[Header]) -> tuple[_Column, ...]:
    """Of each field: our name, its names on the wire, how to read and show it, if it is needed."""
    found = _COLUMNS.get(header)
    if found is None:
        hints = get_type_hints(header, include_extras=True)
        found = _COLUMNS[header] = tuple(
            _column(header, field.name, hints[field.name], field.default is MISSING)
            for field in fields(header)
        )
    return found


_Readers = tuple[dict[str, tuple[str, Callable[[str], Any] | None]], frozenset[str]]
_READERS: Final[dict[tuple[type[Header], bool], _Readers]] = {}


def _readers(header: type[Header], letters: bool) -> _Readers:
    """By a field's name on the wire, its name and how to read it, None for text as it is; and the
    names of those that are needed. Hot: it is a fourth of what a small request costs."""
    found = _READERS.get((header, letters))
    if found is None:
        columns = _columns(header)
        table = {
            (letter if letters else wire): (name, None if read is str else read)
            for name, wire, letter, read, _, _ in columns
        }
        needed = frozenset(name for name, *_, needed in columns if needed)
        found = _READERS[header, letters] = (table, needed)
    return found


def _column(header: type[Header], name: str, kind: Any, needed: bool) -> _Column:
    wire = camel(name)
    if get_origin(kind) is Annotated:
        kind, *notes = get_args(kind)
        wire = next((note.name for note in notes if isinstance(note, Wire)), wire)
    if get_origin(kind) in (Union, types.UnionType):
        (kind,) = (one for one in get_args(kind) if one is not type(None))
    read, show = _SCALARS[kind]
    return name, wire, header.LETTERS.get(name, wire), read, show, needed


def camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _int(text: str) -> int:
    value = int(text)
    if not -(2**63) <= value < 2**63:
        raise ValueError(text)
    return value


_SCALARS: Final[dict[Any, tuple[Callable[[str], Any], Callable[[Any], str]]]] = {
    str: (str, str),
    int: (_int, int.__repr__),
    bool: (lambda text: text.lower() == "true", lambda value: "true" if value else "false"),
}
