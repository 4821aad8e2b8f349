"""The sandbox of a server: one zygote, and a cell for each filter."""

import json
import logging
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from ..code import CodeFilter, Context
from ..errors import ConfigError, SandboxError
from . import probe
from .arena import Arena
from .budget import Budget, half_of_memory
from .cell import Cell
from .limits import Limits
from .plan import BARRIERS, Barrier, Isolation, Plan, plans
from .probe import Report
from .process import Child, Zygote, ZygoteGone

__all__ = ["Sandbox"]

log = logging.getLogger(__name__)

_DEFAULT: Final = Limits()
_TRY_AGAIN: Final = 60.0  # seconds after which a machine may have changed
_LONGEST_PROBE: Final = 4096  # bytes


class Sandbox:
    """Makes cells. Starts when it is first asked for something. Thread-safe."""

    def __init__(
        self,
        limits: Limits = _DEFAULT,
        isolation: Isolation = "required",
        *,
        modules: Iterable[str] = ("numpy", "pyarrow"),
        without: Iterable[Barrier] = (),
        memory: int | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`modules` may be imported besides the standard library. `without` names barriers that are
        left out as if this machine did not have them; for tests. `memory`: bytes that all filters
        may have together, half of the machine's if it is not said. Raises ConfigError."""
        if isolation not in ("required", "best-effort", "off"):
            raise ConfigError(f"isolation = {isolation!r}: required, best-effort or off")
        self._without = frozenset(without)
        if not self._without <= {*BARRIERS}:
            raise ConfigError(f"without = {sorted(self._without)}: of {', '.join(BARRIERS)}")
        self.limits = limits
        self.isolation: Isolation = isolation
        self.budget = Budget(half_of_memory() if memory is None else memory)
        self._modules = tuple(modules)
        self._now = now
        self._lock = threading.Lock()
        self._zygote: Zygote | None = None
        self._report: Report | None = None
        self._plan: Plan | None = None
        self._refusal = ("", 0.0)  # why, and until when it is not tried again
        self._cells: set[Cell] = set()
        self._is_closed = False

    @property
    def report(self) -> Report:
        """What holds here. Raises SandboxError if isolation is required and can't be had."""
        self._running()
        assert self._report is not None
        return self._report

    def cell(self, code: CodeFilter, context: Context, limits: Limits | None = None) -> Cell:
        """Load a filter into a process of its own, under the sandbox's limits or others.

        Raises CodeError if the class can't be used; SandboxError if it broke a limit while it was
        loaded, or if isolation is required and can't be had.
        """
        given = limits or self.limits
        cell = Cell(self, code, context, given, self._cells.discard, self._now)
        self._cells.add(cell)
        if self._is_closed:
            cell.close()
        return cell

    def close(self) -> None:
        """End all processes."""
        self._is_closed = True
        for cell in [*self._cells]:
            cell.close()
        with self._lock:
            if self._zygote is not None:
                self._zygote.close()
                self._zygote = None

    def make_child(self, limits: Limits, arena: int, on_look: Callable[[], None]) -> Child:
        """For cells. Raises ZygoteGone or SandboxError."""
        return Child(self._running(), limits, arena, on_look=on_look)

    def _running(self) -> Zygote:
        with self._lock:
            if self._is_closed:
                raise SandboxError("the sandbox is closed")
            reason, until = self._refusal
            if self._now() < until:
                raise SandboxError(reason, until - self._now())
            if self._zygote is not None and not self._zygote.is_alive:
                log.warning("the process that makes filters ended: it is started again")
                self._zygote.close()
                self._zygote = None
            if self._zygote is None:
                self._zygote = Zygote(self._plan) if self._plan else self._first()
            return self._zygote

    def _first(self) -> Zygote:
        """Find the best plan that works here, by trying."""
        try:
            zygote, report = self._choose()
        except SandboxError as error:
            self._refusal = (error.reason, self._now() + _TRY_AGAIN)
            raise
        self._plan, self._report = zygote.plan, report
        log.info("%s", report)
        for line in report.missing:
            log.warning("not to be had here: %s", line)
        return zygote

    def _choose(self) -> tuple[Zygote, Report]:
        if sys.platform != "linux":
            raise SandboxError(f"a sandbox needs Linux; this is {sys.platform}")
        if not hasattr(os, "pidfd_open"):
            raise SandboxError("this Python was built without pidfd_open")
        candidates, missing = plans(self.isolation, self._modules, self._without)
        for plan in candidates:
            try:
                zygote = Zygote(plan)
            except SandboxError as error:
                missing.append(error.reason)
                continue
            try:
                report, broken = self._probe(zygote, plan, missing)
            except (SandboxError, ZygoteGone, OSError) as error:
                missing.append(str(error))
            else:
                if not broken or not plan.has_seccomp:
                    return zygote, report
                missing += broken
            zygote.close()
        said = "; ".join(missing) or "no barrier is left"
        raise SandboxError(f"filters can't be isolated here: {said}")

    def _probe(self, zygote: Zygote, plan: Plan, missing: list[str]) -> tuple[Report, list[str]]:
        arena = Arena(self.limits.batch_bytes)
        try:
            with tempfile.NamedTemporaryFile(prefix="tamis-canary-") as canary:
                canary.write(b"canary")
                canary.flush()
                os.chmod(canary.name, 0o644)
                order = {"canary": canary.name, "server": os.getpid()}
                child = Child(zygote, self.limits, arena.descriptor, order)
                try:
                    tried = json.loads(child.receive_all(_LONGEST_PROBE) or b"{}")
                finally:
                    child.close()
        finally:
            arena.close()
        return probe.judge(plan, tried, missing)
