"""What is said between a server and a filter's process: frames over a socket, both ways.

    request   nonce 16, kind 1, size 4: bytes that follow here, rows 4, schema 4 and batch 8:
              bytes in the memory that both see
    answer    nonce 16, kind 1, size 4, then bytes

A batch crosses in shared memory that the child can only read; its outcomes come back over the
socket. The child is assumed to be hostile: of an answer nothing is believed. It must repeat the
nonce of the request, which is random, so that it can't be made in advance; and it has exactly a
byte for each row and texts of limited length. It is never unpickled, nor read as Arrow.
"""

import json
import struct
from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Final

import numpy as np

from ..code import Needs, Verdicts
from ..code.contract import COLUMNS, MOST_PROPERTIES, TYPES
from ..filter.logic import Outcome

__all__ = [
    "ANSWER",
    "NONCE_SIZE",
    "REQUEST",
    "Kind",
    "Malformed",
    "encode_needs",
    "encode_reason",
    "encode_verdicts",
    "longest_answer",
    "parse_needs",
    "parse_reason",
    "parse_verdicts",
]

NONCE_SIZE: Final = 16
REQUEST: Final = struct.Struct("<16sBIIIQ")
ANSWER: Final = struct.Struct("<16sBI")
_REASON: Final = struct.Struct("<IH")  # row, bytes
_COUNT: Final = struct.Struct("<H")

_OUTCOMES: Final = bytes(Outcome)
_ERROR: Final = int(Outcome.ERROR)
_MOST_REASONS: Final = 64
_LONGEST_REASON: Final = 300  # characters
_LONGEST_NAME: Final = 1000


class Kind(IntEnum):
    """What a request wants, and what an answer says."""

    LOAD = 1
    JUDGE = 2
    LOADED = 11  # the needs of the class, as JSON
    REFUSED = 12  # the class can't be used: why
    JUDGED = 13
    READY = 14  # said once, unasked, before any code of the filter runs
    FAILED = 15  # said instead: the child could not be shut in, and why


class Malformed(Exception):
    """An answer that is none. Its text says what it did, and continues "the filter"."""


def longest_answer(kind: Kind, rows: int, output: int) -> int:
    """Return the bytes of the longest answer to a request that will be read."""
    return rows + output if kind is Kind.JUDGE else output


def encode_verdicts(verdicts: Verdicts, output: int) -> bytes:
    """Return the payload of an answer. Reasons beyond what fits are left out."""
    reasons: list[bytes] = []
    room = output - _COUNT.size
    items = [*verdicts.errors.items()]
    if len(items) > _MOST_REASONS:
        items = [*items[: _MOST_REASONS - 1], items[-1]]
    for row, reason in items:
        text = encode_reason(reason)
        room -= _REASON.size + len(text)
        if room < 0:
            break
        reasons.append(_REASON.pack(row, len(text)) + text)
    outcomes = verdicts.outcomes.astype(np.uint8, copy=False).tobytes()
    return b"".join((outcomes, _COUNT.pack(len(reasons)), *reasons))


def parse_verdicts(data: bytes, rows: int) -> Verdicts:
    """Raises Malformed."""
    if len(data) < rows + _COUNT.size:
        raise Malformed(f"answered with {len(data)} bytes for {rows} messages")
    if data[:rows].translate(None, _OUTCOMES):
        raise Malformed("answered with an outcome that does not exist")
    outcomes = np.frombuffer(data, np.uint8, rows)
    (count,) = _COUNT.unpack_from(data, rows)
    at = rows + _COUNT.size
    errors: dict[int, str] = {}
    last = -1
    for _ in range(count):
        if at + _REASON.size > len(data):
            raise Malformed("answered with fewer reasons than it announced")
        row, size = _REASON.unpack_from(data, at)
        at += _REASON.size
        if not last < row < rows or data[row] != _ERROR:
            raise Malformed("gave a reason for a message that did not fail")
        if at + size > len(data):
            raise Malformed("answered with fewer reasons than it announced")
        errors[row] = parse_reason(data[at : at + size])
        at += size
        last = row
    if at != len(data):
        raise Malformed(f"answered with {len(data) - at} bytes too many")
    return Verdicts(outcomes, errors)


def encode_reason(reason: str) -> bytes:
    return reason[:_LONGEST_REASON].encode(errors="replace")


def parse_reason(data: bytes) -> str:
    """Return one printable line. Raises Malformed."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise Malformed("gave a reason that is not UTF-8") from None
    line = "".join(one if one.isprintable() else " " for one in text).strip()
    return line[:_LONGEST_REASON] or "failed"


def encode_needs(needs: Needs) -> bytes:
    said = {
        "is_batch": needs.is_batch,
        "columns": needs.columns,
        "properties": needs.properties,
        "is_declared": needs.is_declared,
    }
    return json.dumps(said).encode()


def parse_needs(data: bytes) -> Needs:
    """Raises Malformed."""
    try:
        said = json.loads(data)
    except (ValueError, RecursionError):
        raise Malformed("declared what it needs in bytes that are not JSON") from None
    if not isinstance(said, dict) or said.keys() != {
        *("is_batch", "columns", "properties", "is_declared")
    }:
        raise Malformed("declared what it needs in an unknown form")
    columns = _checked_list(said, "columns")
    properties = _checked_list(said, "properties")
    if not all(isinstance(one, str) and one in COLUMNS for one in columns):
        raise Malformed("declared a column that does not exist")
    if not all(_is_property(one) for one in properties):
        raise Malformed("declared a property that can't be")
    names = [*columns, *(one[0] for one in properties)]
    if len({*names}) < len(names) or not names:
        raise Malformed("declared a column twice, or none")
    if not isinstance(said["is_batch"], bool) or not isinstance(said["is_declared"], bool):
        raise Malformed("declared what it needs in an unknown form")
    return Needs(
        is_batch=said["is_batch"],
        columns=tuple(columns),
        properties=tuple((name, kind) for name, kind in properties),
        is_declared=said["is_declared"],
    )


def _checked_list(said: Mapping[str, Any], name: str) -> list[Any]:
    value = said[name]
    if not isinstance(value, list) or len(value) > MOST_PROPERTIES:
        raise Malformed(f"declared {name} that are no list, or a very long one")
    return value


def _is_property(value: Any) -> bool:
    if not isinstance(value, list) or len(value) != 2:
        return False
    name, kind = value
    if not isinstance(name, str) or not isinstance(kind, str) or kind not in TYPES:
        return False
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return False
    return 0 < size <= _LONGEST_NAME and name not in COLUMNS and not {"\x01", "\x02"} & {*name}
