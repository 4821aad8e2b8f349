"""Filters in code on Spark: `tamis.code` on Arrow batches in Python workers.

The source travels with the job, so that workers need not have the file; what it imports they must
have. Only the columns and properties that a class declares are sent to the workers. Each worker
process makes one object of the class, in itself or in a sandbox beside it.
"""

import functools
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf

from ..client.columns import read_as
from ..code import CodeFilter, Context, Judge, Needs, Verdicts, judge_batch, load
from ..errors import CodeError, SandboxError
from ..filter import Outcome
from .schema import DEFAULT

if TYPE_CHECKING:
    from ..sandbox import Sandbox

__all__ = ["needs", "outcome"]

_ANSWER: Final = "outcome tinyint, error string"
_MOST_JUDGES: Final = 64  # of a process
_TRIES: Final = 3  # while a filter that broke its limits rests
_LONGEST_REST: Final = 30.0  # seconds


@functools.lru_cache(256)
def needs(code: CodeFilter, isolation: str = "off") -> Needs:
    """Return what a filter is to be given, which is known by loading it, with the same isolation
    as where it will run. Raises CodeError, SandboxError."""
    context = Context("", "")
    if isolation == "off":
        with closing(load(code, context)) as loaded:
            return loaded.needs
    from ..sandbox import Sandbox

    with closing(Sandbox(isolation="required")) as sandbox:
        return sandbox.cell(code, context).needs


def outcome(
    code: CodeFilter,
    context: Context,
    *,
    isolation: str = "off",
    property_of: Callable[[str], Column] = lambda name: F.col("properties")[name],
    columns: Sequence[str] = DEFAULT,
) -> Column:
    """STRUCT<outcome TINYINT, error STRING>: a `tamis.filter.Outcome`, and why it is an error.

    It takes the columns that the class declares, and of a property what `property_of` says, which
    is text; of a class that declares none, `columns`. Raises CodeError, SandboxError.
    """
    declared = needs(code, isolation)
    given = [F.col(name) for name in (declared.columns if declared.is_declared else columns)]
    given += [property_of(name).alias(name) for name, _ in declared.properties]

    def evaluate(rows: pa.Array) -> pa.Array:  # pickled by value, what it calls by name
        return _evaluate(code, context, isolation, rows)

    # its stubs want the kind of function said, at which it warns
    made = arrow_udf(evaluate, _ANSWER)  # type: ignore[call-overload]
    answer: Column = made(F.struct(*given))
    return answer


def _evaluate(
    code: CodeFilter, context: Context, isolation: str, rows: pa.StructArray
) -> pa.StructArray:
    try:
        verdicts = _judge(_judge_of(code, context, isolation), rows)
    except (CodeError, SandboxError) as error:
        outcomes = np.full(len(rows), Outcome.ERROR, np.uint8)
        verdicts = Verdicts(outcomes, {0: error.reason})
    reasons = np.full(len(rows), None, np.object_)
    for row in np.flatnonzero(verdicts.failed).tolist():
        reasons[row] = verdicts.reason(row)
    arrays = [pa.array(verdicts.outcomes.view(np.int8)), pa.array(reasons, pa.string())]
    return pa.StructArray.from_arrays(arrays, names=["outcome", "error"])


def _judge(judge: Judge, rows: pa.StructArray) -> Verdicts:
    batch = pa.RecordBatch.from_struct_array(rows)
    for name, kind in judge.needs.properties:
        at = batch.schema.get_field_index(name)
        batch = batch.set_column(at, name, read_as(batch.column(at), kind))
    for _ in range(_TRIES):
        try:
            return judge_batch(judge, batch)
        except SandboxError as error:  # it rests: a job has time
            if not error.retry_after:
                raise
            time.sleep(min(error.retry_after, _LONGEST_REST))
    return judge_batch(judge, batch)


_judges: OrderedDict[tuple[CodeFilter, Context, str], Judge] = OrderedDict()


def _judge_of(code: CodeFilter, context: Context, isolation: str) -> Judge:
    """The one of this process. Raises CodeError, SandboxError."""
    key = (code, context, isolation)
    if key not in _judges:
        _judges[key] = _make_judge(code, context, isolation)
        if len(_judges) > _MOST_JUDGES:
            _judges.popitem(last=False)[1].close()
    _judges.move_to_end(key)
    return _judges[key]


def _make_judge(code: CodeFilter, context: Context, isolation: str) -> Judge:
    if isolation == "off":
        return load(code, context)
    return _sandbox().cell(code, context)


@functools.cache
def _sandbox() -> "Sandbox":
    """The one of this process; it ends with it."""
    from ..sandbox import Sandbox

    return Sandbox(isolation="required")
