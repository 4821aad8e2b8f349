"""END_TRANSACTION and RESUME_CHECK_HALF_MESSAGE: RocketMQ's `EndTransactionProcessor` (4.9.4)."""

import logging
from collections.abc import Coroutine
from typing import Any, Final

from ...errors import ResponseError, StoreError
from ...message import SysFlag
from ...net.server import Answer, Request
from ...store.commitlog import IllegalMessage
from ...store.files import DiskFull
from ...wire.codes import ResponseCode
from ...wire.headers import EndTransaction, OfMessage
from ..transactions import Transactions

__all__ = ["end_transaction", "resume_check"]

log = logging.getLogger(__name__)

_DECISIONS: Final = (SysFlag.COMMIT, SysFlag.ROLLBACK)


def end_transaction(
    transactions: Transactions, header: EndTransaction, request: Request
) -> Coroutine[Any, Any, Answer] | None:
    """A producer that does not know yet is not answered: it will be asked."""
    if header.commit_or_rollback not in _DECISIONS:
        log.debug(
            "%s: transaction %d of group %s is not decided: %s",
            *(request.peer, header.tran_state_table_offset, header.producer_group),
            request.command.remark,
        )
        return None
    return _end(transactions, header)


async def _end(transactions: Transactions, header: EndTransaction) -> Answer:
    try:
        await transactions.end(
            header.producer_group,
            header.tran_state_table_offset,
            header.commit_log_offset,
            commit=header.commit_or_rollback == SysFlag.COMMIT,
        )
    except StoreError as error:
        raise _refusal(error) from None
    return Answer()


async def resume_check(transactions: Transactions, header: OfMessage, request: Request) -> Answer:
    """The message is named by where it lies: the last 16 digits are its place in the log."""
    try:
        place = int((header.msg_id or "")[-16:], 16)
    except ValueError:
        why = f"{header.msg_id!r:.80} is no message id"
        raise ResponseError(ResponseCode.SYSTEM_ERROR, why) from None
    try:
        await transactions.resume(place)
    except StoreError as error:
        raise _refusal(error) from None
    return Answer()


def _refusal(error: StoreError) -> ResponseError:
    code = ResponseCode.SYSTEM_ERROR
    if isinstance(error, IllegalMessage):
        code = ResponseCode.MESSAGE_ILLEGAL
    elif isinstance(error, DiskFull):
        code = ResponseCode.SERVICE_NOT_AVAILABLE
    return ResponseError(code, str(error))
