"""What only Tamis's brokers tell: history, what filters said, how much matches, policies. Apache's
answer that they don't know the request, which is noted."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, Protocol

import orjson

from ..client.reports import is_system_group
from ..errors import Error
from ..fate import History
from ..wire import headers
from ..wire.bodies import MessageQueue
from ..wire.codes import RequestCode
from .facts import ClusterFacts, HistoryOfBroker, SampledMessage, VerdictRow
from .past import lost_by_history
from .policies import BrokerRules

__all__ = ["FAILURES", "UNREADABLE", "ask_fates", "ask_tamis"]

_MOST_FATES: Final = 512  # messages whose fate is asked for

# A peer may answer with anything.
UNREADABLE: Final = (ValueError, LookupError, TypeError, AttributeError)
FAILURES: Final = (Error, ConnectionError, TimeoutError, *UNREADABLE)


class Ask(Protocol):
    def __call__(
        self, broker: str, request: headers.Header, /, *, code: int | None = None
    ) -> Awaitable[bytes]: ...


class _Request(NamedTuple):
    """`what` its answer is about, and how that is added to the facts."""

    what: str
    code: int
    header: headers.Header
    add: Callable[[ClusterFacts, str, Any], None]


async def ask_tamis(
    facts: ClusterFacts,
    brokers: list[str],
    group: str | None,
    ask: Ask,
    note: Callable[[str, str, BaseException | str], None],
) -> None:
    """Add what these brokers tell, of one group or of all."""
    of_group = headers.OfAnyGroup(group=group)
    requests = [
        _Request(
            "what filters said of messages in the past",
            *(RequestCode.GET_FILTER_VERDICTS, of_group, _add_verdicts),
        ),
        _Request("subscriptions in the past", RequestCode.GET_HISTORY, of_group, _add_history),
        _Request(
            "how many waiting messages match",
            RequestCode.GET_MATCHING_LAG,
            headers.GetMatchingLag(consumer_group=group),
            _add_matching_lag,
        ),
        _Request(
            "policies, lanes and changes of filters",
            RequestCode.GET_GROUP_RULES,
            of_group,
            _add_rules,
        ),
    ]

    async def ask_one(broker: str, request: _Request) -> None:
        try:
            body = await ask(broker, request.header, code=request.code)
            request.add(facts, broker, orjson.loads(body))
        except FAILURES as error:
            note(request.what, broker, error)

    await asyncio.gather(*(ask_one(broker, one) for broker in brokers for one in requests))


async def ask_fates(
    facts: ClusterFacts, ask: Ask, note: Callable[[str, str, BaseException | str], None]
) -> None:
    """Ask what became of sampled messages that were lost by history: a replay may have sent them
    to the group again. The newest `_MOST_FATES` of all groups are asked about."""
    lost = [
        (known.history.group, one)
        for known in facts.histories
        for one in lost_by_history(facts, known)
    ]
    lost.sort(key=lambda each: each[1].stored, reverse=True)

    async def ask_one(group: str, one: SampledMessage) -> None:
        queue = one.queue
        header = headers.ExplainMessage(
            topic=queue.topic, queue_id=queue.queue_id, offset=one.offset, group=group
        )
        try:
            answer = orjson.loads(await ask(queue.broker_name, header))
            facts.fates[group, queue, one.offset] = str(answer["groups"][0]["fate"])
        except FAILURES as error:
            note("whether lost messages were sent again", queue.broker_name, error)

    await asyncio.gather(*(ask_one(group, one) for group, one in lost[:_MOST_FATES]))


def _add_verdicts(facts: ClusterFacts, broker: str, answer: Any) -> None:
    rows = [VerdictRow.from_json(broker, row) for row in answer]
    facts.verdicts += [row for row in rows if not is_system_group(row.group)]


def _add_history(facts: ClusterFacts, broker: str, answer: Any) -> None:
    facts.histories += [
        HistoryOfBroker(broker=broker, history=one)
        for one in History.from_json(answer).groups.values()
        if not is_system_group(one.group)
    ]


def _add_matching_lag(facts: ClusterFacts, broker: str, answer: Any) -> None:
    for row in answer:
        if (lag := row["matching_lag"]) is not None and row["is_complete"]:
            queue = MessageQueue(str(row["topic"]), broker, int(row["queue"]))
            facts.matching_lag[str(row["group"]), queue] = int(lag)


def _add_rules(facts: ClusterFacts, broker: str, answer: Any) -> None:
    facts.rules[broker] = BrokerRules.from_json(answer)
