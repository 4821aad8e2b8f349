"""Sinks of a pipeline file: what each format needs, and of which columns its rows are.

All that can be checked without Spark. Expressions are Spark's: `projection` checks them.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ..errors import ConfigError
from ..security.profile import SECRETS
from ..security.settings import PROFILE_VARIABLE, resolve
from .table import Table, near, shown

__all__ = [
    "DEFAULT_COLUMNS",
    "FILE_FORMATS",
    "OTHER_COLUMNS",
    "Sink",
    "format_of",
    "is_flattened",
    "sink_of",
]

# Of a message as the sources give it (`tamis.spark.schema`, which loads Spark).
DEFAULT_COLUMNS: Final = (
    *("topic", "broker", "queue_id", "offset", "store_timestamp", "born_timestamp"),
    *("tags", "keys", "properties", "body", "message_id"),
)
OTHER_COLUMNS: Final = (
    *("property_string", "tags_code", "reconsume_times", "flag", "sys_flag", "log_offset"),
    *("born_host", "store_host"),
)
_COLUMNS: Final = DEFAULT_COLUMNS + OTHER_COLUMNS
# What a message in another topic is made of, and where it was: its key.
_SENT: Final = ("topic", "broker", "queue_id", "offset", "tags", "keys", "properties", "body")

FILE_FORMATS: Final = ("parquet", "json", "csv", "orc", "avro", "text")
_TABLE_FORMATS: Final = ("delta", "iceberg", "hudi")
_TEXTS: Final = (
    *("topic", "broker", "tags", "keys", "message_id"),
    *("property_string", "born_host", "store_host"),
)
_KEYS_OF: Final = {
    **dict.fromkeys(FILE_FORMATS, ("path", "columns", "options")),
    "rocketmq": ("topic", "nameserver", "profile", "options"),
    "kafka": ("topic", "columns", "options"),
    "jdbc": ("table", "columns", "options"),
    "console": ("columns", "options"),
    "noop": ("columns",),
}
_OTHER_KEYS: Final = ("path", "table", "columns", "options")  # of what is not in that
_TO_KAFKA: Final = ("value", "key", "headers", "topic", "partition")  # columns it knows
_SERVERS: Final = "kafka.bootstrap.servers"

_SECRETS: Final = {name.replace("_", ""): name for name in SECRETS}  # by the option in lower case
_WORD: Final = re.compile(r"\w+")
# Functions that take text. A body is bytes, and Spark does not make text of them by itself.
_OF_BODY: Final = re.compile(
    r"\b(from_json|from_csv|from_xml|get_json_object|parse_json|try_parse_json)\(\s*body\s*(?=[,)])",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink:
    """Where rows go, and of what they are.

    A column that is not one of a message has an expression of Spark SQL; one that is called
    `name.*` stands for the fields of the struct that its expression gives.
    """

    format: str
    path: str | None = None  # absolute, or with a scheme
    topic: str | None = None  # of formats rocketmq and kafka
    nameserver: str | None = None  # of format rocketmq; the source's if the file names none
    profile: str | None = None  # of format rocketmq: its keys and TLS, as `nameserver`
    table: str | None = None  # of a catalog or, of format jdbc, of the database
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    expressions: Mapping[str, str] = field(default_factory=dict)  # of some of the columns
    options: Mapping[str, str] = field(default_factory=dict)
    where: str = field(default="", compare=False)  # in the file, as errors begin

    @property
    def name(self) -> str:
        return f"{self.format} {self.path or self.topic or self.table or ''}".strip()

    @property
    def needs(self) -> tuple[str, ...]:
        """The columns it takes of a message; perhaps more of them than its expressions use."""
        if self.format == "rocketmq":
            return _SENT
        words = {word.lower() for text in self.expressions.values() for word in _WORD.findall(text)}
        plain = [name for name in self.columns if name not in self.expressions]
        return (*plain, *(name for name in _COLUMNS if name in words and name not in plain))

    def option(self, name: str) -> str | None:
        """An option's value; case does not count in its name."""
        found = [value for key, value in self.options.items() if key.lower() == name.lower()]
        return found[0] if found else None

    def to_dict(self) -> dict[str, Any]:
        fields = {
            "format": self.format,
            "path": self.path,
            "topic": self.topic,
            "nameserver": self.nameserver,
            "table": self.table,
            "columns": list(self.columns),
            "options": dict(self.options),
        }
        if self.profile is not None:
            fields["profile"] = self.profile
        if self.expressions:  # checkpoints from before there were any have none
            fields["expressions"] = dict(self.expressions)
        return fields

    @staticmethod
    def from_dict(fields: Mapping[str, Any]) -> "Sink":
        return Sink(**{**fields, "columns": tuple(fields["columns"])})


def sink_of(table: Table, *, nameserver: str | None, profile: str | None, is_archive: bool) -> Sink:
    """Read a sink. `nameserver` and `profile` are the source's, if it has them. Raises
    ConfigError."""
    name = format_of(table.text("format"))
    keys = _KEYS_OF.get(name, _OTHER_KEYS)
    for key in ("path", "topic", "nameserver", "profile", "table", "columns", "options"):
        if table.has(key) and key not in keys:
            raise table.error(f"{key} is not for format {name}, which takes {', '.join(keys)}")
    columns, expressions = _columns(table)
    if name == "rocketmq":
        own, named = table.text_or_none("nameserver"), table.text_or_none("profile")
        if own is not None or named is not None:  # another cluster, or another key
            nameserver, profile = nameserver_of(table, own, named) or nameserver, named
    else:
        nameserver = profile = None
    sink = Sink(
        format=name,
        path=table.path("path", None),
        topic=table.text_or_none("topic"),
        nameserver=nameserver,
        profile=profile,
        table=table.text_or_none("table"),
        columns=columns,
        expressions=expressions,
        options=table.options(),
        where=table.where,
    )
    _check_place(table, sink)
    why = _why_not_columns(sink) or _why_not_room(sink)
    if why is None and is_archive and "property_string" in sink.needs:
        why = "an archive has no property_string: name properties"
    if why:
        raise table.error(f"columns: {why}")
    table.end()
    return sink


def nameserver_of(table: Table, given: str | None, profile: str | None) -> str | None:
    """The one that is given, or the profile's. Raises ConfigError if there is no such profile."""
    if given is not None or (profile is None and not os.environ.get(PROFILE_VARIABLE)):
        return given
    try:
        found = resolve({}, os.environ, profile).text("nameserver")
    except ConfigError as error:
        raise table.error(f"profile: {error}") from None
    if not found:
        raise table.error(f"the profile {profile or ''} has no nameserver: add it there, or here")
    return found


def refuse_secrets(table: Table, options: Mapping[str, str]) -> None:
    """Raises ConfigError: files are read by many, and copied."""
    for option in options:
        if option.lower() in _SECRETS:
            raise table.error(
                f"options: {option} is a secret: name a profile that has it, or set"
                f" TAMIS_{_SECRETS[option.lower()].upper()} in the environment"
            )


def format_of(name: str) -> str:
    """Case does not count in Spark's names, but does in those of classes."""
    return name if "." in name else name.lower()


def is_flattened(column: str) -> bool:
    """Whether it stands for the fields of a struct."""
    return column.endswith(".*")


def _columns(table: Table) -> tuple[tuple[str, ...], dict[str, str]]:
    """The names of all columns, and the expressions of those that are made of one."""
    takes = "names of columns, or a table of names and expressions"
    value = table.take("columns", (str, list, dict), [*DEFAULT_COLUMNS], takes)
    names: list[str] = []
    expressions: dict[str, str] = {}
    for one in value if isinstance(value, list) else [value]:
        if isinstance(one, str) and one:
            names.append(one)
        elif isinstance(one, dict):
            for name, text in one.items():
                names.append(name)
                if text != name or name not in _COLUMNS:
                    expressions[name] = _expression(table, name, text)
        else:
            raise table.error(f"columns: {shown(one)}: it takes {takes}")
    seen: dict[str, str] = {}
    for name in names:
        if (other := seen.get(name.lower())) is not None:
            raise table.error(f"columns: {other} and {name}: there are two of that name")
        seen[name.lower()] = name
    return tuple(names), expressions


def _expression(table: Table, name: str, text: Any) -> str:
    if isinstance(text, dict):
        raise table.error(f'columns: {name}: put quotes around a name with dots: "{name}.…" = "…"')
    if not isinstance(text, str) or not text.strip():
        raise table.error(
            f"columns: {name} = {shown(text)}: it takes the name of a message's column, or an"
            " expression of Spark SQL, as text"
        )
    if not name:
        raise table.error(f"columns: {text!r} has no name")
    is_name = text.isidentifier() and text.lower() not in _COLUMNS
    if is_name and (hint := near(text, _COLUMNS)):
        raise table.error(f"columns: {name} = {text!r}: a message has no {text}{hint}")
    return _OF_BODY.sub(r"\1(string(body)", text)


def _why_not_columns(sink: Sink) -> str | None:
    for column in sink.columns:
        if column not in _COLUMNS and column not in sink.expressions:
            hint = near(column, _COLUMNS) or f'; make it of others: {{ {column} = "expression" }}'
            return f"a message has no {column}{hint}"
        if column == "_to" or (column == "batch" and sink.format in FILE_FORMATS):
            return f"{column} is a name that the pipeline uses itself: choose another"
    return None if sink.columns else "there are none"


def _why_not_room(sink: Sink) -> str | None:
    """Of columns of a message; what expressions give is known to Spark."""
    name = sink.format
    plain = [column for column in sink.columns if column not in sink.expressions]
    if name == "csv" and (bad := [one for one in ("properties", "body") if one in plain]):
        return f"csv has no room for {' and '.join(bad)}: name the others, columns = [...]"
    if name == "text" and (len(sink.columns) > 1 or any(one not in _TEXTS for one in plain)):
        return f'text takes one column, of text: columns = ["keys"], or {", ".join(_TEXTS)}'
    if name == "jdbc" and "properties" in plain:
        return (
            "jdbc has no room for the map properties: make columns of them, columns = "
            '{ keys = "keys", price = "try_cast(properties[\'price\'] AS double)" }'
        )
    if name == "kafka":
        return _why_not_kafka(sink)
    return None


def _why_not_kafka(sink: Sink) -> str | None:
    made = any(map(is_flattened, sink.columns))  # what it gives is known to Spark
    if "value" not in sink.columns and not made:
        return 'kafka needs a column value: columns = { key = "keys", value = "body" }'
    for column in sink.columns:
        if column not in _TO_KAFKA and not is_flattened(column):
            return f"kafka has no room for {column}: it takes {', '.join(_TO_KAFKA)}"
    if sink.topic is not None and "topic" in sink.columns:
        return "topic is said by the sink too: leave out one of them"
    return None


def _check_place(table: Table, sink: Sink) -> None:
    """Check that it says where rows go. Raises ConfigError."""
    name = sink.format
    if name == "rocketmq":
        if sink.topic is None:
            raise table.missing("format rocketmq needs a topic", "topic")
        if sink.nameserver is None:
            text = "format rocketmq needs a nameserver: the source has none"
            raise table.missing(text, "nameserver")
        refuse_secrets(table, sink.options)
        for option in sink.options:
            if option.lower() in ("topic", "path", "nameserver", "profile"):
                raise table.error(f"options: {option} is what the sink says itself")
    elif name == "console":
        for option, value in sink.options.items():
            if option.lower() != "numrows":
                raise table.error(f"options: console has no {option}: it takes numRows")
            if not value.isdigit():
                raise table.error(f"options: numRows = {value}: it takes a whole number")
    elif name in FILE_FORMATS:
        if sink.path is None:
            raise table.missing(f"format {name} needs a path", "path")
    elif name == "kafka":
        _check_kafka(table, sink)
    elif name == "jdbc":
        _check_jdbc(table, sink)
    elif name != "noop":
        if sink.path is not None and sink.table is not None:
            raise table.error("has both path and table: give it one of them")
        is_placed = sink.path is not None or sink.table is not None
        if not is_placed and (name in _TABLE_FORMATS or not sink.options):
            raise table.missing(f"format {name} needs a path or a table", "path", "table")


def _check_kafka(table: Table, sink: Sink) -> None:
    _need_option(table, sink, _SERVERS, "host:9092")
    if sink.topic is not None and sink.option("topic") is not None:
        raise table.error("has both topic and the option topic: leave out one of them")
    if sink.topic is None and sink.option("topic") is None and "topic" not in sink.columns:
        raise table.missing("format kafka needs a topic", "topic")


def _check_jdbc(table: Table, sink: Sink) -> None:
    _need_option(table, sink, "url", "jdbc:postgresql://host/database")
    if sink.option("query") is not None:
        raise table.error("options: query is for reading: say table")
    if sink.table is not None and sink.option("dbtable") is not None:
        raise table.error("has both table and the option dbtable: leave out one of them")
    if sink.table is None and sink.option("dbtable") is None:
        raise table.missing("format jdbc needs a table", "table")


def _need_option(table: Table, sink: Sink, name: str, example: str) -> None:
    if sink.option(name):
        return
    for option in sink.options:
        if hint := near(option, [name]):
            raise table.error(f"options: {option}: format {sink.format} has no such option{hint}")
    quoted = f'"{name}"' if "." in name else name
    raise table.error(
        f'format {sink.format} needs the option {name}: options = {{ {quoted} = "{example}" }}'
    )
