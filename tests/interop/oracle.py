"""RocketMQ's own filter engine as a co-process: ask it, it answers."""

import base64
import os
import subprocess
from collections.abc import Mapping

import pytest
from interop.build import Unavailable, classpath


def _classpath(line: str) -> str:
    """Skips the test where there is no Java or Maven, unless CI says it must run."""
    try:
        return classpath(line)
    except Unavailable as reason:
        if os.environ.get("TAMIS_INTEROP") == "required":
            pytest.fail(f"{reason}, and TAMIS_INTEROP=required")
        pytest.skip(str(reason))


class Oracle:
    """One question at a time; a context manager that ends the process."""

    def __init__(self, line: str, mode: str | None = None) -> None:
        arguments = [] if mode is None else [mode]
        self._process = subprocess.Popen(
            ["java", "-cp", _classpath(line), "tamis.interop.FilterOracle", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="ascii",
        )

    def __enter__(self) -> "Oracle":
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def evaluate(self, expr: str, properties: Mapping[str, str] | None) -> str:
        """`compile-error`, `true`, `false`, `null` or `error:Class`."""
        fields = ["-"] if properties is None else []
        for name, value in (properties or {}).items():
            fields += [_utf16(name), _utf16(value)]
        return self._ask("\t".join([_utf16(expr), *fields])).partition("\t")[0]

    def decode(self, data: bytes) -> dict[str, str]:
        fields = [_text(f) for f in self._ask(base64.b64encode(data).decode()).split("\t") if f]
        return dict(zip(fields[::2], fields[1::2], strict=True))

    def number(self, kind: str, text: str) -> str:
        return self._ask(f"{kind}\t{_utf16(text)}")

    def _ask(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer.endswith("\n"), "the engine has gone"
        return answer[:-1]


def _utf16(text: str) -> str:
    return base64.b64encode(text.encode("utf-16-be", "surrogatepass")).decode()


def _text(field: str) -> str:
    return base64.b64decode(field).decode("utf-16-be", "surrogatepass")
