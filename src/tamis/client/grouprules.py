"""What brokers decide about groups whose members disagree: policies and cut-overs. Tamis's only."""

import json
from collections.abc import Mapping
from typing import Any

from ..errors import ConfigError, Error, ResponseError
from ..filter import parse
from ..filter.tags import parse_tags
from ..wire import headers
from ..wire.codes import ResponseCode
from .cluster import each, masters, places
from .session import Session

__all__ = ["cancel_filter", "expression", "get", "set_filter", "set_policy", "start"]

POLICIES = ("rocketmq", "reject", "isolate", "default")


async def set_policy(session: Session, group: str, policy: str) -> list[dict[str, Any]]:
    if policy not in POLICIES:
        raise ConfigError(f"policy = {policy!r}: it is {', '.join(POLICIES[:-1])} or default")
    header = headers.SetGroupPolicy(group=group, policy=policy)
    return await _ask(session, await masters(session), header)


def expression(tags: str | None, sql: str | None) -> tuple[str, str]:
    """The kind and text of a filter. Raises ConfigError and InvalidFilter."""
    if (tags is None) == (sql is None):
        raise ConfigError("a filter is given by tags or by SQL, one of them")
    if sql is not None:
        parse(sql)
        return "SQL92", sql
    parse_tags(tags)
    return "TAG", tags or "*"


def start(at: str | int | Mapping[int, int] | None, time_ms: int | None) -> str:
    """Where a cut-over begins, as brokers take it."""
    if at is not None and time_ms is not None:
        raise ConfigError("a cut-over begins at an offset or at a time, not both")
    if time_ms is not None:
        return f"time:{time_ms}"
    if at is None or at == "now":
        return "now"
    if isinstance(at, Mapping):
        return "queues:" + json.dumps({str(queue): offset for queue, offset in at.items()})
    if isinstance(at, int) and at >= 0:
        return f"offset:{at}"
    raise ConfigError(f"a cut-over from {at!r}: it is now, an offset, or offsets by queue")


async def set_filter(
    session: Session,
    group: str,
    topic: str,
    new: tuple[str, str],
    old: tuple[str, str] | None,
    begin: str,
) -> list[dict[str, Any]]:
    header = headers.SetGroupFilter(
        group=group,
        topic=topic,
        kind=new[0],
        expression=new[1],
        start=begin,
        old_kind=old[0] if old is not None else None,
        old_expression=old[1] if old is not None else None,
    )
    return await _ask(session, await places(session, topic), header)


async def cancel_filter(session: Session, group: str, topic: str) -> list[dict[str, Any]]:
    header = headers.SetGroupFilter(group=group, topic=topic, cancel=True)
    return await _ask(session, await places(session, topic), header)


async def get(session: Session, group: str | None) -> list[dict[str, Any]]:
    header = headers.GetGroupRules(group=group)

    async def ask(_: str, address: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads((await session.ask(address, header)).body)
        except ResponseError as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            return None
        return found

    found = await each(await masters(session), ask)
    return [one for _, one in sorted(found.items()) if one is not None]


async def _ask(
    session: Session, asked: Mapping[str, str], header: headers.Header
) -> list[dict[str, Any]]:
    async def ask(name: str, address: str) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((await session.ask(address, header)).body)
        except ResponseError as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            raise Error(f"broker {name} is not Tamis's: it has no rules of groups") from None
        return found

    found = await each(dict(asked), ask)
    return [one for _, one in sorted(found.items())]
