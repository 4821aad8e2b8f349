"""The options of servers for TLS, and what is wrong with them in one line."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from ..errors import ConfigError
from ..security.tls import TLS_SETTINGS, ServerTls

if TYPE_CHECKING:
    from ..broker.config import BrokerConfig
    from ..filterserver.config import FilterServerConfig
    from ..nameserver.config import NameServerConfig

__all__ = ["check_tls", "copy_tls", "given_tls", "tls_options"]

KEY_PASSWORD_VARIABLE: Final = "TAMIS_TLS_KEY_PASSWORD"

_OPTIONS = (
    click.option(
        "--tls",
        type=click.Choice(["disabled", "permissive", "enforcing"]),
        help="permissive: with TLS and without on one port. enforcing: only with TLS."
        "  [default: disabled]",
    ),
    click.option(
        "--tls-cert", metavar="FILE", help="Certificate in PEM, followed by those that signed it."
    ),
    click.option("--tls-key", metavar="FILE", help="Its private key in PEM."),
    click.option(
        "--tls-key-password-file",
        metavar="FILE",
        help=f"Has the password of the key; or set {KEY_PASSWORD_VARIABLE}.",
    ),
    click.option("--tls-ca", metavar="FILE", help="Authorities that verify clients, in PEM."),
    click.option(
        "--tls-client-auth",
        type=click.Choice(["none", "optional", "require"]),
        help="Whether clients are asked for certificates.  [default: none]",
    ),
)

_FILES: Final = ("tls_cert", "tls_key", "tls_key_password_file")  # of no use without a mode

Config = TypeVar("Config", "BrokerConfig", "NameServerConfig", "FilterServerConfig")


def tls_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def given_tls(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those that were given, as settings; the password from the environment, too."""
    found = {name: options[name] for name in TLS_SETTINGS if options.get(name) is not None}
    password = os.environ.get(KEY_PASSWORD_VARIABLE)
    if password and "tls_key_password_file" not in found:
        found["tls_key_password"] = password
    return found


def copy_tls(source: "BrokerConfig", target: Config) -> Config:
    """With the TLS of another server."""
    return replace(target, **{name: getattr(source, name) for name in TLS_SETTINGS})


def check_tls(config: "BrokerConfig | NameServerConfig | FilterServerConfig") -> None:
    """Raises UsageError for settings that don't fit together and files that can't be used."""
    try:
        tls = ServerTls.of(config)
        if tls.mode != "disabled":
            tls.context()
            tls.peers()
        elif unused := [name for name in _FILES if getattr(config, name)]:
            raise ConfigError(f"{unused[0]}: it needs tls = permissive or enforcing")
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
