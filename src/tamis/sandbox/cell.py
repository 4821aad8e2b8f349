"""A stranger's filter that judges batches in a process of its own, and what happens when it breaks
a limit.

A process that broke a limit has ended. It is replaced, and the message that did it is looked for:
the one that the process said it was at, or else by halving the batch. A message that breaks the
limit again when it is judged alone is to blame and gets the outcome ERROR; the others are judged.
All of that ends after a number of replacements; then what is left of the batch fails.
"""

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from ..code import CodeFilter, Context, Needs, Verdicts
from ..errors import CodeError, SandboxError
from ..filter.logic import Outcome
from . import exchange
from .arena import Arena
from .budget import Budget
from .exchange import Kind, Malformed
from .limits import Limits
from .process import Breach, Child, ZygoteGone

__all__ = ["Cell", "Usage"]

log = logging.getLogger(__name__)

_MOST_ROWS: Final = 65536  # of a request
_MOST_CULPRITS: Final = 3  # messages of a batch that are to blame, before the filter itself is
_MOST_REASONS: Final = 64
_FIRST_REST: Final = 0.25  # seconds, after the second batch in a row that broke a limit
_ZYGOTES: Final = 3  # tried for a batch
_GROWS_BELOW: Final = 0.25  # of the limit: a batch that took less lets the next be larger
_WEIGHED: Final = 0.02  # seconds at least between looks at its memory


@dataclass(frozen=True, slots=True)
class Usage:
    """What a filter has used since it was loaded."""

    cpu_seconds: float
    peak_memory: int  # bytes of memory at most, beyond those of a process before it loads a filter
    batches: int
    messages: int
    restarts: int
    last_breach: str | None


class _Maker(Protocol):
    budget: Budget

    def make_child(self, limits: Limits, arena: int, on_look: Callable[[], None]) -> Child: ...


class Cell:
    """A filter, as `Judge` says. Thread-safe, but serves one caller at a time."""

    def __init__(
        self,
        maker: _Maker,
        code: CodeFilter,
        context: Context,
        limits: Limits,
        on_close: Callable[["Cell"], None],
        now: Callable[[], float],
    ) -> None:
        """Raises CodeError if the class can't be used, SandboxError if it broke a limit."""
        self._maker = maker
        self._code = code
        self._name = exchange.parse_reason(code.name.encode(errors="replace"))  # for messages
        self._context = context
        self._limits = limits
        self._on_close = on_close
        self._now = now
        self._lock = threading.Lock()
        self._is_closed = False
        self._child: Child | None = None
        self._most_rows = _MOST_ROWS
        self._bad_batches = 0
        self._resting_until = 0.0
        self._batches = self._messages = self._restarts = 0
        self._last_breach: str | None = None
        self._cpu_before = 0.0  # of processes that ended
        self._empty_memory = 0
        self._empty_peak = 0
        self._peak_memory = 0
        self._weighed = 0.0  # when its memory was looked at
        self._needs: Needs | None = None  # until it is loaded
        try:
            self._arena = Arena(limits.batch_bytes)
        except OSError as error:
            raise SandboxError(f"{self._name}: no memory for batches: {error}", 1.0) from None
        with self._lock:
            try:
                self._needs = self._first_start()
            except BaseException:
                self._release()
                raise

    @property
    def needs(self) -> Needs:
        assert self._needs is not None
        return self._needs

    @property
    def usage(self) -> Usage:
        child = self._child
        cpu = self._cpu_before + (child.cpu_seconds if child else 0.0)
        if child:
            self._note_memory(child)
        return Usage(
            cpu_seconds=cpu,
            peak_memory=self._peak_memory,
            batches=self._batches,
            messages=self._messages,
            restarts=self._restarts,
            last_breach=self._last_breach,
        )

    def judge(self, batch: pa.RecordBatch) -> Verdicts:
        """Judge a batch that has the columns needed, in their order.

        Raises SandboxError if the filter rests after it broke limits, or is closed.
        """
        with self._lock:
            left = self._resting_until - self._now()
            if left > 0:
                reason = f"{self._name}: rests for {left:.1f} s: {self._last_breach}"
                raise SandboxError(reason, left)
            self._check_open()
            if self.needs.is_declared and tuple(batch.schema.names) != self.needs.names:
                raise ValueError(f"a batch of {batch.schema.names}, not {[*self.needs.names]}")
            begun = time.monotonic()
            judged = _Judging(batch)
            while judged.left:
                self._judge_piece(judged, *judged.left.popleft())
            self._batches += 1
            self._messages += batch.num_rows
            self._rest(judged)
            took = time.monotonic() - begun
            if (excess := self._exceeded(is_due=took > _WEIGHED)) is not None:
                self._end_for_memory(excess)
            return judged.verdicts()

    def close(self) -> None:
        """End the process. A caller who waits for a verdict gets SandboxError."""
        self._is_closed = True
        child = self._child
        if child is not None:
            child.kill()
        with self._lock:
            self._release()
        self._on_close(self)

    @property
    def is_idle(self) -> bool:
        return not self._lock.locked()

    def release_memory(self, reason: str) -> bool:
        """For the budget: end the process if it is idle. The next batch starts another."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            self._end_for_memory(reason)
        finally:
            self._lock.release()
        return True

    def _end_for_memory(self, reason: str) -> None:
        if self._is_closed:
            return
        if self._child is not None:
            self._drop()
            self._restarts += 1
            self._last_breach = reason
            log.warning(
                *("%s of group %s, topic %s: %s", self._name),
                *(self._context.group, self._context.topic, reason),
            )
        self._arena.clear()

    def _exceeded(self, *, is_due: bool = False) -> str | None:
        """Return a reason if there is too little memory and this filter has to go. That is looked
        at now and then, and if `is_due`."""
        child, now = self._child, time.monotonic()
        if child is None or (now < self._weighed + _WEIGHED and not is_due):
            return None
        self._weighed = now
        own = max(0, child.memory - self._empty_memory)
        return self._maker.budget.exceeded(self, own + self._arena.held)

    def _look(self) -> None:
        """While the process runs. Raises Breach."""
        if (reason := self._exceeded()) is not None:
            assert self._child is not None
            raise self._child.broken(reason)

    def _check_open(self) -> None:
        if self._is_closed:
            raise SandboxError(f"{self._name}: closed")

    def _judge_piece(self, judged: "_Judging", start: int, stop: int) -> None:
        if stop - start > self._most_rows:
            judged.left.appendleft((start + self._most_rows, stop))
            stop = start + self._most_rows
        sizes = self._arena.write(judged.batch.slice(start, stop - start))
        if sizes is None:
            if stop - start == 1:
                judged.fail(start, stop, f"larger than {_size(self._limits.batch_bytes)}")
            else:
                middle = (start + stop) // 2
                judged.left.extendleft([(middle, stop), (start, middle)])
            return
        try:
            judged.accept(start, self._ask(stop - start, *sizes))
        except ZygoteGone as error:
            self._check_open()
            self._drop()
            judged.lost_zygotes += 1
            if judged.lost_zygotes == _ZYGOTES:
                raise SandboxError(f"{self._name}: {error}", 1.0) from None
            judged.left.appendleft((start, stop))
        except Breach as breach:
            self._check_open()
            self._drop()
            self._restarts += 1
            self._last_breach = breach.reason
            self._search(judged, start, stop, breach)
        except CodeError as error:  # loaded again, it can't be used any more
            judged.breaches.append(error.reason)
            self._last_breach = error.reason
            judged.give_up(start, error.reason)

    def _ask(self, rows: int, schema: int, size: int) -> Verdicts:
        """Ask about the batch in the arena. Raises Breach, with the process ended."""
        if self._child is None:
            try:
                self._start()
            except Breach as breach:
                breach.is_idle = True
                raise
            self._check_open()
        assert self._child is not None
        begun = time.monotonic()
        kind, data = self._child.ask(
            Kind.JUDGE, rows=rows, schema=schema, batch=size, wall=self._limits.wall
        )
        if kind != Kind.JUDGED:
            raise self._child.broken("answered another question")
        try:
            verdicts = exchange.parse_verdicts(data, rows)
        except Malformed as error:
            raise self._child.broken(str(error)) from None
        for row, reason in verdicts.errors.items():
            if reason.partition(":")[0].endswith("MemoryError"):
                # Started anew even if it caught the error: it may hold on to what it has.
                said = f"needs more than {_size(self._limits.memory)} of memory"
                raise self._child.broken(said, None if self.needs.is_batch else row)
        if time.monotonic() - begun < _GROWS_BELOW * self._limits.wall:
            self._most_rows = min(_MOST_ROWS, self._most_rows * 2)
        return verdicts

    def _search(self, judged: "_Judging", start: int, stop: int, breach: Breach) -> None:
        """Decide how to go on after a breach."""
        judged.breaches.append(breach.reason)
        if breach.is_idle:
            judged.culprits += 1
            judged.left.appendleft((start, stop))
        elif stop - start == 1:
            judged.culprits += 1
            judged.fail(start, stop, breach.reason)
        else:
            if breach.row is not None and not self.needs.is_batch:
                row = start + breach.row
                again = [(start, row), (row, row + 1), (row + 1, stop)]
            else:
                # A filter that breaks a limit with every batch is found by the first message alone.
                middle = (start + stop + 1) // 2
                again = [(start, start + 1), (start + 1, middle), (middle, stop)]
            judged.left.extendleft(reversed([one for one in again if one[0] < one[1]]))
            if breach.is_slow and breach.row != 0:  # it may be that all of them together are slow
                self._most_rows = max(1, (breach.row or stop - start) // 2)
        is_hopeless = judged.culprits >= _MOST_CULPRITS
        if judged.left and (is_hopeless or len(judged.breaches) >= self._limits.restarts):
            judged.give_up(judged.left[0][0], breach.reason)

    def _rest(self, judged: "_Judging") -> None:
        if not judged.breaches:
            self._bad_batches = max(0, self._bad_batches - 1)
            return
        self._bad_batches += 1
        log.warning(
            "%s of group %s, topic %s: %s; %d of %d messages failed",
            *(self._name, self._context.group, self._context.topic, self._last_breach),
            *(int((judged.outcomes == Outcome.ERROR).sum()), len(judged.outcomes)),
        )
        if self._bad_batches > 1:
            rest = _FIRST_REST * 2.0 ** min(self._bad_batches - 2, 30)
            self._resting_until = self._now() + min(rest, self._limits.longest_rest)

    def _first_start(self) -> Needs:
        for tried in range(1, _ZYGOTES + 1):
            try:
                return self._start()
            except Breach as breach:
                reason = f"{self._name}: {breach.reason} while it was loaded"
                raise SandboxError(reason) from None
            except ZygoteGone as error:
                self._drop()
                if tried == _ZYGOTES:
                    raise SandboxError(f"{self._name}: {error}", 1.0) from None
        raise AssertionError

    def _start(self) -> Needs:
        """Make a process and load the filter.

        Raises CodeError, Breach, ZygoteGone, SandboxError.
        """
        arena = self._arena.descriptor
        child = self._child = self._maker.make_child(self._limits, arena, self._look)
        if not self._empty_peak:
            self._empty_peak = child.peak_memory
            self._empty_memory = child.memory
        wanted = {
            "name": self._code.name,
            "text": self._code.text,
            "group": self._context.group,
            "topic": self._context.topic,
        }
        payload = json.dumps(wanted).encode()
        kind, data = child.ask(Kind.LOAD, payload, wall=self._limits.load_wall)
        try:
            if kind == Kind.REFUSED:
                reason = exchange.parse_reason(data)
                self._drop()
                raise CodeError(self._name, reason)
            if kind != Kind.LOADED:
                raise Malformed("answered another question")
            needs = exchange.parse_needs(data)
            if self._needs is not None and needs != self._needs:
                raise Malformed("declared something else than before")
            return needs
        except Malformed as error:
            raise child.broken(str(error)) from None

    def _note_memory(self, child: Child) -> None:
        self._peak_memory = max(self._peak_memory, child.peak_memory - self._empty_peak)

    def _drop(self) -> None:
        """Forget the process, which is ended if it has not."""
        child, self._child = self._child, None
        if child is not None:
            child.close()
            self._cpu_before += child.cpu_seconds
            self._note_memory(child)

    def _release(self) -> None:
        self._drop()
        self._arena.close()
        self._maker.budget.forget(self)


class _Judging:
    """The state of one batch: what is known of it, and the pieces that are left to be judged."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch
        self.left = deque([(0, batch.num_rows)] if batch.num_rows else [])  # in their order
        self.outcomes = np.full(batch.num_rows, int(Outcome.ERROR), np.uint8)
        self.errors: dict[int, str] = {}
        self.breaches: list[str] = []
        self.culprits = 0
        self.lost_zygotes = 0

    def accept(self, start: int, verdicts: Verdicts) -> None:
        self.outcomes[start : start + len(verdicts.outcomes)] = verdicts.outcomes
        for row, reason in verdicts.errors.items():
            self._keep(start + row, reason)

    def fail(self, start: int, stop: int, reason: str) -> None:
        self.outcomes[start:stop] = Outcome.ERROR
        self._keep(start, reason)

    def give_up(self, start: int, reason: str) -> None:
        """Fail all that is left, from a row on."""
        self.left.clear()
        self.fail(start, self.batch.num_rows, reason)

    def verdicts(self) -> Verdicts:
        return Verdicts(self.outcomes, dict(sorted(self.errors.items())) if self.errors else {})

    def _keep(self, row: int, reason: str) -> None:
        if len(self.errors) >= _MOST_REASONS and row not in self.errors:
            self.errors.popitem()
        self.errors[row] = reason


def _size(count: int) -> str:
    return f"{count / 2**20:g} MiB"
