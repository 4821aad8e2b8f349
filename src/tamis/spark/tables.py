"""Tables of a catalog: `CREATE TABLE orders USING rocketmq OPTIONS (…)`, and reading them back.

Spark tells a Python source the options of a table once, when the table is created and its columns
are asked for; a read of the table is told the columns and no options. So the options are kept
with the columns, in the metadata of the first one. The key is one of those that Spark itself takes
out of the columns of a table it makes from a query: the rows of one table, saved as another, must
not bring the options of the first along.
"""

import functools
import json
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from pyspark.sql.types import StructField, StructType

from ..errors import ConfigError, Error, InvalidFilter
from .connection import SECRET_OPTIONS
from .options import STREAM_ONLY, Options
from .schema import row_type

__all__ = ["plainly", "row_type_of", "table_read"]

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")

_KEY: Final = "__preserve_on_reinsert"  # MetadataColumn.PRESERVE_ON_REINSERT, of no use for a topic
_PREFIX: Final = "option."  # Spark gives each option of a table twice, once with it


_STORED_SECRET: Final = (
    "option {option}: the catalog would keep it, for all to read: name a profile, {option}File or"
    " {option}Env, or give it with the query, WITH ({option} '…')"
)


def row_type_of(options: Mapping[str, str], *, of_log: bool) -> StructType:
    """The columns that the options ask for: of a read, or of a table that is being created."""
    stored = _created(options, of_log)
    parsed = Options.parse(options if stored is None else stored, of_log=of_log)
    rows = row_type(parsed.columns, parsed.properties)
    if stored is None:
        return rows
    given = {name.lower() for name in stored}
    for option in SECRET_OPTIONS:
        if option.lower() in given:
            raise ConfigError(_STORED_SECRET.format(option=option))
    first, *others = rows.fields
    kept = json.dumps(stored, sort_keys=True)
    sealed = StructField(first.name, first.dataType, first.nullable, {_KEY: kept})
    return StructType([sealed, *others])


def table_read(
    options: Mapping[str, str], rows: StructType, *, of_log: bool, is_stream: bool
) -> tuple[Options, StructType]:
    """What is to be read: for a table its own options, with those of the query before them."""
    stored = _stored(rows)
    if stored is None:
        if not options:
            raise ConfigError(
                "Spark does not hand over the options of this table, because it was created with"
                " a list of columns, AS SELECT or by saveAsTable: create it by CREATE TABLE name"
                f" USING {'`rocketmq-log`' if of_log else 'rocketmq'} OPTIONS (…) and nothing else"
            )
        return Options.parse(options, of_log=of_log), rows
    said = {name.lower() for name in options}
    skipped = set() if is_stream else {name.lower() for name in STREAM_ONLY.values()}
    taken = {name: value for name, value in stored.items() if name.lower() not in {*said, *skipped}}
    parsed = Options.parse({**taken, **options}, of_log=of_log)
    plain = StructType([StructField(one.name, one.dataType, one.nullable) for one in rows])
    if plain != row_type(parsed.columns, parsed.properties):
        raise ConfigError(
            "the columns of this table are not those of its options columns and properties, which"
            " can't be changed later: drop it and create it again, or create another"
        )
    return parsed, plain


def _created(options: Mapping[str, str], of_log: bool) -> dict[str, str] | None:
    """The options of the table that is being created; None if it is a read that is asked for.

    Beside them are the table's properties, of which the provider is always there."""
    if "provider" not in options:
        return None
    stored = {
        name[len(_PREFIX) :]: value
        for name, value in options.items()
        if name.lower().startswith(_PREFIX) and name.lower() != _PREFIX + "path"
    }
    location = options.get("path") or options.get("location")
    if location is not None:
        if not of_log:
            raise ConfigError(
                "a topic has no LOCATION and no option path, since it is not a directory: leave it"
                " out, and name the topic by OPTIONS (topic '…')"
            )
        stored["path"] = location
    return stored


def _stored(rows: StructType) -> dict[str, str] | None:
    for one in rows:
        kept = one.metadata.get(_KEY)
        if isinstance(kept, str):
            return dict(json.loads(kept))
    return None


def plainly(
    method: Callable[Concatenate[S, P], T],
) -> Callable[Concatenate[S, P], T]:
    """Spark shows a user the whole traceback of what a source raises: of an error of the user's it
    has one frame, and of a bad filter a picture under it."""

    @functools.wraps(method)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        try:
            return method(self, *args, **kwargs)
        except Error as error:
            if isinstance(error, InvalidFilter):
                error.add_note(error.picture())
            raise error.with_traceback(None) from None

    return call
