"""Messages that are seen only if something else succeeds: half messages, how they end, and what is
answered when a broker asks about one that did not.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from enum import IntEnum
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

from ..errors import ConfigError, Error
from ..message import Message, PropertyName, SysFlag
from ..net.aio import Peer
from ..wire import headers
from ..wire.bodies import MessageQueue
from ..wire.codes import RequestCode
from ..wire.command import Command, Fields
from .outgoing import SendResult, SendStatus
from .received import ReceivedMessage, decode_one

if TYPE_CHECKING:
    from .session import Session

__all__ = ["Check", "Execute", "Transaction", "TransactionState", "Transactions"]

log = logging.getLogger(__name__)


class TransactionState(IntEnum):
    """How it ended. What is not known yet, the broker asks for again."""

    COMMIT = SysFlag.COMMIT
    ROLLBACK = SysFlag.ROLLBACK
    UNKNOWN = 0


_Said = TransactionState | bool | None
Check = Callable[[ReceivedMessage], _Said | Awaitable[_Said]]
Execute = Callable[[Message, SendResult], _Said | Awaitable[_Said]]
SendHalf = Callable[[Message, Fields, int], Awaitable[SendResult]]


class Transaction:
    """From `async with` to its end."""

    def __init__(self, owner: "Transactions", message: Message, send: SendHalf) -> None:
        self.message = message
        self._owner = owner
        self._send = send
        self._state = TransactionState.COMMIT
        self._result: SendResult | None = None

    @property
    def result(self) -> SendResult:
        if self._result is None:
            raise Error("a transaction begins with `async with`")
        return self._result

    def commit(self) -> None:
        """At the end of the block; so it is unless something else is said."""
        self._state = TransactionState.COMMIT

    def rollback(self) -> None:
        self._state = TransactionState.ROLLBACK

    def leave_open(self) -> None:
        """It is not known yet: the broker will ask."""
        self._state = TransactionState.UNKNOWN

    async def __aenter__(self) -> "Transaction":
        self._result = await self._owner.send_half(self.message, self._send)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            await self._owner.end(self.result, self._state)
        elif isinstance(error, Exception):
            await self._owner.end(self.result, TransactionState.ROLLBACK, repr(error))
        # else it was cancelled somewhere in it: nobody knows how far it came, the check will


class Transactions:
    """Of one producer."""

    def __init__(self, session: "Session", group: str, check: Check | None) -> None:
        self._session = session
        self._group = group
        self._check = check
        session.listeners[RequestCode.CHECK_TRANSACTION_STATE] = self._checked

    def begin(self, message: Message, send: SendHalf) -> Transaction:
        if self._check is None:
            raise ConfigError(
                "a transaction needs Producer(check=...): brokers ask it how a transaction ended"
                " when they were not told"
            )
        return Transaction(self, message, send)

    async def run(
        self, message: Message, execute: Execute, send: SendHalf
    ) -> tuple[SendResult, TransactionState]:
        result = await self.begin(message, send)._owner.send_half(message, send)
        try:
            state, why = _state(await _called(execute, message, result)), ""
        except Exception as error:  # the user's: RocketMQ takes it for not known
            log.exception("transaction %s", result.message_id)
            state, why = TransactionState.UNKNOWN, repr(error)
        await self.end(result, state, why)
        return result, state

    async def send_half(self, message: Message, send: SendHalf) -> SendResult:
        """Raises Error if it is stored, but less safely than was asked for: it is taken back."""
        more = {PropertyName.TRANSACTION_PREPARED: "true", PropertyName.PRODUCER_GROUP: self._group}
        if message.delay_level:
            raise ConfigError("a message in a transaction can't be delayed: RocketMQ drops delays")
        result = await send(message, more, int(SysFlag.PREPARED))
        if result.status is not SendStatus.OK:
            await self.end(result, TransactionState.ROLLBACK, str(result.status))
            raise Error(
                f"the transaction was not begun: its message was stored with {result.status}"
            )
        return result

    async def end(self, result: SendResult, state: TransactionState, why: str = "") -> None:
        """What the broker does not hear of, it will ask about."""
        if state is TransactionState.UNKNOWN:
            return
        header = headers.EndTransaction(
            producer_group=self._group,
            tran_state_table_offset=result.offset,
            commit_log_offset=int(result.offset_message_id[-16:], 16),
            commit_or_rollback=int(state),
            msg_id=result.message_id,
            transaction_id=result.message_id,
        )
        try:
            address = await self._session.routes.master(result.queue.broker_name)
            await self._session.ask(address, header)
        except (Error, TimeoutError) as error:
            log.warning(
                "%s of transaction %s was not taken by the broker, which will ask: %s",
                *(state.name, result.message_id, error),
            )

    async def _checked(self, peer: Peer, request: Command) -> None:
        header = headers.CheckTransactionState.from_fields(request.fields)
        limit = self._session.config.max_body_size
        message = decode_one(request.body, MessageQueue("", "", 0), 0, limit)
        message.queue = MessageQueue(message.topic, "", 0)
        if (
            message.properties.get(PropertyName.PRODUCER_GROUP) != self._group
            or self._check is None
        ):
            log.warning("asked about a transaction of another group: %s", message.message_id)
            return
        try:
            state, why = _state(await _called(self._check, message)), ""
        except Exception as error:  # the user's: the broker will ask again
            log.exception("check of transaction %s", message.message_id)
            state, why = TransactionState.UNKNOWN, repr(error)
        log.info("transaction %s: asked by %s, it is %s", message.message_id, peer, state.name)
        if state is not TransactionState.UNKNOWN:
            end = headers.EndTransaction(
                producer_group=self._group,
                tran_state_table_offset=header.tran_state_table_offset,
                commit_log_offset=header.commit_log_offset,
                commit_or_rollback=int(state),
                from_transaction_check=True,
                msg_id=header.msg_id or message.message_id,
                transaction_id=header.transaction_id,
            )
            command = Command(code=end.CODE, fields=end.to_fields(), remark=why or None)
            peer.tell(command)


def _state(said: _Said) -> TransactionState:
    if isinstance(said, TransactionState):
        return said
    if said is None:
        return TransactionState.UNKNOWN
    return TransactionState.COMMIT if said else TransactionState.ROLLBACK


async def _called(function: Callable[..., _Said | Awaitable[_Said]], *arguments: object) -> _Said:
    """A plain function may well wait for a database: in a thread."""
    said: _Said | Awaitable[_Said]
    if inspect.iscoroutinefunction(function):
        said = function(*arguments)
    else:
        said = await asyncio.get_running_loop().run_in_executor(None, partial(function, *arguments))
    return await said if isinstance(said, Awaitable) else said
