"""Reads the newest messages of topics that are filtered, so that today's filters can be tried on
them. They are read as tools do, in the name of no group of the cluster's users."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeVar

from ..client.config import ConsumerConfig
from ..client.fetching import Puller
from ..client.received import RETRY_PREFIX, decode_all
from ..client.session import Session
from ..errors import CorruptRecord, Error
from ..filter.tags import ALL
from ..wire.bodies import MessageQueue, Subscription
from .facts import ClusterFacts, QueueEnds, SampledMessage
from .past import differing_views

__all__ = ["sample"]

T = TypeVar("T")

_READER: Final = "TOOLS_CONSUMER"  # every broker has this group
_PER_QUEUE: Final = 32  # messages; a broker gives no more at once unless it is set to
_MOST_QUEUES: Final = 256


class Limited(Protocol):
    """Does some work as soon as not too much else is under way."""

    def __call__(self, work: Callable[[], Awaitable[T]], /) -> Awaitable[T]: ...


async def sample(
    session: Session,
    facts: ClusterFacts,
    limited: Limited,
    note: Callable[[str, str, BaseException | str], None],
) -> None:
    """Add the newest messages of each queue, where a group filters by tags or SQL, or where its
    members subscribed differently in the past."""
    config = ConsumerConfig(hold=0.0, auto_commit=False)
    puller = Puller(session, _READER, config, posts=True)
    queues = [
        (queue, ends)
        for topic in sorted(_filtered_topics(facts))
        for queue, ends in sorted(facts.topics[topic].queues.items())
        if ends.first < ends.end
    ]
    for queue, _ in queues[_MOST_QUEUES:]:
        note("messages", queue.topic, f"only {_MOST_QUEUES} queues are sampled")

    async def read(queue: MessageQueue, ends: QueueEnds) -> None:
        start = max(ends.first, ends.end - _PER_QUEUE)
        everything = Subscription(topic=queue.topic, expression=ALL, expression_type="TAG")
        try:
            pulled = await limited(lambda: puller.pull(queue, start, everything, _PER_QUEUE))
            messages = facts.samples.setdefault(queue.topic, [])
            for one in decode_all(pulled.body, queue):
                messages.append(
                    SampledMessage(
                        queue=queue,
                        offset=one.offset,
                        stored=one.store_timestamp,
                        properties=dict(one.properties),
                    )
                )
        except CorruptRecord as error:
            note("messages", str(queue), f"a damaged record: {error.reason}")
        except (Error, ConnectionError, TimeoutError) as error:
            note("messages", str(queue), error)

    await asyncio.gather(*(read(queue, ends) for queue, ends in queues[:_MOST_QUEUES]))


def _filtered_topics(facts: ClusterFacts) -> set[str]:
    past = {one.history.topic for one in facts.histories if differing_views(one.history)}
    return {topic for topic in past & facts.topics.keys() if not topic.startswith(RETRY_PREFIX)} | {
        topic
        for group in facts.groups.values()
        for topic in group.topics() & facts.topics.keys()
        if not topic.startswith(RETRY_PREFIX)
        and any(by.kind != "CODE" and not by.matches_all for by in group.filters(topic))
    }
