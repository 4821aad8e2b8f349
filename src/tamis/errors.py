"""Every exception Tamis raises on purpose.

    Error
    ├── ProtocolError
    │   ├── LocalProtocolError   we broke the rules: a bug of the caller
    │   └── RemoteProtocolError  the peer did: its connection is of no more use
    ├── ResponseError            a request was refused: .code .remark
    ├── FilterError
    │   ├── InvalidFilter        the text does not compile: .text .position .reason .hint
    │   │   ├── FilterSyntaxError    it is not an expression of the language
    │   │   └── FilterTypeError      it is, but RocketMQ (or strict mode) refuses its operands
    │   └── FilterValueError     a message's value can't be compared; seen while evaluating
    ├── StoreError
    │   └── CorruptRecord        .file .offset .reason
    └── ConfigError              a setting out of its range

Facts are arguments; the sentence is built in `__str__`.
"""

__all__ = [
    "ConfigError",
    "CorruptRecord",
    "Error",
    "FilterError",
    "FilterSyntaxError",
    "FilterTypeError",
    "FilterValueError",
    "InvalidFilter",
    "LocalProtocolError",
    "ProtocolError",
    "RemoteProtocolError",
    "ResponseError",
    "StoreError",
    "place",
]


def place(text: str, position: int) -> str:
    """Where that is, for a person: the column, from 1, and the line if there are several."""
    column = position - (text.rfind("\n", 0, position) + 1) + 1
    if "\n" not in text:
        return f"column {column}"
    line = text.count("\n", 0, position) + 1
    return f"line {line}, column {column}"


class Error(Exception):
    """The root: `except tamis.errors.Error` catches all of ours and nothing else."""


class ConfigError(Error):
    """A setting has a value it can't have."""


class ProtocolError(Error):
    """The rules of the wire were broken."""


class LocalProtocolError(ProtocolError):
    """By us: a command that can't be sent."""


class RemoteProtocolError(ProtocolError):
    """By the peer: bytes that are no frame, a header that can't be read."""


class ResponseError(Error):
    """A request was answered with a code other than success. A server raises it to answer so."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(code, remark)
        self.code = code
        self.remark = remark

    def __str__(self) -> str:
        return f"{self.remark} (code {int(self.code)})"


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
        hint = f" ({self.hint})" if self.hint else ""
        return f"{place(self.text, self.position)}: {self.reason}{hint}"

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


class StoreError(Error):
    """The files of a store are not as they should be, or could not be written."""


class CorruptRecord(StoreError):
    """What lies at `offset` of `file` is no whole, sound record."""

    def __init__(self, file: str, offset: int, reason: str) -> None:
        super().__init__(file, offset, reason)
        self.file = file
        self.offset = offset
        self.reason = reason

    def __str__(self) -> str:
        where = f"{self.file}, " if self.file else ""
        return f"{where}offset {self.offset}: {self.reason}"
