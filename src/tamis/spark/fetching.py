"""What an executor does: messages of one range of one queue, as Arrow batches of Spark's columns.

Over the wire several pulls are on their way at once (`_Window`); from a store directory records are
read where they lie. Both give the same rows for the same messages, ordered by offset, each once,
and hold a few batches in memory, however long the range. Messages that were planned and are not
there yet are waited for, `data_timeout` seconds, before they count as lost.
"""

import logging
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]

from ..client.backoff import pause_before
from ..client.columns import Chunk, Placed, decode_parts, schema_of
from ..errors import (
    AccessDenied,
    DataLoss,
    GroupNotFound,
    NoPermission,
    ResponseError,
    SystemBusy,
    TopicNotFound,
    Unreachable,
    UnreadableMessage,
)
from ..filter import parse
from ..filter.engines.columnar import BatchFilter
from ..filter.tags import ALL, TagFilter, parse_tags
from ..net.blocking import BlockingPeer, connect
from ..security import Security
from ..store.scan import Scan, bounds
from ..store.select import SqlFilter
from ..wire.bodies import MessageQueue
from ..wire.codes import Language, PullFlag, RequestCode, ResponseCode
from ..wire.command import Command
from .ranges import Fetch, LogRange, WireRange

__all__ = [
    "arrow_schema",
    "fetch_log",
    "fetch_wire",
    "log_bounds",
    "log_offset_at",
    "log_units_a_file",
]

log = logging.getLogger(__name__)

_BATCH_BYTES: Final = 16 << 20  # of records, in one batch


def arrow_schema(fetch: Fetch) -> pa.Schema:
    """Of the batches."""
    return schema_of(fetch.columns, fetch.properties, "us")


def fetch_wire(part: WireRange, fetch: Fetch) -> Iterator[pa.RecordBatch]:
    """Raises DataLoss, UnreadableMessage, ResponseError, Unreachable, TimeoutError."""
    chunks, rows, size = list[Chunk](), 0, 0
    with _Window(part, fetch) as window:
        for chunk, count in window:
            chunks.append(chunk)
            rows += count
            size += len(chunk.body)
            if rows >= fetch.batch_rows or size >= _BATCH_BYTES:
                yield from _batch(chunks, fetch)
                chunks, rows, size = [], 0, 0
    if chunks:
        yield from _batch(chunks, fetch)


def _batch(chunks: list[Chunk] | Placed, fetch: Fetch) -> Iterator[pa.RecordBatch]:
    tags, sql = _filters(fetch)
    if isinstance(chunks, Placed):
        sql = None  # that was asked already
    parts = decode_parts(
        chunks,
        columns=fetch.columns,
        properties=fetch.properties,
        tags=tags.tags if tags is not None else frozenset(),
        sql=sql,
        time_unit="us",
        max_body_size=fetch.max_body_size,
        null_unreadable=not fetch.fail_on_unreadable,
    )
    try:
        for batch, _ in parts:
            if batch.num_rows:
                yield batch
    except UnreadableMessage as error:
        reason = error.reason.replace("max_body_size", "option maxBodySize")
        reason += "; set failOnUnreadable to false to have null for its body"
        raise UnreadableMessage(
            error.topic, error.broker, error.queue_id, error.offset, reason, error.message_id
        ) from None


@lru_cache(64)
def _filters(fetch: Fetch) -> tuple[TagFilter | None, BatchFilter | None]:
    if fetch.sql is not None:
        return None, BatchFilter(parse(fetch.sql, fetch.dialect))
    tags = parse_tags(fetch.tags)
    return (None if tags.matches_all else tags), None


# Over the wire.

_FOUND: Final = int(ResponseCode.SUCCESS)
_PASSED: Final = int(ResponseCode.PULL_RETRY_IMMEDIATELY)
_NOTHING: Final = int(ResponseCode.PULL_NOT_FOUND)
_MOVED: Final = int(ResponseCode.PULL_OFFSET_MOVED)
_NO_SQL: Final = "does not support consumer to filter message"
_SUBSCRIPTION: Final = str(int(PullFlag.SUBSCRIPTION))
_NEVER: Final = 2**63 - 1

_AHEAD: Final = 16  # pulls on their way at once
_KEPT: Final = (
    32 << 20
)  # bytes of answers waiting for earlier ones, above which no more are asked for
# Messages a filtered pull asks for. A broker gives 32 all the same, but Apache's looks for them
# among as many as it is asked for, 800 at least.
_LOOKED_AT: Final = 8192
_FULL: Final = 8  # messages at least that a full answer has: Apache's has 8 if they are on the disk
_STEADY: Final = 64  # full answers after which more is asked for at once


@dataclass(slots=True)
class _Segment:
    """Part of the range, read by one pull after the other."""

    at: int
    stop: int
    is_filtered: bool  # at the broker
    is_asked: bool = False
    answers: deque[tuple[Chunk, int] | DataLoss] = field(default_factory=deque)


class _NotYet(ConnectionError):
    """The broker ends before what was planned, and there is time left for it to get further."""


class _Window:
    """The segments that are being read, in order, and the connection they are read by.

    A segment is as long as what one answer covers, as far as that can be known: without a filter as
    many messages as a broker gives at once, with one as many as the last answers went through.
    """

    def __init__(self, part: WireRange, fetch: Fetch) -> None:
        self._part = part
        self._fetch = fetch
        self._at_broker = fetch.at_broker and any(_filters(fetch))
        # until an answer tells, a filtered range is one segment
        self._stride = _NEVER if self._at_broker else fetch.pull_size
        self._steady = 0
        self._fullest = _FULL  # messages in an answer
        self._next = part.start  # where the next segment begins
        self._segments = deque[_Segment]()
        self._asked: dict[int, _Segment] = {}  # by opaque
        self._kept = 0
        self._lost = part.start  # up to where losses were told of
        self._peer: BlockingPeer | None = None
        self._address = ""
        self._failures = 0
        self._behind_since: float | None = None  # the broker ends before what was planned
        self._looks = 0  # at a broker that does

    def __enter__(self) -> "_Window":
        return self

    def __exit__(self, *_: object) -> None:
        if self._peer is not None and not self._asked:
            _put_by(self._peer, self._fetch.security)
            self._peer = None
        self._disconnect()

    def __iter__(self) -> Iterator[tuple[Chunk, int]]:
        """Answers and how many messages are in each, at the most."""
        while True:
            while self._segments and not self._segments[0].answers:
                head = self._segments[0]
                if head.at < head.stop:
                    break
                self._segments.popleft()
            else:
                if self._segments:
                    answer = self._segments[0].answers.popleft()
                    if isinstance(answer, DataLoss):
                        self._lose(answer)
                    else:
                        self._kept -= len(answer[0].body)
                        yield answer
                    continue
                if self._next >= self._part.end:
                    return
            self._wait()

    def _wait(self) -> None:
        """For at least one answer, over as many attempts as that may take."""
        try:
            if self._peer is None:
                self._connect()
            assert self._peer is not None
            self._ask(self._peer)
            for answer in self._peer.answers(self._fetch.timeout):
                segment = self._asked.pop(answer.opaque, None)
                if segment is not None:
                    segment.is_asked = False
                    self._take(segment, answer)
            self._failures = self._looks = 0
            self._behind_since = None
            self._ask(self._peer)  # it has the next to do while these are looked at
            self._peer.send(self._fetch.timeout)
        except (ConnectionError, TimeoutError, ResponseError) as error:
            self._recover(error)

    def _ask(self, peer: BlockingPeer) -> None:
        """For all there is room for; the first segment in any case."""
        end, room = self._part.end, _AHEAD - len(self._asked)
        while room > 0 and self._next < end and self._kept < _KEPT:
            # What a filter passes over can't be told from what is gone: of a filtered range the
            # first message is asked for as it is, and must be there.
            is_filtered = self._at_broker and self._next > self._part.start
            stride = 1 if self._at_broker and not is_filtered else self._stride
            stop = min(self._next + stride, end)
            self._segments.append(_Segment(self._next, stop, is_filtered))
            self._next = stop
            room -= 1
        for segment in self._segments:
            if not segment.is_asked and segment.at < segment.stop:
                self._asked[peer.post(self._request(segment))] = segment
                segment.is_asked = True
            if self._kept >= _KEPT:
                break

    def _request(self, segment: _Segment) -> Command:
        part, fetch = self._part, self._fetch
        most = min(fetch.pull_size, segment.stop - segment.at)
        subscription, kind = ALL, "TAG"
        if segment.is_filtered:
            most = max(fetch.pull_size, _LOOKED_AT)
            subscription, kind = (fetch.sql, "SQL92") if fetch.sql else (fetch.tags or ALL, "TAG")
        fields = {  # of `headers.PullMessage`; written out, since it is done for every pull
            "consumerGroup": fetch.group,
            "topic": part.queue.topic,
            "queueId": str(part.queue.queue_id),
            "queueOffset": str(segment.at),
            "maxMsgNums": str(most),
            "sysFlag": _SUBSCRIPTION,
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subVersion": "0",
            "subscription": subscription,
            "expressionType": kind,
        }
        return Command(code=RequestCode.PULL_MESSAGE, fields=fields, language=Language.PYTHON)

    def _connect(self) -> None:
        addresses = self._part.addresses
        address = addresses[self._failures % len(addresses)]
        self._address = address
        security = self._fetch.security
        self._peer = None if self._failures else _taken(address, security)
        if self._peer is None:
            self._peer = connect(address, self._fetch.timeout, security=security)

    def _disconnect(self) -> None:
        if self._peer is not None:
            self._peer.close()
        self._peer = None
        self._asked.clear()
        for segment in self._segments:
            segment.is_asked = False

    def _recover(self, error: Exception) -> None:
        """What was not answered is asked for again, over another connection, or this is raised."""
        self._disconnect()
        if isinstance(error, _NotYet):
            self._looks += 1
            time.sleep(pause_before(self._looks, _PAUSE, _LONGEST_PAUSE))
            return
        if isinstance(error, ResponseError):
            is_refused = self._at_broker and self._fetch.sql and _refuses_sql(error)
            if is_refused and self._fetch.or_reader:
                log.info("%s: filtered here: %s", self._part.queue, error)
                self._read_whole()
                return
            if not _is_passing(error):
                raise self._explained(error) from None
        self._failures += 1
        if self._failures > self._fetch.retries:
            if isinstance(error, ResponseError):
                raise self._explained(error) from None
            raise Unreachable("broker", ", ".join(self._part.addresses), str(error)) from error
        log.info("%s: tried again: %s", self._part.queue, error)
        time.sleep(pause_before(self._failures, _PAUSE, _LONGEST_PAUSE))

    def _explained(self, error: ResponseError) -> ResponseError:
        if isinstance(error, AccessDenied):
            return error
        reason = error.remark.split("\n")[0]
        why = f"{_shown(self._part.queue)} can't be read: {reason}"
        if isinstance(error, GroupNotFound):
            why += "; make the group, or name another by option groupId"
        return ResponseError.of(error.code, why)

    def _read_whole(self) -> None:
        """From now on without a filter at the broker."""
        self._at_broker, self._stride = False, self._fetch.pull_size
        for segment in self._segments:
            segment.is_filtered = False
        last = self._segments[-1]
        self._next = last.stop = last.at

    def _take(self, segment: _Segment, answer: Command) -> None:
        if answer.code not in (_FOUND, _PASSED, _NOTHING, _MOVED):
            key = self._fetch.security.access_key
            raise ResponseError.of(answer.code, answer.remark, key)
        fields = answer.fields or {}  # of `headers.PullMessageResponse`
        body = answer.body if answer.code == _FOUND else b""
        at, reached = segment.at, int(fields["nextBeginOffset"])
        first = int(fields["minOffset"])
        if body and not segment.is_filtered:
            first = max(first, _INT8.unpack_from(body, _OFFSET_AT)[0])
        if first > at:
            self._note_loss(segment, first)
            reached = max(reached, first)
        elif int(fields["maxOffset"]) <= at < self._part.end:
            self._check_overdue(at)
            self._note_loss(segment, None, self._fetch.data_timeout)
            reached = segment.stop
        elif answer.code in (_NOTHING, _MOVED) or reached <= at:
            is_further = at < reached < self._part.end
            self._note_loss(segment, reached if is_further else None)
            reached = reached if is_further else segment.stop
        count = 0
        if body and first < segment.stop:
            queue = self._part.queue
            before = segment.stop if reached > segment.stop else _NEVER
            count = _count(body) if segment.is_filtered else reached - at
            chunk = Chunk(queue.broker_name, queue.topic, body, before)
            segment.answers.append((chunk, count))
            self._kept += len(body)
        segment.at = min(reached, segment.stop)
        self._learn(segment, reached - at, count)

    def _check_overdue(self, at: int) -> None:
        """Raises if messages that were at the master when this was planned may still come: to a
        slave, which is behind, or to the master, while it recovers its queues after a start."""
        if self._address != self._part.addresses[0]:
            raise ConnectionError(f"{self._address} is behind: it has not got offset {at} yet")
        now = time.monotonic()
        if self._behind_since is None:
            self._behind_since = now
        if now - self._behind_since < self._fetch.data_timeout:
            raise _NotYet(f"{self._address} has not got offset {at} yet")

    def _note_loss(self, segment: _Segment, first: int | None, waited: float | None = None) -> None:
        end = self._part.end
        stop = end if first is None else min(first, end)
        queue = _shown(self._part.queue)
        segment.answers.append(DataLoss(queue, segment.at, stop, first, "broker", waited))

    def _lose(self, loss: DataLoss) -> None:
        """Once for all segments it is about."""
        if self._fetch.fail_on_data_loss:
            raise loss
        if loss.wanted >= self._lost:
            log.warning("%s", loss)
        self._lost = loss.stop

    def _learn(self, segment: _Segment, span: int, count: int) -> None:
        """How long segments should be, from an answer that went through so many offsets."""
        if not segment.is_filtered:
            if self._at_broker:
                return
            if segment.at < segment.stop:
                self._stride, self._steady = span, 0
            else:
                self._steady += 1
                if self._steady >= _STEADY:
                    self._stride, self._steady = min(2 * self._stride, self._fetch.pull_size), 0
            return
        self._fullest = max(self._fullest, count)
        # a full answer might have gone further: a segment is rather too short than too long
        seen = max(span * 4 // 5, 1) if count >= self._fullest else span
        if self._stride == _NEVER:
            self._stride = seen
            self._next = segment.stop = segment.at
        else:
            self._stride = max((self._stride + seen) // 2, 1)


_INT8: Final = struct.Struct(">q")
_INT4: Final = struct.Struct(">i")
_OFFSET_AT: Final = 20  # the queue offset in a record
_PAUSE: Final = 0.05  # seconds before the first further attempt, doubled by each
_LONGEST_PAUSE: Final = 2.0


def _count(body: bytes | memoryview) -> int:
    """Records in it."""
    at = count = 0
    while at < len(body):
        at += max(_INT4.unpack_from(body, at)[0], 1)
        count += 1
    return count


# A worker reads many ranges, and small ones in a stream: connections wait for the next.
_IDLE: Final[dict[tuple[str, Security], tuple[BlockingPeer, float]]] = {}
_IDLE_SECONDS: Final = 30.0
_IDLE_MOST: Final = 16


def _put_by(peer: BlockingPeer, security: Security) -> None:
    key = (str(peer), security)
    if key in _IDLE or len(_IDLE) >= _IDLE_MOST:
        peer.close()
    else:
        _IDLE[key] = peer, time.monotonic()


def _taken(address: str, security: Security) -> BlockingPeer | None:
    peer, since = _IDLE.pop((address, security), (None, 0.0))
    if peer is None or (time.monotonic() - since < _IDLE_SECONDS and peer.is_idle):
        return peer
    peer.close()
    return None


def _shown(queue: MessageQueue) -> str:
    return f"{queue.topic}/{queue.broker_name}/{queue.queue_id}"


def _refuses_sql(error: ResponseError) -> bool:
    """It is switched off there, or the broker is of another dialect."""
    return error.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED or _NO_SQL in error.remark


def _is_passing(error: ResponseError) -> bool:
    """Whether it may be otherwise in a moment."""
    if isinstance(error, NoPermission | TopicNotFound):
        return False
    return error.retriable or isinstance(error, SystemBusy)


# From a store directory.


def fetch_log(part: LogRange, fetch: Fetch) -> Iterator[pa.RecordBatch]:
    """Raises DataLoss, UnreadableMessage, StoreError."""
    scan = _grown_scan(part, fetch)
    try:
        start, end = max(part.start, scan.first), min(part.end, scan.end)
        if start > part.start:
            _lose(part, fetch, part.start, min(start, part.end), start)
        if end < part.end:
            _lose(part, fetch, max(start, end), part.end, None, fetch.data_timeout)
        tags, sql = _filters(fetch)
        wanted = SqlFilter(sql) if sql is not None else tags
        for found in scan.read(start, end, wanted, fetch.batch_rows, _BATCH_BYTES):
            for offset in found.missing:
                _lose(part, fetch, offset, offset + 1, start)
            yield from _batch(Placed(part.broker, part.topic, *found[:4]), fetch)
    finally:
        scan.close()


def _grown_scan(part: LogRange, fetch: Fetch) -> Scan:
    """Opens a queue once it is as long as the driver saw it, or once the time for that is over.
    Through a network's file system an executor may see the end of a queue, or of the log, later."""
    deadline = time.monotonic() + fetch.data_timeout
    pause = _PAUSE
    while True:
        scan = Scan(part.root, part.topic, part.queue_id)
        left = deadline - time.monotonic()
        if left <= 0 or _has_end(scan, part.end):
            return scan
        scan.close()
        time.sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST_PAUSE)


def _has_end(scan: Scan, end: int) -> bool:
    """Whether the last message before it is there, whole; one that is gone will not come."""
    if scan.end < end:
        return False
    if end <= scan.first:
        return True
    return not any(found.missing for found in scan.read(end - 1, end, None, 1, _BATCH_BYTES))


def _lose(
    part: LogRange,
    fetch: Fetch,
    at: int,
    stop: int,
    first: int | None,
    waited: float | None = None,
) -> None:
    queue = f"{part.topic}/{part.broker or part.root}/{part.queue_id}"
    loss = DataLoss(queue, at, stop, first, "store", waited)
    if fetch.fail_on_data_loss:
        raise loss
    log.warning("%s", loss)


def log_bounds(
    root: str, is_wanted: Callable[[str], bool] = lambda topic: True
) -> dict[tuple[str, int], tuple[int, int]]:
    """(first, end) of every queue of such topics in a store, by topic and queue id. Raises
    StoreError."""
    return bounds(root, is_wanted)


def log_units_a_file(root: str, topic: str, queue_id: int) -> int:
    """Messages in each of a queue's files."""
    scan = Scan(root, topic, queue_id)
    scan.close()
    return scan.units_a_file


def log_offset_at(root: str, topic: str, queue_id: int, millis: int) -> int:
    """The first offset stored at that time or later; the end if there is none."""
    scan = Scan(root, topic, queue_id)
    try:
        return scan.offset_at(millis)
    finally:
        scan.close()
