"""A load on a broker: producers, members of groups, and a journal of what they did.

A message's body says whose it is and which one; its tag and properties follow from that, so that
who is to get it is known without keeping it. What is kept is a few bytes a message: a soak sends
millions. A producer sends again what was not acknowledged, in order; a member of a group goes on
from what its group has committed; both come back when their connection is gone.
"""

import asyncio
import contextlib
import random
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from broker.asking import (
    PATIENCE,
    Refused,
    ask,
    close,
    command,
    messages_of,
    pull_request,
    send_request,
)

from tamis.message import StoredMessage
from tamis.net import aio
from tamis.net.aio import Peer
from tamis.wire import beans, properties, record
from tamis.wire.bodies import (
    ConsumerData,
    ConsumerIds,
    Heartbeat,
    ProducerData,
    Subscription,
)
from tamis.wire.codes import RequestCode, ResponseCode
from tamis.wire.command import Command
from tamis.wire.frame import Encoding
from tamis.wire.headers import (
    EndTransaction,
    OfConsumerGroup,
    OffsetResponse,
    PullMessageResponse,
    QueryConsumerOffset,
    SendMessageBack,
    SendMessageResponse,
    UnregisterClient,
    UpdateConsumerOffset,
)

_RECONNECT = 0.05
_HOLD = 10.0  # seconds a pull may wait at the broker
_COMMIT, _ROLLBACK = 8, 12

# What a message is like.

TAGS = ("red", "green", "blue", "grey", "black")


class Id(NamedTuple):
    """A message: the producer's number and its own."""

    producer: int
    number: int

    def body(self, size: int = 0) -> bytes:
        return f"{self.producer}:{self.number}:".encode().ljust(size, b".")

    @classmethod
    def of(cls, body: bytes) -> "Id":
        producer, number, _ = body.split(b":", 2)
        return cls(int(producer), int(number))


def properties_of(number: int) -> dict[str, str]:
    region = "eu" if number % 3 else "us"
    return {"TAGS": TAGS[number % 5], "n": str(number % 100), "region": region}


@dataclass(frozen=True)
class Group:
    """`wants` is the filter in Python. `own`: each pull brings the filter, else heartbeats do."""

    name: str
    topic: str
    queues: int
    expression: str = "*"
    expression_type: str = "TAG"
    wants: Callable[[int], bool] = lambda number: True
    own: bool = False

    @property
    def retry_topic(self) -> str:
        return f"%RETRY%{self.name}"

    def subscriptions(self) -> list[Subscription]:
        tags = [tag.strip() for tag in self.expression.split("||")]
        is_tags = self.expression_type == "TAG" and self.expression != "*"
        mine = Subscription(
            topic=self.topic,
            expression=self.expression,
            expression_type=self.expression_type,
            version=1,
            tags=tags if is_tags else [],
        )
        return [mine, Subscription(topic=self.retry_topic, expression="*", version=1)]


def groups_on(topic: str, queues: int) -> list[Group]:
    """Everything, by tag, by SQL; the filter by heartbeat and in the pull."""

    def by_sql(number: int) -> bool:
        return number % 100 < 40 and number % 3 != 0

    sql = "n < 40 AND region = 'eu'"
    return [
        Group("all", topic, queues),
        Group("tag", topic, queues, "red || blue", wants=lambda number: number % 5 in (0, 2)),
        Group("sql", topic, queues, sql, "SQL92", by_sql),
        Group("own-sql", topic, queues, sql, "SQL92", by_sql, own=True),
    ]


# What was sent and what came.


class Journal:
    """Who sent, was told and got what. A byte a message for each of these, and its place."""

    def __init__(self, groups: Iterable[Group]) -> None:
        self.kinds: dict[int, str] = {}  # of producers
        self._groups = list(groups)
        self._acked: dict[int, bytearray] = {}
        self._got: dict[tuple[str, int], bytearray] = {}
        self._places: dict[int, array[int]] = {}
        self.acked = 0
        self.again = 0  # messages sent more than once
        self.wanted: Counter[str] = Counter()  # of those acknowledged, by group
        self.received: Counter[str] = Counter()  # by group, without duplicates
        self.duplicates: Counter[str] = Counter()
        self.stored_twice = 0
        self.returned: dict[tuple[str, Id], int] = {}  # sent back, to how often it came again
        self.reached: dict[tuple[str, str, int], int] = {}  # group and queue to offset
        self.strange: list[str] = []  # what should not have come

    def is_wanted(self, group: Group, one: Id) -> bool:
        """By its filter; and it is of no transaction that is rolled back."""
        is_dropped = one.number % 4 == 3 and self.kinds[one.producer] == "transaction"
        return group.wants(one.number) and not is_dropped

    def ack(self, one: Id) -> None:
        if not _mark(self._acked.setdefault(one.producer, bytearray()), one.number):
            self.acked += 1
            for group in self._groups:
                self.wanted[group.name] += self.is_wanted(group, one)

    def get(self, group: Group, one: Id, queue_id: int, offset: int) -> None:
        """From the topic itself; what was sent back for a retry comes elsewhere."""
        if not self.is_wanted(group, one):
            self.strange.append(f"{group.name} got {one}")
        elif _mark(self._got.setdefault((group.name, one.producer), bytearray()), one.number):
            self.duplicates[group.name] += 1
        else:
            self.received[group.name] += 1
        places = self._places.setdefault(one.producer, array("q"))
        if one.number >= len(places):
            places.extend([-1] * (one.number + 4096 - len(places)))
        place = queue_id << 40 | offset
        self.stored_twice += places[one.number] not in (-1, place)
        places[one.number] = place

    @property
    def is_even(self) -> bool:
        """Each group has what it wants, if all that was sent is acknowledged."""
        is_back = all(self.returned.values())
        return is_back and all(self.received[g.name] == self.wanted[g.name] for g in self._groups)

    def missing(self, group: Group) -> list[Id]:
        """What the group wants, was acknowledged, and has not come."""
        found = []
        for producer, acked in self._acked.items():
            got = self._got.get((group.name, producer), bytearray())
            for number, mark in enumerate(acked):
                is_here = number < len(got) and got[number]
                if mark and not is_here and self.is_wanted(group, one := Id(producer, number)):
                    found.append(one)
        return found

    def state(self) -> str:
        missing = {group.name: self.missing(group)[:3] for group in self._groups}
        back = sum(not count for count in self.returned.values())
        return (
            f"acknowledged {self.acked}, wanted {self.wanted}, received {self.received}, "
            f"missing {missing}, {back} sent back have not come again"
        )


def _mark(marks: bytearray, number: int) -> bool:
    """Whether it was marked already."""
    if number >= len(marks):
        marks.extend(bytes(number + 4096 - len(marks)))
    was, marks[number] = marks[number], 1
    return bool(was)


# Producers.


class Ack(NamedTuple):
    one: Id
    queue_id: int
    offset: int  # in its queue, or in that of half or delayed messages
    message_id: str


class Producer:
    """Sends until it is told to stop, and then until all is acknowledged.

    `kind`: plain, binary (the header's encoding), batch, delayed, transaction (a fourth of them
    rolled back), fresh (every ten messages to a new topic). `rate` is messages a second, 0 as many
    as `in_flight` requests allow.
    """

    BATCH = 5

    def __init__(
        self,
        journal: Journal,
        number: int,
        kind: str,
        topic: str,
        queues: int,
        *,
        in_flight: int = 16,
        rate: float = 0.0,
        size: int = 100,
        delay_levels: tuple[int, ...] = (1,),
        on_ack: Callable[[Ack], None] = lambda ack: None,
    ) -> None:
        self.journal = journal
        self.number = number
        self.kind = kind
        self.topic = topic
        self.queues = queues
        self.in_flight = in_flight
        self.rate = rate
        self.size = size
        self.on_ack = on_ack
        self.is_stopped = False
        self.busy = 0  # answers that told to come later
        self.faults: list[str] = []
        self._delay_levels = delay_levels
        self._step = self.BATCH if kind == "batch" else 1
        self._next = 0
        self._unsettled: dict[int, bool] = {}  # to whether it was sent before
        self._halves: dict[int, tuple[int, str]] = {}  # number to offset and message id
        journal.kinds[number] = kind

    @property
    def sent(self) -> int:
        return self._next

    async def run(self, address: str) -> None:
        while not self.is_stopped or self._unsettled:
            with contextlib.suppress(ConnectionError, TimeoutError):
                peer = await aio.connect(address)
                try:
                    await self._greet(peer)
                    await self._produce(peer)
                    continue
                finally:
                    await close(peer)
            await asyncio.sleep(_RECONNECT)

    async def _greet(self, peer: Peer) -> None:
        me = Heartbeat(
            client_id=f"p{self.number}", producers=[ProducerData(group="load")], consumers=[]
        )
        await ask(peer, command(None, RequestCode.HEART_BEAT, beans.encode(me)))

    async def _produce(self, peer: Peer) -> None:
        again = sorted(self._unsettled)
        running: set[asyncio.Task[None]] = set()
        start, first, beat = time.monotonic(), self._next, time.monotonic()
        try:
            while again or running or not self.is_stopped:
                while again and len(running) < self.in_flight:
                    running.add(asyncio.create_task(self._send(peer, again.pop(0))))
                due = self.in_flight * self._step
                if self.rate:
                    due = int((time.monotonic() - start) * self.rate) - (self._next - first)
                while len(running) < self.in_flight and due > 0 and not self.is_stopped:
                    running.add(asyncio.create_task(self._send(peer, self._next)))
                    self._next += self._step
                    due -= self._step
                if running:
                    done, running = await asyncio.wait(
                        running, timeout=0.01, return_when=asyncio.FIRST_COMPLETED
                    )
                    for error in [task.exception() for task in done]:
                        if error is not None:
                            raise error
                else:
                    await asyncio.sleep(0.01)
                if time.monotonic() - beat > 10:
                    beat = time.monotonic()
                    await self._greet(peer)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _send(self, peer: Peer, number: int) -> None:
        was = self._unsettled.get(number)
        if was:
            self.journal.again += self._step
        self._unsettled[number] = True
        try:
            if self.kind == "transaction":
                await self._send_half(peer, number)
            elif self.kind == "batch":
                await self._send_batch(peer, number)
            else:
                await self._send_one(peer, number)
        except Refused as error:
            if error.code == ResponseCode.SYSTEM_BUSY:
                self.busy += 1
                await asyncio.sleep(0.1)
                raise ConnectionError from None  # what follows is not to overtake it
            self.faults.append(str(error))
        self._unsettled.pop(number, None)

    def _place(self, number: int) -> tuple[str, int]:
        if self.kind == "fresh":
            return f"{self.topic}-{self.number}-{number // 10}", number % self.queues
        return self.topic, number // self._step % self.queues

    async def _send_one(self, peer: Peer, number: int) -> None:
        more = properties_of(number)
        if self.kind == "delayed":
            more["DELAY"] = str(self._delay_levels[number % len(self._delay_levels)])
        encoding = Encoding.ROCKETMQ if self.kind == "binary" else Encoding.JSON
        topic, queue_id = self._place(number)
        body = Id(self.number, number).body(self.size)
        request = send_request(topic, queue_id, body, more, encoding=encoding, queues=self.queues)
        answer = SendMessageResponse.from_fields((await ask(peer, request)).fields)
        self._acknowledged(number, answer, answer.msg_id)

    async def _send_batch(self, peer: Peer, number: int) -> None:
        items = [
            record.batch_item(
                Id(self.number, n).body(self.size), properties.encode(properties_of(n)).encode()
            )
            for n in range(number, number + self.BATCH)
        ]
        topic, queue_id = self._place(number)
        single = send_request(topic, queue_id, b"".join(items))
        request = replace(
            single,
            code=int(RequestCode.SEND_BATCH_MESSAGE),
            fields={**(single.fields or {}), "m": "true"},
        )
        answer = SendMessageResponse.from_fields((await ask(peer, request)).fields)
        for n, message_id in enumerate(answer.msg_id.split(",")):
            self._acknowledged(
                number + n, replace(answer, queue_offset=answer.queue_offset + n), message_id
            )

    async def _send_half(self, peer: Peer, number: int) -> None:
        """In two steps; a broker that died between them is told the second again."""
        if number not in self._halves:
            more = properties_of(number) | {"TRAN_MSG": "true", "PGROUP": "load"}
            topic, queue_id = self._place(number)
            body = Id(self.number, number).body(self.size)
            found = await ask(peer, send_request(topic, queue_id, body, more))
            answer = SendMessageResponse.from_fields(found.fields)
            self._halves[number] = (answer.queue_offset, answer.msg_id)
        offset, message_id = self._halves[number]
        end = EndTransaction(
            producer_group="load",
            tran_state_table_offset=offset,
            commit_log_offset=int(message_id[-16:], 16),
            commit_or_rollback=_ROLLBACK if number % 4 == 3 else _COMMIT,
            msg_id=message_id,
        )
        await ask(peer, command(end))
        del self._halves[number]
        self.journal.ack(Id(self.number, number))
        self.on_ack(Ack(Id(self.number, number), 0, offset, message_id))

    def _acknowledged(self, number: int, answer: SendMessageResponse, message_id: str) -> None:
        one = Id(self.number, number)
        if self.kind != "fresh":
            self.journal.ack(one)
        self.on_ack(Ack(one, answer.queue_id, answer.queue_offset, message_id))


# Members of groups.


def average(queues: list[tuple[str, int]], ids: list[str], mine: str) -> list[tuple[str, int]]:
    """Which queues are whose: as RocketMQ's `AllocateMessageQueueAveragely`."""
    at, more = ids.index(mine), len(queues) % len(ids)
    size = len(queues) // len(ids) + (at < more)
    start = at * size if at < more else at * size + more
    return queues[start : start + size]


class Member:
    """One of a group: heartbeats, takes its share of the queues, pulls, commits, goes.

    `back` is how often, of 1, a message is sent back to be retried.
    """

    def __init__(
        self,
        journal: Journal,
        group: Group,
        client_id: str,
        *,
        back: float = 0.0,
        beat: float = 5.0,
        on_message: Callable[[Group, Id, StoredMessage], None] = lambda group, one, message: None,
    ) -> None:
        self.journal = journal
        self.group = group
        self.client_id = client_id
        self.on_message = on_message
        self.faults: list[str] = []
        self.began: dict[tuple[str, int], int] = {}  # where it went on, by queue
        self._back = back
        self._beat = beat
        self._rng = random.Random(client_id)
        self._is_leaving = False
        self._changed = asyncio.Event()
        self._peer: Peer | None = None
        self._tasks: dict[tuple[str, int], asyncio.Task[None]] = {}

    async def run(self, address: str) -> None:
        """Until `leave` or `drop`."""
        while not self._is_leaving:
            with contextlib.suppress(ConnectionError, TimeoutError):
                self._peer = await aio.connect(address, on_requests=self._told)
                try:
                    await self._take_part(self._peer)
                finally:
                    for task in self._tasks.values():
                        task.cancel()
                    await asyncio.gather(*self._tasks.values(), return_exceptions=True)
                    self._tasks.clear()
                    self.began.clear()
                    await close(self._peer)
            if not self._is_leaving:
                await asyncio.sleep(_RECONNECT)

    def leave(self) -> None:
        """In good order."""
        self._is_leaving = True
        self._changed.set()

    def drop(self) -> None:
        """Without a word."""
        self._is_leaving = True
        if self._peer is not None:
            self._peer.abort()
        self._changed.set()

    def _told(self, peer: Peer, requests: list[Command]) -> None:
        if any(one.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED for one in requests):
            self._changed.set()

    async def _take_part(self, peer: Peer) -> None:
        group, subscriptions = self.group, self.group.subscriptions()
        mine = ConsumerData(group=group.name, subscriptions=subscriptions)
        beat = beans.encode(Heartbeat(client_id=self.client_id, producers=[], consumers=[mine]))
        while not self._is_leaving:
            await ask(peer, command(None, RequestCode.HEART_BEAT, beat))
            self._changed.clear()
            await self._share(peer)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), self._beat)
            for task in self._tasks.values():
                if task.done() and not task.cancelled():
                    task.result()  # raises what ended it
            if peer.is_closed:
                raise ConnectionError
        for task in self._tasks.values():
            task.cancel()  # each commits how far it came
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        gone = UnregisterClient(client_id=self.client_id, consumer_group=group.name)
        await ask(peer, command(gone))

    async def _share(self, peer: Peer) -> None:
        of_group = OfConsumerGroup(consumer_group=self.group.name)
        answer = await ask(peer, command(of_group, RequestCode.GET_CONSUMER_LIST_BY_GROUP))
        ids = sorted(beans.decode(ConsumerIds, answer.body).ids)
        queues = [(self.group.topic, n) for n in range(self.group.queues)]
        wanted = set(average(queues, ids, self.client_id))
        wanted |= set(average([(self.group.retry_topic, 0)], ids, self.client_id))
        for queue in [queue for queue in self._tasks if queue not in wanted]:
            self._tasks.pop(queue).cancel()
        for queue in wanted:
            if queue not in self._tasks:
                self._tasks[queue] = asyncio.create_task(self._consume(peer, *queue))

    async def _consume(self, peer: Peer, topic: str, queue_id: int) -> None:
        try:
            await self._pull_on(peer, topic, queue_id)
        except Refused as error:
            self.faults.append(f"{self.group.name}: {error}")
        except (ConnectionError, TimeoutError):
            self._changed.set()
            raise

    async def _pull_on(self, peer: Peer, topic: str, queue_id: int) -> None:
        query = QueryConsumerOffset(consumer_group=self.group.name, topic=topic, queue_id=queue_id)
        answer = await ask(peer, command(query))
        offset = self.began[topic, queue_id] = OffsetResponse.from_fields(answer.fields).offset
        place, reached = (self.group.name, topic, queue_id), self.journal.reached
        if offset > reached.get(place, 0):
            self.faults.append(f"{place}: {offset} is committed, {reached.get(place)} is reached")
        own = self.group.expression if self.group.own and topic == self.group.topic else None
        try:
            while True:
                request = pull_request(
                    self.group.name,
                    topic,
                    queue_id,
                    offset,
                    hold=_HOLD,
                    commit=True,
                    expression=own,
                    expression_type=self.group.expression_type,
                )
                answer = await peer.ask(request, _HOLD + PATIENCE)
                if answer.code not in _GOOD:
                    raise Refused(request.code, answer)
                header = PullMessageResponse.from_fields(answer.fields)
                await self._take(peer, topic, offset, header.next_begin_offset, answer.body)
                offset = header.next_begin_offset
                reached[place] = max(offset, reached.get(place, 0))
        finally:
            if not peer.is_closed:
                commit = UpdateConsumerOffset(
                    consumer_group=self.group.name,
                    topic=topic,
                    queue_id=queue_id,
                    commit_offset=offset,
                )
                peer.tell(command(commit))

    async def _take(self, peer: Peer, topic: str, offset: int, end: int, body: bytes) -> None:
        failed = []
        for message in messages_of(body):
            if not offset <= message.queue_offset < end:
                self.faults.append(f"{topic}: {message.queue_offset} is not in {offset} … {end}")
            offset = message.queue_offset + 1
            one = Id.of(message.body)
            if topic == self.group.topic:
                self.journal.get(self.group, one, message.queue_id, message.queue_offset)
                self.on_message(self.group, one, message)
                if self._back and self._rng.random() < self._back:
                    failed.append(message)
            else:
                self.journal.returned[self.group.name, one] = 1
        for message in failed:
            header = SendMessageBack(
                offset=message.log_offset,
                group=self.group.name,
                delay_level=1,
                origin_msg_id=message.message_id,
                origin_topic=topic,
                max_reconsume_times=16,
            )
            await ask(peer, command(header))
            self.journal.returned.setdefault((self.group.name, Id.of(message.body)), 0)


_GOOD = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
)


async def finish(*tasks: "asyncio.Task[Any]") -> None:
    """Ends what runs, and raises what ended it."""
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
            raise result
