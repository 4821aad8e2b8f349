"""Options of source and sink that say which cluster it is, and with which keys and TLS.

They are put together on the driver, with its profile file and its environment (`TAMIS_…`), and
travel to the executors with what these are to do, never in a plan. Files of TLS are read where the
connections are made: they have to be on all machines.
"""

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from ..errors import ConfigError
from ..security import Security
from ..security.profile import FLAGS, SECRETS, SETTINGS, Form, Value
from ..security.settings import resolve
from . import values

__all__ = ["OPTIONS", "SECRET_OPTIONS", "is_connection", "resolve_connection"]

log = logging.getLogger(__name__)


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


# The setting that each option is, and in which form.
_SETTINGS: Final[dict[str, tuple[str, Form]]] = {
    **{_camel(name): (name, "plain") for name in SETTINGS},
    **{_camel(f"{name}_file"): (name, "file") for name in SECRETS},
    **{_camel(f"{name}_env"): (name, "variable") for name in SECRETS},
}
_PROFILE: Final = "profile"
OPTIONS: Final[dict[str, Callable[[str], Any]]] = {
    _PROFILE: str.strip,
    **{
        option: values.flag if name in FLAGS else values.text
        for option, (name, _) in _SETTINGS.items()
    },
}
SECRET_OPTIONS: Final = tuple(map(_camel, SECRETS))


_NAMES: Final = frozenset(map(str.lower, OPTIONS))


def is_connection(option: str) -> bool:
    """Whether it is one of `OPTIONS`, in any case."""
    return option.lower() in _NAMES


def resolve_connection(given: Mapping[str, Any]) -> tuple[str, Security]:
    """The name server, empty if nobody names one, and keys and TLS. `given` are values that were
    read, by the options' names. Raises ConfigError."""
    said: dict[str, Value] = {}
    for option, value in given.items():
        if option == _PROFILE:
            continue
        name, form = _SETTINGS[option]
        if name in said:
            raise ConfigError(f"option {option}: another option says that already")
        said[name] = Value(value, f"option {option}", form)
    found = resolve(said, os.environ, given.get(_PROFILE))
    for warning in found.warnings:
        log.warning("%s", warning)
    return found.text("nameserver"), found.security
