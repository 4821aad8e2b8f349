"""What all tests of commands need."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def interrupts() -> Iterator[None]:
    """Are not ignored by commands started here: children inherit it from a test run that was itself
    started in the background, or by `nohup`."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def no_profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The profile file of whoever runs the tests does not count."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "no-profiles"))
