"""Options of `tamis filterserver` for its connection to the broker: the key it signs with, and TLS.

`--tls` and what belongs to it are of its own port; these have other names. What consumers are asked
for is not asked here.
"""

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from ..errors import ConfigError
from .connecting import NAMES, Cluster, find_cluster

if TYPE_CHECKING:
    from ..security import Security

__all__ = ["broker_options", "broker_security", "status_cluster"]

F = TypeVar("F", bound=Callable[..., Any])

_FILE: Final = click.Path(dir_okay=False)
_OPTIONS: Final = (
    click.option(
        "--access-key",
        metavar="KEY",
        help="For a broker with access control; or TAMIS_ACCESS_KEY. It needs SUB on topics and"
        " groups.",
    ),
    click.option(
        "--secret-key-file",
        type=_FILE,
        metavar="FILE",
        help="The key's secret; or TAMIS_SECRET_KEY.",
    ),
    click.option("--broker-tls", is_flag=True, help="Talk to the broker over TLS."),
    click.option(
        "--broker-tls-ca",
        type=_FILE,
        metavar="FILE",
        help="Authorities that vouch for the broker, in PEM; else the system's.",
    ),
    click.option(
        "--broker-tls-insecure",
        is_flag=True,
        help="Believe whoever answers; don't verify the broker's certificate.",
    ),
    click.option("--broker-tls-server-name", metavar="NAME", hidden=True),
    click.option("--broker-tls-cert", type=_FILE, metavar="FILE", hidden=True),
    click.option("--broker-tls-key", type=_FILE, metavar="FILE", hidden=True),
)
_PARAMETERS: Final = (
    *("access_key", "secret_key_file", "broker_tls", "broker_tls_ca", "broker_tls_insecure"),
    *("broker_tls_server_name", "broker_tls_cert", "broker_tls_key"),
)
# Of the environment: those of TLS may be meant for its own port.
_VARIABLES: Final = ("ACCESS_KEY", "SECRET_KEY", "SECURITY_TOKEN")


def broker_options(function: F) -> F:
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def broker_security(options: Mapping[str, Any]) -> "Security":
    """What the options and the environment say. Raises click.UsageError."""
    from ..security.profile import Value
    from ..security.settings import resolve

    values: dict[str, Value] = {}
    for name in _PARAMETERS:
        value, option = options[name], "--" + name.replace("_", "-")
        if not value:
            continue
        setting = name.removeprefix("broker_")
        if setting == "tls_insecure":
            values["tls_verify"] = Value(False, option)
        elif setting == "secret_key_file":
            values["secret_key"] = Value(value, option, "file")
        else:
            values[setting] = Value(value, option)
    known = [f"TAMIS_{name}{end}" for name in _VARIABLES for end in ("", "_FILE")]
    environ = {name: os.environ[name] for name in known if name in os.environ}
    try:
        found = resolve(values, environ, "")
        security = found.security
        if security.tls is not None:
            security.tls.context()
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    for warning in found.warnings:
        click.echo(f"tamis: warning: {warning}", err=True)
    return security


def status_cluster(nameserver: str | None, options: Mapping[str, Any]) -> Cluster:
    """For --status, which asks as a client does. Raises click.UsageError."""
    given = dict.fromkeys(NAMES)
    given |= {"nameserver": nameserver, "tls_insecure": options["broker_tls_insecure"]}
    given |= {name: options[name] for name in ("access_key", "secret_key_file")}
    given |= {"tls": options["broker_tls"] or None, "tls_ca": options["broker_tls_ca"]}
    return find_cluster(given)
