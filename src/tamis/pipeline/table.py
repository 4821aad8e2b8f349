"""A table of a pipeline's file, read key by key."""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any, Final

from ..errors import ConfigError

__all__ = ["Table", "is_local", "near", "shown"]

_SCHEME: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+:")


def is_local(path: str) -> bool:
    """Whether it is of this machine's file system: it has no scheme."""
    return not _SCHEME.match(path)


class Table:
    """A table being read: each key is taken once, then `end` refuses what is left."""

    def __init__(
        self, table: Mapping[str, Any], where: str, file: Path, what: str = "setting"
    ) -> None:
        self._table = dict(table)
        self._known: list[str] = []
        self._what = what
        self.where = where
        self.file = file

    def error(self, text: str) -> ConfigError:
        return ConfigError(self.where + text)

    def missing(self, text: str, *names: str) -> ConfigError:
        """The error that says `text`: none of these keys is there. If one of those left is a
        misspelling of them, that is what is wrong."""
        for left in self._table:
            if left not in self._known and (found := _nearest(left, names)):
                what = "table" if self._what == "table" else "setting"
                return self.error(f"{left}: there is no such {what}; did you mean {found}?")
        return self.error(text)

    def has(self, name: str) -> bool:
        self._known.append(name)
        return name in self._table

    def take(self, name: str, kinds: Any, default: Any, takes: str) -> Any:
        self._known.append(name)
        if name not in self._table:
            if default is _NEEDED:
                raise self.missing(f"has no {name}", name)
            return default
        value = self._table.pop(name)
        if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
            raise self.error(f"{name} = {shown(value)}: it takes {takes}")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """Without a default it must be there."""
        value: str = self.take(name, str, _NEEDED if default is None else default, "text")
        return value

    def text_or_none(self, name: str) -> str | None:
        value: str | None = self.take(name, str, None, "text")
        if value == "":
            raise self.error(f"{name} is empty")
        return value

    def texts(self, name: str, default: tuple[str, ...]) -> tuple[str, ...]:
        value = self.take(name, (str, list), default, "text or a list of texts")
        found = (value,) if isinstance(value, str) else tuple(value)
        if not all(isinstance(one, str) and one for one in found):
            raise self.error(f"{name} = {shown(value)}: it takes text or a list of texts")
        return found

    def choice(self, name: str, choices: Sequence[str], default: str) -> str:
        value: str = self.take(name, str, default, f"one of {', '.join(choices)}")
        if value not in choices:
            hint = near(value, choices)
            raise self.error(f"{name} = {value!r}: it takes one of {', '.join(choices)}{hint}")
        return value

    def path(self, name: str, default: Any = "") -> Any:
        value = self.take(name, str, _NEEDED if default == "" else default, "a path")
        if value is None:
            return None
        if not value:
            raise self.error(f"{name} is empty")
        return str(self.file.absolute().parent / value) if is_local(value) else value

    def number(self, name: str) -> float | None:
        value = self.take(name, (int, float), None, "a number above 0")
        if value is not None and not value > 0:
            raise self.error(f"{name} = {value}: it takes a number above 0")
        return None if value is None else float(value)

    def positive(self, name: str) -> int | None:
        value = self.take(name, int, None, "a whole number above 0")
        if value is not None and value < 1:
            raise self.error(f"{name} = {value}: it takes a whole number above 0")
        return None if value is None else int(value)

    def time(self, name: str, default: str | None, words: Sequence[str] = ()) -> Any:
        """ISO 8601 or milliseconds, as text; or one of the words."""
        takes = "".join(f"{word}, " for word in words) + "a time in ISO 8601 or milliseconds"
        value = self.take(name, (str, int, datetime, date), default, takes)
        if value is None or value in words:
            return value
        if isinstance(value, (datetime, date)):
            return value.isoformat()
        try:
            if not str(value).isdigit():
                datetime.fromisoformat(str(value))
        except ValueError:
            raise self.error(f"{name} = {value!r}: it takes {takes}") from None
        return str(value)

    def options(self) -> dict[str, str]:
        """For Spark: all are text there."""
        found = {}
        for name, value in self.take("options", dict, {}, "a table").items():
            if isinstance(value, (dict, list)):
                raise self.error(f"options: {name} = {shown(value)}: it takes one value")
            found[name] = str(value).lower() if isinstance(value, bool) else str(value)
        return found

    def table(self, name: str, default: Any = None) -> "Table":
        takes = f"a table: write [{name}] or {name} = {{...}}"
        value = self.take(name, dict, _NEEDED if default is None else default, takes)
        inner = f"{name}: " if self._what == "setting" else f"[{name}] "
        return Table(value, self.where + inner, self.file)

    def tables(self, name: str) -> list["Table"]:
        takes = f"tables: write [[{name}]]"
        value = self.take(name, list, [], takes)
        if not all(isinstance(one, dict) for one in value):
            raise self.error(f"{name}: it takes {takes}")
        return [Table(one, f"{self.where}[[{name}]] ", self.file) for one in value]

    def end(self) -> None:
        for name in self._table:
            if self._what == "table" and name in _TABLES:
                raise self.error(f"[{name}] is of another job: see [run] job")
            known = [*self._known, *(_TABLES if self._what == "table" else ())]
            raise self.error(f"{name}: there is no such {self._what}{near(name, known)}")


_NEEDED: Final = object()
_ALIKE: Final = 0.7  # of difflib: tag and tags are 0.86, path and paht 0.75, price and topic 0.6
_TABLES: Final = ("source", "run", "subscription", "unmatched", "archive", "replay", "audit")


def near(name: str, known: Iterable[str]) -> str:
    """A hint to the known name that is meant, to be put behind an error; empty if there is none."""
    found = _nearest(name, known)
    return f"; did you mean {found}?" if found else ""


def _nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like it, if one is; case does not count."""
    by_lower = {one.lower(): one for one in known}
    found = difflib.get_close_matches(name.lower(), by_lower, 1, _ALIKE)
    return by_lower[found[0]] if found else None


def shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"
