"""Which name server, keys and TLS hold: options, a profile and the environment, put together.

What is said by an option counts first, then a profile that was named by one, then variables of the
environment, then a profile that a variable or the file itself chose. A secret is never combined
with the access key of another source: a profile's secret belongs to that profile's key.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ..errors import ConfigError
from . import ClientTls, Credentials, Security
from . import profile as profiles
from .profile import FLAGS, PATHS, SECRETS, SETTINGS, Value

__all__ = [
    "PROFILE_VARIABLE",
    "VARIABLES",
    "Resolved",
    "fields_of",
    "resolve",
    "security_of",
    "uses_tls",
]

PROFILE_VARIABLE: Final = "TAMIS_PROFILE"
VARIABLES: Final = {
    name: "NAMESRV_ADDR" if name == "nameserver" else f"TAMIS_{name.upper()}" for name in SETTINGS
}
_LONGEST_SECRET: Final = 4096
_OF_KEYS: Final = ("secret_key", "security_token")
_OF_TLS: Final = tuple(name for name in SETTINGS if name.startswith("tls_"))
_IMPLYING: Final = ("tls_ca", "tls_cert", "tls_key", "tls_server_name")
_TRUTHS: Final = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}


@dataclass(frozen=True, slots=True)
class Resolved:
    """`values` has what is said, by setting; secrets are read already."""

    values: Mapping[str, Value]
    said: Mapping[str, Value]  # the same, with secrets that are not read yet
    profile: str | None = None
    warnings: tuple[str, ...] = ()

    def text(self, name: str) -> str:
        """Empty if nobody says it."""
        found = self.values.get(name)
        return str(found.value) if found is not None else ""

    def without_secrets(self) -> dict[str, str | bool]:
        """The same for someone who resolves it on this machine: names of files, of variables and of
        the profile stand for secrets. One that was given as an option is there itself."""
        made: dict[str, str | bool] = {}
        for name, value in self.said.items():
            if name not in SECRETS:
                made[name] = value.value
            elif value.form != "plain":
                made[f"{name}_{'env' if value.form == 'variable' else 'file'}"] = value.value
            elif value.origin == VARIABLES[name]:
                made[f"{name}_env"] = value.origin
            elif value.origin.startswith("-"):
                made[name] = value.value
            elif self.profile:
                made["profile"] = self.profile
        return made

    @property
    def security(self) -> Security:
        """Raises ConfigError."""
        return security_of({name: value.value for name, value in self.values.items()})


def resolve(
    options: Mapping[str, Value],
    environ: Mapping[str, str],
    profile: str | None = None,
    *,
    uses_default: bool = False,
) -> Resolved:
    """`profile` is one that an option names, empty for none at all; if it is None the environment
    may name one, and if `uses_default` so may the profile file. Raises ConfigError."""
    named = profile if profile is not None else environ.get(PROFILE_VARIABLE) or None
    found, warnings = None, tuple[str, ...]()
    if named or (named is None and uses_default):
        file = profiles.read(environ)
        named = named or file.default
        if named:
            found, warnings = file.profile(named), file.warnings
    layers = [options, _variables(environ)]
    if found is not None:
        layers.insert(1 if profile else 2, found.values)
    values = _merge(layers)
    _check_keys(values, layers)
    made, more = _read_secrets(values, environ)
    return Resolved(made, values, named or None, (*warnings, *more))


def security_of(values: Mapping[str, Any]) -> Security:
    """Of settings by their names, as `ClientConfig` has them. TLS is on if `tls` says so, or if it
    says nothing and another setting of TLS is there. Raises ConfigError."""
    said = {name: value for name, value in values.items() if value not in (None, "")}
    credentials = None
    if "access_key" in said or "secret_key" in said:
        credentials = Credentials(
            said.get("access_key", ""), said.get("secret_key", ""), said.get("security_token")
        )
    elif "security_token" in said:
        raise ConfigError("security_token without access_key and secret_key: all are needed")
    tls = None
    if said.get("tls", uses_tls(said)):
        tls = ClientTls(**{name[4:]: said[name] for name in _OF_TLS if name in said})
    return Security(credentials, tls)


def uses_tls(values: Mapping[str, Any]) -> bool:
    """Whether settings of TLS are there that mean nothing without it."""
    return values.get("tls_verify") is False or any(values.get(name) for name in _IMPLYING)


def fields_of(security: Security) -> dict[str, Any]:
    """The same as settings of a `ClientConfig`."""
    made: dict[str, Any] = {}
    if (credentials := security.credentials) is not None:
        made |= {"access_key": credentials.access_key, "secret_key": credentials.secret_key}
        made["security_token"] = credentials.security_token or ""
    if (tls := security.tls) is not None:
        made |= {"tls": True, "tls_ca": tls.ca, "tls_verify": tls.verify, "tls_cert": tls.cert}
        made |= {"tls_server_name": tls.server_name, "tls_key": tls.key}
        made["tls_key_password"] = tls.key_password
    return made


def _variables(environ: Mapping[str, str]) -> dict[str, Value]:
    made: dict[str, Value] = {}
    for name, variable in VARIABLES.items():
        if not (text := environ.get(variable)):
            continue
        if name in FLAGS:
            if text.strip().lower() not in _TRUTHS:
                raise ConfigError(f"{variable} = {text!r}: it takes true or false")
            made[name] = Value(_TRUTHS[text.strip().lower()], variable)
        else:
            made[name] = Value(profiles.expand(text, Path()) if name in PATHS else text, variable)
    for name in SECRETS:
        variable = f"{VARIABLES[name]}_FILE"
        if path := environ.get(variable):
            if name in made:
                raise ConfigError(f"{variable} and {VARIABLES[name]} say the same: set one of them")
            made[name] = Value(profiles.expand(path, Path()), variable, "file")
    return made


def _merge(layers: list[Mapping[str, Value]]) -> dict[str, Value]:
    made: dict[str, Value] = {}
    for layer in layers:
        for name, value in layer.items():
            if name not in _OF_KEYS:
                made.setdefault(name, value)
    access = made.get("access_key")
    for layer in layers:
        theirs = layer.get("access_key")
        if theirs is None or access is None or theirs.value == access.value:
            for name in _OF_KEYS:
                if name in layer:
                    made.setdefault(name, layer[name])
    return made


def _check_keys(values: Mapping[str, Value], layers: list[Mapping[str, Value]]) -> None:
    access, secret = values.get("access_key"), values.get("secret_key")
    if access is not None and secret is None:
        others = [one["secret_key"].origin for one in layers if "secret_key" in one]
        more = f"; that of {others[0]} belongs to another access key" if others else ""
        raise ConfigError(
            f"access key {access.value} ({access.origin}) has no secret key{more}: give"
            f" --secret-key-file, {VARIABLES['secret_key']} or one in a profile"
        )
    if secret is not None and access is None:
        raise ConfigError(
            f"a secret key ({secret.origin}) without an access key: give --access-key,"
            f" {VARIABLES['access_key']} or one in a profile"
        )


def _read_secrets(
    values: Mapping[str, Value], environ: Mapping[str, str]
) -> tuple[dict[str, Value], list[str]]:
    made, warnings = dict(values), list[str]()
    for name, value in values.items():
        if value.form == "variable":
            text = environ.get(str(value.value))
            if not text:
                raise ConfigError(
                    f"{value.origin}: {name}_env: there is no variable {value.value} in the"
                    " environment"
                )
            made[name] = Value(text, f"{value.origin}, variable {value.value}")
        elif value.form == "file":
            text, is_open = _read_file(name, value)
            made[name] = Value(text, f"{value.origin}, file {value.value}")
            if is_open:
                warnings.append(
                    f"{value.value} holds a secret and others can read it: chmod 600 {value.value}"
                )
    return made, warnings


def _read_file(name: str, value: Value) -> tuple[str, bool]:
    """Its text, and whether others can read it."""
    where = f"{value.origin}: {name}_file {value.value}"
    try:
        with open(str(value.value), "rb") as file:
            data = file.read(_LONGEST_SECRET + 1)
            is_open = profiles.is_open_to_others(os.fstat(file.fileno()))
        text = data.decode().strip()
    except OSError as error:
        raise ConfigError(f"{where}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{where}: not text in UTF-8") from None
    if not text or len(data) > _LONGEST_SECRET:
        why = f"more than {_LONGEST_SECRET} bytes" if text else "it is empty"
        raise ConfigError(f"{where}: {why}")
    return text, is_open
