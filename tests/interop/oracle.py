"""RocketMQ's own filter engine as a co-process: ask it, it answers.

Built by Maven from the pom beside this file, once for each of RocketMQ's lines.
"""

import base64
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

HERE = Path(__file__).parent
LINES = ("4.9", "5.3")


def classpath(line: str) -> str:
    """Builds what is needed; skips the test where that can't be done, unless CI says it must."""
    missing = [tool for tool in ("java", "mvn") if shutil.which(tool) is None]
    if missing:
        reason = f"the real engine needs {' and '.join(missing)}"
        if os.environ.get("TAMIS_INTEROP") == "required":
            pytest.fail(f"{reason}, and TAMIS_INTEROP=required")
        pytest.skip(reason)
    target = HERE / "target" / line
    built = target / "built"
    sources = [HERE / "pom.xml", *HERE.glob("src/**/*.java")]
    if not built.exists() or built.stat().st_mtime < max(s.stat().st_mtime for s in sources):
        command = [
            "mvn",
            "-q",
            "-B",
            "-P",
            f"rocketmq-{line}",
            "-f",
            str(HERE / "pom.xml"),
            "package",
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            pytest.fail(f"{' '.join(command)} failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
        built.touch()
    return f"{target / 'classes'}{os.pathsep}{target / 'lib'}/*"


class Oracle:
    """One question at a time; a context manager that ends the process."""

    def __init__(self, line: str, mode: str | None = None) -> None:
        arguments = [] if mode is None else [mode]
        self._process = subprocess.Popen(
            ["java", "-cp", classpath(line), "tamis.interop.FilterOracle", *arguments],
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
