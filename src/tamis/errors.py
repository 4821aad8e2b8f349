"""Every exception Tamis raises on purpose.

    Error
    ├── FilterError
    │   ├── InvalidFilter        the text does not compile: .text .position .reason .hint
    │   │   ├── FilterSyntaxError    it is not an expression of the language
    │   │   └── FilterTypeError      it is, but RocketMQ (or strict mode) refuses its operands
    │   └── FilterValueError     a message's value can't be compared; seen while evaluating
    └── ConfigError              a setting out of its range

Facts are arguments; the sentence is built in `__str__`.
"""

__all__ = [
    "ConfigError",
    "Error",
    "FilterError",
    "FilterSyntaxError",
    "FilterTypeError",
    "FilterValueError",
    "InvalidFilter",
]


class Error(Exception):
    """The root: `except tamis.errors.Error` catches all of ours and nothing else."""


class ConfigError(Error):
    """A setting has a value it can't have."""


class FilterError(Error):
    """A filter could not be compiled or could not give an answer."""


class InvalidFilter(FilterError):
    """The text does not compile. `position` is an index into `text`, from 0."""

    def __init__(self, text: str, position: int, reason: str, hint: str | None = None) -> None:
        super().__init__(text, position, reason, hint)
        self.text = text
        self.position = position
        self.reason = reason
        self.hint = hint

    @property
    def line(self) -> int:
        return self.text.count("\n", 0, self.position) + 1

    @property
    def column(self) -> int:
        """Counted from 1 within its line, as editors do."""
        return self.position - (self.text.rfind("\n", 0, self.position) + 1) + 1

    def __str__(self) -> str:
        where = f"column {self.column}"
        if "\n" in self.text:
            where = f"line {self.line}, {where}"
        hint = f" ({self.hint})" if self.hint else ""
        return f"{where}: {self.reason}{hint}"

    def picture(self) -> str:
        """The line of text concerned, and under it a mark at the column."""
        line = self.text.split("\n")[self.line - 1]
        indent = "".join("\t" if c == "\t" else " " for c in line[: self.column - 1])
        return f"{line}\n{indent}^"


class FilterSyntaxError(InvalidFilter):
    """The text is not an expression of the language."""


class FilterTypeError(InvalidFilter):
    """The expression reads well but its operands can't go together."""


class FilterValueError(FilterError):
    """A value met in a message can't be compared as the expression asks.

    For RocketMQ such a message does not match, whatever the rest of the expression says, unless a
    short circuit kept it from being looked at. `java_class` is what its engine throws.
    """

    def __init__(self, value: object, wanted: str, java_class: str = "RuntimeException") -> None:
        super().__init__(value, wanted, java_class)
        self.value = value
        self.wanted = wanted
        self.java_class = java_class

    def __str__(self) -> str:
        shown = repr(self.value)
        if len(shown) > 60:
            shown = shown[:57] + "…" + shown[-1]
        return f"{shown} can't be read as {self.wanted}"
