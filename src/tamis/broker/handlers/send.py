"""SEND_MESSAGE in its forms, messages sent back for a retry, and replies to request messages.

RocketMQ's `SendMessageProcessor` and `ReplyMessageProcessor` (4.9.4): checks, their order and
codes, what is added to a message and what is dropped before it is stored.
"""

import ipaddress
import logging
import random
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Final

import orjson

from ...errors import CorruptRecord, ResponseError, StoreError
from ...message import Host, PropertyName, SysFlag
from ...net.aio import Peer
from ...net.server import Answer, Request
from ...store.commitlog import Appended, IllegalMessage, is_topic
from ...store.store import Store
from ...wire import properties as properties_block
from ...wire.bodies import GroupConfig, Perm, TopicConfig, TopicFilterType
from ...wire.codes import CommandFlag, RequestCode, ResponseCode
from ...wire.command import Command
from ...wire.frame import Encoding, frame
from ...wire.headers import (
    PushReply,
    SendMessage,
    SendMessageBack,
    SendMessageResponse,
    SendRefusal,
)
from ...wire.record import MAX_PROPERTIES, MAX_TOPIC, Draft
from ..config import Settings
from ..conflicts import Conflicts
from ..groups import Groups
from ..intake import Intake
from ..lanes import LANE_PROPERTY
from ..members import Producers
from ..stats import Stats
from ..topics import NO_SENDING, RETRY_PREFIX, Topics, dead_letter_topic, retry_topic, why_illegal
from ..transactions import Transactions

__all__ = ["Sender", "born_host"]

log = logging.getLogger(__name__)

_FAQ: Final = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."
_OWN_MAXIMUM: Final = 121  # V3_4_9: clients from here on say how often a message is retried
_UNIT, _UNIT_SUB = 1, 2  # of a topic's system flag
_REPLY_SECONDS: Final = 10.0


class Sender:
    """Stores what is sent. `store_host` goes into message ids."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        intake: Intake,
        topics: Topics,
        groups: Groups,
        producers: Producers,
        transactions: Transactions,
        stats: Stats,
        store_host: Host,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._store = store
        self._intake = intake
        self._topics = topics
        self._groups = groups
        self._producers = producers
        self._transactions = transactions
        self._stats = stats
        self._now = now
        self._store_host = store_host
        self._last_failure = ""
        self.conflicts: Conflicts | None = None
        self._known_region = ("", '""')  # and its JSON
        self.id_prefix = (store_host.address + store_host.port.to_bytes(4)).hex().upper()

    # Sending.

    def send(
        self, header: SendMessage, request: Request
    ) -> Answer | Coroutine[Any, Any, Answer] | None:
        """One message, or a batch; answered when it is stored."""
        try:
            topic = self._check(header, request)
            queue_id = header.queue_id
            if queue_id < 0:
                queue_id = random.randrange(topic.write_queues)
            if header.batch:
                return self._send_batch(header, request, topic, queue_id)
            draft = self._draft(header, request, topic, queue_id)
            is_half = b"TRAN_MSG\x01" in draft.properties and self._is_half(draft)
        except ResponseError as error:
            return self._refused(error.code, error.remark)
        put = self._transactions.put if is_half else self._intake.put
        put(draft, self._finish, (request, draft, queue_id), request.peer)
        return None

    def _is_half(self, draft: Draft) -> bool:
        properties = properties_block.decode_bytes(draft.properties)
        if properties.get("TRAN_MSG", "").lower() != "true":
            return False
        config = self._settings.config
        if config.reject_transactions:
            why = f"the broker[{config.name}] sending transaction message is forbidden"
            raise ResponseError(ResponseCode.NO_PERMISSION, why)
        return True

    def _check(self, header: SendMessage, request: Request) -> TopicConfig:
        config = self._settings.config
        topic = self._topics.get(header.topic)
        if self._intake.backlog >= config.send_backlog:
            why = f"[OVERLOAD]broker busy: {self._intake.backlog} messages wait to be stored"
            raise ResponseError(ResponseCode.SYSTEM_BUSY, why)
        if not config.is_writable and topic is not None and topic.order:
            why = f"the broker[{config.name}] sending message is forbidden"
            raise ResponseError(ResponseCode.NO_PERMISSION, why)
        if topic is None:
            illegal = why_illegal(header.topic)
            if illegal is not None:
                raise ResponseError(ResponseCode.SYSTEM_ERROR, illegal)
        if header.topic in NO_SENDING:
            why = f"Sending message to topic[{header.topic}] is forbidden."
            raise ResponseError(ResponseCode.NO_PERMISSION, why)
        if topic is None:
            topic = self._made_for(header, request.peer.host)
        if header.queue_id >= max(topic.write_queues, topic.read_queues):
            why = f"request queueId[{header.queue_id}] is illegal, {topic} Producer: {request.peer}"
            raise ResponseError(ResponseCode.SYSTEM_ERROR, why)
        if len(request.body) > config.max_message_size:
            raise ResponseError(ResponseCode.MESSAGE_ILLEGAL, self._too_large(len(request.body)))
        return topic

    def _made_for(self, header: SendMessage, client: str) -> TopicConfig:
        is_retry = header.topic.startswith(RETRY_PREFIX)
        flag = (_UNIT_SUB if is_retry else _UNIT) if header.unit_mode else 0
        made = self._topics.inherit(
            header.topic,
            header.default_topic,
            header.default_topic_queue_nums,
            allowed=self._settings.config.auto_create_topics,
            sys_flag=flag,
            client=client,
        )
        if made is None and is_retry:
            made = self._topics.ensure(header.topic, 1, flag, client)
        if made is None:
            why = f"topic[{header.topic}] not exist, apply first please!{_FAQ}"
            raise ResponseError(ResponseCode.TOPIC_NOT_EXIST, why)
        return made

    def _draft(
        self, header: SendMessage, request: Request, topic: TopicConfig, queue_id: int
    ) -> Draft:
        name = header.topic
        reconsumed = header.reconsume_times or 0
        for number in (header.flag, header.sys_flag, reconsumed):
            if not -(2**31) <= number < 2**31:
                why = f"{number} where a number of 32 bits is wanted"
                raise ResponseError(ResponseCode.SYSTEM_ERROR, why)
        properties = properties_block.decode(header.properties or "")
        if name.startswith(RETRY_PREFIX):
            name = self._retried_or_dead(header, request, properties)
            if name != header.topic:
                queue_id = 0
        sys_flag = header.sys_flag
        if topic.filter_type is TopicFilterType.MULTI_TAG:
            sys_flag |= SysFlag.MULTI_TAGS
        properties.pop("WAIT", None)  # how the producer waits is of no use to a consumer
        properties["CLUSTER"] = self._settings.config.cluster
        block = properties_block.encode(properties).encode()
        if len(block) > MAX_PROPERTIES:
            raise ResponseError(ResponseCode.MESSAGE_ILLEGAL, self._too_large(len(request.body)))
        return Draft(
            topic=name,
            queue_id=queue_id,
            body=request.body,
            properties=block,
            flag=header.flag,
            sys_flag=sys_flag,
            born_timestamp=header.born_timestamp,
            born_host=born_host(request.peer),
            reconsume_times=reconsumed,
        )

    def _retried_or_dead(
        self, header: SendMessage, request: Request, properties: dict[str, str]
    ) -> str:
        """A client retries a message by sending it itself if it can't send it back."""
        group = header.topic.removeprefix(RETRY_PREFIX)
        config = self._group(group, request)
        most = config.retry_max_times
        if request.command.version >= _OWN_MAXIMUM and header.max_reconsume_times is not None:
            most = header.max_reconsume_times
        if (header.reconsume_times or 0) < most:
            return header.topic
        dead = dead_letter_topic(group)
        self._topics.ensure(dead, 1)
        properties.pop(PropertyName.DELAY, None)
        return dead

    def _group(self, name: str, request: Request) -> GroupConfig:
        create = self._settings.config.auto_create_groups
        found = self._groups.find(name, create=create, client=request.peer.host)
        if found is None:
            why = f"subscription group not exist, {name} {_FAQ}"
            raise ResponseError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, why)
        return found

    def _finish(self, context: tuple[Request, Draft, int], place: Appended | StoreError) -> bytes:
        request, draft, queue_id = context
        if isinstance(place, StoreError):
            return request.encode(self._refused(*self._why(place, len(draft.body))))
        self._stats.put(draft.topic, 1, place.size)
        if self._last_failure:
            log.info("messages are stored again")
            self._last_failure = ""
        command = request.command
        if command.flag & CommandFlag.ONEWAY:
            return b""
        message_id = f"{self.id_prefix}{place.log_offset:016X}"
        if command.encoding is Encoding.JSON:
            return self._fast_answer(command, message_id, queue_id, place.queue_offset)
        return request.encode(Answer(self._response(message_id, queue_id, place.queue_offset)))

    def _response(self, message_id: str, queue_id: int, offset: int) -> SendMessageResponse:
        config = self._settings.config
        return SendMessageResponse(
            msg_id=message_id,
            queue_id=queue_id,
            queue_offset=offset,
            region=config.region,
            trace_on="true" if config.trace else "false",
        )

    def _fast_answer(self, command: Command, message_id: str, queue_id: int, offset: int) -> bytes:
        """What `_response` would be encoded to, in a fourth of the time (bench_broker.py)."""
        config = self._settings.config
        text = (
            f'{{"code":0,"extFields":{{"queueId":"{queue_id}",'
            f'"TRACE_ON":"{"true" if config.trace else "false"}","MSG_REGION":{self._region()},'
            f'"msgId":"{message_id}","queueOffset":"{offset}"}},"flag":1,"language":"JAVA",'
            f'"opaque":{command.opaque},"serializeTypeCurrentRPC":"JSON","version":401}}'
        )
        return frame(Encoding.JSON, text.encode())

    def _region(self) -> str:
        """As JSON."""
        region = self._settings.config.region
        if region != self._known_region[0]:
            self._known_region = (region, orjson.dumps(region).decode())
        return self._known_region[1]

    def _refused(self, code: int, remark: str) -> Answer:
        """Clients read the region whatever the code."""
        config = self._settings.config
        trace = "true" if config.trace else "false"
        return Answer(SendRefusal(region=config.region, trace_on=trace), code=code, remark=remark)

    def refuse(self, peer: Peer, opaque: int, error: StoreError) -> bytes:
        """The answer to a request whose message was taken by `_sends` and is not safe."""
        request = Request(peer, Command(code=RequestCode.SEND_MESSAGE_V2, opaque=opaque))
        return request.encode(self._refused(*self._why(error, 0)))

    def _why(self, error: StoreError, body: int) -> tuple[int, str]:
        if isinstance(error, IllegalMessage):
            self._stats.put_failed()
            return ResponseCode.MESSAGE_ILLEGAL, f"{self._too_large(body)} It is {error}."
        self._stats.put_failed()
        if str(error) != self._last_failure:  # once, not for each message
            self._last_failure = str(error)
            log.error("messages are refused: %s", error)
        return ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now: {error}"

    def _too_large(self, size: int) -> str:
        most = self._settings.config.max_message_size
        return (
            "the message is illegal, maybe msg body or properties length not matched. "
            f"msg body length limit {most}B (this one: {size}B), msg properties length limit 32KB."
        )

    # Batches.

    def _send_batch(
        self, header: SendMessage, request: Request, topic: TopicConfig, queue_id: int
    ) -> Answer | Coroutine[Any, Any, Answer]:
        properties = properties_block.decode(header.properties or "")
        properties["CLUSTER"] = self._settings.config.cluster
        sys_flag = header.sys_flag
        if topic.filter_type is TopicFilterType.MULTI_TAG:
            sys_flag |= SysFlag.MULTI_TAGS
        envelope = Draft(
            topic=header.topic,
            queue_id=queue_id,
            properties=properties_block.encode(properties).encode(),
            sys_flag=sys_flag,
            born_timestamp=header.born_timestamp,
            born_host=born_host(request.peer),
            reconsume_times=header.reconsume_times or 0,
        )
        try:
            placed = self._intake.append_batch(envelope, request.body)
        except StoreError as error:
            return self._refused(*self._why(error, len(request.body)))
        self._stats.put(header.topic, len(placed), sum(place.size for place in placed))
        ids = ",".join([f"{self.id_prefix}{place.log_offset:016X}" for place in placed])
        answer = Answer(self._response(ids, queue_id, placed[0].queue_offset if placed else 0))
        return self._when_synced(answer) if self._intake.is_sync else answer

    async def _when_synced(self, answer: Answer) -> Answer:
        try:
            await self._intake.synced()
        except StoreError as error:
            return self._refused(*self._why(error, 0))
        return answer

    # Sent back.

    async def send_back(self, header: SendMessageBack, request: Request) -> Answer:
        """A consumer could not consume a message: later again, or to the dead letters."""
        config = self._settings.config
        group = self._group(header.group, request)
        if not config.is_writable:
            why = f"the broker[{config.name}] sending message is forbidden"
            raise ResponseError(ResponseCode.NO_PERMISSION, why)
        if group.retry_queues <= 0:
            return Answer()
        name = retry_topic(header.group)
        if len(name.encode()) > MAX_TOPIC or not is_topic(name):
            why = f"the retry topic of group {header.group!r} can't be: too long, or with a / in it"
            raise ResponseError(ResponseCode.SYSTEM_ERROR, why)
        topic = self._topics.ensure(name, group.retry_queues, _UNIT_SUB if header.unit_mode else 0)
        if not topic.perm & Perm.WRITE:
            why = f"the topic[{name}] sending message is forbidden"
            raise ResponseError(ResponseCode.NO_PERMISSION, why)
        try:
            message = self._store.message(header.offset)
        except CorruptRecord:
            why = f"look message by offset failed, {header.offset}"
            raise ResponseError(ResponseCode.SYSTEM_ERROR, why) from None
        properties = dict(message.properties)
        origin = properties.setdefault("RETRY_TOPIC", message.topic)
        properties.setdefault("ORIGIN_MESSAGE_ID", message.message_id)
        properties.pop("WAIT", None)
        properties.pop(LANE_PROPERTY, None)
        lane = self.conflicts.lane(header.group, request.peer) if self.conflicts else None
        if lane is not None:  # it comes back to members with the same subscriptions
            properties[LANE_PROPERTY] = lane.id
        most = group.retry_max_times
        if request.command.version >= _OWN_MAXIMUM and header.max_reconsume_times is not None:
            most = header.max_reconsume_times
        queue_id = random.randrange(group.retry_queues)
        if message.reconsume_times >= most or header.delay_level < 0:
            name, queue_id = dead_letter_topic(header.group), 0
            self._topics.ensure(name, 1)
            properties.pop(PropertyName.DELAY, None)
            log.info(
                "group %s: message %s of %s goes to the dead letters after %d tries",
                *(header.group, message.message_id, origin, message.reconsume_times),
            )
        else:
            level = header.delay_level or 3 + message.reconsume_times
            properties[PropertyName.DELAY] = str(level)
        block = properties_block.encode(properties).encode()
        again = Draft.of(message, name, queue_id, block)
        draft = replace(again, reconsume_times=message.reconsume_times + 1)
        try:
            await self._intake.store([draft])
        except StoreError as error:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        self._stats.sent_back(header.group, origin)
        return Answer()

    # Replies.

    async def reply(self, header: SendMessage, request: Request) -> Answer:
        """To a request message: pushed to the client that waits for it, and stored."""
        topic = self._check(header, request)
        properties = properties_block.decode(header.properties or "")
        now = int(self._now() * 1000)
        pushed = PushReply(
            producer_group=header.producer_group,
            topic=header.topic,
            default_topic=header.default_topic,
            default_topic_queue_nums=header.default_topic_queue_nums,
            queue_id=header.queue_id,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            flag=header.flag,
            properties=properties_block.encode(properties | {"PUSH_REPLY_TIME": str(now)}),
            reconsume_times=header.reconsume_times,
            unit_mode=header.unit_mode,
            born_host=f"/{request.peer}",
            store_host=f"/{self._store_host}",
            store_timestamp=now,
        )
        client_id = properties.get("REPLY_TO_CLIENT")
        code, remark = await self._push_reply(client_id, pushed, request.body)
        placed = None
        try:
            draft = self._draft(header, request, topic, max(header.queue_id, 0))
            (placed,) = await self._intake.store([draft])
        except (StoreError, ResponseError) as error:
            log.warning("a reply was not stored: %s", error)
        return Answer(
            self._response(
                f"{self.id_prefix}{placed.log_offset:016X}" if placed else "0",
                max(header.queue_id, 0),
                placed.queue_offset if placed else 0,
            ),
            code=code,
            remark=remark,
        )

    async def _push_reply(
        self, client_id: str | None, header: PushReply, body: bytes
    ) -> tuple[int, str | None]:
        if not client_id:
            why = "the reply message names no client to push it to (REPLY_TO_CLIENT)"
            return ResponseCode.SYSTEM_ERROR, why
        member = self._producers.find(client_id)
        if member is None:
            why = f"push reply message fail, channel of <{client_id}> not found."
            return ResponseCode.SYSTEM_ERROR, why
        command = Command(code=PushReply.CODE, fields=header.to_fields(), body=body)
        try:
            answer = await member.peer.ask(command, _REPLY_SECONDS)
        except (TimeoutError, ConnectionError) as error:
            return ResponseCode.SYSTEM_ERROR, f"push reply message to {client_id} fail: {error}"
        if answer.code != ResponseCode.SUCCESS:
            return ResponseCode.SYSTEM_ERROR, f"push reply message to {client_id} fail"
        return ResponseCode.SUCCESS, None


def born_host(peer: Peer) -> Host:
    """A peer's address as records hold it, worked out once."""
    if isinstance(peer.memo, Host):
        return peer.memo
    address = ipaddress.ip_address(peer.host.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    peer.memo = host = Host((mapped or address).packed, peer.address[1])
    return host
