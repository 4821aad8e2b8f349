"""The profile file: name server, keys and TLS of the clusters a person works with, by name.

    default_profile = "dev"         # of commands; may be left out

    [profiles.prod]
    nameserver = "mq1.example.com:9876;mq2.example.com:9876"
    access_key = "orders"
    secret_key_file = "prod.secret" # or secret_key, or secret_key_env
    tls_ca = "/etc/ssl/mq-ca.pem"

It lies at `~/.config/tamis/config.toml` (`XDG_CONFIG_HOME` is respected), or where `TAMIS_CONFIG`
says. Paths in it are relative to it. What is wrong raises ConfigError with one line, in which no
secret is shown.
"""

import difflib
import os
import stat
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from ..errors import ConfigError

__all__ = [
    "CONFIG_VARIABLE",
    "FLAGS",
    "PATHS",
    "SECRETS",
    "SETTINGS",
    "Form",
    "Profile",
    "ProfileFile",
    "Value",
    "expand",
    "find",
    "is_open_to_others",
    "read",
]

CONFIG_VARIABLE: Final = "TAMIS_CONFIG"
SECRETS: Final = ("secret_key", "security_token", "tls_key_password")
FLAGS: Final = ("tls", "tls_verify")
PATHS: Final = ("tls_ca", "tls_cert", "tls_key")
SETTINGS: Final = (
    *("nameserver", "access_key", "secret_key", "security_token"),
    *("tls", "tls_ca", "tls_verify", "tls_server_name", "tls_cert", "tls_key", "tls_key_password"),
)
# A secret may be in the file itself, in another file, or in a variable of the environment.
Form = Literal["plain", "file", "variable"]
_ENDINGS: Final[tuple[tuple[str, Form], ...]] = (("_file", "file"), ("_env", "variable"))
_FORMS: Final = {name + end: (name, form) for name in SECRETS for end, form in _ENDINGS}
_KNOWN: Final = (*SETTINGS, *_FORMS)
_MOST_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Value:
    """What a setting is, and who says so. `form`: `value` is the setting itself, or the name of the
    file or of the variable that has it."""

    value: str | bool = field(repr=False)
    origin: str
    form: Form = "plain"


@dataclass(frozen=True, slots=True)
class Profile:
    name: str
    values: Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class ProfileFile:
    path: Path
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    default: str | None = None
    warnings: tuple[str, ...] = ()

    def profile(self, name: str) -> Profile:
        """Raises ConfigError if there is none of that name."""
        if name in self.profiles:
            return self.profiles[name]
        if not self.path.exists():
            raise ConfigError(f"profile {name}: there is no file {self.path} to look it up in")
        known = ", ".join(self.profiles) or "none"
        hint = _nearest(name, self.profiles) or f"; it has {known}"
        raise ConfigError(f"{self.path}: there is no profile {name}{hint}")


def find(environ: Mapping[str, str]) -> Path:
    """Where the file is, or would be."""
    given = environ.get(CONFIG_VARIABLE)
    if given:
        return Path(given).expanduser()
    home = environ.get("XDG_CONFIG_HOME") or ""
    if not os.path.isabs(home):  # others are to be ignored, says the specification
        home = f"{environ.get('HOME') or Path.home()}/.config"
    return Path(home) / "tamis" / "config.toml"


def read(environ: Mapping[str, str]) -> ProfileFile:
    """The file, or an empty one if there is none. Raises ConfigError."""
    path = find(environ)
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
            is_open = is_open_to_others(os.fstat(file.fileno()))
    except FileNotFoundError:
        if environ.get(CONFIG_VARIABLE):
            raise ConfigError(f"{CONFIG_VARIABLE}: there is no file {path}") from None
        return ProfileFile(path)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    if len(data) > _MOST_BYTES:
        raise ConfigError(f"{path}: more than {_MOST_BYTES} bytes: is it the right file?")
    try:
        tables = tomllib.loads(data.decode())
    except ValueError as error:  # not TOML, or not UTF-8; neither quotes the text
        raise ConfigError(f"{path}: {error}") from None
    made = _read(path, tables)
    holds = any(
        name in SECRETS and value.form == "plain"
        for profile in made.values()
        for name, value in profile.values.items()
    )
    warnings = tuple[str, ...]()
    if holds and is_open:
        warnings = (f"{path} holds a secret and others can read it: chmod 600 {path}",)
    return ProfileFile(path, made, _default(path, tables, made), warnings)


def is_open_to_others(found: os.stat_result) -> bool:
    return bool(stat.S_IMODE(found.st_mode) & 0o077)


def expand(text: str, folder: Path) -> str:
    return str(folder / Path(text).expanduser())


def _read(path: Path, tables: Mapping[str, Any]) -> dict[str, Profile]:
    for name in tables:
        if name not in ("profiles", "default_profile"):
            near = _nearest(name, ("profiles", "default_profile"))
            hint = near or "; it has default_profile and tables [profiles.NAME]"
            raise ConfigError(f"{path}: {name} is not known{hint}")
    profiles = tables.get("profiles", {})
    if not isinstance(profiles, dict):
        raise ConfigError(f"{path}: profiles is not a table: write [profiles.NAME]")
    made = {}
    for name, table in profiles.items():
        if not isinstance(table, dict):
            raise ConfigError(f"{path}: profiles.{name} is not a table: write [profiles.{name}]")
        made[name] = _profile(path, name, table)
    return made


def _profile(path: Path, profile: str, table: Mapping[str, Any]) -> Profile:
    where = f"{path}: [profiles.{profile}]"
    values: dict[str, Value] = {}
    for key, value in table.items():
        if key not in _KNOWN:
            hint = _nearest(key, _KNOWN) or f"; there are {', '.join(_KNOWN)}"
            raise ConfigError(f"{where} {key} is not known{hint}")
        plain: tuple[str, Form] = (key, "plain")
        name, form = _FORMS.get(key, plain)
        if name in values:
            raise ConfigError(f"{where} {name} is said twice: leave out {key}")
        wanted = bool if name in FLAGS else str
        if type(value) is not wanted or value == "":
            kind = "true or false" if wanted is bool else "text in quotes, not empty"
            raise ConfigError(f"{where} {key}: it takes {kind}")
        if form == "file" or name in PATHS:
            value = expand(str(value), path.absolute().parent)
        values[name] = Value(value, f"profile {profile}", form)
    return Profile(profile, values)


def _default(path: Path, tables: Mapping[str, Any], profiles: Mapping[str, Profile]) -> str | None:
    name = tables.get("default_profile")
    if name is None:
        return None
    if name not in profiles:
        hint = _nearest(str(name), profiles)
        raise ConfigError(f"{path}: default_profile = {name!r}: there is no such profile{hint}")
    return str(name)


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {near[0]}?" if near else ""
