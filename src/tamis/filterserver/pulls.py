"""PULL_MESSAGE to a filter server: what is there for the consumer, or what it is told instead.

Codes are RocketMQ's (filter server 4.2): messages that matched, none that matched so far (20), no
new ones (19), an offset that is not there (21), and for whatever failed 1 with the reason. Unlike
there, a filter that fails on a message does not block its queue without a word: see `on_error`.
"""

import asyncio
import functools
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from ..errors import CorruptRecord, Error, ResponseError, SandboxError
from ..net.aio import Peer
from ..net.server import Answer, Request
from ..net.tasks import Tasks
from ..wire.codes import PullFlag, ResponseCode
from ..wire.headers import (
    PullMessage,
    PullMessageResponse,
    SendMessageBack,
    UpdateConsumerOffset,
)
from .classes import Classes, FilterClass, Held
from .config import FilterServerConfig
from .copies import MOST_COPIES
from .link import END, BrokerLink, Pulled
from .reading import Kept, Stream, Streams

if TYPE_CHECKING:
    from ..code import Judge
    from .judging import Judged, Row

__all__ = ["Puller", "damaged"]

log = logging.getLogger(__name__)

_MOST_THREADS: Final = 1_000
_LONGEST_HOLD: Final = 30.0  # seconds that a pull may wait for messages
_MOST_COMMITS: Final = 100_000  # queues whose last commit is remembered
_FIRST_PAUSE: Final = 1.0  # seconds before a held message is judged again; then twice as many
_LONGEST_PAUSE: Final = 60.0
_HELD_SECONDS: Final = 60.0  # that nobody asks for a held message; then it is forgotten
_LOG_SECONDS: Final = 10.0  # between lines of one class about messages that failed
_DEAD_AT_ONCE: Final = 16
_COMMIT_OFFSET: Final = int(PullFlag.COMMIT_OFFSET)
_SUSPEND: Final = int(PullFlag.SUSPEND)

# is told of a class, a queue, the offsets from and up to which it was judged, and those that match
OnJudged = Callable[[FilterClass, int, int, int, list[int]], None]


class _Refused(Exception):
    """What to tell the consumer."""


class _HeldBack(_Refused):
    """A message that the filter fails on is not passed over."""


class Puller:
    """Answers pulls; `pull_message` is the handler."""

    def __init__(
        self,
        config: FilterServerConfig,
        classes: Classes,
        streams: Streams,
        link: BrokerLink,
        tasks: Tasks,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._classes = classes
        self._streams = streams
        self._link = link
        self._tasks = tasks
        self._clock = clock
        # one for each class, and for some that are being replaced: filters that hang have their own
        threads = min(config.most_classes, _MOST_THREADS) + MOST_COPIES + 16
        self._threads = ThreadPoolExecutor(threads, "tamis-judge")
        self._waiting: dict[Peer, set[asyncio.Task[None]]] = {}
        self._commits: OrderedDict[tuple[str, str, int], int] = OrderedDict()
        self._losses = link.losses  # when they were noted
        self._logged: OrderedDict[FilterClass, float] = OrderedDict()  # when its failures were
        self.waiting = 0  # pulls
        self.unknown = 0  # pulls of groups that have no class here
        self.on_judged: OnJudged = lambda *_: None

    def pull_message(self, header: PullMessage, request: Request) -> Answer | None:
        try:
            by = self._find(header)
        except _Refused as error:
            return Answer(code=ResponseCode.SYSTEM_ERROR, remark=str(error))
        by.pulled_by(request.peer, self._clock())
        self._commit(header)
        if header.queue_offset < 0 or header.queue_id < 0:
            why = f"there is no queue {header.queue_id} with an offset {header.queue_offset}"
            raise ResponseError(ResponseCode.SYSTEM_ERROR, why)
        stream = self._streams.take(by, header.queue_id, header.queue_offset)
        if stream.kept:
            answer = self._found(header, stream)
            self._streams.put(stream)
            return answer
        of_peer = len(self._waiting.get(request.peer, ()))
        if self.waiting >= self._config.most_pulls or of_peer >= self._config.most_connection_pulls:
            self._streams.put(stream)
            why = (
                f"[OVERLOAD]{self.waiting} pulls are waiting already, {of_peer} of this connection"
            )
            return Answer(code=ResponseCode.SYSTEM_BUSY, remark=why)
        self._begin(header, request, stream)
        return None

    def forget(self, peer: Peer) -> None:
        """Its connection is gone."""
        for task in self._waiting.pop(peer, ()):
            task.cancel()

    def sweep(self) -> None:
        for one in self._classes:
            one.forget_held(self._clock() - _HELD_SECONDS)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _find(self, header: PullMessage) -> FilterClass:
        by = self._classes.get((header.topic, header.consumer_group))
        if by is None:
            self.unknown += 1
            why = (
                f"group {header.consumer_group}, topic {header.topic}: this filter server has no"
                " class for them; a member of the group has to upload one"
            )
            raise _Refused(why)
        return by

    def _commit(self, header: PullMessage) -> None:
        """Pass on how far the group is; RocketMQ's filter server did not. A slave would refuse."""
        if not header.sys_flag & _COMMIT_OFFSET or self._link.broker_id:
            return
        if self._losses != self._link.losses:  # the broker may not have saved the last ones
            self._losses = self._link.losses
            self._commits.clear()
        place = (header.consumer_group, header.topic, header.queue_id)
        if self._commits.get(place) == header.commit_offset:
            return
        told = self._link.tell(
            UpdateConsumerOffset(
                consumer_group=header.consumer_group,
                topic=header.topic,
                queue_id=header.queue_id,
                commit_offset=header.commit_offset,
            )
        )
        if told:
            self._commits[place] = header.commit_offset
            self._commits.move_to_end(place)
            if len(self._commits) > _MOST_COMMITS:
                self._commits.popitem(last=False)

    def _begin(self, header: PullMessage, request: Request, stream: Stream) -> None:
        """Go on in a task; it is not the server's, which reads no more of a connection with too
        many of them."""
        peer = request.peer
        # a task that is cancelled before its first step would not put the stream back
        pull = _Pull(self, header, request, stream)
        task = self._tasks.spawn("a pull", pull.run())
        self.waiting += 1
        self._waiting.setdefault(peer, set()).add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self.waiting -= 1
            self._streams.put(pull.stream)
            tasks = self._waiting.get(peer)
            if tasks is not None:
                tasks.discard(task)
                if not tasks:
                    del self._waiting[peer]

        task.add_done_callback(ended)

    # Answers.

    def _found(self, header: PullMessage, stream: Stream) -> Answer:
        records, following = stream.take(max(header.max_msg_nums, 1), self._config.answer_bytes)
        return self._answer(stream, ResponseCode.SUCCESS, following, b"".join(records))

    def _answer(
        self, stream: Stream, code: ResponseCode, following: int, body: bytes = b""
    ) -> Answer:
        remark = code.name if code != ResponseCode.SUCCESS else "FOUND"
        if stream.failures:
            remark, stream.failures = _failed_remark(stream, self._config.on_error), 0
        response = PullMessageResponse(
            suggest_which_broker_id=0,
            next_begin_offset=following,
            min_offset=stream.min_offset,
            max_offset=max(stream.max_offset, following if body else 0),
        )
        return Answer(response, body, code, remark)

    # Judging.

    async def _judge(self, stream: Stream) -> None:
        """Judge the next batch of what was read."""
        by = stream.by
        last = by.held.get(stream.queue_id)
        if last is not None and last.offset == stream.position and self._clock() < last.retry_at:
            raise _HeldBack(self._held_remark(stream, last))
        answers = await stream.batch(self._config.batch)
        if not answers:
            return
        try:
            judged = await self.judge_in_thread(by.judge, by.topic, answers)
        except CorruptRecord as error:
            if not stream.is_isolating:
                stream.isolate(answers)
                return
            judged = damaged(answers[0], error)
        except BaseException:
            stream.unread(answers)
            raise
        try:
            held = await self._dead_lettered(stream, judged)
        except BaseException:
            stream.unread(answers)
            raise
        self._settle(stream, answers, judged, held)

    async def judge_in_thread(self, judge: "Judge", topic: str, answers: list[Pulled]) -> "Judged":
        """What a filter says of some answers of the broker. To be called with its lock held."""
        from .judging import judge_answers

        work = functools.partial(
            judge_answers,
            judge,
            self._link.broker_name,
            topic,
            [one.body for one in answers],
        )
        # a thread that has begun can't be called off, and `judge` has one caller at a time: whoever
        # holds the lock stays until it is over
        future = asyncio.get_running_loop().run_in_executor(self._threads, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            if not future.cancelled():
                future.exception()
            raise

    async def _dead_lettered(self, stream: Stream, judged: "Judged") -> "tuple[Row, str] | None":
        """Send failed messages to the dead letters, if that is the policy. Returns the first one
        that is to be held back, and why."""
        failed = [row for row in judged.rows if row.reason is not None]
        if failed and self._config.on_error == "hold":
            return failed[0], str(failed[0].reason)
        if failed and self._config.on_error == "dead-letter":
            return await self._bury(stream, failed)
        return None

    def _settle(
        self,
        stream: Stream,
        answers: list[Pulled],
        judged: "Judged",
        held: "tuple[Row, str] | None",
    ) -> None:
        """Do with each message as the filter says, and as `on_error` says where it fails."""
        by, policy = stream.by, self._config.on_error
        position = answers[-1].next_offset
        rows, failed = judged.rows, [row for row in judged.rows if row.reason is not None]
        if held is not None:
            position = held[0].offset
            rows = [row for row in rows if row.offset < position]
            failed = [row for row in failed if row.offset <= position]
        passed = policy == "pass"
        kept = [Kept(row.offset, row.record) for row in rows if row.reason is None or passed]
        stream.judged(answers, kept, position)
        matching = [one.offset for one in kept]
        self.on_judged(by, stream.queue_id, answers[0].offset, position, matching)
        before = by.held.get(stream.queue_id)
        if before is not None and answers[0].offset <= before.offset < answers[-1].next_offset:
            del by.held[stream.queue_id]
        tries = 0
        if held is not None:
            tries = before.tries + 1 if before is not None and before.offset == position else 1
            pause = min(_FIRST_PAUSE * 2 ** (tries - 1), _LONGEST_PAUSE)
            again = Held(position, held[1], tries, self._clock() + pause)
            by.hold_back(stream.queue_id, again)
            log.warning("%s", self._held_remark(stream, again))
        self._count(stream, judged, position, len(kept), failed if tries <= 1 else [])

    async def _bury(self, stream: Stream, failed: "list[Row]") -> "tuple[Row, str] | None":
        """Send messages to the group's dead letters. Returns the first that the broker does not
        take, and why."""
        by = stream.by
        for start in range(0, len(failed), _DEAD_AT_ONCE):
            some = [
                row
                for row in failed[start : start + _DEAD_AT_ONCE]
                if not by.is_dead(stream.queue_id, row.offset)
            ]
            results = await asyncio.gather(*(self._send_back(by, row) for row in some))
            for row, why in zip(some, results, strict=True):
                if why:
                    return row, f"{row.reason}; and it can't be sent to the dead letters: {why}"
                by.note_dead(stream.queue_id, row.offset)
        return None

    async def _send_back(self, by: FilterClass, row: "Row") -> str:
        """Returns why not, if not."""
        if row.log_offset < 0:
            return "its record is damaged"
        header = SendMessageBack(
            offset=row.log_offset,
            group=by.group,
            delay_level=-1,  # to the dead letters at once
            origin_topic=by.topic,
        )
        try:
            await self._link.ask(header)
        except (Error, TimeoutError) as error:
            return str(error)
        return ""

    def _count(
        self, stream: Stream, judged: "Judged", position: int, kept: int, failed: "list[Row]"
    ) -> None:
        by = stream.by
        tally = by.tally
        whole = max(position - judged.first_offset, 0)
        tally.messages += min(judged.messages, whole) if whole else 0
        tally.matched += kept
        tally.seconds += judged.seconds
        if not failed:
            return
        tally.failed += len(failed)
        last = failed[-1]
        stream.failures += len(failed)
        stream.failure = tally.last_failure = f"{_place(stream, last.offset)}: {last.reason}"
        now = self._clock()
        if now - self._logged.get(by, -_LOG_SECONDS) >= _LOG_SECONDS:
            log.warning(
                "class %s failed on some messages (%d; %d so far), on_error %s: %s",
                *(by.identity.class_name, len(failed), tally.failed, self._config.on_error),
                stream.failure,
            )
            self._logged[by] = now
            self._logged.move_to_end(by)
            if len(self._logged) > self._config.most_classes:
                self._logged.popitem(last=False)

    def _held_remark(self, stream: Stream, held: Held) -> str:
        seconds = max(held.retry_at - self._clock(), 0.0)
        return (
            f"{_place(stream, held.offset)}: held back, for the filter fails on it: {held.reason};"
            f" tried {held.tries} time{'s' * (held.tries > 1)}, again in {seconds:.0f} s"
        )


class _Pull:
    """A pull that could not be answered at once."""

    def __init__(self, by: Puller, header: PullMessage, request: Request, stream: Stream) -> None:
        self._by = by
        self._header = header
        self._request = request
        self.stream = stream

    async def run(self) -> None:
        try:
            answer = await self._answer()
        except ResponseError as error:
            answer = self._failure(f"the broker says: {error.remark} (code {int(error.code)})")
        except _HeldBack as error:
            answer = self._nothing()
            if answer.code == ResponseCode.PULL_NOT_FOUND:  # it is next
                answer = Answer(code=ResponseCode.SYSTEM_ERROR, remark=str(error))
        except _Refused as error:
            answer = Answer(code=ResponseCode.SYSTEM_ERROR, remark=str(error))
        except SandboxError as error:
            later = f"; again in {error.retry_after:.0f} s" if error.retry_after else ""
            answer = self._failure(f"the filter is not run: {error}{later}")
        except (Error, TimeoutError) as error:
            answer = self._failure(str(error))
        except Exception as error:  # the edge of a task
            log.exception("%s", _place(self.stream, self.stream.position))
            answer = self._failure(f"{type(error).__name__}: {error}")
        self._request.answer(answer)

    def _failure(self, why: str) -> Answer:
        remark = f"{_place(self.stream, self.stream.position)}: {why}"
        return Answer(code=ResponseCode.SYSTEM_ERROR, remark=remark)

    async def _answer(self) -> Answer:
        by, header = self._by, self._header
        clock, offset = by._clock, header.queue_offset
        hold = 0.0
        if header.sys_flag & _SUSPEND:
            hold = min(max(header.suspend_timeout_millis / 1000, 0.0), _LONGEST_HOLD)
        began = clock()
        while True:
            self._renew_stream()
            stream = self.stream
            if stream.kept:
                return by._found(header, stream)
            if stream.position > offset and clock() - began >= by._config.scan_seconds:
                return self._nothing()
            async with stream.by.lock:
                if not stream.is_current:
                    continue
                pulled = await stream.read()
                if pulled is None:
                    await by._judge(stream)
                    continue
            if pulled.code == END:
                left = began + hold - clock()
                if stream.position > offset:  # the consumer commits that, and waits at the end
                    left = min(left, began + by._config.scan_seconds - clock())
                if left <= 0:
                    return self._nothing()
                pulled = await stream.read(left)
                if pulled is None:
                    continue
            if stream.position > offset:
                return self._nothing()  # what is wrong at the end is met again from there
            code = ResponseCode(pulled.code)
            return by._answer(stream, code, pulled.next_offset)

    def _nothing(self) -> Answer:
        """Nothing matched; if anything was looked at, the consumer goes on after it."""
        position = self.stream.position
        if position > self._header.queue_offset:
            return self._by._answer(self.stream, ResponseCode.PULL_RETRY_IMMEDIATELY, position)
        return self._by._answer(self.stream, ResponseCode.PULL_NOT_FOUND, position)

    def _renew_stream(self) -> None:
        """Begin again if another class is in force now, for what this one passed over may match; or
        if the connection to the broker was lost, for there may be other messages."""
        by, header = self._by._find(self._header), self._header
        if by is not self.stream.by or not self.stream.is_current:
            self._by._streams.put(self.stream)
            self.stream = self._by._streams.take(by, header.queue_id, header.queue_offset)


def _place(stream: Stream, offset: int) -> str:
    return (
        f"group {stream.by.group}, topic {stream.by.topic}, queue {stream.queue_id},"
        f" offset {offset}"
    )


def _failed_remark(stream: Stream, policy: str) -> str:
    what = {
        "skip": "skipped",
        "pass": "passed on unfiltered",
        "hold": "held back",
        "dead-letter": "sent to the dead letters",
    }[policy]
    count = "1 message" if stream.failures == 1 else f"{stream.failures} messages"
    return f"the filter failed on {count}, {what}: {stream.failure}"


def damaged(pulled: Pulled, error: CorruptRecord) -> "Judged":
    """What is said of a message that can't be read: the filter fails on it."""
    from .judging import Judged, Row

    return Judged(1, pulled.offset, [Row(pulled.offset, -1, pulled.body, str(error))], 0.0)
