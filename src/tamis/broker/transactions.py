"""Transactions: messages nobody sees until their producer commits them.

RocketMQ's `TransactionalMessageServiceImpl` and its bridge (4.9.4), on the same files. A producer's
message is stored in the half topic. To commit: (1) the message is stored in its real topic, (2) an
op message, which names the half message's offset, is stored in the op topic; to roll back, 2 alone.
A crash between the two gives the message twice, never not at all. Whoever did neither in time is
asked, and asked again, and at last the message is put aside in a topic of its own.

A half message is open as long as no op message names it. RocketMQ stores it anew each time it asks,
to keep the count; here it stays where it is, so that what a client knows of it stays valid, and the
count is lost with the process. The offsets of the group CID_RMQ_SYS_TRANS say from where on half
and op messages are to be read to find the open ones: a broker of either kind goes on from there.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NoReturn

from ..errors import CorruptRecord, ResponseError, StoreError
from ..message import HALF_TOPIC, PropertyName, StoredMessage, SysFlag
from ..net.aio import Peer
from ..store.commitlog import Appended, IllegalMessage
from ..store.consumequeue import ConsumeQueue
from ..store.format import UNIT_BLANK_SIZE
from ..store.store import Store
from ..wire import properties as properties_block
from ..wire import record
from ..wire.codes import ResponseCode
from ..wire.command import Command
from ..wire.headers import CheckTransactionState
from ..wire.record import Draft
from .config import Settings
from .intake import Finish, Intake
from .members import Producers
from .offsets import Offsets
from .topics import OP_TOPIC, TRANSACTION_LIMIT_TOPIC, Topics

__all__ = ["GROUP", "Transactions", "to_half"]

log = logging.getLogger(__name__)

GROUP: Final = "CID_RMQ_SYS_TRANS"
PRODUCER_GROUP: Final = "PGROUP"
CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
IMMUNITY: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
PREPARED_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"  # of what a copy Apache made is a copy of
_IMMUNITY: Final = IMMUNITY.encode() + b"\x01"
_ENDED_TAG: Final = "d"
_OP_PROPERTIES: Final = properties_block.encode({PropertyName.TAGS: _ENDED_TAG}).encode()
_BATCH: Final = 1024  # messages read together
_SLICE: Final = 64  # open ones looked at before others are served


@dataclass(slots=True)
class _Half:
    """An open half message. Times are milliseconds."""

    log_offset: int
    born: int
    immunity: int | None  # its own, before it is asked about
    first_op: int  # op messages of this one, and of later ones, are from here on
    checks: int = 0
    key: str | None = None  # of a copy: clients may know the message by an offset it had before
    is_ending: bool = False
    is_delivered: bool = False  # its message is, but its op message could not be stored


def to_half(draft: Draft) -> Draft:
    """A producer's message as it waits. RocketMQ loses one with a delay level; here it has none."""
    properties = properties_block.decode_bytes(draft.properties)
    properties.pop(PropertyName.DELAY, None)
    properties[PropertyName.REAL_TOPIC] = draft.topic
    properties[PropertyName.REAL_QUEUE] = str(draft.queue_id)
    return replace(
        draft,
        topic=HALF_TOPIC,
        queue_id=0,
        sys_flag=draft.sys_flag & ~SysFlag.ROLLBACK,
        properties=properties_block.encode(properties).encode(),
    )


class Transactions:
    """All of it runs in one event loop. What is in memory is for the open ones alone."""

    def __init__(
        self,
        store: Store,
        intake: Intake,
        offsets: Offsets,
        topics: Topics,
        producers: Producers,
        settings: Settings,
        now: Callable[[], float],
    ) -> None:
        self._store = store
        self._intake = intake
        self._offsets = offsets
        self._topics = topics
        self._producers = producers
        self._settings = settings
        self._now = now
        self._open: dict[int, _Half] = {}  # by queue offset, ascending
        self._copies: dict[str, int] = {}  # unique key to queue offset, of open copies
        self._next_half = 0  # queue offsets: of the next half and op message
        self._next_op = 0

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, offset: int) -> bool:
        """Whether the half message at this queue offset is open."""
        return offset in self._open

    # At start

    def load(self) -> None:
        """Finds the open ones. To be called once, before the first request."""
        queues = self._store.queues
        ended: set[int] = set()
        op_begin = 0
        op_queue = queues.get((OP_TOPIC, 0))
        if op_queue is not None:
            op_begin = self._begin(OP_TOPIC, op_queue)
            self._next_op = op_queue.max_offset
            for message in self._messages(op_queue, op_begin):
                ended.update(_ended_by(message))
        half_queue = queues.get((HALF_TOPIC, 0))
        if half_queue is not None:
            self._next_half = half_queue.max_offset
            by_key: dict[str, int] = {}
            begin = self._begin(HALF_TOPIC, half_queue)
            for message in self._messages(half_queue, begin, passed=ended):
                self._load_half(message, op_begin, ended, by_key)
        if self._open:
            log.info("%d transactions are open", len(self._open))

    def _begin(self, topic: str, queue: ConsumeQueue) -> int:
        offset = self._offsets.get(GROUP, topic, 0) or 0
        return min(max(offset, queue.min_offset), queue.max_offset)

    def _load_half(
        self, message: StoredMessage, first_op: int, ended: set[int], by_key: dict[str, int]
    ) -> None:
        properties = message.properties
        prepared = _number(properties.get(PREPARED_OFFSET))
        if prepared in ended:
            return
        key = properties.get(PropertyName.UNIQUE_KEY)
        is_copy = CHECK_TIMES in properties or prepared is not None
        if is_copy and key in by_key:
            self._open.pop(by_key[key], None)  # Apache died before it noted that it made a copy
        if key is not None:
            by_key[key] = message.queue_offset
        self._add(
            message.queue_offset,
            _Half(
                message.log_offset,
                message.born_timestamp,
                _immunity(properties),
                first_op,
                checks=max(_number(properties.get(CHECK_TIMES)) or 0, 0),
                key=key if is_copy else None,
            ),
        )

    def _messages(
        self, queue: ConsumeQueue, begin: int, passed: Container[int] = ()
    ) -> Iterator[StoredMessage]:
        """From `begin` to the end, without those whose queue offsets are `passed`."""
        at = begin
        while at < queue.max_offset:
            units = queue.units(at, _BATCH)
            if not len(units):
                at = queue.next_file(at)
                continue
            messages = (units["size"] != UNIT_BLANK_SIZE).nonzero()[0].tolist()
            wanted = units[[number for number in messages if at + number not in passed]]
            offsets = wanted["offset"].astype("int64")
            records = self._store.log.sound_records(offsets, wanted["size"].astype("int64"))
            for offset, data in zip(offsets.tolist(), records, strict=True):
                try:
                    if not len(data):
                        raise CorruptRecord("", offset, "there is no sound record")
                    yield record.decode(memoryview(data.data))
                except CorruptRecord as error:
                    log.error("a message of a transaction is passed over: %s", error)
            at += len(units)

    # The life of one

    def put(self, draft: Draft, finish: Finish, context: Any, peer: Peer | None = None) -> None:
        """As `Intake.put`, of a message that is to wait for its producer's decision."""
        self._topics.ensure(HALF_TOPIC, 1)
        half = to_half(draft)
        self._intake.put(half, self._stored, (half, self._next_op, finish, context), peer)

    def _stored(
        self, waiting: tuple[Draft, int, Finish, Any], place: Appended | StoreError
    ) -> bytes:
        draft, first_op, finish, context = waiting
        if isinstance(place, Appended):
            self._put_in(draft, first_op, place)
        return finish(context, place)

    def _put_in(self, draft: Draft, first_op: int, place: Appended) -> None:
        immunity = None
        if _IMMUNITY in draft.properties:
            immunity = _immunity(properties_block.decode_bytes(draft.properties))
        half = _Half(place.log_offset, draft.born_timestamp, immunity, first_op)
        self._add(place.queue_offset, half)

    def _add(self, offset: int, half: _Half) -> None:
        self._open[offset] = half
        self._next_half = max(self._next_half, offset + 1)
        if half.key is not None:
            self._copies[half.key] = offset

    async def end(self, group: str, offset: int, log_offset: int, *, commit: bool) -> None:
        """Commits or rolls back. One that was ended before is left as it is.

        Raises ResponseError if it is not the group's or not there, StoreError if it stays open.
        """
        message = self._half_message(log_offset)
        if message is None:
            _refuse("Find prepared transaction message failed")
        if message.properties.get(PRODUCER_GROUP) != group:
            _refuse("The producer group wrong")
        if message.queue_offset != offset:
            _refuse("The transaction state table offset wrong")
        if message.log_offset != log_offset:
            _refuse("The commit log offset wrong")
        if offset not in self._open:
            offset = self._copies.get(message.properties.get(PropertyName.UNIQUE_KEY, ""), offset)
        half = self._open.get(offset)
        if half is None or half.is_ending:
            log.info("transaction %d of group %s was ended before", offset, group)
            return
        half.is_ending = True
        try:
            if commit and not half.is_delivered:
                await self._intake.store([_committed(message)])  # 1
                half.is_delivered = True
            await self._close(offset)  # 2
        finally:
            half.is_ending = False

    def _half_message(self, log_offset: int) -> StoredMessage | None:
        try:
            message = self._store.message(log_offset)
        except CorruptRecord:
            return None
        has_place = _number(message.properties.get(PropertyName.REAL_QUEUE)) is not None
        is_half = message.topic == HALF_TOPIC and PropertyName.REAL_TOPIC in message.properties
        return message if is_half and has_place else None

    async def _close(self, offset: int) -> None:
        """It is open no more, which its op message says."""
        op = Draft(
            topic=OP_TOPIC,
            body=str(offset).encode(),
            properties=_OP_PROPERTIES,
            born_timestamp=self._millis(),
            born_host=self._store.config.store_host,
        )
        [place] = await self._intake.store([op])
        self._next_op = max(self._next_op, place.queue_offset + 1)
        half = self._open.pop(offset, None)
        if half is not None and half.key is not None:
            self._copies.pop(half.key, None)

    async def resume(self, log_offset: int) -> None:
        """Begins to ask anew about a message, open or put aside. Raises as `end` does."""
        try:
            message = self._store.message(log_offset)
        except CorruptRecord:
            _refuse("there is no message")
        if message.topic not in (HALF_TOPIC, TRANSACTION_LIMIT_TOPIC):
            _refuse(f"a message of {message.topic} is in no transaction")
        half = self._open.get(message.queue_offset) if message.topic == HALF_TOPIC else None
        if half is not None:
            half.checks = 0
            return
        draft = _copy(message, HALF_TOPIC, 0, checks=0)
        first_op = self._next_op
        [place] = await self._intake.store([draft])
        self._put_in(draft, first_op, place)
        log.info("transaction %d is open again: %s", place.queue_offset, message.message_id)

    # Checks

    async def run(self) -> None:
        """Asks about open transactions from time to time, until it is cancelled."""
        while True:
            await self._settings.sleep(lambda config: max(config.transaction_check_interval, 0.1))
            try:
                await self.check()
            except StoreError as error:
                log.error("open transactions are not checked: %s", error)
            except Exception:  # the edge: transactions are not to stay open for ever
                log.exception("open transactions are not checked")

    async def check(self) -> None:
        """Asks about each that is open for too long; puts aside what was asked about too often."""
        unasked: Counter[str] = Counter()
        for number, (offset, half) in enumerate(list(self._open.items())):
            if number % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
            if offset in self._open and not half.is_ending:
                try:
                    await self._check(offset, half, unasked)
                except IllegalMessage as error:  # this one; the others are to be asked about
                    log.error("transaction %d can't be put aside: %s", offset, error)
        for group, count in unasked.items():
            log.warning("no producer of group %s to ask about %d transactions", group, count)
        reached = self._progress()
        await asyncio.to_thread(self._store.make_durable)  # what ended them is on the disk first
        self._note(*reached)

    async def _check(self, offset: int, half: _Half, unasked: Counter[str]) -> None:
        config = self._settings.config
        age = self._millis() - half.born
        if half.is_delivered:
            await self._close(offset)
            return
        if half.immunity is not None:
            is_immune = age < half.immunity
        else:
            is_immune = 0 <= age < config.transaction_timeout * 1000  # not if clocks differ
        if is_immune:
            return
        message = self._half_message(half.log_offset)
        if message is None:
            log.error("transaction %d: its message is gone or damaged", offset)
            await self._close(offset)
        elif half.checks >= config.transaction_check_max or age > config.keep_hours * 3_600_000:
            await self._put_aside(offset, half, message)
        else:
            half.checks += 1
            self._ask(message, half.checks, unasked)

    def _ask(self, message: StoredMessage, checks: int, unasked: Counter[str]) -> None:
        """RocketMQ counts it whether or not somebody was there to be asked."""
        group = message.properties.get(PRODUCER_GROUP, "")
        member = self._producers.any_of(group)
        if member is None:
            unasked[group] += 1
            return
        key = message.properties.get(PropertyName.UNIQUE_KEY)
        header = CheckTransactionState(
            tran_state_table_offset=message.queue_offset,
            commit_log_offset=message.log_offset,
            msg_id=key,
            transaction_id=key,
            offset_msg_id=message.message_id,
        )
        body = _copy(message, *_real_queue(message), checks=checks).encode(
            message.queue_offset,
            message.log_offset,
            message.store_timestamp,
            record.pack_host(message.store_host),
        )
        member.peer.tell(Command(code=header.CODE, fields=header.to_fields(), body=body))

    async def _put_aside(self, offset: int, half: _Half, message: StoredMessage) -> None:
        log.error(
            "transaction %d of group %s is put aside in %s: asked %d times, no answer",
            *(offset, message.properties.get(PRODUCER_GROUP), TRANSACTION_LIMIT_TOPIC, half.checks),
        )
        self._topics.ensure(TRANSACTION_LIMIT_TOPIC, 1)
        half.is_ending = True
        try:
            aside = _copy(message, TRANSACTION_LIMIT_TOPIC, 0, checks=half.checks)
            await self._intake.store([aside])
            await self._close(offset)
        finally:
            half.is_ending = False

    # From where on the open ones are found

    def note_progress(self) -> None:
        """To be called when the broker stops, before offsets are saved."""
        self._note(*self._progress())

    def _progress(self) -> tuple[int, int]:
        """Offsets of half and op messages before which nothing needs to be read."""
        lowest = next(iter(self._open), None)
        if lowest is None:
            return self._next_half, self._next_op
        return lowest, self._open[lowest].first_op

    def _note(self, half: int, op: int) -> None:
        for topic, offset in ((HALF_TOPIC, half), (OP_TOPIC, op)):
            if offset != (self._offsets.get(GROUP, topic, 0) or 0):
                self._offsets.commit(GROUP, topic, 0, offset)

    def _millis(self) -> int:
        return int(self._now() * 1000)


def _refuse(why: str) -> NoReturn:
    raise ResponseError(ResponseCode.SYSTEM_ERROR, why)


def _ended_by(op: StoredMessage) -> list[int]:
    """Queue offsets of half messages. 4.9 has one to an op message, 5.x several, with commas."""
    if op.tag != _ENDED_TAG:
        log.error("an op message at %d with the tag %r is passed over", op.queue_offset, op.tag)
        return []
    found = map(_number, op.body.decode(errors="replace").split(","))
    return [offset for offset in found if offset is not None]


def _number(text: str | None) -> int | None:
    try:
        return int(text or "")
    except ValueError:
        return None


def _immunity(properties: Mapping[str, str]) -> int | None:
    """Milliseconds; None is that of all, as RocketMQ has it for -1 and what is no number."""
    seconds = _number(properties.get(IMMUNITY))
    return None if seconds is None or seconds == -1 else seconds * 1000


def _real_queue(half: StoredMessage) -> tuple[str, int]:
    properties = half.properties
    return properties[PropertyName.REAL_TOPIC], int(properties[PropertyName.REAL_QUEUE])


def _committed(half: StoredMessage) -> Draft:
    """Its properties still tell of the transaction, as those Apache stores do."""
    return replace(
        _copy(half, *_real_queue(half)),
        sys_flag=half.sys_flag & ~SysFlag.ROLLBACK | SysFlag.COMMIT,
        prepared_transaction_offset=half.log_offset,
    )


def _copy(message: StoredMessage, topic: str, queue_id: int, checks: int | None = None) -> Draft:
    """The message for another queue, with how often it was asked about if there is room for it."""
    block = properties_block.encode(message.properties).encode()
    if checks is not None:
        counted = message.properties | {CHECK_TIMES: str(checks)}
        longer = properties_block.encode(counted).encode()
        block = longer if len(longer) <= record.MAX_PROPERTIES else block
    return Draft.of(message, topic, queue_id, block)
