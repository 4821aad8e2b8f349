"""LOCK_BATCH_MQ and UNLOCK_BATCH_MQ, of consumers that consume in order."""

from typing import Final

from ...net.longwork import Steps, stepwise
from ...net.server import Answer, Request
from ...wire.bodies import LockRequest, LockResponse, UnlockRequest
from ..locks import Locks
from .bodies import answer_steps, decode_steps

__all__ = ["lock_queues", "unlock_queues"]


_REFUSAL: Final = "a body that can't be read"


@stepwise
def lock_queues(locks: Locks, header: None, request: Request) -> Steps[Answer]:
    wanted = yield from decode_steps(LockRequest, request, _REFUSAL)
    name = locks.name_of(wanted.group, request.peer)
    held = yield from locks.lock_steps(name, wanted.client_id, wanted.queues)
    return (yield from answer_steps(LockResponse(queues=held)))


@stepwise
def unlock_queues(locks: Locks, header: None, request: Request) -> Steps[Answer]:
    wanted = yield from decode_steps(UnlockRequest, request, _REFUSAL)
    name = locks.name_of(wanted.group, request.peer)
    for queue in wanted.queues:
        locks.unlock(name, wanted.client_id, [queue])
        yield None
    return Answer()
