"""Rules for tag expressions: rule, severity, message and the whole expression written better."""

import re
from collections import defaultdict
from collections.abc import Iterator

from ..java import string_hash, trim
from .tags import ALL, SEPARATOR, parse_tags

__all__ = ["findings"]

_Row = tuple[str, str, str, str | None]

_OTHER_SEPARATORS = re.compile(r"\s*(?:,|;|(?<!\|)\|(?!\|)|\s(?:OR|or)\s)\s*")
_AND = re.compile(r"\sAND\s|\sand\s|&&")
_SQL = re.compile(r"\s(?:=|<>|<=?|>=?)\s|'|\b(?:IS (?:NOT )?NULL|BETWEEN\s|IN\s*\()", re.IGNORECASE)


def findings(expression: str) -> Iterator[_Row]:
    parsed = parse_tags(expression)
    if parsed.matches_all:
        return
    if not parsed.tags:
        message = "only blanks: this matches no message; * or an empty text matches all"
        yield "tag-blank", "error", message, ALL
        return
    if ALL in parsed.tags:
        message = "* means all only when it stands alone, without blanks: here it is the tag '*'"
        yield "tag-star", "error", message, ALL
    for tag in sorted(parsed.tags - {ALL}):
        yield from _one_tag(expression, tag)
    yield from _collisions(parsed.tags)
    pieces = [trim(piece) for piece in expression.split(SEPARATOR)]
    named = [piece for piece in pieces if piece]
    tidy = f" {SEPARATOR} ".join(dict.fromkeys(named))
    if len(set(named)) < len(named):
        yield "tag-duplicate", "note", "a tag is listed more than once", tidy
    elif len(named) < len(pieces):
        yield "tag-empty", "note", "an empty place between separators is ignored", tidy


def _one_tag(expression: str, tag: str) -> Iterator[_Row]:
    if _SQL.search(tag):
        message = (
            f"'{tag}' looks like SQL92 but is taken for a tag: subscribe with a SQL92 selector"
        )
        yield "tag-sql", "error", message, None
    elif _AND.search(tag):
        message = f"'{tag}' is taken for one tag: a message has one tag, so two never hold together"
        yield "tag-and", "error", message, None
    elif _OTHER_SEPARATORS.search(tag):
        message = f"'{tag}' is taken for one tag: tags are separated by ||"
        parts = [part for part in _OTHER_SEPARATORS.split(tag) if part]
        better = expression.replace(tag, f" {SEPARATOR} ".join(parts))
        good = parts and ALL not in parts
        yield "tag-separator", "error", message, better if good else None
    elif "*" in tag or "?" in tag or "%" in tag:
        message = f"'{tag}' is taken literally: tags have no wildcards"
        yield "tag-wildcard", "warning", message, None
    elif tag != tag.strip():
        message = f"'{tag}' keeps a blank that RocketMQ does not trim (U+{_blank(tag):04X})"
        yield "tag-space", "warning", message, expression.replace(tag, tag.strip())
    elif " " in tag:
        message = f"'{tag}' is one tag with a blank in it"
        yield "tag-space", "note", message, None


def _blank(tag: str) -> int:
    return ord(tag[0] if tag[0].isspace() else tag[-1])


def _collisions(tags: frozenset[str]) -> Iterator[_Row]:
    by_code = defaultdict(list)
    for tag in sorted(tags):
        by_code[string_hash(tag)].append(tag)
    for code, same in by_code.items():
        if len(same) > 1:
            shown = " and ".join(f"'{tag}'" for tag in same)
            message = f"{shown} have the same hash {code}: a broker can't tell them apart"
            yield "tag-collision", "warning", message, None
        if code == 0:
            message = f"'{same[0]}' has the hash 0, which is also that of messages without a tag"
            yield "tag-collision", "warning", message, None
