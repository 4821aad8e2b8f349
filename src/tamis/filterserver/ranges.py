"""JUDGE_RANGE: what a group's class says of messages that are there already, without consuming any.

For the exact lag of a group that filters in code, and for questions about single messages. The
class is called as it is for pulls, in turns with them; nothing is counted, kept or sent back.
"""

import json
import time
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
from .link import END, MOVED, BrokerLink, Pulled
from .pulls import Puller, damaged
from .reading import Memory, Stream

if TYPE_CHECKING:
    from .judging import Judged, Row

__all__ = ["Ranges"]

_MOST_MESSAGES: Final = 1_000_000  # judged for one request
_MOST_OUTCOMES: Final = 1000  # messages of a request that asks for each one's outcome
_MOST_REQUESTS: Final = 4  # under way at once
_SECONDS: Final = 2.0  # of judging, unless the request says otherwise
_MOST_SECONDS: Final = 10.0
_READ_AHEAD: Final = 16 * 2**20  # bytes, of all requests; pulls have memory of their own


@dataclass(slots=True)
class _Count:
    """What came of it so far."""

    messages: int = 0
    matched: int = 0
    failed: int = 0
    first_match: "Row | None" = None
    rows: "list[Row]" = field(default_factory=list)  # if they are asked for


class Ranges:
    """Answers JUDGE_RANGE; `judge_range` is the handler."""

    def __init__(
        self,
        config: FilterServerConfig,
        classes: Classes,
        link: BrokerLink,
        puller: Puller,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._classes = classes
        self._link = link
        self._puller = puller
        self._clock = clock
        self._memory = Memory(_READ_AHEAD)
        self._under_way = 0

    async def judge_range(self, header: JudgeRange, request: Request) -> Answer:
        by = self._find(header)
        if self._under_way >= _MOST_REQUESTS:
            why = f"[OVERLOAD]{self._under_way} ranges are being judged already"
            return Answer(code=ResponseCode.SYSTEM_BUSY, remark=why)
        seconds = _SECONDS if header.timeout_millis is None else header.timeout_millis / 1000
        deadline = self._clock() + min(max(seconds, 0.0), _MOST_SECONDS)
        count = _Count()
        self._under_way += 1
        try:
            judged_to = await self._judge(by, header, request, deadline, count)
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
        if by is None or header.class_name not in (None, by.identity.class_name):
            which = f"class {header.class_name}" if header.class_name else "a class"
            raise _refusal(header, f"this filter server does not have {which} of the group")
        if header.queue_id < 0 or not 0 <= header.begin <= header.end:
            raise _refusal(header, f"there is no such range: {header.begin} to {header.end}")
        if header.outcomes and header.end - header.begin > _MOST_OUTCOMES:
            raise _refusal(header, f"outcomes are told of up to {_MOST_OUTCOMES} messages")
        return by

    async def _judge(
        self,
        by: FilterClass,
        header: JudgeRange,
        request: Request,
        deadline: float,
        count: _Count,
    ) -> int:
        """Judge batch by batch; return up to where that was done."""
        stream = Stream(self._link, self._memory, by, header.queue_id, header.begin)
        try:
            while (
                stream.position < header.end
                and count.messages < _MOST_MESSAGES
                and not request.peer.is_closed
                # at least a batch, however little time there is
                and (self._clock() < deadline or stream.position == header.begin)
            ):
                if not stream.is_current:
                    raise Error("the class or the connection to the broker is another one now")
                # whoever pulls by the same class has its turn between two batches
                async with by.lock:
                    if not stream.is_current:
                        continue
                    pulled = await stream.read(most=header.end - stream.position)
                    if pulled is None:
                        await self._judge_batch(stream, header, count)
                        continue
                if pulled.code == END:
                    return header.end
                if pulled.code == MOVED:
                    if pulled.next_offset <= stream.position:
                        return header.end
                    stream.drop()  # the first ones are gone
                    stream = Stream(
                        self._link, self._memory, by, header.queue_id, pulled.next_offset
                    )
            return min(stream.position, header.end)
        finally:
            stream.drop()

    async def _judge_batch(self, stream: Stream, header: JudgeRange, count: _Count) -> None:
        answers = await stream.batch(min(self._config.batch, header.end - stream.position))
        if not answers:
            return
        try:
            judged = await self._puller.judge_in_thread(stream.by, answers)
        except CorruptRecord as error:
            if not stream.is_isolating:
                stream.isolate(answers)
                return
            judged = damaged(answers[0], error)
        self._count(judged, answers, header, count)
        stream.judged(answers, (), answers[-1].next_offset)

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
        return told


def _stored(row: "Row") -> int | None:
    try:
        return record.decode(memoryview(row.record), file="").store_timestamp
    except CorruptRecord:
        return None


def _refusal(header: JudgeRange, why: str) -> ResponseError:
    remark = f"group {header.consumer_group}, topic {header.topic}, queue {header.queue_id}: {why}"
    return ResponseError(ResponseCode.SYSTEM_ERROR, remark)
