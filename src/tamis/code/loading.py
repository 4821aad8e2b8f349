"""Loading a filter into this process, and judging batches with it.

Whoever loads a stranger's source does it in a process that can do no harm: see `tamis.sandbox`.
"""

import inspect
import itertools
import re
import sys
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]

from ..errors import CodeError
from ..filter.logic import Outcome
from .contract import Context, Needs, needs_of
from .messages import Columns, MessageView
from .reasons import line_of, one_line, shown
from .source import CodeFilter
from .verdicts import Verdicts

__all__ = ["MOST_REASONS", "Loaded", "load"]

MOST_REASONS: Final = 64  # of a batch: the first ones, and the last one
_FALSE, _TRUE, _NULL, _ERROR = (int(one) for one in Outcome)
_JAVA: Final = re.compile(r"^\s*(package [\w.]+;|import [\w.]+;|public class )", re.MULTILINE)
_numbers = itertools.count(1)


def load(code: CodeFilter, context: Context) -> "Loaded":
    """Execute the source here and make one object of its class. Raises CodeError."""
    module = types.ModuleType(f"_tamis_code_{next(_numbers)}")
    module.__file__ = code.file
    sys.modules[module.__name__] = module  # dataclasses look for it there
    try:
        return _load(code, context, module)
    except CodeError:
        sys.modules.pop(module.__name__, None)
        raise
    except SyntaxError as error:
        sys.modules.pop(module.__name__, None)
        if _JAVA.search(code.text):
            raise CodeError(code.name, "this is Java; a filter is a class in Python") from None
        where = f"line {error.lineno}: " if error.lineno else ""
        raise CodeError(code.name, one_line(f"{where}{error.msg}")) from None
    except BaseException as error:
        sys.modules.pop(module.__name__, None)
        if isinstance(error, KeyboardInterrupt):
            raise
        raise CodeError(code.name, line_of(error)) from None


def _load(code: CodeFilter, context: Context, module: types.ModuleType) -> "Loaded":
    exec(compile(code.text, code.file, "exec", dont_inherit=True), module.__dict__)
    filter_class = getattr(module, code.class_name, None)
    if not isinstance(filter_class, type):
        raise CodeError(code.name, f"{code.file} has no class {code.class_name}")
    try:
        needs = needs_of(filter_class)
    except ValueError as error:
        raise CodeError(code.name, one_line(str(error))) from None
    user = filter_class()
    name = "match_batch" if needs.is_batch else "match"
    try:
        takes_context = _takes_context(getattr(user, name), name, needs.is_batch)
    except ValueError as error:
        raise CodeError(code.name, one_line(str(error))) from None
    return Loaded(user, needs, context if takes_context else None, module.__name__)


def _takes_context(method: Callable[..., object], name: str, is_batch: bool) -> bool:
    """Whether a method takes a second argument: one without a default, or called `context`."""
    if inspect.iscoroutinefunction(method):
        raise ValueError(f"{name} is a coroutine: write def, not async def")
    try:
        parameters = [*inspect.signature(method).parameters.values()]
    except (TypeError, ValueError):  # something built in
        return False
    positional = [
        one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    takes_more = any(one.kind == one.VAR_POSITIONAL for one in parameters)
    needed = [one for one in positional if one.default is one.empty]
    by_name = [
        one for one in parameters if one.kind == one.KEYWORD_ONLY and one.default is one.empty
    ]
    if len(needed) > 2 or by_name or not (positional or takes_more):
        what = "batch" if is_batch else "message"
        given = ", ".join(one.name for one in parameters)
        raise ValueError(f"{name} takes ({given}); it is given ({what}) or ({what}, context)")
    return len(needed) == 2 or (len(positional) > 1 and positional[1].name == "context")


class Progress(Protocol):
    """A list, or memory that others see."""

    def __setitem__(self, index: int, row: int, /) -> None: ...


class Loaded:
    """An object of a filter's class, in this process. One caller at a time."""

    def __init__(self, user: Any, needs: Needs, context: Context | None, module: str) -> None:
        """`context` if its method takes one. `module` is unloaded with it."""
        self.needs = needs
        self._user = user
        self._context = context
        self._unload = weakref.finalize(self, sys.modules.pop, module, None)
        self._unload.atexit = False

    def judge(self, batch: pa.RecordBatch, *, progress: Progress | None = None) -> Verdicts:
        """Judge a batch, whose memory must stay as it is: a filter may keep a message, or a batch.

        What the filter raises is an outcome of the rows concerned, but for KeyboardInterrupt.
        `progress[0]` is set to the row that `match` is given, for who watches from outside.
        """
        if self.needs.is_declared and tuple(batch.schema.names) != self.needs.names:
            raise ValueError(f"a batch of {batch.schema.names}, not {[*self.needs.names]}")
        if self.needs.is_batch:
            return self._of_batch(batch)
        return self._of_messages(batch, [0] if progress is None else progress)

    def close(self) -> None:
        self._unload()

    def _method(self, name: str) -> Callable[[Any], Any]:
        method, context = getattr(self._user, name), self._context
        return method if context is None else lambda subject: method(subject, context)

    def _of_batch(self, batch: pa.RecordBatch) -> Verdicts:
        try:
            mask = self._method("match_batch")(batch)
            return Verdicts(_outcomes(mask, batch.num_rows))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            outcomes = np.full(batch.num_rows, _ERROR, np.uint8)
            return Verdicts(outcomes, {0: line_of(error)} if batch.num_rows else {})

    def _of_messages(self, batch: pa.RecordBatch, progress: Progress) -> Verdicts:
        outcomes = bytearray(batch.num_rows)
        errors: dict[int, str] = {}
        match, columns = self._method("match"), Columns(batch, self.needs)
        for row in range(batch.num_rows):
            progress[0] = row
            try:
                answer = match(MessageView(columns, row))
                if answer is True:
                    outcomes[row] = _TRUE
                elif answer is not False:
                    outcomes[row] = _outcome(answer)
                    if outcomes[row] == _ERROR:
                        _keep(errors, row, f"match gave {shown(answer)}, not a boolean")
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                outcomes[row] = _ERROR
                _keep(errors, row, line_of(error))
        return Verdicts(np.frombuffer(outcomes, np.uint8), errors)


def _keep(errors: dict[int, str], row: int, reason: str) -> None:
    if len(errors) == MOST_REASONS:
        errors.popitem()
    errors[row] = reason


def _outcome(answer: Any) -> int:
    """The outcome that an answer stands for which is neither True nor False."""
    if type(answer).__name__ in ("bool", "bool_") and hasattr(answer, "item"):  # NumPy's
        return _TRUE if answer.item() else _FALSE
    return _ERROR


def _outcomes(mask: Any, count: int) -> npt.NDArray[np.uint8]:
    """The outcomes that a mask stands for. Raises what is wrong with it."""
    if isinstance(mask, pa.ChunkedArray):
        mask = mask.combine_chunks()
    elif not isinstance(mask, pa.Array):
        if not isinstance(mask, Iterable):
            raise TypeError(f"match_batch gave {shown(mask)}, not a mask")
        mask = pa.array(mask)
    if len(mask) != count:
        raise ValueError(f"match_batch gave {len(mask)} answers for {count} rows")
    if count and not pa.types.is_boolean(mask.type):
        raise TypeError(f"match_batch gave {mask.type}, not booleans")
    numbers: npt.NDArray[np.uint8] = mask.cast(pa.uint8()).fill_null(_NULL).to_numpy()
    return numbers
