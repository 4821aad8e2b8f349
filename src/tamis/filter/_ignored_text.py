"""The lint rule for what RocketMQ does not read: anything after a complete expression."""

import re
from collections.abc import Iterator

from ._findings import Finding, Severity
from .checks import unknown_word_hint
from .parser import Selector
from .render import quote
from .tokens import Dialect, TokenKind

__all__ = ["ignored_text"]

_NUMBER_BEFORE = re.compile(r"(?<![\w.$])(?:[0-9]+\.?[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+)\Z")
_WORD = re.compile(r"[\w.$]+")
_STRING = re.compile(r"\s*'((?:''|[^'])*)'")


def ignored_text(selector: Selector) -> Iterator[Finding]:
    text, token = selector.text, selector.ignored
    if token is None:
        return
    number = _NUMBER_BEFORE.search(text[: token.start])
    if number and token.kind in (TokenKind.NAME, TokenKind.INTEGER, TokenKind.DECIMAL):
        # `007`: a number and more, written together
        rest = _WORD.match(text, token.start)
        written = number.group() + (rest.group() if rest else "")
        end = number.start() + len(written)
        message = f"{written} is read as {number.group()}, and all after it is ignored"
        better = _plain_number(written)
        yield Finding("split-number", Severity.ERROR, message, number.start(), end, better)
        return
    ignored = text[token.start :].strip()
    shown = ignored if len(ignored) <= 40 else ignored[:39] + "…"
    message = f"«{shown}» is ignored: the expression is complete before it"
    start, end, replacement = token.start, len(text), None
    word = token.text.upper()
    hint = unknown_word_hint(word, selector.dialect) if token.kind is TokenKind.NAME else None
    if word == "LIKE":
        end, replacement = _like(selector, token.end)
    elif token.kind in (TokenKind.PLUS, TokenKind.MINUS):
        hint = "there is no arithmetic"
        if token.kind is TokenKind.MINUS and re.search(r"\w-\w", text[start - 1 : start + 2]):
            hint = "a property name has no dash, and there is no arithmetic"
    elif token.kind is TokenKind.RIGHT:
        hint = "this parenthesis was never opened"
        closed = re.match(r"\)[\s)]*", text[start:])
        assert closed is not None
        end, replacement = start + closed.end(), " "
    elif token.kind is not TokenKind.COMMA and hint is None:
        end, replacement = start, "AND "
        if not text[start - 1].isspace():
            replacement = " AND "
    if hint is not None:
        message = f"{message}; {hint}"
    yield Finding("ignored-text", Severity.ERROR, message, start, end, replacement)


def _plain_number(written: str) -> str | None:
    """How a number written the Java or C way is spelled in a filter."""
    lower = written.lower()
    if re.fullmatch(r"[0-9]+l?", lower):
        return str(int(lower.rstrip("l")))
    if re.fullmatch(r"0x[0-9a-f]+", lower):
        return str(int(lower, 16))
    if re.fullmatch(r"[0-9]+(?:_[0-9]+)+", lower):
        return str(int(lower))
    if re.fullmatch(r"[0-9]*\.?[0-9]+[fd]", lower) and float(lower[:-1]) > 0:
        return repr(float(lower[:-1]))
    return None


def _like(selector: Selector, end: int) -> tuple[int, str | None]:
    """Where LIKE and its pattern end, and the operator that does the same, if there is one."""
    found = _STRING.match(selector.text, end)
    if found is None:
        return len(selector.text), None
    pattern = found.group(1).replace("''", "'")
    body = pattern.strip("%")
    if not body or "%" in body or "_" in body:
        return found.end(), None
    if pattern == body:
        return found.end(), f"= {quote(body)}"
    if selector.dialect is not Dialect.V5_1_3:
        return found.end(), None
    ends = (pattern.startswith("%"), pattern.endswith("%"))
    word = {(True, True): "CONTAINS", (True, False): "ENDSWITH"}.get(ends, "STARTSWITH")
    return found.end(), f"{word} {quote(body)}"
