"""The brokers of a cluster, and asking all of them the same."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from ..errors import ConfigError, Error
from .routes import MASTER
from .session import Session

__all__ = ["BrokerInfo", "brokers", "each", "masters", "places"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerInfo:
    name: str
    cluster: str
    address: str
    broker_id: int

    @property
    def is_master(self) -> bool:
        return self.broker_id == MASTER


async def brokers(session: Session) -> list[BrokerInfo]:
    """Masters and slaves that are registered."""
    cluster = await session.routes.cluster()
    return sorted(
        (
            BrokerInfo(name=name, cluster=one.cluster, address=address, broker_id=broker_id)
            for name, one in cluster.brokers.items()
            for broker_id, address in one.addresses.items()
        ),
        key=lambda one: (one.cluster, one.name, one.broker_id),
    )


async def masters(
    session: Session, cluster: str | None = None, broker: str | None = None
) -> dict[str, str]:
    """Their addresses by name: all, or those of one cluster, or one. Raises Error if none is."""
    if cluster is not None and broker is not None:
        raise ConfigError("a cluster or a broker, not both")
    known = await brokers(session)
    if cluster is not None and cluster not in {one.cluster for one in known}:
        names = ", ".join(sorted({one.cluster for one in known})) or "none"
        raise Error(f"there is no cluster {cluster}: the name server knows {names}")
    if broker is not None:
        return {broker: await session.routes.master(broker)}
    found = {
        one.name: one.address for one in known if one.is_master and cluster in (None, one.cluster)
    }
    if not found:
        raise Error(f"the name server {session.nameserver} knows no broker: is one running?")
    return found


async def places(session: Session, topic: str) -> dict[str, str]:
    """The masters that have the topic. Raises TopicNotFound."""
    route = await session.routes.get(topic, fresh=True)
    names = sorted({one.broker_name for one in route.queues})
    return {name: await session.routes.master(name) for name in names}


async def each(asked: dict[str, str], ask: Callable[[str, str], Awaitable[T]]) -> dict[str, T]:
    """The answers of all, each asked by its name and address. Raises what one of them met."""
    found = await asyncio.gather(*(ask(name, address) for name, address in asked.items()))
    return dict(zip(asked, found, strict=True))
