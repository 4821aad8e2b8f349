"""Long requests and many requests: others are served meanwhile, and each connection in its turn."""

import asyncio
import threading
from itertools import count

import pytest
from net.harness import run, serving, stream, until

from tamis.net.longwork import Steps, in_order, stepwise
from tamis.net.server import Answer, Request, Route, needless_header
from tamis.wire.command import Command

ECHO, SLOW, STEPS, CALL, ORDERED, FAILING = range(1000, 1006)
COUNT = 20_000


def busy(rounds: int = 300) -> None:
    """A few microseconds of work."""
    for _ in range(rounds):
        pass


class Seen:
    def __init__(self) -> None:
        self.served = 0
        self.steps: list[int] = []  # by whom, in their order
        self.threads: set[str] = set()
        self.order: list[str] = []
        self.is_enough = False  # ends the requests that go on until then


def routes(seen: Seen) -> dict[int, Route]:
    def slow(request: Request) -> Answer:
        busy()
        seen.served += 1
        return Answer()

    @stepwise
    def steps(header: None, request: Request) -> Steps[Answer]:
        until_enough = request.body == b"until enough"
        for _ in count() if until_enough else range(COUNT):
            if seen.is_enough:
                break
            busy(100)
            seen.steps.append(request.peer.address[1])
            yield None
        return Answer(body=b"done")

    @stepwise
    def call(header: None, request: Request) -> Steps[Answer]:
        def compute() -> str:
            seen.threads.add(threading.current_thread().name)
            if request.body == b"fail":
                raise ValueError("no")
            return "42"

        try:
            found = yield compute
        except ValueError:
            found = "failed"
        return Answer(body=found.encode())

    @in_order
    def ordered(header: None, request: Request) -> Steps[Answer]:
        name = request.body.decode()
        seen.order.append(f"{name} begins")
        while name == "first" and "other ends" not in seen.order:
            busy(100)
            yield None
        yield None
        seen.order.append(f"{name} ends")
        return Answer()

    @stepwise
    def failing(header: None, request: Request) -> Steps[Answer]:
        for _ in range(COUNT):
            yield None
        raise RuntimeError("at last")

    return {
        ECHO: Route(None, needless_header(lambda request: Answer(body=request.body))),
        SLOW: Route(None, needless_header(slow)),
        STEPS: Route(None, steps),
        CALL: Route(None, call),
        ORDERED: Route(None, ordered),
        FAILING: Route(None, failing),
    }


def test_a_stream_of_requests_is_served_in_turn_with_others() -> None:
    seen = Seen()

    async def main() -> None:
        async with (
            serving(routes(seen)) as (server, address),
            stream(address) as greedy,
            stream(address) as other,
        ):

            async def flood() -> int:
                sent = 0
                while not seen.is_enough:
                    greedy.send(*(Command(code=SLOW, opaque=sent + i) for i in range(500)))
                    sent += 500
                    await greedy.writer.drain()
                return sent

            async def read_answers() -> None:
                for i in count():  # all are answered, in their order
                    assert (await greedy.answer()).opaque == i
                    if flooding.done() and i + 1 == flooding.result():
                        return

            flooding = asyncio.create_task(flood())
            reading = asyncio.create_task(read_answers())
            await until(lambda: seen.served > 2000, lambda: seen.served)
            other.send(Command(code=ECHO, opaque=7, body=b"x"))
            assert (await other.answer()).body == b"x"
            seen.is_enough = True
            await reading
            assert not server._in_turn

    run(main())


def test_a_request_in_steps_lets_others_be_served() -> None:
    seen = Seen()

    async def main() -> None:
        async with (
            serving(routes(seen)) as (_, address),
            stream(address) as greedy,
            stream(address) as other,
        ):
            greedy.send(Command(code=STEPS, opaque=1, body=b"until enough"))
            await until(lambda: len(seen.steps) > 0, lambda: len(seen.steps))
            other.send(Command(code=ECHO, opaque=7))
            await other.answer()
            seen.is_enough = True
            assert (await greedy.answer()).body == b"done"

    run(main())


def test_long_requests_take_turns_by_connection_however_many_one_sends() -> None:
    """Ten of one connection's, which do not end before the other's only one, take about as many
    steps as that one meanwhile."""
    seen = Seen()

    async def main() -> None:
        async with (
            serving(routes(seen)) as (_, address),
            stream(address) as greedy,
            stream(address) as other,
        ):
            greedy.send(*(Command(code=STEPS, opaque=i, body=b"until enough") for i in range(10)))
            await until(lambda: len(seen.steps) > 0, lambda: len(seen.steps))
            port = other.writer.get_extra_info("sockname")[1]
            other.send(Command(code=STEPS, opaque=7))
            assert (await other.answer()).body == b"done"
            seen.is_enough = True
            for _ in range(10):
                await greedy.answer()
            first = seen.steps.index(port)
            last = len(seen.steps) - seen.steps[::-1].index(port)
            assert last - first < 5 * COUNT  # turns are short times, not steps

    run(main())


def test_a_function_is_called_in_another_thread_and_its_error_is_the_steps() -> None:
    seen = Seen()

    async def main() -> None:
        async with serving(routes(seen)) as (_, address), stream(address) as client:
            for body, found in ((b"", b"42"), (b"fail", b"failed")):
                client.send(Command(code=CALL, opaque=1, body=body))
                assert (await client.answer()).body == found

    run(main())
    [name] = seen.threads
    assert name.startswith("tamis-long")


def test_requests_in_order_do_not_overtake_each_other() -> None:
    seen = Seen()

    async def main() -> None:
        async with (
            serving(routes(seen)) as (_, address),
            stream(address) as client,
            stream(address) as other,
        ):
            client.send(
                Command(code=ORDERED, opaque=1, body=b"first"),
                Command(code=ORDERED, opaque=2, body=b"second"),
            )
            await until(lambda: bool(seen.order), lambda: seen.order)
            other.send(Command(code=ORDERED, opaque=3, body=b"other"))  # another's order
            await other.answer()
            assert {(await client.answer()).opaque for _ in range(2)} == {1, 2}

    run(main())
    mine = [one for one in seen.order if not one.startswith("other")]
    assert mine == ["first begins", "first ends", "second begins", "second ends"]
    assert seen.order.index("other ends") < seen.order.index("first ends")


def test_steps_that_fail_late_are_answered_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with serving(routes(Seen())) as (_, address), stream(address) as client:
            client.send(Command(code=FAILING, opaque=1))
            answer = await client.answer()
            assert (answer.code, answer.remark) == (1, "RuntimeError: at last")

    run(main())
    assert f"request {FAILING} failed" in caplog.text


def test_steps_of_a_connection_that_is_gone_are_given_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen = Seen()

    async def main() -> None:
        async with serving(routes(seen)) as (server, address):
            async with stream(address) as client:
                client.send(*(Command(code=STEPS, opaque=i) for i in range(50)))
                await until(lambda: len(seen.steps) > 0, lambda: len(seen.steps))
            await until(lambda: not server.tasks, lambda: server.tasks)
            assert len(seen.steps) < 50 * COUNT

    run(main())
    assert not caplog.records


def test_a_connection_with_many_requests_under_way_waits_for_some_to_end() -> None:
    release = asyncio.Event()
    begun = 0

    async def wait(request: Request) -> Answer:
        nonlocal begun
        begun += 1
        await release.wait()
        return Answer()

    async def main() -> None:
        table = routes(Seen()) | {SLOW: Route(None, needless_header(wait))}
        async with (
            serving(table) as (server, address),
            stream(address) as client,
            stream(address) as other,
        ):
            client.send(*(Command(code=SLOW, opaque=i) for i in range(1000)))
            await until(lambda: begun == 256, lambda: begun)
            other.send(Command(code=ECHO, opaque=7))
            await other.answer()
            assert begun == 256 == server.tasks
            release.set()
            assert {(await client.answer()).opaque for _ in range(1000)} == set(range(1000))

    run(main())
