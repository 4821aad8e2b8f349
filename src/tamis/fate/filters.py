"""A filter as history remembers it, and what it says of one message.

RocketMQ looks twice at tags: the broker compares hashes, the client compares text. A filter's two
looks are therefore two functions here; SQL92 has no second look, code has only one, at the filter
server.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from ..errors import InvalidFilter
from ..filter.engines.closures import Closure, compile_closure, evaluate
from ..filter.logic import Outcome
from ..filter.parser import parse
from ..filter.tags import TagFilter, parse_tags, tags_code

__all__ = ["EVERYTHING", "Filter", "FilterKind", "filter_of_reading", "tags_of"]

FilterKind = Literal["TAG", "SQL92", "CODE"]


@dataclass(frozen=True, slots=True)
class Filter:
    """`text` is a tag expression, SQL92, or the name of a class."""

    kind: FilterKind
    text: str

    def __str__(self) -> str:
        if self.kind == "TAG":
            return "all messages" if self.text in ("", "*") else f"tags {self.text!r}"
        return f"SQL {self.text!r}" if self.kind == "SQL92" else f"code {self.text}"

    def is_same(self, other: "Filter") -> bool:
        """Return whether both want the same: tags are compared as a set, all else as text."""
        if self.kind != other.kind or self.kind != "TAG":
            return self == other
        if self.matches_all or other.matches_all:
            return self.matches_all and other.matches_all
        return tags_of(self) == tags_of(other)

    @property
    def matches_all(self) -> bool:
        return self.kind == "TAG" and self.text in ("", "*")

    def at_server(
        self, properties: Mapping[str, str], code_outcomes: Mapping[str, Outcome]
    ) -> Outcome | None:
        """Return what a broker says of the message, or a filter server if this is code; None if
        nobody knows, which is so for code that was not run on it."""
        match self.kind:
            case "CODE":
                return code_outcomes.get(self.text)
            case "TAG":
                tags = _tags(self.text)
                code = tags_code(properties.get("TAGS"))
                is_match = tags is not None and tags.matches_code(code)
                return Outcome.TRUE if is_match else Outcome.FALSE
            case "SQL92":
                closure = _closure(self.text)
                return Outcome.ERROR if closure is None else evaluate(closure, properties)

    def at_client(self, properties: Mapping[str, str]) -> bool:
        """Return whether a client that subscribes by this keeps a message it was sent."""
        if self.kind != "TAG":
            return True
        tags = _tags(self.text)
        return tags is not None and tags.matches_tag(properties.get("TAGS"))

    def wants(
        self, properties: Mapping[str, str], code_outcomes: Mapping[str, Outcome]
    ) -> Outcome | None:
        """Return what both looks come to: whether a member that is served by this alone gets it."""
        outcome = self.at_server(properties, code_outcomes)
        if outcome is Outcome.TRUE and not self.at_client(properties):
            return Outcome.FALSE
        return outcome


EVERYTHING = Filter("TAG", "*")


def filter_of_reading(by: Filter, own: Filter | None) -> Filter:
    """Return what a member with the filter `own` was served by, at a broker that has `by` for the
    group. A broker does not run code: with a class in force, it sends everything to a member that
    does not read through a filter server (RocketMQ: ExpressionMessageFilter, class filter mode)."""
    if by.kind == "CODE" and own is not None and own.kind != "CODE":
        return EVERYTHING
    return by


def tags_of(by: Filter) -> frozenset[str]:
    """Return the tags that a filter names (RocketMQ's `tagsSet`): none if it wants all messages,
    and none of SQL and code."""
    tags = _tags(by.text) if by.kind == "TAG" else None
    return frozenset() if tags is None or by.matches_all else frozenset(tags.tags)


@lru_cache(4096)
def _tags(expression: str) -> TagFilter | None:
    """None for an expression that can't be used, such as bars alone: it matches nothing."""
    try:
        return parse_tags(expression)
    except InvalidFilter:
        return None


@lru_cache(1024)
def _closure(expression: str) -> Closure | None:
    """None for an expression that does not compile: a broker serves nobody by it."""
    try:
        return compile_closure(parse(expression))
    except InvalidFilter:
        return None
