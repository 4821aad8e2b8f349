"""What classes of groups say of ranges of messages: a worker's questions to filter servers.

Asked where the messages are judged, a stretch of a queue at a time, and answered with a bit for
each message. A filter server judges few such requests at once; a worker that finds it busy waits.
What can't be answered is remembered for the rest of the partition, and not asked again.
"""

import json
import random
import time
from base64 import b64decode
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ..client.backoff import pause_before
from ..client.judgerange import NO_SERVER, check_class, class_name_of, refusal, why_not_judged
from ..client.session import request_of
from ..errors import Error, ResponseError, SystemBusy
from ..filter.logic import Outcome
from ..net.blocking import BlockingPeer, connect
from ..security import INSECURE, Security
from ..wire.codes import ResponseCode
from ..wire.headers import JudgeRange

__all__ = ["UNKNOWN", "CodeJudges", "FilterServers"]

UNKNOWN: Final = 255  # in place of an outcome
# Addresses by broker. None: of a store's files, which nobody serves.
FilterServers = Mapping[str, tuple[str, ...] | None]
QueueName = tuple[str, str, int]  # topic, broker, queue

_MOST_MESSAGES: Final = 1_000_000  # of one request, as filter servers have it
_NEAR: Final = 1000  # offsets not asked about that are judged all the same, to ask less often
_SECONDS: Final = 5.0  # of judging, for one request
_ANSWER_SECONDS: Final = 60.0  # for its answer: a slow filter may take long for one batch
_BUSY_SECONDS: Final = 300.0  # of waiting for a busy server, without an answer in between
_ATTEMPTS: Final = 3  # at connections that break, and at servers that have answered before
_PAUSE: Final = 1.0  # seconds before the second attempt at such a server; then twice as many

_TRUE, _FALSE, _ERROR = (int(one) for one in (Outcome.TRUE, Outcome.FALSE, Outcome.ERROR))


_Key = tuple[str, str, str, str]  # broker, topic, group, class


class _NotJudged(Exception):
    """Why."""


class CodeJudges:
    """For one thread. To be closed."""

    def __init__(
        self,
        servers: FilterServers,
        security: Security = INSECURE,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._servers = {
            broker: None if known is None else random.sample(known, len(known))
            for broker, known in servers.items()
        }
        self._security = security
        self._clock = clock
        self._sleep = sleep
        self._peers: dict[str, BlockingPeer] = {}
        self._answered: set[_Key] = set()
        self._refused: dict[_Key, str] = {}  # clauses

    def close(self) -> None:
        for peer in self._peers.values():
            peer.close()
        self._peers.clear()

    def outcomes(
        self, group: str, class_text: str, queue: QueueName, offsets: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.uint8], str]:
        """Return what the group's class, as it is now, says of messages in the order of their
        offsets, UNKNOWN where nobody can tell; then there is a clause on why, too."""
        topic, broker, _ = queue
        made = np.full(len(offsets), UNKNOWN, np.uint8)
        key = (broker, topic, group, class_text)
        if key not in self._refused:
            try:
                self._fill(made, group, class_text, queue, offsets)
                return made, ""
            except _NotJudged as error:
                self._refused[key] = str(error)
        return made, self._refused[key]

    def _fill(
        self,
        made: npt.NDArray[np.uint8],
        group: str,
        class_text: str,
        queue: QueueName,
        offsets: npt.NDArray[np.int64],
    ) -> None:
        """Raises _NotJudged; what was answered before is there then."""
        cuts = np.flatnonzero(np.diff(offsets) > _NEAR) + 1
        for piece in np.split(np.arange(len(offsets)), cuts):
            if not len(piece):
                continue
            at, end = int(offsets[piece[0]]), int(offsets[piece[-1]]) + 1
            while at < end:
                header = _header(group, class_text, queue, at, min(end, at + _MOST_MESSAGES))
                said = self._ask((queue[1], queue[0], group, class_text), header)
                inside = piece[(offsets[piece] >= at) & (offsets[piece] < at + len(said))]
                made[inside] = said[offsets[inside] - at]
                at += len(said)

    def _ask(self, key: _Key, header: JudgeRange) -> npt.NDArray[np.uint8]:
        """Return outcomes from the range's begin on, as far as they were judged."""
        broker, _, group, class_text = key
        servers = self._servers.get(broker, [])
        if servers is None:
            name = class_name_of(class_text)
            raise _NotJudged(
                f"a store's files do not tell what class {name} of {group} says; audit over the "
                "name server while a filter server has the class"
            )
        why = NO_SERVER
        for attempt in range(_ATTEMPTS if key in self._answered else 1):
            if attempt:  # its class was replaced, or its broker lost, in the middle
                self._sleep(pause_before(attempt - 1, _PAUSE, 60.0))
            for server in list(servers):
                try:
                    told = self._answer(server, header)
                    check_class(told, class_text)
                    said = _outcomes(told, header)
                except (Error, OSError, ValueError, KeyError, TypeError) as error:
                    why = f"filter server {server} says: {refusal(error, header)}"
                    continue
                self._answered.add(key)
                servers.remove(server)
                servers.insert(0, server)  # it has the class: it is asked first from now on
                return said
        raise _NotJudged(why_not_judged(group, class_text, broker, why))

    def _answer(self, server: str, header: JudgeRange) -> dict[str, Any]:
        """Raises Error, OSError (also for a timeout and a broken connection) or ValueError."""
        began, attempt, broken = self._clock(), 0, 0
        while True:
            try:
                answer = self._peer(server).ask(request_of(header), _ANSWER_SECONDS)
                if answer.code == ResponseCode.SUCCESS:
                    told: dict[str, Any] = json.loads(answer.body)
                    return told
                raise ResponseError.of(answer.code, answer.remark, self._security.access_key)
            except SystemBusy:
                if self._clock() - began > _BUSY_SECONDS:
                    raise
                # not all workers at the same moments
                pause = pause_before(attempt, 0.05, 2.0) * random.uniform(0.5, 1.0)
                attempt += 1
                self._sleep(pause)
            except OSError:
                broken += 1
                self._drop(server)
                if broken >= _ATTEMPTS:
                    raise

    def _peer(self, server: str) -> BlockingPeer:
        known = self._peers.get(server)
        if known is None or known.is_closed:
            known = self._peers[server] = connect(server, security=self._security)
        return known

    def _drop(self, server: str) -> None:
        peer = self._peers.pop(server, None)
        if peer is not None:
            peer.close()


def _header(group: str, class_text: str, queue: QueueName, begin: int, end: int) -> JudgeRange:
    topic, _, queue_id = queue
    return JudgeRange(
        consumer_group=group,
        topic=topic,
        queue_id=queue_id,
        begin=begin,
        end=end,
        class_name=class_name_of(class_text),
        timeout_millis=int(_SECONDS * 1000),
        bitmaps=True,
    )


def _outcomes(told: Mapping[str, Any], header: JudgeRange) -> npt.NDArray[np.uint8]:
    """Raises ValueError or KeyError for an answer that makes no sense."""
    size = int(told["judged_to"]) - header.begin
    if not 0 < size <= header.end - header.begin:
        raise ValueError("it does not get on")
    matched, failed = _bits(told["matched_bits"], size), _bits(told["failed_bits"], size)
    made = np.full(size, _FALSE, np.uint8)
    made[failed] = _TRUE if told["on_error"] == "pass" else _ERROR
    made[matched] = _TRUE
    return made


def _bits(text: str, size: int) -> npt.NDArray[np.bool_]:
    packed = np.frombuffer(b64decode(text, validate=True), np.uint8)
    bits: npt.NDArray[np.bool_] = np.unpackbits(packed, bitorder="little")[:size].astype(np.bool_)
    if len(bits) != size:
        raise ValueError("its bitmaps are too short")
    return bits
