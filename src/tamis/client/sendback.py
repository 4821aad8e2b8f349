"""A message that failed goes back: to the broker it came from, which keeps it for later."""

import logging
import random
import time
from typing import TYPE_CHECKING, Final

from ..errors import Error
from ..message import PropertyName
from ..wire import headers, properties
from ..wire.codes import Language, RequestCode
from ..wire.command import Command
from .received import ReceivedMessage, retry_topic

if TYPE_CHECKING:
    from .session import Session

__all__ = ["SendBack"]

log = logging.getLogger(__name__)

_TIMEOUT: Final = 5.0
_FIRST_LEVEL: Final = 3  # the delay of a first retry: 10 s
_GROUP: Final = "CLIENT_INNER_PRODUCER"
_COMPRESSION: Final = 0x701  # bits of the system flag: whether a body is compressed, and how


class SendBack:
    """Of one group: `await send_back(message, level)` gives whether a broker has it now."""

    def __init__(self, session: "Session", group: str, max_reconsume_times: int) -> None:
        self._session = session
        self._group = group
        self._most = max_reconsume_times

    async def __call__(self, message: ReceivedMessage, level: int = 0) -> bool:
        """`level` -1: to the dead letter topic at once."""
        header = headers.SendMessageBack(
            offset=message.log_offset,
            group=self._group,
            delay_level=level,
            origin_msg_id=message.message_id,
            origin_topic=message.topic,
            max_reconsume_times=self._most,
        )
        try:
            address = await self._session.routes.master(message.queue.broker_name)
            await self._session.ask(address, header, timeout=_TIMEOUT)
            return True
        except (Error, TimeoutError) as error:
            log.warning("message %s: not taken back: %s", message.message_id, error)
        try:
            await self.send_copy(message, level)
            return True
        except (Error, TimeoutError) as error:
            log.error("message %s: not sent to be retried either: %s", message.message_id, error)
            return False

    async def send_copy(self, message: ReceivedMessage, level: int = 0) -> None:
        """To the group's retry topic, at any broker. It goes to the dead letter topic if it was
        tried as often as it may be."""
        topic = retry_topic(self._group)
        queues = await self._session.routes.publish_queues(topic)
        if not queues:
            raise Error(f"topic {topic} has no queue that can be written to")
        queue = random.choice(queues)
        is_readable = message.is_readable
        named = dict(message.properties)
        for name in ("MIN_OFFSET", "MAX_OFFSET", PropertyName.TRANSACTION_PREPARED):
            named.pop(name, None)
        times = message.reconsume_times
        named[PropertyName.RETRY_TOPIC] = message.topic
        named.setdefault(PropertyName.ORIGIN_MESSAGE_ID, message.message_id)
        named[PropertyName.DELAY] = str(level if level > 0 else _FIRST_LEVEL + times)
        header = headers.SendMessage(
            producer_group=_GROUP,
            topic=topic,
            default_topic="TBW102",
            default_topic_queue_nums=4,
            queue_id=queue.queue_id,
            sys_flag=0 if is_readable else message.sys_flag & _COMPRESSION,
            born_timestamp=message.born_timestamp or int(time.time() * 1000),
            flag=message.flag,
            properties=properties.encode(named),
            reconsume_times=times + 1,
            max_reconsume_times=self._most if level != -1 else 0,
        )
        address = await self._session.routes.master(queue.broker_name)
        command = Command(
            code=RequestCode.SEND_MESSAGE_V2,
            fields=header.to_fields(letters=True),
            body=message.body if is_readable else message.stored_body,
            language=Language.PYTHON,
        )
        await self._session.ask_command(address, command, timeout=_TIMEOUT)
