"""Which member of a group may consume a queue in order: RocketMQ's `RebalanceLockManager`."""

import logging
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ..errors import ResponseError
from ..net.aio import Peer
from ..wire.bodies import MessageQueue
from ..wire.codes import ResponseCode

__all__ = ["LOCK_SECONDS", "Locks"]

log = logging.getLogger(__name__)

LOCK_SECONDS: Final = 60.0  # a lock that is not renewed is over; consumers renew every 20 s
_MOST_NAME: Final = 1000  # characters
MOST_LOCKS: Final = 200_000  # clients may make up names for ever


@dataclass(slots=True)
class _Lock:
    client_id: str
    until: float


class Locks:
    """Not saved: after a restart whoever asks first has the queue."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._locks: dict[tuple[str, MessageQueue], _Lock] = {}
        self._next_purge = 0.0
        # under which the locks of a member are kept: those of a divided group have several names
        self.name_of: Callable[[str, Peer], str] = lambda group, peer: group

    def __len__(self) -> int:
        return len(self._locks)

    def lock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue]
    ) -> list[MessageQueue]:
        """Those of the queues that the client holds now, locked anew or still."""
        steps = self.lock_steps(group, client_id, queues)
        while True:
            try:
                next(steps)
            except StopIteration as over:
                held: list[MessageQueue] = over.value
                return held

    def lock_steps(
        self, group: str, client_id: str, queues: Iterable[MessageQueue]
    ) -> Generator[None, None, list[MessageQueue]]:
        """As `lock`, one queue a step. Raises ResponseError if there are too many locks."""
        now = self._now()
        self._purge(now)
        held = []
        for queue in queues:
            yield
            if max(map(len, (group, client_id, queue.topic, queue.broker_name))) > _MOST_NAME:
                why = f"a name of more than {_MOST_NAME} characters"
                raise ResponseError(ResponseCode.SYSTEM_ERROR, why)
            lock = self._locks.get((group, queue))
            if lock is None and len(self._locks) >= MOST_LOCKS:
                why = f"{MOST_LOCKS} queues are locked already; locks end {LOCK_SECONDS:g} s after"
                why += " they were last renewed: try again"
                raise ResponseError(ResponseCode.SYSTEM_BUSY, why)
            if lock is None:
                self._locks[group, queue] = _Lock(client_id, now + LOCK_SECONDS)
                log.info("group %s: %s locks %s", group, client_id, queue)
            elif lock.client_id == client_id:
                lock.until = now + LOCK_SECONDS
            elif lock.until < now:
                log.warning(
                    "group %s: %s locks %s, which %s did not renew",
                    *(group, client_id, queue, lock.client_id),
                )
                self._locks[group, queue] = _Lock(client_id, now + LOCK_SECONDS)
            else:
                log.debug("group %s: %s is locked by %s", group, queue, lock.client_id)
                continue
            held.append(queue)
        return held

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Another client's lock stays."""
        for queue in queues:
            lock = self._locks.get((group, queue))
            if lock is not None and lock.client_id == client_id:
                del self._locks[group, queue]
                log.info("group %s: %s unlocks %s", group, client_id, queue)

    def rename(self, group: str, names: Mapping[str, str]) -> None:
        """The group is divided, or united: the locks of these clients are kept under these names
        from now on. What another client has locked there stays locked by that one."""
        for (name, queue), lock in list(self._locks.items()):
            new_name = names.get(lock.client_id, name)
            if name.partition("\0")[0] == group and new_name != name:
                del self._locks[name, queue]
                self._locks.setdefault((new_name, queue), lock)

    def _purge(self, now: float) -> None:
        if now >= self._next_purge:
            self._next_purge = now + LOCK_SECONDS
            # a little longer than they live: whom a queue was taken from is to be seen in the log
            self._locks = {k: v for k, v in self._locks.items() if v.until >= now - LOCK_SECONDS}
