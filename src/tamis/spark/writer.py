"""Writing: rows of a DataFrame become messages of a topic, in batches, by a producer in each task.

At least once: a task or a micro-batch that is tried again sends its rows again. So each message
is given a key of its row (the last of its keys), the same at each try, by which consumers drop
repeats:

    row_key                          what this column says, if there is one; null for no key
    topic/broker/queue/offset/id     where the row was read, if it has these four columns, and the
                                     message's id, if it has that; of rows made of one message, one
                                     behind the other, also /1, /2, ...
    query-batch-partition-row        the row's position: of streams. The query's id is the
                                     checkpoint's
    job-partition-row                the same of a batch write; the job's id is option jobId, or
                                     new for each write

A position is the same at each try only if the rows of a partition come in the same order: sort
within partitions, or give a row_key, after a shuffle whose order is left to chance. Rows made of
one message that do not follow each other (a union of a frame with itself, a join) need one too.

`queue_id` and `broker` name the queue to send to, unless there is an `offset` beside them: then
they tell where the row was read, and the message may go to any queue, or that of its sharding key.

Of a row's properties those whose names RocketMQ keeps for itself (TAGS, KEYS, UNIQ_KEY, DELAY, ...)
are left out: the message is a new one, with an id of its own. Tags and keys are those of the
columns; without such a column, those among the properties. Blank values are left out too.
"""

import asyncio
import itertools
import sys
import uuid
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, repeat
from typing import Any, Final, TypeVar

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from ..client import Admin, Message, MessageQueue, Producer
from ..client.backoff import pause_before
from ..client.sending import hash_of
from ..client.session import Session
from ..errors import (
    ConfigError,
    Error,
    InvalidMessage,
    NoPermission,
    ResponseError,
    SendFailed,
    SystemBusy,
    TopicNotFound,
    Unreachable,
)
from ..message import RESERVED, PropertyName
from ..net.aio import loop_factory
from ..wire import properties as property_block
from ..wire.codes import ResponseCode
from ._worker import settle
from .write_options import WriteOptions, check_columns

__all__ = ["BatchWriter", "StreamWriter", "Written", "batch_writer", "stream_writer"]

T = TypeVar("T")

_QUERY_ID: Final = "sql.streaming.queryId"  # local properties of a stream's tasks
_BATCH_ID: Final = "streaming.sql.batchId"
_PAUSE: Final = 0.1  # seconds before a batch is sent again; doubled each time, up to
_LONGEST_PAUSE: Final = 10.0
_COMMITTER: Final = "pyspark.sql.worker.python_streaming_sink_runner"


def batch_writer(
    schema: StructType, options: Mapping[str, str], overwrite: bool
) -> DataSourceArrowWriter:
    """Raises ConfigError, Unreachable, TopicNotFound, NoPermission: before the job starts."""
    parsed = WriteOptions.parse(options)
    if overwrite:
        raise ConfigError('a topic can\'t be overwritten: write with mode("append")')
    check_columns(schema, parsed)
    _run(_ensure(parsed))
    return BatchWriter(replace(parsed, job_id=parsed.job_id or uuid.uuid4().hex))


def stream_writer(
    schema: StructType, options: Mapping[str, str], overwrite: bool
) -> DataSourceStreamArrowWriter:
    """As `batch_writer`. Spark asks for one twice a micro-batch: before it and to commit it, when
    all is sent and a cluster that is away is no reason to fail."""
    parsed = WriteOptions.parse(options)
    if overwrite:
        raise ConfigError('a topic can\'t be overwritten: use outputMode("append") or "update"')
    check_columns(schema, parsed)
    if _COMMITTER not in sys.modules:
        _run(_ensure_again(parsed))
    return StreamWriter(parsed)


@dataclass
class Written(WriterCommitMessage):
    """By one task."""

    rows: int
    size: int  # bytes of bodies


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, options: WriteOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return _write(iterator, self.options, self.options.job_id)


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: WriteOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        task = TaskContext.get()
        query = task and task.getLocalProperty(_QUERY_ID)
        batch = task and task.getLocalProperty(_BATCH_ID)
        if query is None or batch is None:
            raise Error("this Spark does not say which query and micro-batch a task belongs to")
        return _write(iterator, self.options, f"{self.options.job_id or query}-{batch}")


def _write(iterator: Iterator[pa.RecordBatch], options: WriteOptions, job: str) -> Written:
    task = TaskContext.get()
    partition = task.partitionId() if task is not None else 0
    try:
        written = _run(_send_all(iterator, options, f"{job}-{partition}-"))
        settle()
        return written
    except InvalidMessage as error:
        raise InvalidMessage(f"partition {partition}, {error}") from None
    except Error as error:
        raise error from None  # what led to it is said in it


def _run(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(work)


# Topics


async def _ensure(options: WriteOptions, topic: str = "") -> None:
    """The topic is there, or is made where brokers allow that, and a broker of it answers.

    It is made here, not by the first message, so that all tasks see the same queues.
    """
    topic = topic or options.topic
    config = options.producer()
    session = Session("writer", options.nameserver, config)
    await session.start()
    try:
        routes = session.routes
        if not topic:
            await routes.cluster()  # the name server answers: topics are known to the rows only
            return
        queues = await routes.for_sending(topic, config.default_topic, config.default_queues)
        if not queues:
            raise _forbidden(topic)
        brokers = {queue.broker_name for queue in queues}
        failed: Unreachable | None = None
        for broker in sorted(brokers):
            try:
                await session.peer(await routes.master(broker))
            except Unreachable as error:
                failed = error
                brokers.discard(broker)
        if not brokers and failed is not None:
            raise failed
        if routes.known(topic) is None:
            async with Admin(options.nameserver, config=config) as admin:
                for broker in sorted(brokers):
                    count = sum(queue.broker_name == broker for queue in queues)
                    await admin.create_topic(topic, queues=count, broker=broker)
    finally:
        await session.close()


async def _ensure_again(options: WriteOptions) -> None:
    """Before every micro-batch: a broker that is restarted is no reason to end a query."""
    for attempt in itertools.count():
        try:
            await _ensure(options)
            break
        except (Unreachable, TimeoutError, TopicNotFound):
            if attempt >= options.retries:
                raise
        await asyncio.sleep(pause_before(attempt, _PAUSE, _LONGEST_PAUSE))


def _forbidden(topic: str) -> NoPermission:
    return NoPermission(
        ResponseCode.NO_PERMISSION,
        f"topic {topic} has no queue that can be written to: its permission forbids it, or no"
        " master of its brokers is running",
    )


# Sending


async def _send_all(
    iterator: Iterator[pa.RecordBatch], options: WriteOptions, position: str
) -> Written:
    """Rows are waited for in a thread: meanwhile answers are heard."""
    rows = _Rows(options, position)
    written = Written(0, 0)
    async with Producer(options.nameserver, options.group, config=options.producer()) as producer:
        outbox = _Outbox(producer, options)
        coming = asyncio.create_task(asyncio.to_thread(next, iterator, None))
        try:
            while (batch := await coming) is not None:
                coming = asyncio.create_task(asyncio.to_thread(next, iterator, None))
                if batch.num_rows:
                    messages, places = rows.read(batch)
                    await outbox.post(messages, places)
                    written.rows += batch.num_rows
                    written.size += rows.size
            await outbox.drain(0)
        finally:
            await outbox.cancel()
            await asyncio.wait([coming])
    return written


_Place = str | tuple[str | None, int] | None  # a sharding key, or a broker and a queue, or any


class _Outbox:
    """Messages on their way. Those for one queue go one batch after the other."""

    def __init__(self, producer: Producer, options: WriteOptions) -> None:
        self._producer = producer
        self._options = options
        self._sending: set[asyncio.Task[None]] = set()
        self._last: dict[MessageQueue, asyncio.Task[None]] = {}
        self._queues: dict[str, list[MessageQueue]] = {}
        self._chosen: dict[tuple[str, _Place], MessageQueue] = {}

    async def post(self, messages: Sequence[Message], places: Sequence[_Place] | None) -> None:
        """Returns when there is room for more."""
        for topic in {message.topic for message in messages} - self._queues.keys():
            self._queues[topic] = await self._queues_of(topic)
        if places is None and not any(message.delay_level for message in messages):
            await self._post(messages, None)
            return
        sorted_out: dict[tuple[MessageQueue | None, bool], list[Message]] = {}
        for message, place in zip(messages, places or repeat(None, len(messages)), strict=True):
            queue = None if place is None else self._choose(message.topic, place)
            sorted_out.setdefault((queue, message.delay_level > 0), []).append(message)
        for (queue, _), some in sorted_out.items():
            await self._post(some, queue)

    async def _queues_of(self, topic: str) -> list[MessageQueue]:
        try:
            found = await self._producer.queues(topic)
        except TopicNotFound:
            await _ensure(self._options, topic)
            found = await self._producer.queues(topic)
        if not found:
            raise _forbidden(topic)
        return found

    def _choose(self, topic: str, place: _Place) -> MessageQueue:
        found = self._chosen.get((topic, place))
        if found is None:
            queues = self._queues[topic]
            if isinstance(place, str):
                found = queues[hash_of(place) % len(queues)]
            else:
                assert place is not None
                found = _named(queues, *place)
            if len(self._chosen) < 100_000:
                self._chosen[topic, place] = found
        return found

    async def _post(self, messages: Sequence[Message], queue: MessageQueue | None) -> None:
        mean = sum(len(one.body) for one in messages) // len(messages) + 1
        count = max(1, min(self._options.batch_rows, self._options.batch_bytes // mean))
        for at in range(0, len(messages), count):
            await self.drain(self._options.max_in_flight - 1)
            before = self._last.get(queue) if queue is not None else None
            sending = asyncio.create_task(self._send(messages[at : at + count], queue, before))
            self._sending.add(sending)
            if queue is not None:
                self._last[queue] = sending

    async def drain(self, limit: int) -> None:
        """No more than that many are under way. Raises what one of them met."""
        while len(self._sending) > limit:
            done, self._sending = await asyncio.wait(
                self._sending, return_when=asyncio.FIRST_COMPLETED
            )
            for sending in done:
                sending.result()

    async def cancel(self) -> None:
        for sending in self._sending:
            sending.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)

    async def _send(
        self,
        messages: Sequence[Message],
        queue: MessageQueue | None,
        before: "asyncio.Task[None] | None",
    ) -> None:
        if before is not None and not before.done():
            await asyncio.wait([before])
        if before is not None and (before.cancelled() or before.exception() is not None):
            return  # what follows is not to overtake it
        for attempt in itertools.count():
            try:
                await self._send_once(messages, queue)
                return
            except (SendFailed, ResponseError, ConnectionError, TimeoutError) as error:
                cause = error.cause if isinstance(error, SendFailed) else error
                if attempt >= self._options.retries or not _is_passing(cause, queue):
                    if isinstance(error, SendFailed):
                        raise
                    raise SendFailed(messages[0].topic, (), 0.0, error) from None
            await asyncio.sleep(pause_before(attempt, _PAUSE, _LONGEST_PAUSE))

    async def _send_once(self, messages: Sequence[Message], queue: MessageQueue | None) -> None:
        producer = self._producer
        if len(messages) == 1 or messages[0].delay_level:  # batches take no delay
            futures = [producer.submit(message, queue=queue) for message in messages]
            results = await asyncio.gather(*futures, return_exceptions=True)
            for result in results:
                if isinstance(result, BaseException):
                    raise result
        else:
            await producer.send_batch(messages, queue=queue)


def _is_passing(cause: Exception, queue: MessageQueue | None) -> bool:
    """What may go anywhere the producer has tried again by itself, unless a broker said that it
    is busy; what is to be in order it has not. Here nothing can overtake it."""
    if isinstance(cause, SystemBusy):
        return True
    if queue is None:
        return False
    return not isinstance(cause, ResponseError) or cause.retriable


def _named(queues: Sequence[MessageQueue], broker: str | None, number: int) -> MessageQueue:
    found = [one for one in queues if one.queue_id == number and broker in (None, one.broker_name)]
    if len(found) == 1:
        return found[0]
    topic = queues[0].topic
    if found:
        names = ", ".join(one.broker_name for one in found)
        raise InvalidMessage(f"topic {topic}: queue {number} is at {names}: give a column broker")
    where = f" at broker {broker}" if broker is not None else ""
    raise InvalidMessage(f"topic {topic} has no queue {number}{where} to write to")


# Rows


class _Rows:
    """Of one task, to messages. What can be done to a whole column is."""

    def __init__(self, options: WriteOptions, position: str) -> None:
        self._options = options
        self._position = position
        self._seen = 0
        self._last_origin = (None, 0)
        self.size = 0  # bytes of the bodies that were read last

    def read(self, batch: pa.RecordBatch) -> tuple[list[Message], list[_Place] | None]:
        """Raises InvalidMessage."""
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        count = batch.num_rows
        bodies = columns["body"].cast(pa.binary())
        topics = self._topics(columns, count)
        self._check_bodies(bodies)
        named = _properties(columns)
        keys = self._keys(columns, named)
        if "tags" in columns:
            tags = columns["tags"].to_pylist()
        else:
            tags = [one.get(PropertyName.TAGS) for one in named] if named else repeat(None, count)
        delays = _numbers(columns.get("delay_level"), count)
        flags = _numbers(columns.get("flag"), count)
        users = [_of_user(one) for one in named] if named else repeat({}, count)
        messages: list[Message] = []
        try:
            for topic, body, tag, key, user, delay, flag in zip(
                topics, bodies.to_pylist(), tags, keys, users, delays, flags, strict=True
            ):
                messages.append(
                    Message(
                        topic,
                        body,
                        tags=tag,
                        keys=key or (),
                        properties=user,
                        delay_level=delay,
                        flag=flag,
                    )
                )
        except InvalidMessage as error:
            raise self._wrong(len(messages), str(error)) from None
        places = _places(columns)
        self._seen += batch.num_rows
        return messages, places

    def _topics(self, columns: Mapping[str, pa.Array], count: int) -> Any:
        if self._options.topic:
            return repeat(self._options.topic, count)
        topics = columns["topic"]
        if topics.null_count:
            raise self._wrong(_first(topics.is_null()), "it has no topic, and option topic no name")
        return topics.to_pylist()

    def _check_bodies(self, bodies: pa.Array) -> None:
        sizes = pc.fill_null(pc.binary_length(bodies), 0)
        if (least := _first(pc.equal(sizes, 0))) >= 0:
            raise self._wrong(least, "its body is null or empty: RocketMQ wants at least one byte")
        most = self._options.max_message_size
        if (large := _first(pc.greater(sizes, most))) >= 0:
            raise self._wrong(
                large,
                f"its body has {sizes[large]} bytes, at most {most} are taken: option"
                " maxMessageSize, and the broker's own limit",
            )
        self.size = pc.sum(sizes).as_py()

    def _wrong(self, row: int, why: str) -> InvalidMessage:
        return InvalidMessage(f"row {self._seen + row}: {why}")

    def _keys(self, columns: Mapping[str, pa.Array], named: list[dict[str, str]] | None) -> Any:
        """The row's own, then the one that tells it from all others: as they travel."""
        own = columns.get("keys")
        if own is None and named:
            own = pa.array([one.get(PropertyName.KEYS) for one in named], pa.string())
        elif own is not None and not pa.types.is_string(own.type):
            own = self._joined(own) if _is_list(own.type) else own.cast(pa.string())
        row = self._row_keys(columns, len(columns["body"]))
        if row is None:
            return repeat(None, len(columns["body"])) if own is None else own.to_pylist()
        if own is None:
            return row.to_pylist()
        # Not null_handling="skip": Arrow 26 then leaves out the rows where all are null.
        joined = pc.binary_join_element_wise(
            own, row, " ", null_handling="replace", null_replacement=""
        )
        return joined.to_pylist()

    def _joined(self, keys: pa.Array) -> pa.Array:
        flat = pc.fill_null(keys.flatten(), "")
        if (wrong := _first(pc.match_substring_regex(flat, r"\s|^$"))) >= 0:
            row = pc.list_parent_indices(keys)[wrong].as_py()
            raise self._wrong(row, f"keys: {flat[wrong].as_py()!r} is empty or has blanks")
        return pc.binary_join(keys.cast(pa.list_(pa.string())), " ")

    def _row_keys(self, columns: Mapping[str, pa.Array], count: int) -> pa.Array | None:
        if self._options.row_key == "none":
            return None
        if self._options.row_key == "auto":
            if (given := columns.get("row_key")) is not None:
                return self._checked(given.cast(pa.string()))
            if columns.keys() >= {"topic", "broker", "queue_id", "offset"}:
                origins = self._origins(columns)
                if not columns["queue_id"].null_count and not columns["offset"].null_count:
                    return origins
                is_read = pc.and_(columns["queue_id"].is_valid(), columns["offset"].is_valid())
                return pc.if_else(is_read, origins, self._positions(count))
        return self._positions(count)

    def _positions(self, count: int) -> pa.Array:
        numbers = pa.array(range(self._seen, self._seen + count), pa.int64()).cast(pa.string())
        return pc.binary_join_element_wise(self._position, numbers, "")

    def _checked(self, given: pa.Array) -> pa.Array:
        wrong = _first(pc.fill_null(pc.match_substring_regex(given, r"\s|^$"), False))
        if wrong >= 0:
            text = given[wrong].as_py()
            raise self._wrong(wrong, f"row_key: {text!r} is empty or has blanks, which part keys")
        return given

    def _origins(self, columns: Mapping[str, pa.Array]) -> pa.Array:
        parts = ("topic", "broker", "queue_id", "offset", "message_id")
        made = pc.binary_join_element_wise(
            *(columns[name].cast(pa.string()) for name in parts if name in columns),
            "/",
            null_handling="replace",
            null_replacement="",
        )
        before, times = self._last_origin
        again = pc.any(pc.equal(made[1:], made[:-1])).as_py() or made[0].as_py() == before
        if not again:
            self._last_origin = (made[-1].as_py(), 0)
            return made
        numbered = []
        for origin in made.to_pylist():
            times = times + 1 if origin == before else 0
            before = origin
            numbered.append(f"{origin}/{times}" if times else origin)
        self._last_origin = (before, times)
        return pa.array(numbered, pa.string())


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _first(mask: pa.Array) -> int:
    """Where it is true, -1 if nowhere."""
    return int(pc.index(mask, True).as_py())


def _numbers(column: pa.Array | None, count: int) -> Any:
    return repeat(0, count) if column is None else pc.fill_null(column, 0).to_pylist()


def _properties(columns: Mapping[str, pa.Array]) -> list[dict[str, str]] | None:
    """As they are in the rows, RocketMQ's own among them."""
    if (column := columns.get("properties")) is not None:
        names, values = column.keys.to_pylist(), column.items.to_pylist()
        ends = column.offsets.to_pylist()
        return [dict(zip(names[at:end], values[at:end], strict=True)) for at, end in pairwise(ends)]
    if (column := columns.get("property_string")) is not None:
        return [property_block.decode(text or "") for text in column.to_pylist()]
    return None


def _of_user(properties: Mapping[str, str | None]) -> dict[str, str]:
    """Without RocketMQ's own: the message gets new ones. It keeps no blank values either."""
    return {
        name: value
        for name, value in properties.items()
        if name not in RESERVED and value is not None and value.strip()
    }


def _places(columns: Mapping[str, pa.Array]) -> list[_Place] | None:
    if (keys := columns.get("sharding_key")) is not None:
        made: list[_Place] = keys.to_pylist()
        return made
    numbers = columns.get("queue_id")
    if numbers is None or "offset" in columns:
        return None
    named = columns.get("broker")
    brokers: Any = repeat(None, len(numbers)) if named is None else named.to_pylist()
    return [
        None if number is None else (broker, number)
        for broker, number in zip(brokers, numbers.to_pylist(), strict=True)
    ]
