"""Which barriers there are round a filter's process, and where the Python is that it may read.

The server makes a plan and sends it to the zygote as JSON; nothing in it is secret.
"""

import importlib.util
import json
import os
import sysconfig
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final, Literal

from . import linux
from .limits import Limits

__all__ = ["BARRIERS", "Barrier", "Isolation", "Plan", "plans"]

Isolation = Literal["required", "best-effort", "off"]
Barrier = Literal["namespaces", "landlock", "seccomp"]
BARRIERS: Final[tuple[Barrier, ...]] = ("namespaces", "landlock", "seccomp")
_ZONES: Final = "/usr/share/zoneinfo"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a zygote and its children are to be shut in. What can't be done makes them fail."""

    level: int  # 1 to 4, of the table in docs/code-filters.md
    has_namespaces: bool
    has_landlock: bool
    has_seccomp: bool
    is_opening: bool  # files may be opened for reading
    is_locking: bool = True  # False: isolation is off
    standard_library: str
    packages: tuple[str, ...]  # directories of those allowed, of Tamis, of time zones
    path: tuple[str, ...]  # of modules, beyond the standard library's
    modules: tuple[str, ...]  # that may be imported beyond the standard library

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        given = json.loads(text)
        lists = {name: tuple(given[name]) for name in ("packages", "path", "modules")}
        return cls(**{**given, **lists})

    @property
    def readable(self) -> tuple[str, ...]:
        return (self.standard_library, *self.packages)


def plans(
    isolation: Isolation, modules: tuple[str, ...], without: frozenset[Barrier]
) -> tuple[list[Plan], list[str]]:
    """Return the plans to try, the best one first, and why better ones are not among them."""
    packages = [_directory("tamis"), *(_directory(name) for name in (*modules, *_needed(modules)))]
    found = [one for one in packages if one is not None]
    first = Plan(
        level=1,
        has_namespaces=True,
        has_landlock=True,
        has_seccomp=True,
        is_opening=True,
        standard_library=os.path.realpath(sysconfig.get_path("stdlib")),
        packages=tuple(dict.fromkeys([*found, *([_ZONES] if os.path.isdir(_ZONES) else [])])),
        path=tuple(
            dict.fromkeys(
                [
                    *(str(Path(one).parent) for one in found),
                    *(sysconfig.get_path(one) for one in ("purelib", "platlib")),
                ]
            )
        ),
        modules=modules,
    )
    open_to_all = replace(
        first,
        level=4,
        has_namespaces=False,
        has_landlock=False,
        has_seccomp=False,
        is_locking=isolation != "off",
    )
    if isolation == "off":
        return [open_to_all], ["isolation is off: a filter can do what this user can"]
    missing: list[str] = [f"{one}: left out by request" for one in sorted(without)]
    has_landlock = "landlock" not in without and linux.landlock_version() > 0
    if not has_landlock and "landlock" not in without:
        missing.append("landlock: this kernel has none, or it is switched off")
    found_plans = [
        replace(first, has_landlock=has_landlock),
        replace(first, level=2, has_namespaces=False),
        replace(first, level=3, has_namespaces=False, has_landlock=False, is_opening=False),
        open_to_all,
    ]
    if "namespaces" in without:
        found_plans = [one for one in found_plans if not one.has_namespaces]
    if not has_landlock:
        found_plans = [one for one in found_plans if not one.has_landlock]
    if "seccomp" in without:
        found_plans = [one for one in found_plans if not one.has_seccomp]
    if isolation == "required":
        found_plans = [one for one in found_plans if one.has_seccomp]
    return found_plans, missing


def _needed(modules: tuple[str, ...]) -> tuple[str, ...]:
    """What the child needs whether a filter may import it or not, and time zones."""
    return tuple(one for one in ("numpy", "pyarrow", "tzdata") if one not in modules)


def _directory(package: str) -> str | None:
    """Where a package lies, without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    return str(Path(os.path.realpath(spec.origin)).parent)


def address_space(limits: Limits) -> int:
    """Return the bytes of address space for a filter, beyond its zygote's."""
    return limits.memory + limits.batch_bytes
