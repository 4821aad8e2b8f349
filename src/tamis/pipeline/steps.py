"""Filters on DataFrames of messages: which groups want a message, and for which the filter failed.

`evaluate` is for any DataFrame with the columns of a message. Jobs use its parts, to ask the source
for each property once and for nothing they don't need.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ..code import CodeFilter, Context
from ..code import Needs as CodeNeeds
from ..errors import CodeError, ConfigError, SandboxError
from ..filter import Outcome, parse
from ..filter.engines.catalyst import Compiler
from ..filter.nodes import properties_of
from ..spark import code
from ..spark.columns import tags
from .config import DEFAULT_COLUMNS, OTHER_COLUMNS, Filter, Source, Subscription

__all__ = ["Needs", "check_code", "evaluate", "needs", "outcome", "outcomes", "properties_read"]

_NOBODY: Final = Context("", "")
_COLUMN_OF: Final = {"TAGS": "tags", "KEYS": "keys"}  # properties that are columns of a message
_NAMED: Final = re.compile(r"[\w$.-]+")  # what an option of the source can list
PLACE: Final = ("topic", "broker", "queue_id", "offset", "message_id")


def evaluate(messages: DataFrame, subscriptions: Sequence[Subscription]) -> DataFrame:
    """With two columns more: `groups`, ARRAY<STRING>, those that get the message, and `failed`,
    those whose filter failed on it."""
    outcomes = {
        one.group: outcome(one.filter, context=Context(one.group, "")) for one in subscriptions
    }
    return messages.withColumns(
        {
            "groups": _names(outcomes, Outcome.TRUE),
            "failed": _names(outcomes, Outcome.ERROR),
        }
    )


def _names(outcomes: Mapping[str, Column], wanted: Outcome) -> Column:
    names = [F.when(one == int(wanted), F.lit(group)) for group, one in outcomes.items()]
    return F.array_compact(F.array(*names))


def of_map(name: str) -> Column:
    return F.col("properties")[name]


def outcome(
    filter: Filter,
    property_of: Callable[[str], Column] = of_map,
    context: Context = _NOBODY,
) -> Column:
    """TINYINT: `tamis.filter.Outcome`. Code takes the columns it declares, or the default ones."""
    [answer] = outcomes([filter], property_of, contexts=[context])
    return answer["outcome"] if filter.kind == "code" else answer


def outcomes(
    filters: Iterable[Filter],
    property_of: Callable[[str], Column] = of_map,
    keep: Callable[[Column], Column] = lambda column: column,
    contexts: Iterable[Context] | None = None,
) -> list[Column]:
    """One each: an outcome, of code STRUCT<outcome, error>. What is made of a property is made once
    for all of them, and is given to `keep` (see `Compiler`). `contexts`, one each, are for code."""
    compiler = Compiler(property_of, keep)
    found = []
    for one, context in zip(filters, contexts or repeat(_NOBODY), strict=False):
        if one.kind == "tags":
            found.append(tags(one.text).cast("tinyint"))
        elif one.kind == "sql":
            found.append(compiler.compile_outcome(parse(one.text, one.dialect)))
        else:
            found.append(
                code.outcome(
                    CodeFilter(one.text, one.source),
                    context,
                    isolation=one.isolation,
                    property_of=property_of,
                )
            )
    return found


def check_code(filter: Filter, source: Source) -> None:
    """Load a filter in code, if it is one. Raises ConfigError if it can't be used."""
    if filter.kind != "code":
        return
    try:
        needed = _code_needs(filter)
    except (CodeError, SandboxError) as error:
        raise ConfigError(f"code {filter.text}: {error.reason}") from None
    is_raw = needed.is_declared and "property_string" in needed.columns
    if source.archive is not None and is_raw:
        raise ConfigError(
            f"code {filter.text}: an archive has no property_string: declare properties"
        )


def _code_needs(filter: Filter) -> CodeNeeds:
    return code.needs(CodeFilter(filter.text, filter.source), filter.isolation)


def properties_read(filter: Filter) -> tuple[str, ...]:
    if filter.kind != "sql":
        return ()
    return properties_of(parse(filter.text, filter.dialect))


def all_read(filters: Iterable[Filter]) -> tuple[str, ...]:
    """Properties, each once."""
    return tuple(dict.fromkeys(name for one in filters for name in properties_read(one)))


@dataclass(frozen=True, slots=True)
class Needs:
    """What to ask a source for: columns of a message, and properties as columns of their own."""

    columns: tuple[str, ...]
    properties: tuple[str, ...]

    def property_of(self, name: str) -> Column:
        if name in _COLUMN_OF:
            return F.col(_COLUMN_OF[name])
        if name in self.properties:
            return F.col(f"`{name}`")
        return of_map(name)


def needs(filters: Iterable[Filter], columns: Iterable[str]) -> Needs:
    """For these filters, and for rows with these columns.

    A property has a column of its own unless another column or property is called so, for which
    case does not count in Spark.
    """
    filters = list(filters)
    wanted = {*columns}
    coded = [_code_needs(one) for one in filters if one.kind == "code"]
    for one in coded:
        wanted |= {*(one.columns if one.is_declared else DEFAULT_COLUMNS)}
    if any(one.kind == "tags" for one in filters):
        wanted.add("tags")
    declared = (name for one in coded for name, _ in one.properties)
    every_read = dict.fromkeys((*all_read(filters), *declared))
    wanted |= {_COLUMN_OF[name] for name in every_read if name in _COLUMN_OF}
    read = [name for name in every_read if name not in _COLUMN_OF]
    taken = [name.lower() for name in (*DEFAULT_COLUMNS, *OTHER_COLUMNS, *read)]
    named = tuple(
        name for name in read if taken.count(name.lower()) == 1 and _NAMED.fullmatch(name)
    )
    if len(named) < len(read):
        wanted.add("properties")
    every = (*DEFAULT_COLUMNS, *OTHER_COLUMNS)
    return Needs(tuple(name for name in every if name in wanted), named)
