"""The words of the SQL92 selector language and its two dialects."""

from enum import Enum, StrEnum
from typing import Final, NamedTuple, NoReturn

__all__ = ["KEYWORDS", "Dialect", "Token", "TokenKind"]


class Dialect(StrEnum):
    """Which RocketMQ's language is meant: 4.9 (also 5.0 to 5.1.2), or 5.1.3 and later."""

    V4_9 = "4.9"
    V5_1_3 = "5.1.3"

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        raise ValueError(f"{value!r} is no dialect: there are {', '.join(cls)}")


class TokenKind(Enum):
    """What a token is; the value is how an error message calls it."""

    NOT = "NOT"
    AND = "AND"
    OR = "OR"
    BETWEEN = "BETWEEN"
    IN = "IN"
    TRUE = "TRUE"
    FALSE = "FALSE"
    NULL = "NULL"
    IS = "IS"
    CONTAINS = "CONTAINS"
    STARTSWITH = "STARTSWITH"
    ENDSWITH = "ENDSWITH"
    NAME = "a property name"
    STRING = "a string"
    INTEGER = "an integer"
    DECIMAL = "a decimal number"
    EQ = "'='"
    NE = "'<>'"
    GT = "'>'"
    GE = "'>='"
    LT = "'<'"
    LE = "'<='"
    LEFT = "'('"
    RIGHT = "')'"
    COMMA = "','"
    PLUS = "'+'"
    MINUS = "'-'"
    END = "end of text"


class Token(NamedTuple):
    kind: TokenKind
    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


_OF_4_9 = (
    TokenKind.NOT,
    TokenKind.AND,
    TokenKind.OR,
    TokenKind.BETWEEN,
    TokenKind.IN,
    TokenKind.TRUE,
    TokenKind.FALSE,
    TokenKind.NULL,
    TokenKind.IS,
)
_OF_5_1_3 = (*_OF_4_9, TokenKind.CONTAINS, TokenKind.STARTSWITH, TokenKind.ENDSWITH)

# Looked up in upper case. A word that is not here is a property name, LIKE among them.
KEYWORDS: Final[dict[Dialect, dict[str, TokenKind]]] = {
    Dialect.V4_9: {kind.value: kind for kind in _OF_4_9},
    Dialect.V5_1_3: {kind.value: kind for kind in _OF_5_1_3},
}
