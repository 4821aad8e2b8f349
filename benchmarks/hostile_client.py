"""The well-behaved client beside an attack, and the search for what was acknowledged.

    python hostile_client.py BROKER NAMESERVER

It runs in a process of its own so that nothing but the server and the machine slows it down. Fifty
times a second it sends a message and waits until it is acknowledged, then pulls it and compares it;
every fifth time it asks the name server for the route. It prints `ready` once it is under way. For
each line on its standard input it prints a line of JSON with what happened since the one before (a
`Report`), and at the end of the input it ends. A request that is not answered within ten seconds
counts with those ten.
"""

import asyncio
import gc
import json
import sys
import threading
import time
import zlib
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

from hostile_wire import Ack, ack_of, create_topic, messages_of, pull, request, send

from tamis.errors import RemoteProtocolError
from tamis.net import aio
from tamis.wire.codes import ResponseCode
from tamis.wire.command import Command
from tamis.wire.headers import GetRoute

__all__ = ["INTERVALS", "Report", "find_missing"]

TOPIC, QUEUES, SIZE = "Neighbour", 4, 200
RATE = 50  # a second
ROUTE_EVERY = 5  # rounds
WARM = 50  # of its rounds are not measured
INTERVALS = {"send": 1000 / RATE, "pull": 1000 / RATE, "route": 1000 / RATE * ROUTE_EVERY}  # ms
ANSWER_SECONDS = 10.0
HOLD_SECONDS = 5.0  # a pull may wait so long for a message that is already acknowledged
SEARCH_SECONDS = 60.0  # for one pull, when what was acknowledged is searched for
SEARCHER = "TOOLS_CONSUMER"  # a group that every broker has: attackers may have used up the quota


@dataclass
class Report:
    """Latencies are in milliseconds. `faults` are requests that failed, by what was wrong."""

    send: list[float] = field(default_factory=list)
    pull: list[float] = field(default_factory=list)
    route: list[float] = field(default_factory=list)
    acks: list[Ack] = field(default_factory=list)
    refusals: dict[str, int] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)


class _Failed(Exception):
    """Raised with what was wrong with an answer, or with why there was none."""


class _Refused(_Failed):
    """Raised for an answer that is an error."""


class Neighbour:
    def __init__(self, broker: str, nameserver: str) -> None:
        self._addresses = {"broker": broker, "nameserver": nameserver}
        self._peers: dict[str, aio.Peer] = {}
        self._number = 0
        self._asked = threading.Semaphore(0)  # reports that are waited for
        self.report = Report()
        self.is_over = False

    async def run(self) -> None:
        await self._ask("broker", create_topic(TOPIC, QUEUES))
        await self._wait_for_route()
        for _ in range(WARM):
            await self._round()
        if self.report.faults:
            raise _Failed(f"before the attack: {self.report.faults}")
        self.report = Report(acks=self.report.acks)
        print("ready", flush=True)
        threading.Thread(target=self._listen, daemon=True).start()
        gc.disable()
        due = time.monotonic()
        while not self.is_over:
            await self._round()
            if self._asked.acquire(blocking=False):
                print(json.dumps(asdict(self.report)), flush=True)
                self.report = Report()
            due = max(due + 1 / RATE, time.monotonic())  # what was delayed is not made up for
            await asyncio.sleep(due - time.monotonic())

    def _listen(self) -> None:
        for _ in sys.stdin:
            self._asked.release()
        self.is_over = True

    async def _wait_for_route(self) -> None:
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            try:
                await self._ask("nameserver", _route())
                return
            except _Refused:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.05)

    async def _round(self) -> None:
        self._number += 1
        body = f"{self._number}:".encode().ljust(SIZE, b".")
        try:
            answer = await self._timed("send", send(TOPIC, self._number % QUEUES, body))
            ack = ack_of(TOPIC, body, answer)
            self.report.acks.append(ack)
            _, queue_id, offset, _ = ack
            pulled = pull(TOPIC, queue_id, offset, group="neighbour", count=1, hold=HOLD_SECONDS)
            answer = await self._timed("pull", pulled)
            if list(messages_of(answer.body)) != [(offset, body)]:
                raise _Failed("pull: another message than the one acknowledged there")
            if self._number % ROUTE_EVERY == 0:
                await self._timed("route", _route())
        except _Refused as error:
            self._count(self.report.refusals, error)
        except _Failed as error:
            self._count(self.report.faults, error)

    @staticmethod
    def _count(counts: dict[str, int], error: Exception) -> None:
        counts[str(error)] = counts.get(str(error), 0) + 1

    async def _timed(self, what: str, command: Command) -> Command:
        since = time.monotonic()
        peer = "nameserver" if what == "route" else "broker"
        try:
            return await self._ask(peer, command)
        except _Failed as error:
            raise type(error)(f"{what}: {error}") from None
        finally:
            getattr(self.report, what).append(round((time.monotonic() - since) * 1000, 3))

    async def _ask(self, name: str, command: Command) -> Command:
        """Raises _Refused or _Failed."""
        try:
            peer = self._peers.get(name)
            if peer is None or peer.is_closed:
                peer = await aio.connect(self._addresses[name], ANSWER_SECONDS)
                self._peers[name] = peer
            answer = await peer.ask(command, ANSWER_SECONDS)
        except TimeoutError:
            raise _Failed(f"no answer within {ANSWER_SECONDS:g} s") from None
        except (ConnectionError, RemoteProtocolError) as error:
            await asyncio.sleep(0.05)  # before it connects again
            raise _Failed(type(error).__name__) from None
        if answer.code != ResponseCode.SUCCESS:
            raise _Refused(f"{answer.code} {(answer.remark or '').partition(chr(10))[0][:100]}")
        return answer


def _route() -> Command:
    return request(GetRoute(topic=TOPIC, accept_standard_json_only=True))


# What was acknowledged.


def find_missing(broker: str, acks: Iterable[Ack]) -> list[str]:
    """Pull every message that was acknowledged; returns a line for each that is not there.

    Raises ConnectionError or TimeoutError if the server does not answer.
    """
    return asyncio.run(_find_missing(broker, acks))


async def _find_missing(broker: str, acks: Iterable[Ack]) -> list[str]:
    queues: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)
    for topic, queue_id, offset, crc in acks:
        queues[topic, queue_id][offset] = crc
    peer = await aio.connect(broker, SEARCH_SECONDS)
    # a few queues at a time: a server answers others too
    turns = asyncio.Semaphore(8)

    async def search(topic: str, queue_id: int, wanted: dict[int, int]) -> list[str]:
        async with turns:
            left = await _search(peer, topic, queue_id, wanted)
        return [f"{topic} queue {queue_id} offset {offset}: {why}" for offset, why in left.items()]

    try:
        found = await asyncio.gather(*(search(*key, wanted) for key, wanted in queues.items()))
    finally:
        peer.close()
    return [line for lines in found for line in lines]


async def _search(
    peer: aio.Peer, topic: str, queue_id: int, wanted: dict[int, int]
) -> dict[int, str]:
    """Read a queue from the first offset wanted to the last; returns what is wrong at each."""
    found: dict[int, int] = {}
    refusals: dict[int, str] = {}
    order = sorted(wanted)
    at = 0
    while at < len(order):
        offset = order[at]
        answer = await peer.ask(pull(topic, queue_id, offset, group=SEARCHER), SEARCH_SECONDS)
        if answer.code == ResponseCode.SUCCESS:
            found |= {one: zlib.crc32(body) for one, body in messages_of(answer.body)}
            offset = max(found)
        else:
            refusals[offset] = f"{answer.code} {(answer.remark or '')[:80]}"
        at = bisect_right(order, offset)
    return {
        one: "another message" if one in found else refusals.get(one, "passed over")
        for one, crc in wanted.items()
        if found.get(one) != crc
    }


def main() -> None:
    try:
        with asyncio.Runner(loop_factory=aio.loop_factory()) as runner:
            runner.run(Neighbour(*sys.argv[1:]).run())
    except _Failed as error:
        sys.exit(f"hostile_client: {error}")


if __name__ == "__main__":
    main()
