"""The topics there are: RocketMQ's `TopicConfigManager`, a mapping that persists."""

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from ..errors import ResponseError
from ..message import DELAY_TOPIC, HALF_TOPIC
from ..store import tables
from ..wire.bodies import Perm, TopicConfig
from ..wire.codes import ResponseCode
from .config import BrokerConfig
from .journal import Change, Journal
from .quotas import Quotas
from .saving import reason

__all__ = [
    "AUTO_CREATE_TOPIC",
    "NO_SENDING",
    "OP_TOPIC",
    "SELF_TEST_TOPIC",
    "TRANSACTION_LIMIT_TOPIC",
    "Topics",
    "dead_letter_topic",
    "retry_topic",
    "why_illegal",
]

log = logging.getLogger(__name__)

AUTO_CREATE_TOPIC: Final = "TBW102"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANSACTION_LIMIT_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"
RETRY_PREFIX: Final = "%RETRY%"
DEAD_LETTER_PREFIX: Final = "%DLQ%"
NO_SENDING: Final = frozenset(
    {
        DELAY_TOPIC,
        HALF_TOPIC,
        OP_TOPIC,
        TRANSACTION_LIMIT_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
    }
)
_SYSTEM_TOPICS: Final = NO_SENDING | {AUTO_CREATE_TOPIC, "BenchmarkTest", "RMQ_SYS_TRACE_TOPIC"}
_DELETED: Final = "tamis.deleted.json"  # beside RocketMQ's tables; it leaves that alone
_LEGAL = re.compile(r"[%|a-zA-Z0-9_-]+")
_READ_WRITE: Final = Perm.READ | Perm.WRITE


def retry_topic(group: str) -> str:
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    return DEAD_LETTER_PREFIX + group


def why_illegal(topic: str) -> str | None:
    """What is wrong with the name (`TopicValidator.validateTopic`)."""
    if not topic.strip():
        return "The specified topic is blank."
    if not _LEGAL.fullmatch(topic):
        return (
            "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$: "
            f"{topic!r:.140}"
        )
    if len(topic) > 127:
        return f"The specified topic is longer than topic max length: {len(topic)}, of 127."
    return None


class Topics(Mapping[str, TopicConfig]):
    """`on_change` is told of every topic made, changed or deleted; it sees to saving."""

    def __init__(
        self,
        folder: Path,
        config: BrokerConfig,
        now: Callable[[], float],
        stored: Mapping[str, int],
    ) -> None:
        """`stored`: topics that have queues in the store, and how many. None is forgotten, should
        a crash have come before the table was saved; one that was deleted stays so."""
        self._folder = folder
        self._config = config
        self._now = now
        self.path = folder / "topics.json"
        self.changes = 1  # what is made at the start may not be in the file
        self.on_change: Callable[[TopicConfig | None], None] = lambda topic: None
        self.on_delete: Callable[[str], None] = lambda topic: None
        self.quotas: Quotas | None = None
        self._topics, self.version = tables.load_topics(folder)
        self._deleted = set((tables.read_table(folder / _DELETED) or {}).get("topics", []))
        self._journal = Journal(folder)
        self._redo(self._journal.read())
        self._topics |= _made_at_start(config)
        self._deleted -= self._topics.keys()
        for topic, queues in stored.items():
            known = self._topics.get(topic)
            if topic in self._deleted:
                continue
            if known is None and topic not in NO_SENDING:
                log.warning(
                    "the topic %s was not saved; it has messages in %d queues", topic, queues
                )
            if known is None:
                self._topics[topic] = TopicConfig(
                    name=topic, read_queues=queues, write_queues=queues, perm=_READ_WRITE
                )

    def __getitem__(self, topic: str) -> TopicConfig:
        return self._topics[topic]

    def __iter__(self) -> Iterator[str]:
        return iter(self._topics)

    def __len__(self) -> int:
        return len(self._topics)

    def copy(self) -> dict[str, TopicConfig]:
        """As they are now."""
        return self._topics.copy()

    def is_system(self, topic: str) -> bool:
        config = self._config
        own = (config.cluster, config.name, f"{config.cluster}_REPLY_TOPIC")
        return topic in _SYSTEM_TOPICS or topic in own or topic.startswith("rmq_sys_")

    @property
    def system(self) -> list[str]:
        return [topic for topic in self._topics if self.is_system(topic)]

    def put(self, topic: TopicConfig) -> None:
        """Makes or changes a topic. Raises ResponseError if that could not be noted, and then
        nothing is changed."""
        old = self._topics.get(topic.name)
        self._note(topic.name, topic, "made" if old is None else "changed")
        self._topics[topic.name] = topic
        self._deleted.discard(topic.name)
        log.info("topic %s: %s", topic.name, "made" if old is None else f"changed from {old}")
        self._changed(topic)

    def delete(self, topic: str) -> bool:
        """Returns whether it was there. Raises as `put` does."""
        if topic not in self._topics:
            return False
        self._note(topic, None, "deleted")
        del self._topics[topic]
        self._deleted.add(topic)
        log.info("topic %s: deleted", topic)
        self._changed(None)
        self.on_delete(topic)
        return True

    def inherit(
        self,
        topic: str,
        template: str,
        queues: int,
        *,
        allowed: bool,
        sys_flag: int = 0,
        client: str | None = None,
    ) -> TopicConfig | None:
        """A topic a producer sends to and that is not there, made after the template it names.
        Raises ResponseError if the client may not create it."""
        model = self._topics.get(template)
        if model is None or not model.perm & Perm.INHERIT:
            return None
        if template == AUTO_CREATE_TOPIC and not allowed:
            return None
        self.check_quota(topic, client)
        count = max(min(queues, model.write_queues), 0)
        made = replace(
            model,
            name=topic,
            read_queues=count,
            write_queues=count,
            perm=model.perm & ~Perm.INHERIT,
            sys_flag=sys_flag,
            order=False,
        )
        self.put(made)
        return made

    def check_quota(self, topic: str, client: str | None) -> None:
        """Raises ResponseError if the client, or a tool if there is none, may not create it."""
        if self.quotas is not None and topic not in self._topics:
            self.quotas.check_topic(topic, len(self._topics), client)

    def ensure(
        self, topic: str, queues: int, sys_flag: int = 0, client: str | None = None
    ) -> TopicConfig:
        """For the broker's own needs: retries, dead letters, transactions. Raises ResponseError if
        a client is named that may not create it."""
        found = self._topics.get(topic)
        if found is None:
            if client is not None:
                self.check_quota(topic, client)
            found = TopicConfig(
                name=topic, read_queues=queues, write_queues=queues, sys_flag=sys_flag
            )
            self.put(found)
        return found

    def sync(self) -> None:
        """Returns when all changes are on the disk, be it only in the journal. Raises OSError. May
        be called in another thread."""
        self._journal.sync()

    def _redo(self, changes: Iterable[Change]) -> None:
        """Makes what was noted but not saved."""
        for change in changes:
            if change.version is not None:
                if change.version <= self.version.counter:
                    continue  # the table has it
                self.version = replace(self.version, counter=change.version)
            if change.topic is not None:
                self._topics[change.name] = change.topic
            else:
                self._topics.pop(change.name, None)
                self._deleted.add(change.name)

    def _note(self, name: str, topic: TopicConfig | None, what: str) -> None:
        try:
            self._journal.note(Change(name, topic, self.version.counter + 1))
        except OSError as error:
            why = f"topic[{name}] is not {what}: {reason(error, self._journal.path)}"
            raise ResponseError(ResponseCode.SYSTEM_ERROR, why) from None

    def _changed(self, topic: TopicConfig | None) -> None:
        self.version = self.version.next(int(self._now() * 1000))
        self.changes += 1
        self.on_change(topic)

    def snapshot(self) -> Callable[[], None]:
        """What saves the table as it is now; may be called in another thread."""
        topics, version, deleted = self._topics.copy(), self.version, self._deleted.copy()
        noted_later = self._journal.turn()

        def save() -> None:
            if deleted or (self._folder / _DELETED).exists():
                tables.write_table(self._folder / _DELETED, {"topics": sorted(deleted)})
            tables.save_topics(self._folder, topics, version)  # last: by it changes are passed over
            self._journal.forget(noted_later)

        return save


def _made_at_start(config: BrokerConfig) -> dict[str, TopicConfig]:
    """`TopicConfigManager.init`. What is saved of them does not count: they are made each time."""
    inherit = Perm.INHERIT | _READ_WRITE
    made = [
        (SELF_TEST_TOPIC, 1, _READ_WRITE),
        ("BenchmarkTest", 1024, _READ_WRITE),
        (config.cluster, 16, inherit),
        (config.name, 1, inherit),
        (OFFSET_MOVED_TOPIC, 1, _READ_WRITE),
        (DELAY_TOPIC, 18, _READ_WRITE),
        (f"{config.cluster}_REPLY_TOPIC", 1, _READ_WRITE),
    ]
    if config.auto_create_topics:
        made.append((AUTO_CREATE_TOPIC, config.default_queues, inherit))
    return {
        name: TopicConfig(name=name, read_queues=queues, write_queues=queues, perm=perm)
        for name, queues, perm in made
    }
