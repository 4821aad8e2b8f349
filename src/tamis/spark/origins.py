"""Where rows come from: brokers over the wire, or a store's directory. What there is to read, from
where to where, asked on the driver; the reading itself is `fetching`'s, on executors.
"""

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, Protocol, TypeVar

from ..client import offsets as client_offsets
from ..client.admin import Admin
from ..client.config import SYSTEM_TOPICS, ClientConfig
from ..client.routes import MASTER
from ..client.session import Session
from ..errors import ConfigError, Error, ResponseError, TopicNotFound, Unreachable
from ..security.settings import fields_of
from ..wire import beans, headers
from ..wire.bodies import MessageQueue, TopicStats
from ..wire.codes import RequestCode
from .offsets import Bounds, Range
from .options import EARLIEST, LATEST, Options, Place, Time
from .ranges import LogRange, WireRange

__all__ = ["Origin", "open_origin", "placed"]

log = logging.getLogger(__name__)
T = TypeVar("T")

_ROUTES_LAST: Final = 2.0  # seconds before the name server is asked again for queues
_COMMIT_PAUSE: Final = 5.0  # after one that failed
_FIRST_PAUSE: Final = 0.2  # before a question is asked again; then twice as long each time


class Origin(Protocol):
    def bounds(self) -> dict[MessageQueue, Bounds]:
        """Of all queues there are at present. Raises Error, TimeoutError."""

    def offset_at(self, queue: MessageQueue, millis: int) -> int: ...

    def partition(self, one: Range) -> WireRange | LogRange: ...

    def in_a_file(self, queue: MessageQueue) -> int | None:
        """Messages of it that lie together, if they do: from a multiple of it on."""

    def is_gone(self, queue: MessageQueue) -> bool:
        """Of one that was there: it will not come back, as far as can be known."""

    def commit(self, offsets: Mapping[MessageQueue, int]) -> None:
        """For the group, if there is one."""

    def close(self) -> None: ...


def open_origin(options: Options) -> Origin:
    return Directory(options) if options.root else Brokers(options)


def placed(
    origin: Origin, place: Place, bounds: Mapping[MessageQueue, Bounds], option: str
) -> dict[MessageQueue, int]:
    """Offsets for all queues of `bounds`. Raises ConfigError for a queue that is not named, or that
    is and does not exist."""
    if isinstance(place, Mapping):
        for queue in bounds.keys() - place.keys():
            raise ConfigError(
                f"option {option} says nothing of {queue}: name every queue, -2 is its beginning,"
                " -1 its end"
            )
        for queue in place.keys() - bounds.keys():
            raise ConfigError(f"option {option} names {queue}, which is not there to be read")
        return {queue: _offset(origin, queue, place[queue], bounds[queue]) for queue in bounds}
    return {queue: _offset(origin, queue, place, bounds[queue]) for queue in bounds}


def _offset(origin: Origin, queue: MessageQueue, place: int | Time, bounds: Bounds) -> int:
    if isinstance(place, Time):  # asked later than the bounds: more may have come since
        return min(max(origin.offset_at(queue, place.millis), bounds.first), bounds.end)
    if place in (EARLIEST, LATEST):
        return bounds.first if place == EARLIEST else bounds.end
    return place


class Brokers:
    """Over the wire. It has a loop of its own, run only while a question is asked."""

    def __init__(self, options: Options) -> None:
        self._options = options
        config = ClientConfig(
            **fields_of(options.security),
            timeout=options.timeout,
            connect_timeout=options.timeout,
            heartbeat_interval=3600.0,  # it is no member of anything
        )
        self._runner = asyncio.Runner()
        self._session = Session("source", options.nameserver, config)
        self._admin = Admin(options.nameserver, config=config)
        self._queues: list[MessageQueue] = []
        self._asked = 0.0  # when they were
        self._seen: set[str] = set()  # topics
        self._committed: dict[MessageQueue, int] = {}
        self._commits_from = 0.0  # not before then, after one that failed
        self._run(self._start, once=True)

    async def _start(self) -> None:
        await self._session.start()
        await self._admin.start()

    def _run(self, work: Callable[[], Awaitable[T]], *, once: bool = False) -> T:
        """What fails for want of an answer is tried again: brokers are restarted now and then."""

        async def run() -> T:
            return await work()

        pause, left = _FIRST_PAUSE, 0 if once else self._options.retries
        while True:
            try:
                return self._runner.run(run())
            except (Unreachable, TimeoutError, ResponseError) as error:
                is_final = isinstance(error, ResponseError) and not error.retriable
                if left == 0 or is_final or isinstance(error, TopicNotFound):
                    raise
                log.info("asked again in %.1f s: %s", pause, error)
                time.sleep(pause)
                left, pause = left - 1, min(2 * pause, 5.0)

    def bounds(self) -> dict[MessageQueue, Bounds]:
        return self._run(self._bounds)

    async def _bounds(self) -> dict[MessageQueue, Bounds]:
        if time.monotonic() - self._asked > _ROUTES_LAST:
            self._queues = await self._find_queues()
            self._asked = time.monotonic()
        routes = self._session.routes
        queues = [one for one in self._queues if routes.known_address(one.broker_name) is not None]
        places = sorted({(queue.topic, queue.broker_name) for queue in queues})
        tables = await asyncio.gather(*(self._stats(*place) for place in places))
        known = {queue: one for table in tables for queue, one in table.items()}
        for queue in queues:
            if queue not in known:  # read, but not written any more: not in the statistics
                first = await client_offsets.first_offset(self._session, queue)
                known[queue] = Bounds(first, await client_offsets.last_offset(self._session, queue))
        return {queue: known[queue] for queue in queues}

    async def _find_queues(self) -> list[MessageQueue]:
        options, routes = self._options, self._session.routes
        if options.assigned:
            topics: Iterable[str] = {queue.topic for queue in options.assigned}
        elif options.pattern:
            every = await self._admin.topics()
            topics = [name for name in every if _fits(name, options.pattern)]
        else:
            topics = options.topics
        found: list[MessageQueue] = []
        for topic in sorted(topics):
            try:
                await routes.get(topic, fresh=True)
            except TopicNotFound:
                if topic not in self._seen:
                    raise
                continue  # its brokers are away, or it is gone
            found += await routes.read_queues(topic)
        for queue in options.assigned:
            if queue not in found and queue.topic not in self._seen:
                raise ConfigError(f"option assign names {queue}, which is not there to be read")
        self._seen.update(queue.topic for queue in found)
        if options.assigned:
            return [queue for queue in options.assigned if queue in found]
        return sorted(found)

    def in_a_file(self, queue: MessageQueue) -> int | None:
        return None

    def is_gone(self, queue: MessageQueue) -> bool:
        return self._run(lambda: self._is_gone(queue))

    async def _is_gone(self, queue: MessageQueue) -> bool:
        """It is away if its broker is. That is asked first: a broker comes back with its queues."""
        routes = self._session.routes
        data = (await routes.cluster()).brokers.get(queue.broker_name)
        if data is None or MASTER not in data.addresses:
            return False
        try:
            await routes.get(queue.topic, fresh=True)
            return queue not in await routes.read_queues(queue.topic)
        except TopicNotFound:
            return True

    async def _stats(self, topic: str, broker: str) -> dict[MessageQueue, Bounds]:
        address = await self._session.routes.master(broker)
        header, code = headers.OfTopic(topic=topic), RequestCode.GET_TOPIC_STATS_INFO
        answer = await self._session.ask(address, header, code=code)
        return {
            queue: Bounds(max(one.min_offset, 0), max(one.max_offset, 0))
            for queue, one in beans.decode(TopicStats, answer.body).queues.items()
        }

    def offset_at(self, queue: MessageQueue, millis: int) -> int:
        return self._run(lambda: client_offsets.offset_at(self._session, queue, millis))

    def partition(self, one: Range) -> WireRange:
        routes = self._session.routes
        known = routes.known(one.queue.topic)
        if known is None:  # a batch that was planned before this process was
            with contextlib.suppress(TopicNotFound):
                known = self._run(lambda: routes.get(one.queue.topic))
        every = known.brokers if known is not None else []
        brokers = [data for data in every if data.broker_name == one.queue.broker_name]
        addresses = [at for data in brokers for _, at in sorted(data.addresses.items())]
        if not addresses:
            why = "the name server does not know it: is it running?"
            raise Unreachable("broker", one.queue.broker_name, why)
        return WireRange(
            queue=one.queue,
            start=one.start,
            end=one.end,
            addresses=tuple(addresses),
        )

    def commit(self, offsets: Mapping[MessageQueue, int]) -> None:
        """What fails is told and left: the offsets come again with the next batch."""
        group = self._options.group
        news = {q: at for q, at in offsets.items() if self._committed.get(q) != at}
        if not group or not news or time.monotonic() < self._commits_from:
            return
        saved = client_offsets.BrokerOffsets(self._session, group)
        try:
            self._run(lambda: saved.save(news), once=True)
            self._committed.update(news)
        except (Error, TimeoutError) as error:
            log.warning("group %s: offsets are not committed: %s", group, error)
            self._commits_from = time.monotonic() + _COMMIT_PAUSE

    def close(self) -> None:
        async def close() -> None:
            await self._session.close()
            await self._admin.close()

        self._runner.run(close())
        self._runner.close()


# What users may send to, or 5.x added, is not among those the client refuses.
_OF_ROCKETMQ: Final = SYSTEM_TOPICS | {
    *("RMQ_SYS_TRACE_TOPIC", "TBW102", "BenchmarkTest", "rmq_sys_wheel_timer")
}


def _fits(topic: str, pattern: str) -> bool:
    if topic in _OF_ROCKETMQ or topic.startswith(("%RETRY%", "rmq_sys_")):
        return False
    return re.fullmatch(pattern, topic) is not None


class Directory:
    """A store's, of a broker that runs or not. Topics that RocketMQ keeps for itself, and retries,
    are read only if they are named."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def bounds(self) -> dict[MessageQueue, Bounds]:
        from .fetching import log_bounds

        options, broker = self._options, self._options.broker or ""
        wanted = {*options.topics} or {queue.topic for queue in options.assigned}
        found = log_bounds(options.root, wanted.__contains__ if wanted else self._is_wanted)
        there = {
            MessageQueue(topic, broker, number): Bounds(*bounds)
            for (topic, number), bounds in sorted(found.items())
        }
        if options.assigned:
            for queue in options.assigned:
                if queue not in there:
                    raise ConfigError(f"option assign names {queue}, which {options.root} has not")
            return {queue: there[queue] for queue in options.assigned}
        topics = {queue.topic for queue in there}
        for topic in options.topics:
            if topic not in topics:
                raise ConfigError(f"{options.root}: there is no topic {topic} in this store")
        return there

    def _is_wanted(self, topic: str) -> bool:
        options = self._options
        return topic in options.topics if options.topics else _fits(topic, options.pattern or ".*")

    def in_a_file(self, queue: MessageQueue) -> int | None:
        from .fetching import log_units_a_file

        return log_units_a_file(self._options.root, queue.topic, queue.queue_id)

    def is_gone(self, queue: MessageQueue) -> bool:
        return True

    def offset_at(self, queue: MessageQueue, millis: int) -> int:
        from .fetching import log_offset_at

        return log_offset_at(self._options.root, queue.topic, queue.queue_id, millis)

    def partition(self, one: Range) -> LogRange:
        return LogRange(
            root=self._options.root,
            broker=self._options.broker,
            topic=one.queue.topic,
            queue_id=one.queue.queue_id,
            start=one.start,
            end=one.end,
        )

    def commit(self, offsets: Mapping[MessageQueue, int]) -> None: ...

    def close(self) -> None: ...
