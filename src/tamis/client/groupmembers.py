"""Who is connected as a member of a group, by its brokers' account and by each member's own."""

import asyncio
from collections.abc import Mapping

from ..errors import ConsumerOffline, Error
from ..wire import beans, bodies, headers
from ..wire.codes import RequestCode
from . import cluster
from .session import Session

__all__ = ["connections", "running_info", "running_infos"]


async def connections(session: Session, group: str) -> dict[str, bodies.ConsumerConnection]:
    """Return what each master tells of the group, by the names of those it has members at."""

    async def ask(_: str, address: str) -> bodies.ConsumerConnection | None:
        header = headers.OfConsumerGroup(consumer_group=group)
        code = RequestCode.GET_CONSUMER_CONNECTION_LIST
        try:
            answer = await session.ask(address, header, code=code)
        except ConsumerOffline:
            return None
        answered = beans.decode(bodies.ConsumerConnection, answer.body)
        return answered if answered.connections else None

    answers = await cluster.each(await cluster.masters(session), ask)
    return {broker: answer for broker, answer in answers.items() if answer is not None}


async def running_info(
    session: Session, group: str, broker: str, client_id: str
) -> bodies.RunningInfo:
    """Return what a member says of itself; the broker asks it for us. Raises Error, TimeoutError,
    ValueError."""
    header = headers.GetRunningInfo(consumer_group=group, client_id=client_id)
    address = await session.routes.master(broker)
    answer = await session.ask(address, header)
    return beans.decode(bodies.RunningInfo, answer.body)


async def running_infos(
    session: Session, group: str, connected: Mapping[str, bodies.ConsumerConnection], limit: int
) -> dict[str, bodies.RunningInfo | Exception]:
    """Return what each of the first `limit` members says of itself, or why it did not, by client
    id. A member is asked once, through one of the brokers it is connected to."""
    brokers: dict[str, str] = {}
    for broker, one in connected.items():
        for connection in one.connections:
            if len(brokers) < limit:
                brokers.setdefault(connection.client_id, broker)

    async def ask(client_id: str, broker: str) -> bodies.RunningInfo | Exception:
        try:
            return await running_info(session, group, broker, client_id)
        except (Error, TimeoutError, ValueError) as error:
            return error

    answers = await asyncio.gather(*(ask(*pair) for pair in brokers.items()))
    return dict(zip(brokers, answers, strict=True))
