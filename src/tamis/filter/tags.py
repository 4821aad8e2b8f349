"""Tag expressions: `*`, or tags separated by `||`; matched by hash at the broker, then exactly.

The broker keeps only a tag's 32-bit Java hash in the consume queue, so it may deliver a message
whose tag merely collides; the client's second look is exact. RocketMQ 4.9's `FilterAPI`,
`DefaultMessageFilter` and the client's `PullAPIWrapper`.
"""

from dataclasses import dataclass

from ..errors import FilterSyntaxError
from ..java import string_hash, trim

__all__ = ["ALL", "TagFilter", "parse_tags", "tags_code"]

ALL = "*"
SEPARATOR = "||"


def tags_code(tag: str | None) -> int:
    """What the consume queue holds for a message with this TAGS property: 0 for none."""
    return string_hash(tag) if tag else 0


@dataclass(frozen=True, slots=True)
class TagFilter:
    """A parsed tag expression. `expression` is kept as given, for that is what goes on the wire."""

    expression: str
    tags: frozenset[str]
    codes: frozenset[int]

    @property
    def matches_all(self) -> bool:
        return self.expression == ALL

    def matches_code(self, code: int) -> bool:
        """The broker's look at a consume-queue entry (8 bytes there, of which it takes 4)."""
        return self.matches_all or _low_32_bits(code) in self.codes

    def matches_tag(self, tag: str | None) -> bool:
        """The client's exact look. It has nothing to look for if there are no tags."""
        return not self.tags or tag in self.tags

    def matches(self, tag: str | None) -> bool:
        """Whether a message with this tag reaches the listener: both looks."""
        return self.matches_code(tags_code(tag)) and self.matches_tag(tag)


def parse_tags(expression: str | None) -> TagFilter:
    """A subscription's tag expression; none, empty and `*` mean everything.

    No other operators, wildcards or escapes: `a,b` is one tag. A list of bars alone is refused; one
    of blanks alone is not, and matches nothing.
    """
    if expression is None or expression in ("", ALL):
        return TagFilter(ALL, frozenset(), frozenset())
    pieces = expression.split(SEPARATOR)
    while pieces and not pieces[-1]:  # as Java's split: trailing empty pieces are none
        pieces.pop()
    if not pieces:
        reason = "a list of separators with no tag between them"
        raise FilterSyntaxError(expression, 0, reason, "write * for all messages")
    tags = frozenset(tag for piece in pieces if (tag := trim(piece)))
    return TagFilter(expression, tags, frozenset(map(string_hash, tags)))


def _low_32_bits(code: int) -> int:
    code &= 0xFFFFFFFF
    return code - 2**32 if code >= 2**31 else code
