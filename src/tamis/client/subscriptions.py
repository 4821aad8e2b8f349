"""Subscriptions: a filter is checked where it is written, and compared with other members'."""

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from ..errors import ConfigError, FilterSyntaxError, InvalidFilter, place
from ..filter import Dialect, parse_selector
from ..filter.lint import Finding, Severity, lint, lint_tags
from ..filter.tags import ALL, parse_tags
from ..wire.bodies import Subscription
from .codesource import CodeSource
from .config import check_topic

__all__ = ["Subscriptions", "difference", "shown", "subscription"]

log = logging.getLogger(__name__)

_told: set[tuple[str, str]] = set()  # expressions whose warnings were logged
_NEWER: Final = Dialect.V5_1_3


def subscription(
    topic: str,
    tags: str | None = None,
    sql: str | None = None,
    code: CodeSource | None = None,
) -> Subscription:
    """All messages of the topic if none is given. Raises InvalidFilter, with the column, and
    InvalidName."""
    check_topic(topic)
    if [tags, sql, code].count(None) < 2:
        raise ConfigError(f"topic {topic}: tags, sql or code, a subscription has one of them")
    if code is not None:  # as RocketMQ's `subscribe(topic, className, source)`
        return Subscription(
            topic=topic,
            expression=code.class_name,
            expression_type="TAG",
            version=_version(0),
            class_filter_mode=True,
            code_crc=code.crc,
        )
    if sql is not None:
        _check_sql(topic, sql)
        return Subscription(
            topic=topic, expression=sql, expression_type="SQL92", version=_version(0)
        )
    found = parse_tags(tags)
    if not found.matches_all:
        if not found.tags:
            hint = "write * for all messages, or the tags with || between them"
            raise FilterSyntaxError(tags or "", 0, "there is no tag in it", hint)
        _warn("tags", topic, found.expression, lint_tags(found.expression))
    return Subscription(
        topic=topic,
        expression=found.expression,
        expression_type="TAG",
        version=_version(0),
        tags=sorted(found.tags),
        codes=sorted(found.codes),
    )


def _check_sql(topic: str, sql: str) -> None:
    """What only newer brokers know is left for the broker to judge: it is asked at start."""
    try:
        parse_selector(sql)
        dialect = Dialect.V4_9
    except InvalidFilter as error:
        try:
            parse_selector(sql, _NEWER)
        except InvalidFilter:
            raise error from None
        dialect = _NEWER
    _warn("sql", topic, sql, lint(sql, dialect))


def _warn(kind: str, topic: str, expression: str, findings: Iterable[Finding]) -> None:
    if (kind, expression) not in _told:
        _told.add((kind, expression))
        for one in findings:
            if one.severity is not Severity.NOTE:
                where = place(expression, one.start)
                log.warning(
                    "topic %s, %s %r: %s: %s (%s)",
                    *(topic, kind, expression, where, one.message, one.rule),
                )


def _version(last: int) -> int:
    """Milliseconds, and always more than before: brokers keep the highest."""
    return max(int(time.time() * 1000), last + 1)


class Subscriptions(dict[str, Subscription]):
    """By topic."""

    def bump(self) -> None:
        """They are newer than any the broker has of this group (RocketMQ does so when queues have
        changed hands: the survivor's filter is to count)."""
        for topic, one in list(self.items()):
            self[topic] = replace(one, version=_version(one.version))


def shown(one: Subscription | None) -> str:
    if one is None:
        return "no subscription at all"
    if one.class_filter_mode:
        which = "" if one.code_crc is None else f" (CRC {one.code_crc:08x})"
        return f"code {one.expression!r}{which}"
    return f"{'tags' if one.is_tags else one.expression_type} {one.expression!r}"


def difference(
    ours: Mapping[str, Subscription], theirs: Mapping[str, Subscription], retry: str
) -> tuple[str, Subscription | None, Subscription | None] | None:
    """The first topic that is not subscribed to alike, and how; None if all are."""
    for topic in sorted({*ours, *theirs} - {retry}):
        one, other = ours.get(topic), theirs.get(topic)
        if one is None or other is None or not _are_alike(one, other):
            return topic, one, other
    return None


def _are_alike(one: Subscription, other: Subscription) -> bool:
    if one.class_filter_mode or other.class_filter_mode:
        if one.class_filter_mode != other.class_filter_mode:
            return False
        crcs = {one.code_crc, other.code_crc} - {None}  # only our own clients say theirs
        return one.expression == other.expression and len(crcs) < 2
    if one.is_tags != other.is_tags:
        return False
    if not one.is_tags:
        return one.expression.strip() == other.expression.strip()
    try:
        return _tags(one) == _tags(other)
    except FilterSyntaxError:
        return one.expression == other.expression


def _tags(one: Subscription) -> frozenset[str] | None:
    found = parse_tags(one.expression)
    return None if found.expression == ALL else found.tags
