"""The cluster that a command talks to: options, environment and profile, made into one value.

Every command that has a cluster takes the same options. A secret is read from a file, a variable or
a profile; on the command line others of the machine could see it, so that is warned of.
"""

import functools
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from ..errors import ConfigError
from .options import run

if TYPE_CHECKING:
    from ..client import Admin
    from ..client.config import ClientConfig
    from ..security import Security
    from ..security.settings import Resolved

__all__ = [
    *("DEFAULT_NAMESERVER", "NAMES", "PROFILE", "Cluster", "bare_cluster_options"),
    *("cluster_options", "find_cluster", "named_profile", "resolve_options", "with_admin"),
]

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound="ClientConfig")

DEFAULT_NAMESERVER: Final = "127.0.0.1:9876"
PROFILE: Final = "profile_name"  # the parameter of --profile
_FILE: Final = click.Path(dir_okay=False)


@dataclass(frozen=True, slots=True)
class Cluster:
    nameserver: str
    security: "Security"
    resolved: "Resolved"

    def config(self, kind: type[C], **settings: Any) -> C:
        """Return the settings of a client of this cluster. Raises ConfigError."""
        from ..security.settings import fields_of

        return kind(**fields_of(self.security), **settings)

    def source_options(self) -> dict[str, str]:
        """The same as options of the Spark source, secrets by the names of where they are."""
        made = {}
        for name, value in self.resolved.without_secrets().items():
            if name != "nameserver":
                made[_camel(name)] = str(value).lower() if isinstance(value, bool) else value
        return made


_OPTIONS: Final = (
    click.option(
        "-n",
        "--nameserver",
        metavar="HOST:PORT",
        help="Name server address; separate several with ';'.  [env var: NAMESRV_ADDR; default:"
        f" {DEFAULT_NAMESERVER}]",
    ),
    click.option("--profile", PROFILE, metavar="NAME", hidden=True),
    click.option(
        "--access-key", metavar="KEY", help="For a broker with access control; TAMIS_ACCESS_KEY."
    ),
    click.option(
        "--secret-key-file",
        type=_FILE,
        metavar="FILE",
        help="The key's secret; or TAMIS_SECRET_KEY, or a profile.",
    ),
    click.option("--secret-key", metavar="TEXT", hidden=True),
    click.option("--security-token-file", type=_FILE, metavar="FILE", hidden=True),
    click.option("--tls/--no-tls", default=None, help="Talk to all servers over TLS."),
    click.option(
        "--tls-ca",
        type=_FILE,
        metavar="FILE",
        help="Authorities that vouch for servers, in PEM; else the system's.",
    ),
    click.option(
        "--tls-insecure",
        is_flag=True,
        help="Believe whoever answers; don't verify the certificate.",
    ),
    click.option("--tls-server-name", metavar="NAME", hidden=True),
    click.option("--tls-cert", type=_FILE, metavar="FILE", hidden=True),
    click.option("--tls-key", type=_FILE, metavar="FILE", hidden=True),
    click.option("--tls-key-password-file", type=_FILE, metavar="FILE", hidden=True),
)
NAMES: Final = (
    *("nameserver", PROFILE, "access_key", "secret_key_file", "secret_key", "security_token_file"),
    *("tls", "tls_ca", "tls_insecure", "tls_server_name", "tls_cert", "tls_key"),
    "tls_key_password_file",
)


def cluster_options(function: Callable[..., T]) -> Callable[..., T]:
    """Options of a command that talks to a cluster: it is given a `Cluster` as `target`."""

    @functools.wraps(function)
    def called(*args: Any, **params: Any) -> T:
        given = {name: params.pop(name) for name in NAMES}
        return function(*args, target=find_cluster(given), **params)

    return bare_cluster_options(called)


def bare_cluster_options(function: F) -> F:
    """The options alone, for a command that talks to a cluster now and then: see `find_cluster`."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def find_cluster(given: Mapping[str, Any]) -> Cluster:
    """`given` are parameters, by `NAMES`; others are passed over. Raises click.UsageError."""
    found = resolve_options({name: given[name] for name in NAMES})
    try:
        security = found.security
        if security.tls is not None:
            security.tls.context()  # files that can't be used are misuse
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    return Cluster(found.text("nameserver") or DEFAULT_NAMESERVER, security, found)


def resolve_options(given: Mapping[str, Any]) -> "Resolved":
    """Tells warnings too. Raises click.UsageError."""
    from ..security.profile import SECRETS, Value
    from ..security.settings import resolve

    values: dict[str, Value] = {}
    for parameter, value in given.items():
        if value is None or (value is False and parameter != "tls") or parameter == PROFILE:
            continue
        option = "--" + parameter.replace("_", "-")
        name = parameter.removesuffix("_file")
        if value == "":
            raise click.UsageError(f"{option}: it is empty")
        if name in values:
            raise click.UsageError(f"{option} and --{name.replace('_', '-')}: give one of them")
        if parameter == "tls_insecure":
            values["tls_verify"] = Value(False, option)
        elif name != parameter:
            values[name] = Value(value, option, "file")
        else:
            values[name] = Value(value, "--no-tls" if value is False else option)
            if name in SECRETS:
                _warn(f"{option}: others on this machine can see it; use {option}-file")
    try:
        found = resolve(values, os.environ, named_profile(given.get(PROFILE)), uses_default=True)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    for warning in found.warnings:
        _warn(warning)
    return found


def named_profile(given: str | None = None) -> str | None:
    """What --profile says, of the command or of `tamis` itself; None if it is not given."""
    context = click.get_current_context(silent=True)
    if given is not None or context is None:
        return given
    found: str | None = context.find_root().params.get(PROFILE)
    return found


def with_admin(target: Cluster, work: "Callable[[Admin], Awaitable[T]]") -> T:
    """What some work with a cluster gives, in an event loop of its own."""

    async def connected() -> T:
        from ..client import Admin, ClientConfig

        async with Admin(target.nameserver, config=target.config(ClientConfig)) as admin:
            return await work(admin)

    return run(connected())


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def _warn(text: str) -> None:
    click.echo(f"tamis: warning: {text}", err=True)
