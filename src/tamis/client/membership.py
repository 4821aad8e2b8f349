"""A member of a consumer group: what it subscribes to, who the others are, which queues it has.

Members find their shares each for itself, from the same lists in the same order; nobody tells them.
So ours have to come to the same end as RocketMQ's own clients: see `assign`.
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Final, Protocol

from ..errors import (
    AccessDenied,
    ConfigError,
    ConsumerOffline,
    Error,
    GroupNotFound,
    NoPermission,
    ResponseError,
    SubscriptionMismatch,
    TopicNotFound,
)
from ..net.aio import Peer
from ..wire import beans, fastjson, headers
from ..wire.bodies import (
    CheckClientConfig,
    ConsumeFromWhere,
    ConsumerConnection,
    ConsumerData,
    ConsumerIds,
    ConsumeType,
    MessageQueue,
    Subscription,
)
from ..wire.codes import Language, PullFlag, RequestCode, ResponseCode
from ..wire.command import Command
from . import assign
from .codefilters import CodeFilters
from .codesource import CodeSource
from .config import ConsumerConfig
from .received import RETRY_PREFIX, retry_topic
from .routes import read_queues
from .subscriptions import Subscriptions, difference, shown

if TYPE_CHECKING:
    from .session import Session

__all__ = ["Member", "Owner"]

log = logging.getLogger(__name__)

_SOON: Final = 1.0  # seconds until the next look while something is missing
_MOST_SOON: Final = 30  # times
_SETTLED: Final = 5.0  # seconds in which a change is heard of by all
_JAVA_5: Final = 413  # V5_0_0_SNAPSHOT and later


class Owner(Protocol):
    """The consumer: it reads the queues."""

    @property
    def held(self) -> Collection[MessageQueue]: ...

    async def gain(self, queues: list[MessageQueue]) -> None:
        """What it can't take up now it does not hold afterwards; it is offered them again."""

    async def lose(self, queues: list[MessageQueue]) -> None: ...


class Member:
    """`on_error` is told what the member can't live with."""

    def __init__(
        self,
        session: "Session",
        group: str,
        config: ConsumerConfig,
        owner: Owner,
        *,
        consume_type: ConsumeType,
        on_error: Callable[[Exception], None],
    ) -> None:
        self.session = session
        self.group = group
        self.config = config
        self.subscriptions = Subscriptions()
        self._owner = owner
        self._consume_type = consume_type
        self._on_error = on_error
        self._strategy = _strategy(config)
        self.code = CodeFilters(session, group, config, on_error)
        self._wake = asyncio.Event()
        self.balancing = asyncio.Lock()
        self._warned: set[tuple[str, str, str]] = set()
        self._is_joined = False
        self._comparisons = 0
        self._complaint = ""
        session.consumer = self._data
        session.topics = lambda: set(self.subscriptions)
        session.listeners[RequestCode.NOTIFY_CONSUMER_IDS_CHANGED] = self._notified
        session.on_disconnect = lambda address: self.wake()
        session.routes.on_change = lambda topic: self.wake()
        session.after_heartbeat = self.code.kick

    def _data(self) -> ConsumerData | None:
        if not self._is_joined:
            return None
        wheres = {"first": ConsumeFromWhere.FIRST_OFFSET, "last": ConsumeFromWhere.LAST_OFFSET}
        return ConsumerData(
            group=self.group,
            consume_type=self._consume_type,
            message_model=self.config.message_model,
            consume_from_where=wheres.get(str(self.config.start), ConsumeFromWhere.TIMESTAMP),
            subscriptions=list(self.subscriptions.values()),
        )

    def wake(self) -> None:
        """To look again at who has which queues, and which filter servers have our code."""
        self._wake.set()
        self.code.kick()

    def _notified(self, peer: Peer, request: Command) -> None:
        """Of members that came or went, and of what they subscribe to."""
        self.wake()
        if self._is_joined:
            self.session.spawn(self._compare_later())

    # Joining

    async def join(self) -> None:
        """Raises TopicNotFound, Unreachable, ResponseError for a filter the broker refuses, and
        SubscriptionMismatch if strict, CodeError if code can't be used as is wanted."""
        for topic in self.subscriptions:
            if topic.startswith(RETRY_PREFIX):
                continue  # it is made by the first heartbeat
            try:
                route = await self.session.routes.get(topic)
            except TopicNotFound as error:
                if not self.config.wait_for_topics:
                    raise
                log.warning("%s; it is waited for", error)
                continue
            if not read_queues(topic, route):
                raise NoPermission(
                    ResponseCode.NO_PERMISSION,
                    f"topic {topic} has no queue that can be read: its permission forbids it",
                )
        for one in self.subscriptions.values():
            if not one.is_tags:
                await self._check_at_broker(one)
        await self._compare(await self._other_members())
        await self.code.start()
        self._is_joined = True
        await self.session.heartbeat()
        await self._check_reached()
        await self._check_known()
        await self.rebalance()
        self.session.spawn(self._run())

    async def _check_at_broker(self, one: Subscription) -> None:
        address = self._any_broker(one.topic)
        if address is None:
            return
        body = CheckClientConfig(
            client_id=self.session.client_id, group=self.group, subscription=one
        )
        try:
            await self.session.ask(address, RequestCode.CHECK_CLIENT_CONFIG, beans.encode(body))
        except AccessDenied:
            raise
        except ResponseError as error:
            what = f"topic {one.topic}, {shown(one)}"
            why = f"{what}: the broker at {address} refuses it: {error.remark}"
            if "not support" in error.remark:
                why += "; set enablePropertyFilter=true there, it is off by default"
            raise ResponseError.of(error.code, why) from error

    async def _check_reached(self) -> None:
        """Raises Unreachable if no broker of its topics can be talked to, AccessDenied if one does
        not take the group or its key."""
        found = [address for _, address in self.session.routes.addresses(masters_only=False)]
        for address in found:
            if (refusal := self.session.denied.get(address)) is not None:
                raise refusal
        if found and not any(address in self.session.versions for address in found):
            await self.session.peer(found[0])

    async def _check_known(self) -> None:
        """A broker of 5.x that may not make groups says nothing to the heartbeat of one it does not
        know; to a pull it does. Raises GroupNotFound."""
        for topic in self.subscriptions:
            route = self.session.routes.known(topic)
            queues = read_queues(topic, route) if route is not None else []
            if not queues or self.session.client_id in await self._member_ids(topic):
                continue
            header = headers.PullMessage(
                consumer_group=self.group,
                topic=topic,
                queue_id=queues[0].queue_id,
                queue_offset=0,
                max_msg_nums=1,
                sys_flag=PullFlag.SUBSCRIPTION,
                subscription="*",
                expression_type="TAG",
            )
            address = await self.session.routes.master(queues[0].broker_name)
            try:
                await self.session.ask(address, header)
            except (AccessDenied, GroupNotFound):
                raise
            except (ResponseError, ConnectionError, TimeoutError) as error:
                log.debug("group %s: %s", self.group, error)  # it can be asked

    def subscribe(self, one: Subscription, code: CodeSource | None = None) -> None:
        if code is not None:
            self.code.add(one.topic, code)
        else:
            self.code.remove(one.topic)
        self.subscriptions[one.topic] = one
        self._tell()

    def unsubscribe(self, topic: str) -> None:
        self.subscriptions.pop(topic, None)
        self.code.remove(topic)
        self._tell()

    def _tell(self) -> None:
        if self._is_joined and self.session.is_running:
            self.session.spawn(self._announce())

    async def _announce(self) -> None:
        await self.session.routes.refresh(
            topic for topic in self.subscriptions if self.session.routes.known(topic) is None
        )
        await self.session.heartbeat()
        self.wake()
        await self._compare_later()

    # Who has which queues

    async def _run(self) -> None:
        soon = 0
        while True:
            is_complete = self._is_complete()
            soon = 0 if is_complete else soon + 1
            pause = _SOON if 0 < soon <= _MOST_SOON else self.config.rebalance_interval
            try:
                async with asyncio.timeout(min(pause, self.config.rebalance_interval)):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            try:
                if not is_complete:
                    unknown = [
                        topic
                        for topic in self.subscriptions
                        if self.session.routes.known(topic) is None
                    ]
                    await self.session.routes.refresh(unknown)
                    if unknown:
                        await self.session.heartbeat()  # to brokers not known before
                await self.rebalance()
            except SubscriptionMismatch as error:
                self._on_error(error)
                return
            except Exception:  # the edge of the task
                log.exception("group %s: queues are as they were", self.group)

    def _is_complete(self) -> bool:
        """Every topic has a route, and every share was taken up."""
        routes = self.session.routes
        return self._is_settled and all(routes.known(one) for one in self.subscriptions)

    _is_settled = False

    async def rebalance(self) -> None:
        """Takes up and gives up queues. What can't be found out leaves a topic as it is."""
        async with self.balancing:
            before = set(self._owner.held)
            wanted = set[MessageQueue]()
            self._is_settled = True
            for topic in list(self.subscriptions):
                share = await self._share(topic)
                if share is None:
                    if self.session.routes.known(topic) is not None:
                        self._is_settled = False
                    wanted |= {queue for queue in before if queue.topic == topic}
                else:
                    wanted |= set(share)
            lost, gained = sorted(before - wanted), sorted(wanted - before)
            if lost:
                log.info("group %s: gives up %s", self.group, _list(lost))
                await self._owner.lose(lost)
            if gained:
                await self._owner.gain(gained)
            held = set(self._owner.held)
            if taken := sorted(held - before):
                log.info("group %s: takes up %s", self.group, _list(taken))
            if not wanted <= held:
                self._is_settled = False
            if held != before and self._consume_type is ConsumeType.CONSUME_PASSIVELY:
                self.subscriptions.bump()
                await self.session.heartbeat()

    async def _share(self, topic: str) -> list[MessageQueue] | None:
        """This member's queues of a topic; None if that can't be told now."""
        if self.session.routes.known(topic) is None:
            return None
        queues = await self.session.routes.read_queues(topic)
        if self.config.is_broadcasting:
            return queues
        members = await self._member_ids(topic)
        if members and self.session.client_id not in members:
            await self.session.heartbeat()  # a broker that started anew has not heard of us
            members = await self._member_ids(topic)
        if not members or not queues:
            return None
        try:
            share = self._assigned(queues, members)
        except Exception as error:  # a strategy may be the user's
            log.error("group %s: no shares of %s: %r", self.group, topic, error)
            return None
        return share

    def _assigned(self, queues: list[MessageQueue], members: list[str]) -> list[MessageQueue]:
        """The shares of all places that we have among the members.

        Apache's brokers may list a client twice for two minutes: a connection that broke right
        after its heartbeat is noted after it is forgotten. By RocketMQ's strategies nobody would
        read the second share.
        """
        me = self.session.client_id
        places = members.count(me)
        if places == 1 or self.config.strategy not in ("AVG", "AVG_BY_CIRCLE"):
            return assign.assign(self._strategy, queues, members, me)
        # just behind each other in the order of members: the others' places stay as they are
        names = [me + "\0" * n for n in range(places)]
        members = [one for one in members if one != me] + names
        shares = [assign.assign(self._strategy, queues, members, name) for name in names]
        return sorted({queue for share in shares for queue in share})

    async def _member_ids(self, topic: str) -> list[str]:
        """All that any broker of the topic knows: a broker that was just added knows few."""
        route = self.session.routes.known(topic)
        names = [one.broker_name for one in route.brokers] if route is not None else []
        found = [at for one in names if (at := self.session.routes.any_address(one)) is not None]
        answering = [address for address in found if address in self.session.versions]
        lists = await asyncio.gather(*map(self._members_at, answering or found))
        most: Counter[str] = Counter()
        for ids in lists:
            most |= Counter(ids)  # one that a broker lists twice counts twice
        return sorted(most.elements())

    async def _members_at(self, address: str) -> list[str]:
        header = headers.OfConsumerGroup(consumer_group=self.group)
        code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
        try:
            answer = await self.session.ask(address, header, code=code)
            self._complaint = ""
            return beans.decode(ConsumerIds, answer.body).ids
        except (Error, TimeoutError, ValueError) as error:
            level = logging.DEBUG if str(error) == self._complaint else logging.WARNING
            self._complaint = str(error)  # once is enough
            log.log(level, "group %s: its members are not known: %s", self.group, error)
            return []

    def _any_broker(self, topic: str) -> str | None:
        route = self.session.routes.known(topic)
        if route is None or not route.brokers:
            return None
        names = random.sample(route.brokers, len(route.brokers))
        found = [self.session.routes.any_address(one.broker_name) for one in names]
        answering = [address for address in found if address in self.session.versions]
        return (answering or found)[0]

    # Whether all members want the same

    async def _compare_later(self) -> None:
        """Now, and once more when the others have told the broker of a change."""
        self._comparisons += 1
        mine = self._comparisons
        for pause in (0.0, _SETTLED):
            await asyncio.sleep(pause)
            if mine != self._comparisons:
                return  # there was another change
            try:
                await self._compare(await self._other_members())
            except SubscriptionMismatch as error:
                self._on_error(error)
                return
            except (Error, TimeoutError, ValueError) as error:
                log.debug("group %s: subscriptions are not compared: %s", self.group, error)

    async def _other_members(self) -> dict[str, Mapping[str, Subscription]]:
        """Others' subscriptions by client id, as they say themselves, else as the broker does.

        RocketMQ 5's Java clients are not asked: one with a single thread for answers is stuck for
        seconds, and thrown out of the group. Of them the broker knows.
        """
        for topic in self.subscriptions:
            address = self._any_broker(topic)
            if address is not None:
                break
        else:
            return {}
        header = headers.OfConsumerGroup(consumer_group=self.group)
        code = RequestCode.GET_CONSUMER_CONNECTION_LIST
        try:
            answer = await self.session.ask(address, header, code=code)
        except ConsumerOffline:
            return {}
        except (Error, TimeoutError) as error:
            log.debug("group %s: its members are not known: %s", self.group, error)
            return {}
        found = beans.decode(ConsumerConnection, answer.body)
        known: dict[str, Mapping[str, Subscription]] = {}
        for one in found.connections:
            if one.client_id == self.session.client_id or one.client_id in known:
                continue
            said = None
            if one.language != Language.JAVA.name or one.version < _JAVA_5:
                said = await self._ask_member(address, one.client_id)
            # of all that the members said, the broker keeps what came last
            known[one.client_id] = found.subscriptions if said is None else said
        return known

    async def _ask_member(self, address: str, member: str) -> Mapping[str, Subscription] | None:
        header = headers.GetRunningInfo(consumer_group=self.group, client_id=member)
        try:
            answer = await self.session.ask(address, header)
            said = fastjson.loads(answer.body)["subscriptionSet"]
            found = [beans.from_json(Subscription, one) for one in said]
        except (Error, TimeoutError, ValueError, KeyError, TypeError) as error:
            log.debug("group %s: member %s did not say: %s", self.group, member, error)
            return None
        return {one.topic: one for one in found}

    async def _compare(self, others: Mapping[str, Mapping[str, Subscription]]) -> None:
        """Raises SubscriptionMismatch if strict, warns if not; of each difference once."""
        for member, theirs in others.items():
            found = difference(self.subscriptions, theirs, retry_topic(self.group))
            if found is None:
                continue
            topic, ours, other = found
            key = (member, topic, shown(other))
            error = SubscriptionMismatch(self.group, topic, shown(ours), shown(other), member)
            if self.config.strict_subscriptions:
                raise error
            if key not in self._warned:
                self._warned.add(key)
                log.warning("%s", error)


def _strategy(config: ConsumerConfig) -> assign.Strategy:
    if callable(config.strategy):
        return config.strategy
    found = assign.STRATEGIES.get(config.strategy)
    if found is None:
        names = ", ".join(assign.STRATEGIES)
        raise ConfigError(f"strategy = {config.strategy!r}: it is one of {names}, or a function")
    return found


def _list(queues: list[MessageQueue]) -> str:
    shown = [f"{one.topic}/{one.broker_name}/{one.queue_id}" for one in queues]
    return ", ".join(shown[:8]) + (f" and {len(shown) - 8} more" if len(shown) > 8 else "")
