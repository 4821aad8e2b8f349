"""How far each group has consumed each queue: RocketMQ's `ConsumerOffsetManager`."""

import logging
from collections.abc import Callable
from pathlib import Path

from ..message import QueueOffset
from ..store import tables
from ..store.store import Store

__all__ = ["Offsets"]

log = logging.getLogger(__name__)

_LOGGED = 16  # lines for one change


class Offsets:
    """Offsets are what the groups say they are, back or forth. None is on the disk before the
    messages it has passed are: a power cut would have a group miss those stored in their place."""

    def __init__(self, folder: Path, store: Store) -> None:
        """`store` has the messages they point to."""
        self._folder = folder
        self._store = store
        self.path = folder / "consumerOffset.json"
        self._offsets = tables.load_consumer_offsets(folder)
        self.changes = 0
        self.before_save: Callable[[], None] = lambda: None  # in the thread that saves
        self.count = sum(map(len, self._offsets.values()))  # of queues, for all groups

    def has_room(self, group: str, topic: str, queue_id: int, most: int) -> bool:
        """Whether an offset can be committed without having more than `most` of them. A topic and
        group count as four more: so much do they take to be copied when the table is saved."""
        is_full = self.count + 4 * len(self._offsets) >= most
        return not is_full or queue_id in self._offsets.get((topic, group), ())

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        return self._offsets.get((topic, group), {}).get(queue_id)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> int | None:
        """Returns what it was before."""
        queues = self._offsets.get((topic, group))
        if queues is None:
            queues = self._offsets[topic, group] = {}
        before = queues.get(queue_id)
        if before != offset:
            self.count += queue_id not in queues
            queues[queue_id] = QueueOffset(offset)
            self.changes += 1
        return before

    def pairs(self) -> list[tuple[str, str]]:
        """Topics and groups there are offsets of."""
        return list(self._offsets)

    def of(self, group: str, topic: str) -> dict[int, int]:
        """Queue to offset."""
        return dict(self._offsets.get((topic, group), {}))

    def topics(self, group: str) -> list[str]:
        """Those the group has offsets of."""
        return [topic for topic, one in self._offsets if one == group]

    def groups(self, topic: str) -> list[str]:
        """Those that have offsets of the topic."""
        return [group for one, group in self._offsets if one == topic]

    def all(self) -> dict[tuple[str, str], dict[int, int]]:
        """By (topic, group)."""
        return {key: dict(queues) for key, queues in self._offsets.items()}

    def clone(self, source: str, target: str, topic: str) -> None:
        self.count -= len(self._offsets.get((topic, target), ()))
        self._offsets[topic, target] = dict(self._offsets.get((topic, source), {}))
        self.count += len(self._offsets[topic, target])
        self.changes += 1

    def forget_group(self, group: str) -> None:
        self._forget(lambda key: key[1] == group)

    def forget_topic(self, topic: str) -> None:
        self._forget(lambda key: key[0] == topic)

    def _forget(self, gone: Callable[[tuple[str, str]], bool]) -> None:
        found = [key for key in self._offsets if gone(key)]
        for key in found:
            self.count -= len(self._offsets.pop(key))
            self.changes += 1
        for key in found[:_LOGGED]:
            log.info("offsets of %s by %s: forgotten", *key)
        if len(found) > _LOGGED:
            log.info("and %d others", len(found) - _LOGGED)

    def snapshot(self) -> Callable[[], None]:
        """What saves the table as it is now, or as it is when called, which may be in another
        thread: there are too many offsets to be copied in the loop."""
        kept = list(self._offsets.items())

        def save() -> None:
            offsets = {key: queues.copy() for key, queues in kept}  # 1. as they are
            self._store.make_durable()  # 2. what they point to: all that is stored by now
            self.before_save()  # 3. who read what they have passed
            tables.save_consumer_offsets(self._folder, offsets)  # 4.

        return save
