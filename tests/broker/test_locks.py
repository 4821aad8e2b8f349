"""Queue locks of consumers that consume in order."""

import json

import pytest

from tamis.broker.handlers.locks import lock_queues, unlock_queues
from tamis.broker.locks import LOCK_SECONDS, Locks
from tamis.errors import ResponseError
from tamis.net.aio import Peer
from tamis.net.server import Request
from tamis.wire.bodies import MessageQueue
from tamis.wire.codes import RequestCode, ResponseCode
from tamis.wire.command import Command

Q0, Q1, Q2 = (MessageQueue("T", "broker-a", number) for number in range(3))


class Clock:
    def __init__(self) -> None:
        self.seconds = 1_000_000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def locks(clock: Clock) -> Locks:
    return Locks(clock)


def test_free_queues_are_locked(locks: Locks) -> None:
    assert locks.lock("g", "a", [Q0, Q1]) == [Q0, Q1]


def test_a_queue_another_client_holds_is_left_out(locks: Locks) -> None:
    locks.lock("g", "a", [Q0])
    assert locks.lock("g", "b", [Q0, Q1]) == [Q1]


def test_groups_do_not_hold_up_each_other(locks: Locks) -> None:
    locks.lock("g", "a", [Q0])
    assert locks.lock("h", "b", [Q0]) == [Q0]


def test_a_lock_lives_sixty_seconds(locks: Locks, clock: Clock) -> None:
    locks.lock("g", "a", [Q0])
    clock.seconds += LOCK_SECONDS
    assert locks.lock("g", "b", [Q0]) == []
    clock.seconds += 0.001
    assert locks.lock("g", "b", [Q0]) == [Q0]
    assert locks.lock("g", "a", [Q0]) == []


def test_locking_again_renews(locks: Locks, clock: Clock) -> None:
    locks.lock("g", "a", [Q0])
    clock.seconds += 50
    assert locks.lock("g", "a", [Q0]) == [Q0]
    clock.seconds += 50
    assert locks.lock("g", "b", [Q0]) == []


def test_unlocking_frees_ones_own_queues_only(locks: Locks) -> None:
    locks.lock("g", "a", [Q0])
    locks.lock("g", "b", [Q1])
    locks.unlock("g", "a", [Q0, Q1, Q2])
    assert locks.lock("g", "c", [Q0, Q1]) == [Q0]


def test_locks_nobody_renews_are_forgotten(locks: Locks, clock: Clock) -> None:
    for number in range(100):
        locks.lock("g", f"client-{number}", [MessageQueue("T", "broker-a", number)])
    clock.seconds += 3 * LOCK_SECONDS
    locks.lock("g", "a", [Q0])
    assert len(locks) == 1


def request(code: RequestCode, body: bytes) -> Request:
    peer = Peer(lambda peer, commands: None)
    return Request(peer, Command(code=code, body=body))


def lock_body(client: str, *queues: MessageQueue) -> bytes:
    rows = [{"brokerName": q.broker_name, "queueId": q.queue_id, "topic": q.topic} for q in queues]
    return json.dumps({"clientId": client, "consumerGroup": "g", "mqSet": rows}).encode()


def test_the_answer_names_the_queues_held(locks: Locks) -> None:
    locks.lock("g", "b", [Q1])
    asked = request(RequestCode.LOCK_BATCH_MQ, lock_body("a", Q0, Q1))
    answer = lock_queues(locks, None, asked)
    assert answer.code == ResponseCode.SUCCESS
    row = {"brokerName": "broker-a", "queueId": 0, "topic": "T"}
    assert json.loads(answer.body) == {"lockOKMQSet": [row]}


def test_unlocking_is_answered_with_success(locks: Locks) -> None:
    locks.lock("g", "a", [Q0])
    asked = request(RequestCode.UNLOCK_BATCH_MQ, lock_body("a", Q0))
    assert unlock_queues(locks, None, asked).code == ResponseCode.SUCCESS
    assert len(locks) == 0


@pytest.mark.parametrize("handler", [lock_queues, unlock_queues])
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"mqSet":[1]}'])
def test_a_body_that_cannot_be_read_is_refused(handler, body: bytes, locks: Locks) -> None:
    with pytest.raises(ResponseError) as refused:
        handler(locks, None, request(RequestCode.LOCK_BATCH_MQ, body))
    assert refused.value.code == ResponseCode.SYSTEM_ERROR
