"""Filters in code: a class of a Python file, run on Arrow batches in Spark's Python workers.

The class has one of

    def match(self, message: ReceivedMessage) -> bool
    def match_batch(self, batch: pyarrow.RecordBatch) -> mask      # a boolean a row, null is no

The file's text travels with the job, so that workers need not have the file; what it imports they
must have. One object is made in each worker process and may keep what it likes. One that throws, or
answers otherwise, has failed for that message or that batch: an outcome like the others, with the
error in a line.
"""

import functools
import sys
import types
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf

from ..client.received import ReceivedMessage
from ..errors import ConfigError
from ..filter import Outcome
from ..wire.bodies import MessageQueue
from .schema import DEFAULT

__all__ = ["CodeFilter", "code_filter"]

_ANSWER: Final = "outcome tinyint, error string"
_LONGEST: Final = 200  # letters of an error


@dataclass(frozen=True, slots=True)
class CodeFilter:
    """`text` is the file's. `name` is how it was asked for, `file.py:Class`."""

    name: str
    text: str

    def check(self) -> None:
        """Loads it here and makes one object. Raises ConfigError if it can't be used."""
        try:
            _loaded(self)
        except _Unusable as error:
            raise ConfigError(f"code {self.name}: {error}") from None

    def outcome(self, *columns: Column | str) -> Column:
        """STRUCT<outcome TINYINT, error STRING>, `tamis.filter.Outcome`s; the error is null but for
        those that failed. Of these columns, the default ones of a message without any."""

        def evaluate(rows: pa.Array) -> pa.Array:  # pickled by value, what it calls by name
            return _evaluate(self, rows)

        # its stubs want the kind of function said, at which it warns
        made = arrow_udf(evaluate, _ANSWER)  # type: ignore[call-overload]
        answer: Column = made(F.struct(*(columns or DEFAULT)))
        return answer


def code_filter(name: str, directory: str | Path = ".") -> CodeFilter:
    """`file.py:Class`, the file's path being relative to the directory. Raises ConfigError."""
    path, colon, of_class = name.rpartition(":")
    if not colon or not path or not of_class.isidentifier():
        raise ConfigError(f"code {name!r}: write file.py:Class")
    file = Path(directory, path)
    try:
        found = CodeFilter(name, file.read_text("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"code {name}: there is no file {file}") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"code {name}: {file} can't be read: {error}") from None
    found.check()
    return found


class _Unusable(Exception):
    """Why there is no object of the class."""


class _Message(ReceivedMessage):
    __slots__ = ("_id",)
    _id: str

    @property
    def message_id(self) -> str:
        return self._id


@functools.lru_cache(64)
def _loaded(filter: CodeFilter) -> Any:
    """The object; one in a process."""
    file, _, of_class = filter.name.rpartition(":")
    name = f"_tamis_code_{sha256(filter.text.encode()).hexdigest()[:16]}"
    module = sys.modules.get(name)
    try:
        if module is None:
            module = types.ModuleType(name)
            module.__file__ = file
            sys.modules[name] = module  # dataclasses look for it there
            try:
                exec(compile(filter.text, file, "exec"), module.__dict__)
            except BaseException:
                del sys.modules[name]
                raise
        made = getattr(module, of_class, None)
        if not isinstance(made, type):
            raise _Unusable(f"{file} has no class {of_class}")
        if not callable(getattr(made, "match", None)) and not hasattr(made, "match_batch"):
            raise _Unusable(f"class {of_class} has neither match nor match_batch")
        return made()
    except SyntaxError as error:
        raise _Unusable(f"line {error.lineno}: {error.msg}") from None
    except (Exception, SystemExit) as error:
        if isinstance(error, _Unusable):
            raise
        raise _Unusable(_line(error)) from None


def _evaluate(filter: CodeFilter, rows: pa.StructArray) -> pa.StructArray:
    try:
        user = _loaded(filter)
        if hasattr(user, "match_batch"):
            outcomes, errors = _of_mask(
                user.match_batch(pa.RecordBatch.from_struct_array(rows)), rows
            )
        else:
            outcomes, errors = _of_messages(user.match, rows)
    except (Exception, SystemExit) as error:
        outcomes = pa.array([int(Outcome.ERROR)] * len(rows), pa.int8())
        errors = pa.array([_line(error)] * len(rows), pa.string())
    return pa.StructArray.from_arrays([outcomes, errors], names=["outcome", "error"])


def _of_mask(mask: Any, rows: pa.StructArray) -> tuple[pa.Array, pa.Array]:
    if isinstance(mask, pa.ChunkedArray):
        mask = mask.combine_chunks()
    elif not isinstance(mask, pa.Array):
        if not isinstance(mask, Iterable):
            raise TypeError(f"match_batch gave {_shown(mask)}, not a mask")
        mask = pa.array(mask)
    if len(mask) != len(rows):
        raise ValueError(f"match_batch gave {len(mask)} answers for {len(rows)} rows")
    if len(rows) and not pa.types.is_boolean(mask.type):
        raise TypeError(f"match_batch gave {mask.type}, not booleans")
    outcomes = mask.cast(pa.int8()).fill_null(int(Outcome.NULL))
    return outcomes, pa.nulls(len(rows), pa.string())


def _of_messages(match: Any, rows: pa.StructArray) -> tuple[pa.Array, pa.Array]:
    outcomes: list[int] = []
    errors: list[str | None] = []
    for message in _messages(rows):
        error = None
        try:
            answer = match(message)
            if isinstance(answer, bool):
                outcome = Outcome.TRUE if answer else Outcome.FALSE
            elif type(answer).__name__ in ("bool", "bool_") and hasattr(answer, "item"):
                outcome = Outcome.TRUE if answer.item() else Outcome.FALSE  # NumPy's
            else:
                outcome, error = Outcome.ERROR, f"match gave {_shown(answer)}, not a boolean"
        except (Exception, SystemExit) as failure:
            outcome, error = Outcome.ERROR, _line(failure)
        outcomes.append(int(outcome))
        errors.append(error)
    return pa.array(outcomes, pa.int8()), pa.array(errors, pa.string())


def _messages(rows: pa.StructArray) -> Iterable[ReceivedMessage]:
    names = [field.name for field in rows.type]
    for values in zip(*(rows.field(name).to_pylist() for name in names), strict=True):
        row = dict(zip(names, values, strict=True))
        topic = row.get("topic") or ""
        message = _Message(
            topic=topic,
            body=row.get("body") or b"",
            properties=dict(row.get("properties") or ()),
            queue=MessageQueue(topic, row.get("broker") or "", row.get("queue_id") or 0),
            offset=row.get("offset") or 0,
            born_timestamp=_millis(row.get("born_timestamp")),
            store_timestamp=_millis(row.get("store_timestamp")),
        )
        message._id = row.get("message_id") or ""
        yield message


def _millis(moment: datetime | None) -> int:
    return 0 if moment is None else round(moment.timestamp() * 1000)


def _line(error: BaseException) -> str:
    said = str(error).strip().splitlines()
    return _cut(f"{type(error).__name__}: {said[0]}" if said else type(error).__name__)


def _shown(value: object) -> str:
    return _cut(repr(value)).splitlines()[0]


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
