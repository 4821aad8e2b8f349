"""JUDGE_RANGE: what a group's class says of messages that are there already, without consuming any.

For the exact lag of a group that filters in code, for questions about single messages, and for an
audit, which asks about all messages and is answered with bitmaps: 167 KB for a million messages.
"""

import json
import time
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ..errors import CorruptRecord, Error, ResponseError, SandboxError
from ..net.server import Answer, Request
from ..wire import record
from ..wire.codes import ResponseCode
from ..wire.headers import JudgeRange
from .classes import Classes, FilterClass
from .config import FilterServerConfig
from .link import BrokerLink, Pulled
from .rangejudge import RangeJudge

if TYPE_CHECKING:
    from .judging import Judged, Row

__all__ = ["Ranges"]

_MOST_MESSAGES: Final = 1_000_000  # judged for one request
_MOST_OUTCOMES: Final = 1000  # messages of a request that asks for each one's outcome
_MOST_REQUESTS: Final = 4  # under way at once
_SECONDS: Final = 2.0  # of judging, unless the request says otherwise
_MOST_SECONDS: Final = 10.0


@dataclass(slots=True)
class _Count:
    """What came of it so far."""

    messages: int = 0
    matched: int = 0
    failed: int = 0
    first_match: "Row | None" = None
    rows: "list[Row]" = field(default_factory=list)  # if they are asked for
    # A bit for each message of the range, if they are asked for: the lowest of a byte comes first.
    matched_bits: bytearray = field(default_factory=bytearray)
    failed_bits: bytearray = field(default_factory=bytearray)


class Ranges:
    """Answers JUDGE_RANGE; `judge_range` is the handler."""

    def __init__(
        self,
        config: FilterServerConfig,
        classes: Classes,
        link: BrokerLink,
        judge: RangeJudge,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._classes = classes
        self._link = link
        self._judge = judge
        self._clock = clock
        self._under_way = 0

    async def judge_range(self, header: JudgeRange, request: Request) -> Answer:
        by = self._find(header)
        if self._under_way >= _MOST_REQUESTS:
            why = f"[OVERLOAD]{self._under_way} ranges are being judged already"
            return Answer(code=ResponseCode.SYSTEM_BUSY, remark=why)
        seconds = _SECONDS if header.timeout_millis is None else header.timeout_millis / 1000
        deadline = self._clock() + min(max(seconds, 0.0), _MOST_SECONDS)
        count = _Count()
        if header.bitmaps:
            size = (header.end - header.begin + 7) // 8
            count.matched_bits, count.failed_bits = bytearray(size), bytearray(size)
        self._under_way += 1
        try:
            judged_to = await self._judge.judge(
                by,
                header.queue_id,
                header.begin,
                header.end,
                deadline=deadline,
                note=lambda judged, answers: self._count(judged, answers, header, count),
                is_over=lambda: count.messages >= _MOST_MESSAGES or request.peer.is_closed,
            )
        except ResponseError as error:
            raise _refusal(header, f"the broker says: {error.remark}") from None
        except SandboxError as error:
            raise _refusal(header, f"the filter is not run: {error}") from None
        except (Error, TimeoutError) as error:
            raise _refusal(header, str(error)) from None
        finally:
            self._under_way -= 1
        return Answer(body=json.dumps(self._told(by, header, judged_to, count)).encode())

    def _find(self, header: JudgeRange) -> FilterClass:
        """Raises ResponseError."""
        by = self._classes.get((header.topic, header.consumer_group))
        name = (header.class_name or "").rpartition(".")[2]  # Java's have a package
        if by is None or (name and name != by.identity.class_name):
            which = f"class {header.class_name}" if header.class_name else "a class"
            raise _refusal(header, f"this filter server does not have {which} of the group")
        if header.queue_id < 0 or not 0 <= header.begin <= header.end:
            raise _refusal(header, f"there is no such range: {header.begin} to {header.end}")
        if header.outcomes and header.end - header.begin > _MOST_OUTCOMES:
            raise _refusal(header, f"outcomes are told of up to {_MOST_OUTCOMES} messages")
        if header.bitmaps and header.end - header.begin > _MOST_MESSAGES:
            raise _refusal(header, f"a bitmap is of up to {_MOST_MESSAGES} messages")
        return by

    def _count(
        self, judged: "Judged", answers: list[Pulled], header: JudgeRange, count: _Count
    ) -> None:
        beyond = max(answers[-1].next_offset - header.end, 0)
        count.messages += max(judged.messages - beyond, 0)
        for row in judged.rows:
            if not header.begin <= row.offset < header.end:
                continue
            count.failed += row.reason is not None
            count.matched += row.reason is None
            if count.first_match is None and (row.reason is None or self._passes_failures):
                count.first_match = row
            if header.outcomes:
                count.rows.append(row)
            if header.bitmaps:
                bits = count.matched_bits if row.reason is None else count.failed_bits
                place = row.offset - header.begin
                bits[place >> 3] |= 1 << (place & 7)

    @property
    def _passes_failures(self) -> bool:
        """Whether a message that the filter fails on is delivered all the same."""
        return self._config.on_error == "pass"

    def _told(
        self, by: FilterClass, header: JudgeRange, judged_to: int, count: _Count
    ) -> dict[str, Any]:
        first = count.first_match
        told: dict[str, Any] = {
            "group": by.group,
            "topic": by.topic,
            "queue": header.queue_id,
            "broker": self._link.broker_name,
            "class": by.identity.class_name,
            "crc": by.identity.crc,
            "on_error": self._config.on_error,
            "begin": header.begin,
            "judged_to": judged_to,
            "messages": count.messages,
            "matched": count.matched,
            "failed": count.failed,
            "matching": count.matched + (count.failed if self._passes_failures else 0),
            "next_match_offset": first.offset if first is not None else None,
            "next_match_stored": _stored(first) if first is not None else None,
        }
        if header.outcomes:  # those that are not listed do not match
            told["outcomes"] = [
                {
                    "offset": row.offset,
                    "outcome": "matched" if row.reason is None else "failed",
                    "reason": row.reason,
                }
                for row in count.rows
            ]
        if header.bitmaps:
            size = (judged_to - header.begin + 7) // 8
            told["matched_bits"] = b64encode(count.matched_bits[:size]).decode()
            told["failed_bits"] = b64encode(count.failed_bits[:size]).decode()
        return told


def _stored(row: "Row") -> int | None:
    try:
        return record.decode(memoryview(row.record), file="").store_timestamp
    except CorruptRecord:
        return None


def _refusal(header: JudgeRange, why: str) -> ResponseError:
    remark = f"group {header.consumer_group}, topic {header.topic}, queue {header.queue_id}: {why}"
    return ResponseError(ResponseCode.SYSTEM_ERROR, remark)
