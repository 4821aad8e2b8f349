"""Text to AST, by RocketMQ's grammar (`SelectorParser.jj`, 4.9.4 and 5.1.3), its traps included.

    selector   := or                                    no end-of-input check
    or         := and (OR and)*
    and        := equality (AND equality)*
    equality   := comparison ('=' comparison | '<>' comparison | IS [NOT] NULL)*
    comparison := unary (('>' | '>=' | '<' | '<=') unary | [NOT] BETWEEN unary AND unary
                       | [NOT] IN '(' string (',' string)* ')'
                       | [NOT] (CONTAINS | STARTSWITH | ENDSWITH) string)*      dialect 5.1.3
    unary      := ('+' | '-' | NOT) unary | string | integer | decimal | TRUE | FALSE | NULL
                | name | '(' or ')'

What may stand next to what is decided in `checks`.
"""

from dataclasses import dataclass
from enum import IntEnum

from ..errors import FilterSyntaxError, FilterTypeError
from . import checks
from .lexer import Lexer
from .nodes import (
    And,
    Between,
    Compare,
    Constant,
    Expr,
    In,
    IsNull,
    Negate,
    Not,
    Operator,
    Or,
    Property,
    Span,
    TextMatch,
    TextOperator,
)
from .tokens import Dialect, Token, TokenKind

__all__ = ["MAX_DEPTH", "Selector", "parse", "parse_selector"]

# Levels of parentheses, NOT, minus and chained comparisons. RocketMQ has no number of its own: it
# runs out of stack (at about 1,100 parentheses in a fresh JVM) and calls that an invalid selector.
# A fixed number keeps all engines of one mind.
MAX_DEPTH = 200


@dataclass(frozen=True, slots=True)
class Selector:
    """A parsed text: what it means, and from where on RocketMQ did not read it."""

    text: str
    dialect: Dialect
    expression: Expr
    ignored: Token | None  # the first token after the complete expression, if any


def parse(text: str, dialect: Dialect | str = Dialect.V4_9) -> Expr:
    """The AST of a selector; raises InvalidFilter where RocketMQ refuses to compile it."""
    return parse_selector(text, dialect).expression


def parse_selector(text: str, dialect: Dialect | str = Dialect.V4_9) -> Selector:
    """As `parse`, keeping the text and what of it was ignored."""
    dialect = Dialect(dialect)
    parser = _Parser(text, dialect)
    expression = parser.condition(parser.expression(_Level.OR))
    ignored = None if parser.token.kind is TokenKind.END else parser.token
    return Selector(text, dialect, expression, ignored)


class _Level(IntEnum):
    """Binary precedence, loosest first. A right operand is parsed one level tighter."""

    OR = 0
    AND = 1
    EQUALITY = 2
    COMPARISON = 3


_LEVELS = {
    TokenKind.OR: _Level.OR,
    TokenKind.AND: _Level.AND,
    TokenKind.EQ: _Level.EQUALITY,
    TokenKind.NE: _Level.EQUALITY,
    TokenKind.IS: _Level.EQUALITY,
    TokenKind.GT: _Level.COMPARISON,
    TokenKind.GE: _Level.COMPARISON,
    TokenKind.LT: _Level.COMPARISON,
    TokenKind.LE: _Level.COMPARISON,
    TokenKind.NOT: _Level.COMPARISON,  # NOT BETWEEN, NOT IN, …
    TokenKind.BETWEEN: _Level.COMPARISON,
    TokenKind.IN: _Level.COMPARISON,
    TokenKind.CONTAINS: _Level.COMPARISON,
    TokenKind.STARTSWITH: _Level.COMPARISON,
    TokenKind.ENDSWITH: _Level.COMPARISON,
}

_OPERATORS = {
    TokenKind.EQ: Operator.EQ,
    TokenKind.NE: Operator.NE,
    TokenKind.GT: Operator.GT,
    TokenKind.GE: Operator.GE,
    TokenKind.LT: Operator.LT,
    TokenKind.LE: Operator.LE,
}

_TEXT_OPERATORS = {TokenKind(op.value): op for op in TextOperator}


class _Parser:
    """Recursive descent; at most three Python frames a level of nesting."""

    def __init__(self, text: str, dialect: Dialect) -> None:
        self._text = text
        self._lexer = Lexer(text, dialect)
        self._dialect = dialect
        self._end = 0  # where the last token taken ended
        self._depth = 0
        self.token = self._lexer.next()  # the one token looked ahead

    def expression(self, level: _Level) -> Expr:
        """Operands joined by operators of `level` or tighter."""
        start = self.token.start
        left = self._unary()
        links = 0  # each link of a chain like a = b = c is a level of the tree
        ceiling = _Level.COMPARISON  # `a IS NULL > 3`: what was joined loosely can't go on tightly
        while (found := _LEVELS.get(self.token.kind)) is not None and level <= found <= ceiling:
            ceiling = found
            if found is _Level.OR or found is _Level.AND:
                left = self._chain(left, found, start)
            else:
                links += 1
                self._enter(self.token, links)
                left = self._equality_or_comparison(left, start)
                self._depth -= links
        return left

    def condition(self, expr: Expr) -> Expr:
        """Refuses what can't be true or false: numbers, strings, negated values."""
        if reason := checks.why_no_condition(expr):
            raise FilterTypeError(self._text, expr.span.start, *reason)
        return expr

    def _chain(self, first: Expr, level: _Level, start: int) -> And | Or:
        kind = self.token.kind
        terms = [self.condition(first)]
        while self.token.kind is kind:
            self._take()
            terms.append(self.condition(self.expression(_Level(level + 1))))
        span = Span(start, self._end)
        return And(tuple(terms), span) if level is _Level.AND else Or(tuple(terms), span)

    def _equality_or_comparison(self, left: Expr, start: int) -> Expr:
        operator = self._take()
        if operator.kind in (TokenKind.EQ, TokenKind.NE):
            right = self.expression(_Level.COMPARISON)
            return self._compare(operator, left, right, start)
        if operator.kind is TokenKind.IS:
            negated = self._take_if(TokenKind.NOT)
            if self.token.kind in (TokenKind.TRUE, TokenKind.FALSE):
                word = self.token.text.upper()
                raise self._unexpected("NULL", f"IS is for NULL only: write = {word}")
            self._expect(TokenKind.NULL)
            return IsNull(left, negated, Span(start, self._end))
        if operator.kind in _OPERATORS:
            return self._compare(operator, left, self._unary(), start)
        return self._test(left, operator, start)

    def _compare(self, operator: Token, left: Expr, right: Expr, start: int) -> Compare:
        compare = Compare(_OPERATORS[operator.kind], left, right, Span(start, self._end))
        self._check(checks.why_not_comparable(compare))
        return compare

    def _test(self, left: Expr, operator: Token, start: int) -> Expr:
        """BETWEEN, IN and the text operators, with or without NOT before them."""
        negated = operator.kind is TokenKind.NOT
        if negated:
            if self.token.kind is TokenKind.NAME:
                raise self._unexpected("BETWEEN or IN", self._word_hint(self.token))
            operator = self._take()
        result: Expr
        if operator.kind is TokenKind.BETWEEN:
            low = self._unary()
            self._expect(TokenKind.AND)
            high = self._unary()
            result = Between(left, low, high, negated, Span(start, self._end))
            self._check(checks.why_not_between(result))
            return result
        if operator.kind is TokenKind.IN:
            choices = self._choices()
            span = Span(start, self._end)
            if not isinstance(left, Property):
                raise FilterTypeError(
                    self._text, left.span.start, *checks.in_needs_a_property(left)
                )
            return In(left, choices, negated, span)
        if operator.kind in _TEXT_OPERATORS:
            text = self._string()
            result = TextMatch(
                _TEXT_OPERATORS[operator.kind], left, text, negated, Span(start, self._end)
            )
            return result
        raise self._unexpected("BETWEEN or IN after NOT", token=operator)

    def _choices(self) -> tuple[str, ...]:
        self._expect(TokenKind.LEFT)
        choices = [self._string()]
        while self._take_if(TokenKind.COMMA):
            choices.append(self._string())
        self._expect(TokenKind.RIGHT)
        return tuple(choices)

    def _unary(self) -> Expr:
        token = self.token
        if token.kind not in _PREFIXES:
            return self._primary()
        self._take()
        self._enter(token)
        operand = self._unary()
        self._depth -= 1
        span = Span(token.start, self._end)
        if token.kind is TokenKind.MINUS:
            return Negate(operand, span)
        if token.kind is TokenKind.NOT:
            return Not(self.condition(operand), span)
        return operand

    def _primary(self) -> Expr:
        token = self.token
        if token.kind is TokenKind.LEFT:
            self._take()
            self._enter(token)
            inner = self.expression(_Level.OR)
            self._depth -= 1
            if self.token.kind is not TokenKind.RIGHT:
                raise self._unexpected("')'", self._word_hint(self.token))
            self._take()
            return inner
        span = Span(token.start, token.end)
        node: Expr
        match token.kind:
            case TokenKind.NAME:
                node = Property(token.text, span)
            case TokenKind.STRING:
                node = Constant(_unquote(token), span=span)
            case TokenKind.INTEGER | TokenKind.DECIMAL:
                node = Constant(self._number(token), span=span)
            case TokenKind.TRUE | TokenKind.FALSE:
                node = Constant(token.kind is TokenKind.TRUE, span=span)
            case TokenKind.NULL:
                node = Constant(None, span=span)
            case _:
                raise self._unexpected("a value or a property")
        self._take()
        return node

    def _number(self, token: Token) -> int | float:
        if reason := checks.why_no_number(token):
            raise FilterTypeError(self._text, token.start, *reason)
        if token.kind is TokenKind.DECIMAL:
            return float(token.text)
        return int(token.text.rstrip("lL"))

    def _string(self) -> str:
        if self.token.kind is not TokenKind.STRING:
            quoted = f"'{self.token.text}'"
            is_number = self.token.kind in (TokenKind.INTEGER, TokenKind.DECIMAL)
            raise self._unexpected("a string", f"put it in quotes: {quoted}" if is_number else None)
        return _unquote(self._take())

    def _take(self) -> Token:
        token = self.token
        self._end = token.end
        self.token = self._lexer.next()
        return token

    def _take_if(self, kind: TokenKind) -> bool:
        if self.token.kind is not kind:
            return False
        self._take()
        return True

    def _expect(self, kind: TokenKind) -> None:
        if not self._take_if(kind):
            raise self._unexpected(kind.value)

    def _enter(self, token: Token, levels: int = 1) -> None:
        self._depth += levels
        if self._depth > MAX_DEPTH:
            reason = f"nested more than {MAX_DEPTH} levels deep"
            raise FilterSyntaxError(self._text, token.start, reason, "simplify the expression")

    def _check(self, problem: checks.Problem | None) -> None:
        if problem is not None:
            raise FilterTypeError(self._text, problem.at.span.start, problem.reason, problem.hint)

    def _unexpected(
        self, expected: str, hint: str | None = None, token: Token | None = None
    ) -> FilterSyntaxError:
        token = token or self.token
        found = f"'{token.text}'" if token.text else "the end of the text"
        if hint is None and token.kind is TokenKind.EQ and self._text[self._end - 1 :][:2] == "==":
            hint = "write = for 'equal'"
        return FilterSyntaxError(
            self._text, token.start, f"expected {expected}, found {found}", hint
        )

    def _word_hint(self, token: Token) -> str | None:
        return checks.unknown_word_hint(token.text, self._dialect)


_PREFIXES = (TokenKind.PLUS, TokenKind.MINUS, TokenKind.NOT)


def _unquote(token: Token) -> str:
    return token.text[1:-1].replace("''", "'")
