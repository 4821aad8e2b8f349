"""Why was it not consumed: the fate of a message for each group, and the history it is judged by.

The facts are gathered here, in steps; what they come to is decided by `tamis.fate`.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import orjson

from ...errors import CorruptRecord, ResponseError
from ...fate import Fate, Filter, GroupFacts, GroupHistory, MessageFacts, RetryFacts, judge
from ...fate.facts import LaneFacts
from ...filter.bloom import BitArray
from ...filter.logic import Outcome
from ...message import DELAY_TOPIC, PropertyName, StoredMessage
from ...net.longwork import Steps, stepwise
from ...net.server import Answer, Request
from ...store.consumequeue import ConsumeQueue
from ...store.store import Store
from ...store.tables import FilterData
from ...wire.codes import ResponseCode
from ...wire.frame import MAX_FRAME
from ...wire.headers import ExplainMessage, GetHistory
from ..filters import Filters
from ..groups import SYSTEM_PREFIX
from ..history import SYSTEM_GROUPS, Recorder, filter_of
from ..members import Consumers
from ..offsets import Offsets
from ..topics import Topics, dead_letter_topic, retry_topic

__all__ = ["Explainer", "explain_message", "get_history"]

log = logging.getLogger(__name__)

_MOST_COPIES: Final = 32  # of a message that was sent back
_MOST_BODY: Final = MAX_FRAME - 65_536  # bytes of an answer; its header comes before it
_AT_ONCE: Final = 16  # groups judged before others have the thread
_TURN: Final = 0.02  # seconds of encoding, then others have the thread
_MOST_CODE: Final = 65_536  # characters of what code said


@dataclass(frozen=True, slots=True)
class Explainer:
    """What it takes to gather facts."""

    broker: str  # its name
    store: Store
    topics: Topics
    consumers: Consumers
    filters: Filters
    offsets: Offsets
    recorder: Recorder
    policy: Callable[[str], str]  # of a group, for members that disagree
    lanes: Callable[[str, str, int], tuple[LaneFacts, ...]]  # of a group on a queue

    def groups(self, topic: str) -> list[str]:
        """Return the groups that consume the topic, did, or subscribe to it."""
        names = {
            *self.offsets.groups(topic),
            *self.consumers.subscribers(topic),
            *self.recorder.groups(topic),
        }
        return sorted(
            name
            for name in names
            if name not in SYSTEM_GROUPS and not name.startswith(SYSTEM_PREFIX)
        )

    def message(
        self, topic: str, queue_id: int, offset: int, codes: Mapping[str, Outcome]
    ) -> tuple[MessageFacts, StoredMessage | None]:
        """Raises ResponseError if there never was one."""
        queue = self.store.find_queue(topic, queue_id)
        if queue is None or not 0 <= offset < queue.max_offset:
            end = 0 if queue is None else queue.max_offset
            why = f"topic {topic} has no message {offset} in queue {queue_id}: it ends at {end}"
            raise ResponseError(ResponseCode.QUERY_NOT_FOUND, why)
        stored = self._stored(queue, offset)
        place = {"topic": topic, "queue_id": queue_id, "offset": offset, "broker": self.broker}
        if stored is None:
            return MessageFacts(**place, properties=None), None  # type: ignore[arg-type]
        code, bitmap = _code_and_bitmap(queue, offset)
        facts = MessageFacts(
            **place,  # type: ignore[arg-type]
            properties=stored.properties,
            stored=stored.store_timestamp,
            message_id=stored.message_id,
            tags_code=code,
            bitmap=None if bitmap is None else bitmap.hex(),
            code_outcomes=codes,
        )
        return facts, stored

    def _stored(self, queue: ConsumeQueue, offset: int) -> StoredMessage | None:
        """None if it has left the log."""
        if offset < queue.min_offset:
            return None
        units = queue.units(offset, 1)
        try:
            return self.store.message(int(units["offset"][0])) if len(units) else None
        except CorruptRecord as error:
            log.warning("a message that is to be explained can't be read: %s", error)
            return None

    def group(
        self, name: str, message: MessageFacts, copies: Mapping[str, RetryFacts]
    ) -> GroupFacts:
        topic, queue_id, offset = message.topic, message.queue_id, message.offset
        queue = self.store.find_queue(topic, queue_id)
        online = self.consumers.groups.get(name)
        history = self.recorder.history(name, topic)
        filter_data = self.filters.get(topic, name)
        effective = filter_of(online.subscriptions.get(topic)) if online is not None else None
        if effective is None and filter_data is not None:
            effective = Filter("SQL92", filter_data.expression)
        members: dict[str, Filter | None] = {}
        if online is not None:
            members = {
                member.client_id: filter_of(member.subscriptions.get(topic))
                for member in online.members.values()
            }
        model, consume_type = _kind(history)
        return GroupFacts(
            group=name,
            online=online is not None,
            committed=self.offsets.get(name, topic, queue_id),
            first_offset=queue.min_offset if queue is not None else 0,
            end_offset=queue.max_offset if queue is not None else 0,
            message_model=str(online.message_model) if online is not None else model,
            consume_type=str(online.consume_type) if online is not None else consume_type,
            effective=effective,
            members=members,
            readings=history.readings(queue_id, offset) if history is not None else (),
            moves=history.moves_of(queue_id) if history is not None else (),
            first_read=history.first_read(queue_id) if history is not None else None,
            complete_since=self.recorder.since
            if history is None
            else history.complete_since(queue_id, offset, self.recorder.since),
            unsaved_from=history.unsaved_from(queue_id, offset) if history is not None else None,
            retry=copies.get(name),
            policy=self.policy(name),
            lanes=self.lanes(name, topic, queue_id),
            bitmap_bit=_bitmap_bit(message, filter_data),
            has_offsets=bool(self.offsets.topics(name)),
            has_retry_topic=retry_topic(name) in self.topics,
            unknown=_unknown(message, self.topics, name),
        )

    def copies(self, message: StoredMessage, groups: list[str]) -> Steps[dict[str, RetryFacts]]:
        """Return, by group, the newest copy of the message that a member sent back."""
        key = message.properties.get(PropertyName.UNIQUE_KEY)
        found: dict[str, RetryFacts] = {}
        if not key:
            return found
        origin = message.properties.get(PropertyName.ORIGIN_MESSAGE_ID, message.message_id)
        delayed = self._copies(DELAY_TOPIC, key, origin, message)
        for group in groups:
            yield None
            dead = self._copies(dead_letter_topic(group), key, origin, message)
            retries = self._copies(retry_topic(group), key, origin, message)
            waiting = [
                copy
                for copy in delayed
                if copy.properties.get(PropertyName.REAL_TOPIC) == retry_topic(group)
            ]
            newest = max([*dead, *retries, *waiting], key=_copy_order, default=None)
            if newest is not None:
                found[group] = self._retry(group, newest)
        return found

    def _copies(
        self, topic: str, key: str, origin: str, message: StoredMessage
    ) -> list[StoredMessage]:
        if topic != DELAY_TOPIC and topic not in self.topics:
            return []
        return [
            copy
            for copy in self.store.query(topic, key, _MOST_COPIES)
            if copy.properties.get(PropertyName.ORIGIN_MESSAGE_ID) == origin
            and copy.log_offset != message.log_offset
        ]

    def _retry(self, group: str, copy: StoredMessage) -> RetryFacts:
        is_delayed = copy.topic == DELAY_TOPIC
        topic = copy.properties.get(PropertyName.REAL_TOPIC, "") if is_delayed else copy.topic
        committed = self.offsets.get(group, copy.topic, copy.queue_id)
        return RetryFacts(
            topic=topic,
            times=copy.reconsume_times,
            is_dead=copy.topic == dead_letter_topic(group),
            is_consumed=not is_delayed
            and committed is not None
            and committed > copy.queue_offset
            and copy.topic == retry_topic(group),
            due=self._due(copy) if is_delayed else None,
            message_id=copy.message_id,
        )

    def _due(self, copy: StoredMessage) -> int | None:
        """When a delayed message comes: RocketMQ keeps that in place of the tags code."""
        queue = self.store.find_queue(DELAY_TOPIC, copy.queue_id)
        units = queue.units(copy.queue_offset, 1) if queue is not None else ()
        return int(units["code"][0]) if len(units) else None  # type: ignore[call-overload]


def _unknown(message: MessageFacts, topics: Topics, group: str) -> tuple[str, ...]:
    properties = message.properties
    if properties is None or PropertyName.UNIQUE_KEY in properties:
        return ()
    if retry_topic(group) not in topics and dead_letter_topic(group) not in topics:
        return ()
    return ("Whether it was sent back: it has no unique key to find copies by.",)


def _bitmap_bit(message: MessageFacts, data: FilterData | None) -> bool | None:
    """What the message's bitmap says of the group; None if it has no say."""
    if message.bitmap is None or data is None or (message.stored or 0) <= data.born_time:
        return None
    bitmap = bytes.fromhex(message.bitmap)
    if len(bitmap) * 8 != data.bloom_bits:
        return None
    bits = BitArray(data.bloom_bits, bitmap)
    return all(bits[position] for position in data.bloom_positions)


def _copy_order(copy: StoredMessage) -> tuple[int, int]:
    """A delayed copy lies in the log before the same one in its topic."""
    return copy.reconsume_times, copy.log_offset


def _code_and_bitmap(queue: ConsumeQueue, offset: int) -> tuple[int, bytes | None]:
    code = int(queue.units(offset, 1)["code"][0])
    unit = queue.extension.unit(code) if queue.extension is not None else None
    return (code, None) if unit is None else (unit.code, unit.bitmap)


def _kind(history: GroupHistory | None) -> tuple[str, str]:
    """Message model and consume type of a group that is gone, as far as they are remembered."""
    if history is None:
        return "", ""
    model = "BROADCASTING" if history.is_broadcasting else ""
    return model, "CONSUME_ACTIVELY" if history.is_pull else ""


@stepwise
def explain_message(
    explainer: Explainer, header: ExplainMessage, request: Request
) -> Steps[Answer]:
    """For one group, or all that have to do with the topic. Those that lost it come first."""
    codes = _code_outcomes(header.code_outcomes)
    message, stored = explainer.message(header.topic, header.queue_id, header.offset, codes)
    names = explainer.groups(header.topic)
    if header.group is not None:
        if header.group not in names:
            why = f"group {header.group} has nothing to do with topic {header.topic} here"
            raise ResponseError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, why)
        names = [header.group]
    copies: dict[str, RetryFacts] = {}
    if stored is not None:
        copies = yield from explainer.copies(stored, names)
    judged, size = list[tuple[bool, str, bytes]](), 0
    for at in range(0, len(names), _AT_ONCE):
        facts = []
        for name in names[at : at + _AT_ONCE]:
            facts.append(explainer.group(name, message, copies))
            yield None
        made = yield partial(_judge, message, facts)  # in the thread: filters may be long
        judged += made
        size += sum(len(text) + 1 for *_, text in made)
        if size > _MOST_BODY:
            why = f"what became of it for {len(names)} groups is more than an answer holds"
            raise ResponseError(ResponseCode.SYSTEM_ERROR, f"{why}: name a group")
    body = {
        "broker": explainer.broker,
        "since": explainer.recorder.since,
        "message": {
            "topic": message.topic,
            "queue": message.queue_id,
            "offset": message.offset,
            "message_id": message.message_id,
            "stored": message.stored,
            "properties": message.properties,
        },
    }
    groups = b",".join(text for *_, text in sorted(judged))
    return Answer(body=b'%b,"groups":[%b]}' % (_json(body)[:-1], groups))


def _judge(message: MessageFacts, groups: list[GroupFacts]) -> list[tuple[bool, str, bytes]]:
    """Sort key: groups that lost the message come first."""
    made = []
    for facts in groups:
        one = judge(message, facts)
        made.append((one.fate is not Fate.LOST_TO_INCONSISTENCY, one.group, _json(one.to_json())))
    return made


def _code_outcomes(text: str | None) -> dict[str, Outcome]:
    """What filters in code said, by class name: a tool has asked a filter server."""
    if not text:
        return {}
    try:
        if len(text) > _MOST_CODE:
            raise ValueError(f"{len(text)} characters")
        return {str(name): Outcome[str(said).upper()] for name, said in orjson.loads(text).items()}
    except (ValueError, KeyError, AttributeError) as error:
        why = f"codeOutcomes: it takes a JSON object of class names to outcomes ({error})"
        raise ResponseError(ResponseCode.SYSTEM_ERROR, why) from None


@stepwise
def get_history(
    recorder: Recorder, broker: str, header: GetHistory, request: Request
) -> Steps[Answer]:
    """Answer with the history of a topic, of a group, of both, or with all of it; refuse if that is
    more than an answer holds."""
    known = recorder.known(header.group, header.topic)
    left, parts, size = deque(known), list[bytes](), 0
    while left:
        made = yield partial(_encode_some, left)  # in the thread, in turns with others
        size += sum(map(len, made)) + len(made)
        parts += made
        if size > _MOST_BODY:
            why = f"the history of {len(known)} groups on topics takes more than an answer holds"
            if len(known) > 1:
                why += ": name a group or a topic, or both"
            raise ResponseError(ResponseCode.SYSTEM_ERROR, f"{why} ({_MOST_BODY} bytes)")
    head = orjson.dumps({"broker": broker, "since": recorder.since})[:-1]
    return Answer(body=b'%b,"groups":[%b]}' % (head, b",".join(parts)))


def _encode_some(left: deque[GroupHistory]) -> list[bytes]:
    """As many of them as take a moment."""
    made: list[bytes] = []
    deadline = time.thread_time() + _TURN
    while left and (not made or time.thread_time() < deadline):
        made.append(orjson.dumps(left.popleft().to_json()))
    return made


def _json(value: dict[str, Any]) -> bytes:
    """Property values may hold half a surrogate pair, which JSON in UTF-8 can't."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return orjson.dumps(_plain(value))


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, Mapping):
        return {_plain(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value
