"""A worker's questions to filter servers about ranges of messages."""

import asyncio
from typing import Any

import numpy as np
from filterserver.consuming import EVEN, RARE, numbers, run, standing

from tamis.filter import Outcome
from tamis.spark import codejudges
from tamis.spark.codejudges import UNKNOWN, CodeJudges

FALSE, TRUE, ERROR = (int(one) for one in (Outcome.FALSE, Outcome.TRUE, Outcome.ERROR))
QUEUE = ("T", "broker-a", 0)


async def ask(judges: CodeJudges, offsets: Any, name: str = "Even", group: str = "G") -> Any:
    """Return outcomes and the reason, asked in a thread as a worker does."""
    wanted = np.array(offsets, np.int64)
    said, why = await asyncio.to_thread(judges.outcomes, group, name, QUEUE, wanted)
    return said.tolist(), why


def test_outcomes_are_those_of_the_messages_that_were_asked_about() -> None:
    async def work() -> None:
        async with standing() as (_, server, client):
            await client.send(*numbers(10), b"x", *numbers(5000))
            await client.upload(EVEN, "Even")
            judges = CodeJudges({"broker-a": (server.address,)})
            said = await ask(judges, [3, 4, 9, 10, 11, 5000])
            assert said == ([FALSE, TRUE, FALSE, ERROR, TRUE, FALSE], "")
            # what failed was delivered, where the server passes it on
            server.ranges._config = server.config.__class__(broker="127.0.0.1:1", on_error="pass")
            assert await ask(judges, [10]) == ([TRUE], "")
            judges.close()

    run(work())


def test_a_long_stretch_takes_several_requests(monkeypatch: Any) -> None:
    monkeypatch.setattr(codejudges, "_SECONDS", 0.0)  # a batch for each

    async def work() -> None:
        async with standing(batch=500) as (_, server, client):
            await client.send(*numbers(4000))
            await client.upload(RARE, "Rare")
            judges = CodeJudges({"broker-a": (server.address,)})
            offsets = np.arange(17, 4000)
            said, why = await asyncio.to_thread(judges.outcomes, "G", "Rare", QUEUE, offsets)
            # each message has its number among 500 that were sent together
            pulled = (await client.consume())[1]
            matched = [int(one) for one in offsets[said == TRUE]]
            assert (why, pulled) == ("", 4000)
            assert matched == [999, 1999, 2999, 3999]
            assert set(said.tolist()) == {TRUE, FALSE}
            judges.close()

    run(work())


def test_a_busy_server_is_waited_for() -> None:
    async def work() -> None:
        async with standing() as (_, server, client):
            await client.send(*numbers(4))
            await client.upload(EVEN, "Even")
            server.ranges._under_way = 4
            pauses = []

            def sleep(seconds: float) -> None:
                pauses.append(seconds)
                if len(pauses) == 3:
                    server.ranges._under_way = 0

            judges = CodeJudges({"broker-a": (server.address,)}, sleep=sleep)
            assert await ask(judges, range(4)) == ([TRUE, FALSE, TRUE, FALSE], "")
            assert len(pauses) == 3
            # and not for ever
            server.ranges._under_way = 4
            now = [0.0]
            patient = CodeJudges(
                {"broker-a": (server.address,)},
                clock=lambda: now[0],
                sleep=lambda seconds: now.__setitem__(0, now[0] + 100),
            )
            said, why = await ask(patient, range(4))
            assert said == [UNKNOWN] * 4
            assert "4 ranges are being judged already" in why
            server.ranges._under_way = 0
            judges.close()
            patient.close()

    run(work())


def test_the_server_that_has_the_class_is_found_and_others_are_passed_over() -> None:
    async def work() -> None:
        async with standing() as (_, server, client):
            await client.send(*numbers(2))
            await client.upload(EVEN, "Even")
            judges = CodeJudges({"broker-a": ("127.0.0.1:1", server.address)})
            for _ in range(2):
                assert await ask(judges, range(2)) == ([TRUE, FALSE], "")
            judges.close()

    run(work())


def test_the_reason_names_the_class_and_what_to_do() -> None:
    async def work() -> None:
        async with standing() as (_, server, client):
            await client.send(*numbers(2))
            await client.upload(EVEN, "Even")
            [even] = server.classes
            here = (server.address,)
            judges = CodeJudges({"broker-a": here, "none": (), "store": None})
            said, why = await ask(judges, [0, 1], name="Odd")
            assert said == [UNKNOWN, UNKNOWN]
            assert "does not have class Odd of the group; connect a member of G" in why
            # a version that is known to have been in force
            crc = even.identity.crc
            assert await ask(judges, [0, 1], name=f"Even#{crc}") == ([TRUE, FALSE], "")
            said, why = await ask(judges, [0, 1], name=f"Even#{crc + 1}")
            assert said == [UNKNOWN, UNKNOWN]
            assert f"another version now (checksum {crc}) than it was then ({crc + 1})" in why
            for broker, words in (
                ("none", "none can't be asked what class Even of G says, for it has no filter "
                 "server; start a filter server beside it and connect a member of G"),
                ("store", "a store's files do not tell what class Even of G says; audit over"),
            ):  # fmt: skip
                queue = ("T", broker, 0)
                unknown, why = judges.outcomes("G", "Even", queue, np.arange(2))
                assert unknown.tolist() == [UNKNOWN, UNKNOWN]
                assert why.startswith(words)
            judges.close()

    run(work())


def test_what_was_refused_is_not_asked_again() -> None:
    async def work() -> None:
        async with standing() as (_, server, client):
            await client.send(*numbers(2))
            judges = CodeJudges({"broker-a": (server.address,)})
            _, why = await ask(judges, [0, 1])
            await client.upload(EVEN, "Even")
            assert await ask(judges, [0, 1]) == ([UNKNOWN, UNKNOWN], why)
            # another worker's partition begins anew
            again = CodeJudges({"broker-a": (server.address,)})
            assert await ask(again, [0, 1]) == ([TRUE, FALSE], "")
            judges.close()
            again.close()

    run(work())
