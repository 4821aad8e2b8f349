"""Asks the servers of a cluster for what the checks need. Nothing is changed at any of them.

A server that does not answer, or does not know a request, is noted and the rest goes on. At most
`_AT_ONCE` requests are under way, each with a time limit, and there is one for all of them.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

from ..client import cluster
from ..client.config import ClientConfig
from ..client.received import dead_letter_topic, retry_topic
from ..client.reports import is_system_group
from ..client.routes import read_queues
from ..client.session import Session
from ..errors import ConsumerOffline, Error, GroupNotFound, ResponseError, TopicNotFound
from ..wire import beans, bodies, headers
from ..wire.bodies import MessageQueue
from ..wire.codes import RequestCode, ResponseCode, version_name
from .facts import (
    Broker,
    ClusterFacts,
    Group,
    Member,
    QueueEnds,
    Topic,
    Unchecked,
)
from .members import duplicate_client_ids, queue_owners
from .sampling import sample
from .subscriptions import broker_filters
from .tamis_brokers import FAILURES, UNREADABLE, ask_fates, ask_tamis

__all__ = ["gather"]

T = TypeVar("T")

_DEFAULTS: Final = ClientConfig(timeout=5.0)
_AT_ONCE: Final = 16  # requests
_MOST_MEMBERS: Final = 2000  # that are asked about themselves
_MEMBER_TIMEOUT: Final = 6.0  # seconds; the broker has to ask the member first


async def gather(
    nameserver: str,
    *,
    group: str | None = None,
    timeout: float = 60.0,
    settle: float = 2.0,
    config: ClientConfig = _DEFAULTS,
) -> ClusterFacts:
    """Return what can be learnt within `timeout` seconds, of one group or of all.

    Queues that nobody owns, and client ids that come twice, are looked at again `settle` seconds
    later: members come and go. Raises Error if the name server can't be asked.
    """
    session = Session("admin", nameserver, config)
    await session.start()
    try:
        return await _Gathering(session, group, timeout, settle).run()
    finally:
        await session.close()


class _Gathering:
    def __init__(self, session: Session, group: str | None, timeout: float, settle: float) -> None:
        self._session = session
        self._only = group
        self._deadline = time.monotonic() + timeout
        self._settle = settle
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._masters: dict[str, str] = {}  # that answer
        self._missing: dict[tuple[str, str], list[str]] = {}  # what, why: where
        self.facts = ClusterFacts(nameserver=session.nameserver, now=int(time.time() * 1000))

    async def run(self) -> ClusterFacts:
        await self._find_brokers()
        await self._find_topics()
        await self._find_offsets()
        if self._only is not None and self._masters and not self.facts.groups:
            raise GroupNotFound(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"group {self._only} is not known to any broker: check the spelling",
            )
        await self._each(self.facts.groups.values(), self._find_connections)
        await self._ask_members(self.facts.groups.values())
        await ask_tamis(self.facts, list(self._masters), self._only, self._ask, self._note)
        await self._each(self._topics_of_interest(), self._find_ends)
        if self._settle and (unsettled := self._unsettled()):
            await asyncio.sleep(min(self._settle, self._left()))
            await self._each(unsettled, self._find_connections)
            await self._ask_members(unsettled)
        await sample(self._session, self.facts, self._limited, self._note)
        await ask_fates(self.facts, self._ask, self._note)
        self.facts.unchecked += [
            Unchecked(what=what, reason=reason, where=tuple(sorted(set(where))))
            for (what, reason), where in sorted(self._missing.items())
        ]
        return self.facts

    # Asking

    def _left(self) -> float:
        return max(self._deadline - time.monotonic(), 0.0)

    async def _limited(self, work: Callable[[], Awaitable[T]]) -> T:
        """Raises TimeoutError when the time for all of it is up."""
        async with self._slots:
            if not self._left():
                raise TimeoutError("the time that the examination may take is up")
            async with asyncio.timeout(self._left()):
                return await work()

    async def _ask(
        self,
        broker: str,
        request: headers.Header | RequestCode,
        *,
        code: int | None = None,
        timeout: float | None = None,
    ) -> bytes:
        """Return the body of a master's answer."""
        address = self._masters[broker]

        async def ask() -> bytes:
            answer = await self._session.ask(address, request, code=code, timeout=timeout)
            return answer.body

        return await self._limited(ask)

    async def _each(self, items: Iterable[T], work: Callable[[T], Awaitable[None]]) -> None:
        await asyncio.gather(*map(work, items))

    def _note(self, what: str, where: str, error: BaseException | str) -> None:
        """Say that something was not looked at; the same at several places is said once."""
        is_unknown = isinstance(error, ResponseError) and (
            error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        )
        if is_unknown:
            reason = "only Tamis brokers of this version tell"
        elif isinstance(error, UNREADABLE) and not isinstance(error, Error):
            reason = f"the answer can't be read: {error}"
        else:
            reason = str(error) or "no answer in time"
        self._missing.setdefault((what, reason), []).append(where)

    # What every cluster tells

    async def _find_brokers(self) -> None:
        """And the groups they know: whoever does not answer this is not asked again."""
        found = await cluster.brokers(self._session)
        if not found:
            where = self._session.nameserver
            raise Error(
                f"no broker is registered with the name server {where}: start a broker (tamis "
                f"broker --nameserver {where}), or wait for it to come back"
            )
        by_name: dict[str, str | None] = {one.name: None for one in found}
        by_name |= {one.name: one.address for one in found if one.is_master}

        async def greet(name: str) -> None:
            address = by_name[name]
            if address is None:
                error: str | None = "only slaves are registered, no master"
            else:
                self._masters[name] = address
                try:
                    body = await self._ask(name, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
                    for group in beans.decode(bodies.GroupTable, body).groups:
                        if self._is_wanted(group):
                            self._group(group).brokers.append(name)
                    error = None
                except FAILURES as failure:
                    del self._masters[name]
                    error = str(failure) or "no answer in time"
            self.facts.brokers[name] = Broker(name=name, address=address, error=error)

        await self._each(by_name, greet)

    async def _find_topics(self) -> None:
        answer = await self._session.ask_nameserver(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        self.facts.all_topics = set(beans.decode(bodies.TopicList, answer.body).topics)

    def _is_wanted(self, group: str) -> bool:
        return group == self._only if self._only is not None else not is_system_group(group)

    def _group(self, name: str) -> Group:
        return self.facts.groups.setdefault(name, Group(name=name))

    async def _find_offsets(self) -> None:
        async def ask(broker: str) -> None:
            try:
                body = await self._ask(broker, RequestCode.GET_ALL_CONSUMER_OFFSET)
                offsets = beans.decode(bodies.OffsetWrapper, body).offsets
            except FAILURES as error:
                self._note("offsets", broker, error)
                return
            for key, queues in offsets.items():
                topic, _, group = key.rpartition("@")
                if topic and self._is_wanted(group):
                    self._group(group).committed.update(
                        (MessageQueue(topic, broker, queue_id), offset)
                        for queue_id, offset in queues.items()
                    )

        await self._each(self._masters, ask)

    async def _find_connections(self, group: Group) -> None:
        """Ask all brokers for the group's members: one may not have heard of some broker."""

        async def ask(broker: str) -> bodies.ConsumerConnection | None:
            header = headers.OfConsumerGroup(consumer_group=group.name)
            code = RequestCode.GET_CONSUMER_CONNECTION_LIST
            try:
                body = await self._ask(broker, header, code=code)
                return beans.decode(bodies.ConsumerConnection, body)
            except ConsumerOffline:
                return None
            except FAILURES as error:
                self._note("members", f"{group.name} at {broker}", error)
                return None

        brokers = list(self._masters)
        answers = zip(brokers, await asyncio.gather(*map(ask, brokers)), strict=True)
        group.connected = {
            name: one for name, one in answers if one is not None and one.connections
        }
        members: dict[str, Member] = {}
        for broker, connection in group.connected.items():
            for one in connection.connections:
                member = members.setdefault(
                    one.client_id,
                    Member(
                        client_id=one.client_id,
                        language=one.language,
                        version=version_name(one.version),
                    ),
                )
                member.addresses.setdefault(broker, []).append(one.client_addr)
        group.members = [members[client_id] for client_id in sorted(members)]

    async def _ask_members(self, groups: Iterable[Group]) -> None:
        asked = [(group, member) for group in groups for member in group.members]
        for _, member in asked[_MOST_MEMBERS:]:
            member.error = f"not asked: there are more than {_MOST_MEMBERS} members"
        await self._each(asked[:_MOST_MEMBERS], self._ask_member)
        for group, member in asked:
            if member.error is not None:
                what = "subscriptions and queues of members that don't tell"
                self._note(what, f"{member.client_id} of {group.name}", member.error)

    async def _ask_member(self, asked: tuple[Group, Member]) -> None:
        """What it says itself; the broker asks it for us."""
        group, member = asked
        header = headers.GetRunningInfo(consumer_group=group.name, client_id=member.client_id)
        broker = next(iter(member.addresses))
        try:
            body = await self._ask(broker, header, timeout=_MEMBER_TIMEOUT)
            info = beans.decode(bodies.RunningInfo, body)
        except FAILURES as error:
            member.error = str(error) or "no answer in time"
            return
        member.subscriptions = {one.topic: one for one in info.subscriptions}
        member.queues = frozenset(q for q, report in info.queues.items() if not report.dropped)

    def _topics_of_interest(self) -> list[str]:
        """Return the topics that groups subscribe to or have offsets of, retries among them."""
        names: set[str] = set()
        for group in self.facts.groups.values():
            names |= group.topics() | {queue.topic for queue in group.committed}
            names |= {retry_topic(group.name), dead_letter_topic(group.name)}
        return sorted(names & (self.facts.all_topics or names))

    async def _find_ends(self, name: str) -> None:
        topic = Topic(name=name)

        async def route() -> bodies.TopicRoute:
            answer = await self._session.ask_nameserver(headers.GetRoute(topic=name))
            return beans.decode(bodies.TopicRoute, answer.body)

        try:
            found = await self._limited(route)
        except TopicNotFound:
            return
        except FAILURES as error:
            self._note("topics", name, error)
            return
        topic.readable = read_queues(name, found)
        self.facts.topics[name] = topic
        for broker in {one.broker_name for one in found.queues} & self._masters.keys():
            header, code = headers.OfTopic(topic=name), RequestCode.GET_TOPIC_STATS_INFO
            try:
                body = await self._ask(broker, header, code=code)
                stats = beans.decode(bodies.TopicStats, body).queues
            except FAILURES as error:
                self._note("topics", f"{name} at {broker}", error)
                continue
            topic.queues |= {
                queue: QueueEnds(
                    first=max(one.min_offset, 0),
                    end=max(one.max_offset, 0),
                    last_stored=one.last_update_timestamp or None,
                )
                for queue, one in stats.items()
            }

    def _unsettled(self) -> list[Group]:
        """Groups that are perhaps being rebalanced now."""
        checks = (queue_owners, duplicate_client_ids, broker_filters)
        names = {finding.group for check in checks for finding in check(self.facts)}
        return [group for name, group in self.facts.groups.items() if name in names]
