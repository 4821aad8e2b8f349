"""How far a job is, told while it runs: a bar on a terminal and in a notebook, else lines.

A bar needs to know how many messages are left. Of a job that can't say it, the count is told.
"""

import contextlib
import html
import shutil
import sys
import time
from collections.abc import Callable
from typing import IO, Any, Final, Protocol

__all__ = ["Display", "Report"]

_WIDTH: Final = 24  # characters of the bar
_FULL, _EMPTY = "█", "░"
_OFTEN: Final = 0.5  # seconds between changes of a bar
_SELDOM: Final = 5.0  # seconds between lines


class Display(Protocol):
    """A place in a notebook's output that can be written over."""

    def update(self, shown: dict[str, str], *, raw: bool) -> None: ...


class Report:
    """Progress. Without a stream it is told where it runs in a notebook, and nowhere else."""

    def __init__(
        self,
        stream: IO[str] | None,
        now: Callable[[], float] = time.monotonic,
        display: Display | None = None,
    ) -> None:
        self._stream = stream
        self._display = display or (_notebook() if stream is None else None)
        self._is_terminal = stream is not None and stream.isatty()
        self._every = _OFTEN if self._is_terminal or self._display else _SELDOM
        self._now = now
        self._began = self._last = now()
        self._is_open = False

    def begin(self) -> None:
        """What is told of the rate counts from here."""
        self._began = self._last = self._now()

    @property
    def is_due(self) -> bool:
        return self._is_told and self._now() - self._last >= self._every

    @property
    def _is_told(self) -> bool:
        return self._stream is not None or self._display is not None

    def update(self, messages: int, lag: int | None = None, *, force: bool = False) -> None:
        now = self._now()
        if not self._is_told or (now - self._last < self._every and not force):
            return
        self._last = now
        seconds = max(now - self._began, 1e-9)
        text = f"{messages:,} messages in {seconds:.0f} s, {messages / seconds:,.0f} a second"
        if lag is not None:
            text += f", {lag:,} to go"
        if self._display is not None:
            self._display.update(_page(text, messages, lag), raw=True)
        if self._stream is None:
            return
        if self._is_terminal:
            columns = shutil.get_terminal_size().columns
            shown = (_bar(self._stream, messages, lag) + text)[: max(columns - 1, 1)]
            self._stream.write(f"\r\x1b[K{shown}")
            self._is_open = True
        else:
            self._stream.write(text + "\n")
        self._stream.flush()

    def say(self, text: str) -> None:
        self.close()
        if self._display is not None:
            self._display.update({"text/plain": text}, raw=True)
        if self._stream is not None:
            self._stream.write(text + "\n")
            self._stream.flush()

    def close(self) -> None:
        if self._is_open and self._stream is not None:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
        self._is_open = False


def _bar(stream: IO[str], messages: int, lag: int | None) -> str:
    """With the per cent behind it; empty if it is not known how many there are."""
    if lag is None or messages + lag <= 0:
        return ""
    full, empty = _FULL, _EMPTY
    try:
        (full + empty).encode(getattr(stream, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        full, empty = "#", "-"
    part = messages / (messages + lag)
    done = int(part * _WIDTH)
    return f"{full * done}{empty * (_WIDTH - done)} {int(part * 100):3d} %  "


def _page(text: str, messages: int, lag: int | None) -> dict[str, str]:
    """As a notebook takes it: for those that show HTML, and for the others."""
    bar = "" if lag is None else f'<progress value="{messages}" max="{messages + lag}"></progress> '
    return {"text/html": f"{bar}{html.escape(text)}", "text/plain": text}


def _notebook() -> Display | None:
    """A new place in the output of the notebook's cell that runs; None outside of notebooks."""
    ipython: Any = sys.modules.get("IPython")  # not there: not in a notebook
    if ipython is None:
        return None
    with contextlib.suppress(Exception):  # whatever it is: a bar is not worth an error
        shell = ipython.get_ipython()
        if shell is not None and hasattr(shell, "kernel"):
            made: Display | None = ipython.display.display(
                {"text/plain": ""}, raw=True, display_id=True
            )
            return made
    return None
