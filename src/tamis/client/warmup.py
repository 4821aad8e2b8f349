"""Compiles, or loads, the loops that read messages into columns, before there are messages."""

from ..filter.engines.columnar import compile_batch
from ..filter.parser import parse
from ..message import Host
from ..wire import record
from . import columns

__all__ = ["compile_readers", "load_readers"]

_PROPERTIES = b"TAGS\x01t\x02KEYS\x01k\x02a\x012\x02b\x01x"


def load_readers() -> None:
    """What nearly every reader uses: a tenth of a second if it is compiled."""
    columns.decode(_chunks(), tags=frozenset(["t"]))


def compile_readers() -> None:
    """Everything: columns of all kinds, filters by SQL."""
    everything = [*columns.SCHEMA.names, *columns.EXTRA.names]
    sql = compile_batch(parse("a > 1 AND b = 'x'"))
    columns.decode([])
    columns.locate([])
    for kind in columns.KINDS:
        columns.decode(_chunks(), columns=everything, properties=[("a", kind)])
    columns.decode(_chunks(), tags=frozenset(["t"]), sql=sql)
    columns.locate(_chunks())
    sql.match_strings(["a\x012\x02b\x01x"])
    sql.match_columns({"a": ["2"], "b": ["x"]})


def _chunks() -> list[columns.Chunk]:
    host = record.pack_host(Host(b"\x7f\0\0\1", 1))
    draft = record.Draft(topic="T", properties=_PROPERTIES)
    return [columns.Chunk("b", "T", draft.encode(0, 0, 0, host))]
