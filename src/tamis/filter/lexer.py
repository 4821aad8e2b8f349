"""Text to tokens, one at a time: RocketMQ's parser never lexes further than it must.

That laziness is visible: what follows a complete expression is not read beyond its first token, so
`a = 1 b;` compiles and `a = 1;` does not (`;` is no token). Hence `Lexer.next`, not a list.
"""

import re

from ..errors import FilterSyntaxError
from .tokens import KEYWORDS, Dialect, Token, TokenKind

__all__ = ["Lexer"]

# JavaCC's rule is the longest match; the order here gives the same: a float is never shorter than
# the integer it starts with. `0` stands alone (`007` is 0, then 07), and a line comment needs its
# line end (without one, `--` is two minus signs).
_TOKEN = re.compile(
    r"""
      (?P<skip> [ \t\n\r\f]+ | --[^\n\r]*[\n\r] | /\*.*?\*/ )
    | (?P<word> [A-Za-z_$][A-Za-z0-9_$]* )
    | (?P<decimal> [0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)? | \.[0-9]+(?:[eE][+-]?[0-9]+)?
                 | [0-9]+[eE][+-]?[0-9]+ )
    | (?P<integer> 0 | [1-9][0-9]*[lL]? )
    | (?P<string> '(?:''|[^'])*' )
    | (?P<symbol> <> | >= | <= | [=<>(),+-] )
    """,
    re.VERBOSE | re.DOTALL,
)

_SYMBOLS = {
    "=": TokenKind.EQ,
    "<>": TokenKind.NE,
    ">": TokenKind.GT,
    ">=": TokenKind.GE,
    "<": TokenKind.LT,
    "<=": TokenKind.LE,
    "(": TokenKind.LEFT,
    ")": TokenKind.RIGHT,
    ",": TokenKind.COMMA,
    "+": TokenKind.PLUS,
    "-": TokenKind.MINUS,
}

_LITERALS = {
    "decimal": TokenKind.DECIMAL,
    "integer": TokenKind.INTEGER,
    "string": TokenKind.STRING,
}

_NAME_HINT = "a property name has only ASCII letters, digits, _ and $"

# What people type that is no token, longest first, and what they should type.
_HINTS = (
    ("!=", "write <> for 'not equal'"),
    ("!", "write NOT (…), or <> for 'not equal'"),
    ("&", "write AND"),
    ("||", "write OR in SQL92; || separates tags in a tag expression"),
    ("|", "write OR"),
    ('"', "strings go in single quotes: 'text'"),
    ("`", _NAME_HINT),
    ("[", _NAME_HINT),
    (".", _NAME_HINT),
    (":", _NAME_HINT),
    (";", "leave it out"),
    ("*", "there is no arithmetic"),
    ("%", "there is no arithmetic"),
    ("/*", "this comment is never closed: add */"),
    ("/", "there is no arithmetic"),
    ("\N{NO-BREAK SPACE}", "this is a no-break space: use an ordinary one"),
    ("\N{IDEOGRAPHIC SPACE}", "this is a wide space: use an ordinary one"),
    ("\N{LEFT SINGLE QUOTATION MARK}", "use the plain quote '"),
    ("\N{RIGHT SINGLE QUOTATION MARK}", "use the plain quote '"),
)


class Lexer:
    def __init__(self, text: str, dialect: Dialect) -> None:
        self._text = text
        self._keywords = KEYWORDS[dialect]
        self._position = 0

    def next(self) -> Token:
        """The next token; END for ever once the text is used up."""
        while True:
            start = self._position
            found = _TOKEN.match(self._text, start)
            if found is None:
                if start == len(self._text):
                    return Token(TokenKind.END, "", start)
                raise self._error(start)
            self._position = found.end()
            group, word = found.lastgroup, found.group()
            if group == "skip":
                continue
            if group == "word":
                return Token(self._keywords.get(word.upper(), TokenKind.NAME), word, start)
            if group == "symbol":
                return Token(_SYMBOLS[word], word, start)
            assert group is not None
            return Token(_LITERALS[group], word, start)

    def _error(self, start: int) -> FilterSyntaxError:
        rest = self._text[start:]
        if rest[0] == "'":
            return FilterSyntaxError(self._text, start, "this string is never closed", "add a '")
        hint = next((hint for typed, hint in _HINTS if rest.startswith(typed)), None)
        if hint is None and rest[0].isalpha():
            hint = _NAME_HINT
        shown = rest[0] if rest[0].isprintable() else f"U+{ord(rest[0]):04X}"
        return FilterSyntaxError(self._text, start, f"'{shown}' means nothing here", hint)
