"""The classes of the `rocketmq` packages, so that programs move over by their imports:

    from rocketmq.client import Producer, Message   ->   from tamis.client.compat import ...

Both packages are meant, messense's `rocketmq` (0.4) and Apache's `rocketmq-client-python` (2.0),
with both spellings where they differ. Names of their `exceptions`, `consts` and `ffi` are here too.

What is other than there:

- `with producer as p` gives the producer. Each topic keeps the callback it was subscribed with.
- A callback that returns has consumed the message, unless it returns RECONSUME_LATER.
- A body may hold any bytes. What a message does not have (tags, keys, a property) is b"".
- Exceptions tell the reason; the client's own is their `__cause__`.
- `PullConsumer` goes on where its group has come to; there it began anew in each process.
- A selector is given the number itself, not a pointer to it. Sharding keys are hashed as in Java.
- The name server's domain raises NotSupported. The channel of `set_session_credentials` is not
  sent: brokers do not look at it. `set_message_trace` logs that there is none;
  `set_message_batch_max_size` changes nothing: a callback has always been given one message.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import count
from threading import current_thread
from types import TracebackType
from typing import Any, Final, Self

from ..errors import Error, ResponseError, SendFailed, SystemBusy
from ..message import Message as ClientMessage
from ..message import PropertyName
from ..wire.bodies import MessageQueue
from . import blocking, handling, outgoing, received
from ._compat_messages import (
    ConsumerException,
    ConsumeStatus,
    MallocFailed,
    Message,
    MessageModel,
    MessageProperty,
    NotSupported,
    NullPointerException,
    ProducerException,
    ProducerSendAsyncFailed,
    ProducerSendOnewayFailed,
    ProducerSendOrderlyFailed,
    ProducerSendSyncFailed,
    ProducerStartFailed,
    PullConsumerFetchMessageFailed,
    PullConsumerFetchMQFailed,
    PullConsumerStartFailed,
    PushConsumerStartFailed,
    ReceivedMessage,
    RecvMessage,
    RocketMQException,
    SendResult,
    SendStatus,
    Text,
    TransactionStatus,
    raising,
    text,
)
from .backoff import pause_before
from .codesource import Code
from .config import ConsumerConfig, ProducerConfig
from .transactions import TransactionState

__all__ = [
    "ConsumeStatus",
    "ConsumerException",
    "MallocFailed",
    "Message",
    "MessageModel",
    "MessageProperty",
    "NotSupported",
    "NullPointerException",
    "Producer",
    "ProducerException",
    "ProducerSendAsyncFailed",
    "ProducerSendOnewayFailed",
    "ProducerSendOrderlyFailed",
    "ProducerSendSyncFailed",
    "ProducerStartFailed",
    "PullConsumer",
    "PullConsumerFetchMQFailed",
    "PullConsumerFetchMessageFailed",
    "PullConsumerStartFailed",
    "PushConsumer",
    "PushConsumerStartFailed",
    "ReceivedMessage",
    "RecvMessage",
    "RocketMQException",
    "SendResult",
    "SendStatus",
    "TransactionMQProducer",
    "TransactionStatus",
    "hashing_queue_selector",
]

log = logging.getLogger(__name__)

_CALLBACKS: Final = "tamis-send-callback"
_POLL: Final = 0.1  # seconds between looks whether a pull has come to the end
_PAUSE: Final = 0.1  # seconds before an ordered message is sent again; doubled each time, up to
_LONGEST_PAUSE: Final = 2.0

QueueSelector = Callable[[int, ReceivedMessage, int], int]


def hashing_queue_selector(mq_size: int, msg: ReceivedMessage, arg: int) -> int:
    """The one `send_orderly` takes if it is given none."""
    return arg % mq_size


class _Settable:
    """What all have: settings, to be given before the start; `start`, `shutdown` and `with`."""

    _what = ""

    def __init__(self, group_id: Text) -> None:
        self._group = text(group_id)
        self._nameserver = ""
        self._settings: dict[str, Any] = {}  # of the configuration

    def set_group(self, group_name: Text) -> None:
        self._check_before_start()
        self._group = text(group_name)

    def set_name_server_address(self, addr: Text) -> None:
        self._check_before_start()
        self._nameserver = text(addr)

    set_namesrv_addr = set_name_server_address

    def set_name_server_domain(self, domain: Text) -> None:
        raise NotSupported("a name server's domain is not asked: give set_name_server_address")

    set_namesrv_domain = set_name_server_domain

    def set_session_credentials(
        self, access_key: Text, access_secret: Text, channel: Text = ""
    ) -> None:
        """Empty ones are passed over: many programs have the call and no keys. The channel is not
        sent: RocketMQ's brokers do not look at it."""
        if access_key or access_secret:
            key, secret = text(access_key), text(access_secret)
            if not key or not secret:
                missing = "access_secret" if key else "access_key"
                raise RocketMQException(f"set_session_credentials: {missing} is empty")
            self._set("access_key", key)
            self._set("secret_key", secret)

    def set_instance_name(self, name: Text) -> None:
        """DEFAULT stands for one of its own there, and so it does here."""
        self._set("instance_name", "" if text(name) == "DEFAULT" else text(name))

    def set_message_trace(self, message_trace: bool) -> None:
        if message_trace:
            log.warning("group %s: there is no message trace", self._group)

    def _set(self, name: str, value: Any) -> None:
        self._check_before_start()
        self._settings[name] = value

    def _check_before_start(self) -> None:
        if self._is_started:
            raise RocketMQException(f"the {self._what} is started: set it up before")

    @property
    def _is_started(self) -> bool:
        raise NotImplementedError

    def start(self) -> None:
        raise NotImplementedError

    def shutdown(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.shutdown()


class Producer(_Settable):
    """`timeout` is in milliseconds. `orderly` makes no difference: any producer can send in order.

    messense's has no `orderly`: a number in its place is the timeout, and so on.
    """

    _what = "producer"

    def __init__(
        self,
        group_id: Text,
        orderly: bool | int | None = False,
        timeout: int | None = None,
        compress_level: int | None = None,
        max_message_size: int | None = None,
    ) -> None:
        super().__init__(group_id)
        self._client: blocking.Producer | None = None
        self._callbacks: ThreadPoolExecutor | None = None
        if not isinstance(orderly, bool):
            if timeout is not None:
                if compress_level is not None:
                    max_message_size = compress_level
                compress_level = timeout
            timeout = orderly
        if timeout is not None:
            self.set_timeout(timeout)
        if compress_level is not None:
            self.set_compress_level(compress_level)
        if max_message_size is not None:
            self.set_max_message_size(max_message_size)

    def set_timeout(self, timeout: int) -> None:
        """Milliseconds, for all attempts."""
        self._set("timeout", timeout / 1000)

    def set_compress_level(self, level: int) -> None:
        self._set("compress_level", level)

    def set_max_message_size(self, max_size: int) -> None:
        self._set("max_message_size", max_size)

    @property
    def _is_started(self) -> bool:
        return self._client is not None

    def start(self) -> None:
        if self._client is not None:
            return
        with raising(ProducerStartFailed):
            client = self._made(ProducerConfig(**self._settings))
            client.start()
        self._client = client

    def _made(self, config: ProducerConfig) -> blocking.Producer:
        return blocking.Producer(self._nameserver, self._group, config=config)

    def shutdown(self) -> None:
        """Waits for what is being sent, and for callbacks; but not if one of them calls it."""
        client, self._client = self._client, None
        if client is not None:
            client.close()
        callbacks, self._callbacks = self._callbacks, None
        if callbacks is not None:
            callbacks.shutdown(wait=not current_thread().name.startswith(_CALLBACKS))

    @property
    def _started(self) -> blocking.Producer:
        if self._client is None:
            raise Error("the producer is not started: call start, or use `with`")
        return self._client

    def send_sync(self, msg: Message) -> SendResult:
        with raising(ProducerSendSyncFailed):
            return _result(self._started.send(msg.made()))

    def send_oneway(self, msg: Message) -> None:
        with raising(ProducerSendOnewayFailed):
            self._started.send_oneway(msg.made())

    def send_async(
        self,
        msg: Message,
        success_callback: Callable[[SendResult], object] | None = None,
        exception_callback: Callable[[ProducerSendAsyncFailed], object] | None = None,
    ) -> None:
        """One of them is called, in a thread for callbacks. Without `exception_callback` a failure
        is logged."""
        with raising(ProducerSendAsyncFailed):
            sent = self._started.submit(msg.made())
        if self._callbacks is None:
            self._callbacks = ThreadPoolExecutor(1, thread_name_prefix=_CALLBACKS)
        done = partial(_call_back, success_callback, exception_callback)
        sent.add_done_callback(partial(self._callbacks.submit, done))

    def send_batch(self, msgs: Sequence[Message]) -> SendResult:
        """`msg_id` has those of all, with commas between them; `offset` is the first one's."""
        with raising(ProducerSendSyncFailed):
            if not msgs:
                raise Error("a batch needs a message")
            results = self._started.send_batch([msg.made() for msg in msgs])
        worst = next((one for one in results if one.status != outgoing.SendStatus.OK), results[0])
        joined = ",".join(one.message_id for one in results)
        return SendResult(_result(worst).status, joined, results[0].offset)

    def send_orderly(
        self,
        msg: Message,
        arg: int,
        retry_times: int = 3,
        queue_selector: QueueSelector | None = None,
    ) -> SendResult:
        """To the queue of that number, modulo how many there are; `queue_selector` is called with
        how many there are, the message and the number, and gives an index. What fails, also because
        the broker is busy, is sent again `retry_times` times, after a pause that grows."""
        with raising(ProducerSendOrderlyFailed):
            made = msg.made()
            selector = _selector(arg, queue_selector)
            for attempt in count():
                try:
                    return _result(self._started.send(made, selector=selector))
                except (SendFailed, ResponseError) as error:
                    is_passing = isinstance(error, SendFailed | SystemBusy) or error.retriable
                    if attempt >= retry_times or not is_passing:
                        raise
                    log.warning("sent again: %s", error)
                time.sleep(pause_before(attempt, _PAUSE, _LONGEST_PAUSE))
            raise AssertionError

    def send_oneway_orderly(
        self, msg: Message, arg: int, queue_selector: QueueSelector | None = None
    ) -> None:
        with raising(ProducerSendOnewayFailed):
            self._started.send_oneway(msg.made(), selector=_selector(arg, queue_selector))

    def send_orderly_with_sharding_key(self, msg: Message, sharding_key: Text) -> SendResult:
        with raising(ProducerSendOrderlyFailed):
            return _result(self._started.send(msg.made(), key=text(sharding_key)))


def _result(sent: outgoing.SendResult) -> SendResult:
    return SendResult(SendStatus[sent.status.name], sent.message_id, sent.offset)


def _call_back(
    success_callback: Callable[[SendResult], object] | None,
    exception_callback: Callable[[ProducerSendAsyncFailed], object] | None,
    sent: "Future[outgoing.SendResult]",
) -> None:
    try:
        error = sent.exception()
        if error is None:
            if success_callback is not None:
                success_callback(_result(sent.result()))
            return
        cause = error.cause if isinstance(error, SendFailed) else error
        code = int(cause.code) if isinstance(cause, ResponseError) else -1
        failed = ProducerSendAsyncFailed(str(error), code, type=type(error).__name__)
        failed.__cause__ = error
        if exception_callback is not None:
            exception_callback(failed)
        else:
            log.error("a message was not sent: %s", error)
    except Exception:  # the edge: a callback's own
        log.exception("a callback of send_async failed")


def _selector(
    arg: int, choose: QueueSelector | None
) -> Callable[[Sequence[MessageQueue], ClientMessage], MessageQueue]:
    def select(queues: Sequence[MessageQueue], message: ClientMessage) -> MessageQueue:
        if choose is None:
            return queues[arg % len(queues)]
        return queues[choose(len(queues), _sent(message), arg)]

    return select


def _sent(message: ClientMessage, result: outgoing.SendResult | None = None) -> ReceivedMessage:
    """As callbacks are shown what is being sent."""
    properties = message.all_properties()
    queue, offset = MessageQueue(message.topic, "", 0), 0
    if result is not None:
        properties[PropertyName.UNIQUE_KEY] = result.message_id
        queue, offset = result.queue, result.offset
    return ReceivedMessage(
        received.ReceivedMessage(
            topic=message.topic,
            body=message.body,
            properties=properties,
            queue=queue,
            offset=offset,
        )
    )


class TransactionMQProducer(Producer):
    """`checker_callback(message)` is asked by brokers about transactions left open. An exception
    in it, or in `local_execute`, leaves a transaction open."""

    def __init__(
        self,
        group_id: Text,
        checker_callback: Callable[[ReceivedMessage], TransactionStatus],
        user_args: object = None,
        timeout: int | None = None,
        compress_level: int | None = None,
        max_message_size: int | None = None,
    ) -> None:
        super().__init__(group_id, False, timeout, compress_level, max_message_size)
        self._checker = checker_callback

    def _made(self, config: ProducerConfig) -> blocking.Producer:
        def check(message: received.ReceivedMessage) -> TransactionState:
            return _state(self._checker(ReceivedMessage(message)))

        return blocking.Producer(self._nameserver, self._group, check=check, config=config)

    def send_message_in_transaction(
        self,
        message: Message,
        local_execute: Callable[[ReceivedMessage, Any], TransactionStatus],
        user_args: object = None,
    ) -> SendResult:
        def execute(sent: ClientMessage, result: outgoing.SendResult) -> TransactionState:
            return _state(local_execute(_sent(sent, result), user_args))

        with raising(ProducerSendSyncFailed):
            return _result(self._started.send_in_transaction(message.made(), execute)[0])


def _state(said: TransactionStatus) -> TransactionState:
    """Raises ValueError for what is no TransactionStatus."""
    return TransactionState[TransactionStatus(said).name]


class PushConsumer(_Settable):
    """A topic that is not there yet is waited for."""

    _what = "consumer"

    def __init__(
        self,
        group_id: Text,
        orderly: bool = False,
        message_model: MessageModel = MessageModel.CLUSTERING,
    ) -> None:
        super().__init__(group_id)
        self._orderly = orderly
        self._client: blocking.PushConsumer | None = None
        self._callbacks: dict[
            str, tuple[str, Code | None, Callable[[ReceivedMessage], object]]
        ] = {}
        self._settings["wait_for_topics"] = True
        self.set_message_model(message_model)

    def set_message_model(self, model: MessageModel) -> None:
        self._set("model", MessageModel(model).name.lower())

    def set_thread_count(self, thread_count: int) -> None:
        self._set("concurrency", thread_count)

    def set_message_batch_max_size(self, max_size: int) -> None:
        """Of no effect."""

    @property
    def _is_started(self) -> bool:
        return self._client is not None

    def subscribe(
        self,
        topic: Text,
        callback: Callable[[ReceivedMessage], object],
        expression: Text = "*",
        *,
        code: Code | None = None,
    ) -> None:
        """Tags, as `A || B`, or a filter in code, which the other packages do not have. Before or
        after the start."""
        name, tags = text(topic), text(expression)
        self._callbacks[name] = (tags, code, callback)
        if self._client is not None:
            self._subscribe(self._client, name)

    def _subscribe(self, client: blocking.PushConsumer, topic: str) -> None:
        tags, code, callback = self._callbacks[topic]
        wanted = tags if code is None or tags != "*" else None
        with raising(ConsumerException):
            client.subscribe(topic, partial(_consume, callback), tags=wanted, code=code)

    def start(self) -> None:
        if self._client is not None:
            return
        with raising(PushConsumerStartFailed):
            config = ConsumerConfig(**self._settings)
            client = blocking.PushConsumer(
                self._nameserver, self._group, ordered=self._orderly, config=config
            )
            for topic in self._callbacks:
                self._subscribe(client, topic)
            client.start()
        self._client = client

    def shutdown(self) -> None:
        """Waits for callbacks, ten seconds at most."""
        client, self._client = self._client, None
        if client is not None:
            client.close()


def _consume(
    callback: Callable[[ReceivedMessage], object], message: received.ReceivedMessage
) -> handling.ConsumeStatus:
    """messense ignores what a callback returns, Apache wants a ConsumeStatus or its number."""
    said = callback(ReceivedMessage(message))
    if said is False:
        log.warning(
            "message %s: its callback returned False, which counts as consumed: return"
            " ConsumeStatus.RECONSUME_LATER, or raise",
            message.message_id,
        )
    if not isinstance(said, bool) and said == ConsumeStatus.RECONSUME_LATER:
        return handling.ConsumeStatus.RETRY
    return handling.ConsumeStatus.SUCCESS


class PullConsumer(_Settable):
    _what = "consumer"

    def __init__(self, group_id: Text) -> None:
        super().__init__(group_id)
        self._settings["start"] = "first"
        self._pulls: dict[tuple[str, str], _Pull] | None = None

    @property
    def _is_started(self) -> bool:
        return self._pulls is not None

    def start(self) -> None:
        """Whether there is a name server is seen at the first pull."""
        with raising(PullConsumerStartFailed):
            ConsumerConfig(**self._settings)
            if not self._nameserver:
                raise Error("no name server is given: call set_name_server_address first")
        if self._pulls is None:
            self._pulls = {}

    def shutdown(self) -> None:
        pulls, self._pulls = self._pulls, None
        for one in (pulls or {}).values():
            one.consumer.close()

    def pull(
        self, topic: Text, expression: Text = "*", max_num: int = 32
    ) -> Iterator[ReceivedMessage]:
        """All that there is, from all queues of the topic. A message counts as consumed when one
        of a later pull of `max_num` is asked for, or the end is reached."""
        key = text(topic), text(expression)
        if self._pulls is None:
            raise ConsumerException("the consumer is not started: call start, or use `with`")
        found = self._pulls.get(key)
        if found is None:
            with raising(PullConsumerFetchMQFailed):
                found = self._pulls[key] = self._begin(*key, max_num)
        while True:
            while found.rest:  # also of a pull that was not followed to its end
                yield ReceivedMessage(found.rest.popleft())
            with raising(PullConsumerFetchMessageFailed):
                if not found.fetch(max_num):
                    return

    def _begin(self, topic: str, expression: str, max_num: int) -> "_Pull":
        config = ConsumerConfig(**self._settings, pull_size=max_num)
        consumer = blocking.Consumer(self._nameserver, self._group, config=config)
        try:
            consumer.assign(consumer.queues(topic), tags=expression)
            consumer.start()
        except BaseException:
            consumer.close()
            raise
        return _Pull(consumer)


class _Pull:
    """Of one topic with one filter."""

    def __init__(self, consumer: blocking.Consumer) -> None:
        self.consumer = consumer
        self.rest: deque[received.ReceivedMessage] = deque()

    def fetch(self, limit: int) -> bool:
        """False if there is nothing more now; all before is consumed then."""
        consumer = self.consumer
        while True:
            self.rest.extend(consumer.getmany(limit, timeout=0))
            if self.rest:
                return True
            ends = {queue: consumer.last_offset(queue) for queue in consumer.assignment}
            if all((consumer.position(queue) or 0) >= end for queue, end in ends.items()):
                consumer.commit()
                return False
            self.rest.extend(consumer.getmany(limit, timeout=_POLL))
            if self.rest:
                return True
