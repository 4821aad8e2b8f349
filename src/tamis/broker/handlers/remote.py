"""Questions to a consumer that go through the broker, for only the broker is connected to it.

RocketMQ's `AdminBrokerProcessor.callConsumer` (4.9.4).
"""

import logging
from typing import Final

from ...errors import ResponseError
from ...net.server import Answer, Request
from ...store.store import Store
from ...wire.codes import RequestCode, ResponseCode, version_name
from ...wire.command import Command, Fields
from ...wire.headers import ConsumeDirectly, GetRunningInfo
from ..members import Consumers
from .queries import log_record

__all__ = ["consume_directly", "running_info"]

log = logging.getLogger(__name__)

_SECONDS: Final = 10.0
_VERSION: Final = 62  # V3_1_8_SNAPSHOT: the first that answers


async def running_info(consumers: Consumers, header: GetRunningInfo, request: Request) -> Answer:
    code = RequestCode.GET_CONSUMER_RUNNING_INFO
    return await _forward(
        consumers, code, header.consumer_group, header.client_id, request.command.fields, b""
    )


async def consume_directly(
    broker: str, consumers: Consumers, store: Store, header: ConsumeDirectly, request: Request
) -> Answer:
    """A message by its id, to be consumed now, whatever the group has consumed."""
    body = log_record(store, _offset_in(header.msg_id or ""))
    fields = {**(request.command.fields or {}), "brokerName": broker}
    code = RequestCode.CONSUME_MESSAGE_DIRECTLY
    return await _forward(consumers, code, header.consumer_group, header.client_id, fields, body)


def _offset_in(message_id: str) -> int:
    """Of an offset message id: an address of 4 or 16 bytes, a port, and where it lies."""
    try:
        if len(message_id) in (32, 56):
            return int.from_bytes(bytes.fromhex(message_id)[-8:], signed=True)
    except ValueError:
        pass
    why = f"{message_id!r:.80} is not an offset message id"
    raise ResponseError(ResponseCode.SYSTEM_ERROR, why)


async def _forward(
    consumers: Consumers,
    code: RequestCode,
    group_name: str,
    client_id: str | None,
    fields: Fields | None,
    body: bytes,
) -> Answer:
    group = consumers.groups.get(group_name)
    member = group.find(client_id) if group is not None and client_id is not None else None
    if member is None:
        why = f"The Consumer <{group_name}> <{client_id}> not online"
        raise ResponseError(ResponseCode.SYSTEM_ERROR, why)
    if member.version < _VERSION:
        why = (
            f"The Consumer <{client_id}> Version <{version_name(member.version)}> too low to "
            "finish, please upgrade it to V3_1_8_SNAPSHOT"
        )
        raise ResponseError(ResponseCode.SYSTEM_ERROR, why)
    try:
        answer = await member.peer.ask(Command(code=code, fields=fields, body=body), _SECONDS)
    except TimeoutError:
        why = f"consumer <{group_name}> <{client_id}> Timeout: no answer within {_SECONDS:g} s"
        log.warning("%s", why)
        raise ResponseError(ResponseCode.CONSUME_MSG_TIMEOUT, why) from None
    except ConnectionError as error:
        why = f"invoke consumer <{group_name}> <{client_id}> Exception: {error}"
        raise ResponseError(ResponseCode.SYSTEM_ERROR, why) from None
    return Answer(body=answer.body, code=answer.code, remark=answer.remark)
