"""The `code=` of a subscription: what is taken for a filter in code, and what is wrong with one.

It is checked where it is written, and not executed: that is for the filter server, or for this
process if it has to filter itself.
"""

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Union

from ..errors import CodeError, ConfigError

if TYPE_CHECKING:
    from ..code import CodeFilter

__all__ = ["Code", "CodeSource", "code_source"]

# A CodeFilter, `file.py:Class`, or the name of a class and the text that has it.
Code = Union["CodeFilter", str, tuple[str, str]]

_METHODS: Final = ("match", "match_batch")
_UPLOADED: Final = "<upload>"
_CLASS_NAME: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclass(frozen=True, slots=True)
class CodeSource:
    """A filter in code, and where it came from."""

    code: "CodeFilter"
    is_own: bool  # of this program: it may run in this process without being asked for
    is_python: bool  # Java is for Apache's filter server 4.2

    @property
    def class_name(self) -> str:
        return self.code.class_name

    @property
    def crc(self) -> int:
        return self.code.crc


def code_source(code: Code) -> CodeSource:
    """Read and check a filter in code. Raises ConfigError, CodeError."""
    from ..code import MAX_SOURCE, CodeFilter, code_filter

    is_own = True
    if isinstance(code, str):
        code = code_filter(code)
    elif isinstance(code, tuple):
        code, is_own = _of_text(*code), False
    elif isinstance(code, CodeFilter):
        is_own = code.file != _UPLOADED
    else:
        raise ConfigError(
            f"code = {code!r}: it takes 'file.py:Class', a CodeFilter, or the name of a class and"
            " its source"
        )
    if not _CLASS_NAME.fullmatch(code.class_name):
        raise CodeError(code.name, f"{code.class_name!r} can't be the name of a class")
    size = len(code.text.encode(errors="replace"))
    if size > MAX_SOURCE:
        raise CodeError(
            code.name, f"its source has {size:,} bytes, at most {MAX_SOURCE:,} are sent"
        )
    is_python = "." not in code.class_name and not code.file.endswith(".java")
    if is_python:
        _check(code)
    return CodeSource(code, is_own, is_python)


def _of_text(class_name: str, text: str) -> "CodeFilter":
    from ..code import CodeFilter

    return CodeFilter(f"<source>:{class_name}", text)


def _check(code: "CodeFilter") -> None:
    """Raise CodeError if it can be told without executing it that there is no such filter."""
    try:
        tree = ast.parse(code.text, code.file)
    except SyntaxError as error:
        where = f"line {error.lineno}: " if error.lineno else ""
        raise CodeError(code.name, f"{where}{error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:  # a null byte; too deep
        raise CodeError(code.name, str(error) or type(error).__name__) from None
    found: ast.ClassDef | None = None
    for node in _statements(tree.body):
        if isinstance(node, ast.ClassDef) and node.name == code.class_name:
            found = node
        elif code.class_name in _names(node) or "*" in _names(node):
            return  # imported, or made by a call: known when it is executed
    if found is None:
        raise CodeError(code.name, f"{code.file} has no class {code.class_name}")
    if found.bases or found.keywords or found.decorator_list:
        return  # it may have its methods from there
    if not {name for node in _statements(found.body) for name in _names(node)} & {*_METHODS}:
        raise CodeError(code.name, f"class {found.name} has neither match nor match_batch")


def _statements(body: list[ast.stmt]) -> list[ast.stmt]:
    """Statements that bind names where `body` is, those in `if`, `try`, `with` and loops too."""
    found: list[ast.stmt] = []
    waiting = list(body)
    while waiting:
        node = waiting.pop(0)
        found.append(node)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                waiting.append(child)
            elif isinstance(child, (ast.ExceptHandler, ast.match_case)):
                waiting += child.body
    return found


def _names(node: ast.stmt) -> set[str]:
    """The names that a statement binds; `*` for those of a module."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {node.name}
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    return {
        part.id
        for part in ast.walk(node)
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
    }
