"""Background tasks: whatever becomes of them is logged and counted, and they go on."""

import asyncio
import logging

import pytest
from net.harness import run, until

from tamis.net import tasks
from tamis.net.tasks import Tasks


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_FIRST_PAUSE", 0.001)


def test_a_task_that_fails_is_logged_counted_and_started_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    begun = 0

    async def work() -> None:
        nonlocal begun
        begun += 1
        if begun < 3:
            raise ZeroDivisionError(f"attempt {begun}")
        await asyncio.Event().wait()

    async def main() -> None:
        watched = Tasks()
        watched.keep("chore", work)
        await until(lambda: begun == 3, lambda: begun)
        assert watched.restarts == {"chore": 2}
        assert watched.failures == {"chore": 2}
        assert len(watched) == 1
        await watched.close()
        assert len(watched) == 0

    run(main())
    first, second = caplog.records
    assert first.levelno == logging.ERROR
    assert "background task 'chore' failed (ZeroDivisionError('attempt 1'))" in first.getMessage()
    assert first.exc_info is not None
    assert isinstance(first.exc_info[1], ZeroDivisionError)
    assert "attempt 2" in second.getMessage()


def test_a_task_that_ends_by_itself_is_started_again(caplog: pytest.LogCaptureFixture) -> None:
    begun = 0

    async def work() -> None:
        nonlocal begun
        begun += 1
        if begun == 2:
            await asyncio.Event().wait()

    async def main() -> None:
        watched = Tasks()
        watched.keep("chore", work)
        await until(lambda: begun == 2, lambda: begun)
        await watched.close()
        assert watched.restarts == {"chore": 1}

    run(main())
    assert "background task 'chore' ended; it is started again" in caplog.text


def test_a_cancelled_future_is_a_failure_and_no_end(caplog: pytest.LogCaptureFixture) -> None:
    """What a task waits for was cancelled, and not the task."""
    begun = 0

    async def work() -> None:
        nonlocal begun
        begun += 1
        waiting = asyncio.get_running_loop().create_future()
        if begun == 1:
            waiting.cancel()
        await waiting

    async def main() -> None:
        watched = Tasks()
        watched.keep("chore", work)
        await until(lambda: begun == 2, lambda: begun)
        await watched.close()
        assert len(watched) == 0

    run(main())
    assert "CancelledError" in caplog.text


def test_a_task_that_runs_once_is_logged_if_it_fails(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        raise RuntimeError("no use")

    async def main() -> None:
        watched = Tasks()
        watched.spawn("errand", work())
        await until(lambda: watched.failures == {"errand": 1}, lambda: watched.failures)
        assert not watched.restarts
        assert len(watched) == 0

    run(main())
    assert "task 'errand' failed: RuntimeError('no use')" in caplog.text
