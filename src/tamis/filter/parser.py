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
    children,
)
from .tokens import Dialect, Token, TokenKind

__all__ = ["MAX_DEPTH", "Selector", "parse", "parse_selector"]

# Levels of the tree, and so of calls, that every engine can go down within Python's default limit.
# RocketMQ has no number of its own: it runs out of stack, at about 1,100 levels in a fresh JVM, and
# calls that an invalid selector.
MAX_DEPTH = 128


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
    if too_deep := _below(expression, MAX_DEPTH):
        raise _too_deep(text, too_deep.span.start)
    ignored = None if parser.token.kind is TokenKind.END else parser.token
    return Selector(text, dialect, expression, ignored)


def _below(expr: Expr, depth: int) -> Expr | None:
    """A node further down than `depth`, if there is one: a chain like a = b = c grows to the left
    without the parser going deeper."""
    level: list[Expr] = [expr]
    for _ in range(depth):
        level = [child for node in level for child in children(node)]
    return level[0] if level else None


def _too_deep(text: str, position: int) -> FilterSyntaxError:
    reason = f"nested more than {MAX_DEPTH} levels deep"
    return FilterSyntaxError(text, position, reason, "simplify the expression")


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
    """Recursive descent; at most five Python frames a level of nesting."""

    def __init__(self, text: str, dialect: Dialect) -> None:
        self._text = text
        self._lexer = Lexer(text, dialect)
        self._dialect = dialect
        self._end = 0  # where the last token taken ended
        self._depth = 0
        self.token = self._lexer.next()  # the one token looked ahead

    def expression(self, level: _Level, left: Expr | None = None, start: int = 0) -> Expr:
        """Operands joined by operators of `level` or tighter; `left`: the first, already read."""
        if left is None:
            start = self.token.start
            left = self._unary()
        ceiling = _Level.COMPARISON  # `a IS NULL > 3`: what was joined loosely can't go on tightly
        while (found := _LEVELS.get(self.token.kind)) is not None and level <= found <= ceiling:
            ceiling = found
            if found <= _Level.AND:
                kind, terms = self.token.kind, [self.condition(left)]
                while self._take_if(kind):
                    terms.append(self.condition(self.expression(_Level(found + 1))))
                node = And if found is _Level.AND else Or
                left = node(tuple(terms), Span(start, self._end))
            else:
                left = self._equality_or_comparison(left, start)
        return left

    def condition(self, expr: Expr) -> Expr:
        """Refuses what can't be true or false: numbers, strings, negated values."""
        if reason := checks.why_no_condition(expr):
            raise FilterTypeError(self._text, expr.span.start, *reason)
        return expr

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
        """Any number of +, - and NOT before a literal, a name or parentheses."""
        prefixes = []
        while self.token.kind in _PREFIXES:
            prefixes.append(self.token)
            self._enter(self.token)
            self._take()
        is_open = self.token.kind is TokenKind.LEFT
        operand = self._parenthesised() if is_open else self._primary()
        for token in reversed(prefixes):
            span = Span(token.start, self._end)
            if token.kind is TokenKind.MINUS:
                operand = Negate(operand, span)
            elif token.kind is TokenKind.NOT:
                operand = Not(self.condition(operand), span)
        self._depth -= len(prefixes)
        return operand

    def _parenthesised(self) -> Expr:
        """`((a = 1) AND b = 2)`: those opened together are closed here, without going deeper."""
        starts = []
        while self.token.kind is TokenKind.LEFT:
            self._take()
            starts.append(self.token.start)
        self._enter(self.token)
        inner: Expr | None = None
        for start in reversed(starts):
            inner = self.expression(_Level.OR, inner, start)
            if self.token.kind is not TokenKind.RIGHT:
                raise self._unexpected("')'", self._word_hint(self.token))
            self._take()
        self._depth -= 1
        assert inner is not None
        return inner

    def _primary(self) -> Expr:
        token = self.token
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

    def _enter(self, token: Token) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _too_deep(self._text, token.start)

    def _check(self, problem: checks.Problem | None) -> None:
        if problem is not None:
            raise FilterTypeError(self._text, problem.at.span.start, problem.reason, problem.hint)

    def _unexpected(
        self, expected: str, hint: str | None = None, token: Token | None = None
    ) -> FilterSyntaxError:
        token = token or self.token
        found = f"'{token.text}'" if token.text else "the end of the text"
        if hint is None:
            hint = self._spelling_hint(token)
        return FilterSyntaxError(
            self._text, token.start, f"expected {expected}, found {found}", hint
        )

    def _spelling_hint(self, token: Token) -> str | None:
        if token.kind is TokenKind.EQ and self._text[self._end - 1 :][:2] == "==":
            return "write = for 'equal'"
        before = self._text[token.start - 1 : token.start]
        if token.start == self._end and before.isdigit() and token.text[:1].isalnum():
            return "a number has no leading zeros, no hex and no suffix but L"
        return None

    def _word_hint(self, token: Token) -> str | None:
        return checks.unknown_word_hint(token.text, self._dialect)


_PREFIXES = (TokenKind.PLUS, TokenKind.MINUS, TokenKind.NOT)


def _unquote(token: Token) -> str:
    return token.text[1:-1].replace("''", "'")
