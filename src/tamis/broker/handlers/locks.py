"""LOCK_BATCH_MQ and UNLOCK_BATCH_MQ, of consumers that consume in order."""

from ...errors import ResponseError
from ...net.server import Answer, Request
from ...wire import beans
from ...wire.bodies import LockRequest, LockResponse, UnlockRequest
from ...wire.codes import ResponseCode
from ..locks import Locks

__all__ = ["lock_queues", "unlock_queues"]


def lock_queues(locks: Locks, header: None, request: Request) -> Answer:
    wanted = _decoded(LockRequest, request)
    held = locks.lock(wanted.group, wanted.client_id, wanted.queues)
    return Answer(body=beans.encode(LockResponse(queues=held)))


def unlock_queues(locks: Locks, header: None, request: Request) -> Answer:
    wanted = _decoded(UnlockRequest, request)
    locks.unlock(wanted.group, wanted.client_id, wanted.queues)
    return Answer()


def _decoded(kind: type[LockRequest], request: Request) -> LockRequest:
    try:
        return beans.decode(kind, request.body)
    except ValueError as error:
        why = f"a body that can't be read: {error}"
        raise ResponseError(ResponseCode.SYSTEM_ERROR, why) from None
