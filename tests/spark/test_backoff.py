"""How long a writer waits before it tries again."""

import asyncio
import socket

import pytest

from tamis.client.backoff import pause_before
from tamis.errors import Unreachable
from tamis.spark import writer
from tamis.spark.write_options import WriteOptions


def test_a_writer_with_many_retries_never_pauses_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    def note(attempt: int, first: float, longest: float) -> float:
        pauses.append(pause_before(attempt, first, longest))
        return 0.0

    with socket.create_server(("127.0.0.1", 0)) as closed:
        nobody = f"127.0.0.1:{closed.getsockname()[1]}"
    options = WriteOptions(nameserver=nobody, topic="orders", retries=20, timeout=1.0)
    monkeypatch.setattr(writer, "pause_before", note)
    with pytest.raises(Unreachable):
        asyncio.run(writer._ensure_again(options))
    assert len(pauses) == 20
    assert max(pauses) <= 10.0
    assert sum(pauses) < 200.0
