"""Messages that ask for an answer: a request waits for the reply with its correlation id."""

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from ..errors import InvalidMessage
from ..message import Message, PropertyName, SysFlag
from ..net.aio import Peer
from ..wire import headers, properties
from ..wire.bodies import MessageQueue
from ..wire.codes import RequestCode, ResponseCode
from ..wire.command import Command, Fields
from .received import ReceivedMessage

if TYPE_CHECKING:
    from .session import Session

__all__ = ["Replies"]

log = logging.getLogger(__name__)

_REPLY_TOPIC: Final = "_REPLY_TOPIC"  # after the name of the request's cluster
_CARRIED: Final = (PropertyName.CORRELATION_ID, PropertyName.REPLY_TO_CLIENT, PropertyName.TTL)

SendRequest = Callable[[Message, Fields, float], Awaitable[None]]


class Replies:
    """Of one producer."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._waiting: dict[str, asyncio.Future[ReceivedMessage]] = {}
        session.listeners[RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT] = self._came

    async def ask(self, message: Message, timeout: float, send: SendRequest) -> ReceivedMessage:
        """The reply. Raises TimeoutError, and what sending raises."""
        correlation = str(uuid.uuid4())
        more = {
            PropertyName.CORRELATION_ID: correlation,
            PropertyName.REPLY_TO_CLIENT: self._session.client_id,
            PropertyName.TTL: str(int(timeout * 1000)),
        }
        waiting: asyncio.Future[ReceivedMessage] = asyncio.get_running_loop().create_future()
        self._waiting[correlation] = waiting
        try:
            async with asyncio.timeout(timeout):
                await send(message, more, timeout)
                return await waiting
        except TimeoutError:
            raise TimeoutError(
                f"no reply to the request to {message.topic} within {timeout:g} s: does anyone"
                " consume it and reply?"
            ) from None
        finally:
            del self._waiting[correlation]

    def to(
        self, request: ReceivedMessage, body: bytes | str, tags: str | None
    ) -> tuple[Message, Fields, int]:
        """The reply as a message, its properties of ours, and the request code."""
        cluster = request.properties.get(PropertyName.CLUSTER)
        if cluster is None or PropertyName.CORRELATION_ID not in request.properties:
            raise InvalidMessage(f"message {request.message_id} does not ask for a reply")
        more: Fields = {
            name: request.properties[name] for name in _CARRIED if name in request.properties
        }
        more[PropertyName.MESSAGE_TYPE] = "reply"
        message = Message(cluster + _REPLY_TOPIC, body, tags=tags)
        return message, more, int(RequestCode.SEND_REPLY_MESSAGE_V2)

    async def _came(self, peer: Peer, request: Command) -> Command:
        header = headers.PushReply.from_fields(request.fields)
        named = properties.decode(header.properties or "")
        waiting = self._waiting.get(named.get(PropertyName.CORRELATION_ID, ""))
        if waiting is None or waiting.done():
            log.warning("a reply of %s that nobody waits for (any more)", header.born_host)
        else:
            reply = ReceivedMessage(
                topic=header.topic,
                body=request.body,
                properties=named,
                queue=MessageQueue(header.topic, "", header.queue_id),
                offset=0,
                reconsume_times=header.reconsume_times or 0,
                born_timestamp=header.born_timestamp,
                store_timestamp=header.store_timestamp,
                flag=header.flag,
                sys_flag=header.sys_flag,
            )
            if header.sys_flag & SysFlag.COMPRESSED:
                reply.mark_compressed(self._session.config.max_body_size)
            waiting.set_result(reply)
        return Command(code=ResponseCode.SUCCESS)
