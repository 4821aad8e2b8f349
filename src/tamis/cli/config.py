"""`tamis config`: which name server, keys and TLS commands use, and who says so."""

import os
from typing import Any, Final

import click

from ..errors import ConfigError
from .connecting import DEFAULT_NAMESERVER, NAMES, bare_cluster_options, resolve_options
from .options import echo_json, json_option
from .tables import print_table

__all__ = ["config_group"]

_MASK: Final = "****"
_DEFAULT: Final = "default"


@click.group("config", short_help="Which cluster commands talk to, and by which keys.")
def config_group() -> None:
    """Which cluster commands talk to, and by which keys.

    What an option says counts first, then the profile that --profile names, then variables of the
    environment, then the profile that TAMIS_PROFILE or the file's default_profile names.
    """


@config_group.command("show")
@bare_cluster_options
@json_option
def show(as_json: bool, **options: Any) -> None:
    """Print what holds, and where it comes from. Secrets are not shown."""
    from ..security.profile import SECRETS, SETTINGS, find

    found = resolve_options({name: options[name] for name in NAMES})
    try:
        security = found.security
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    defaults: dict[str, str | bool] = {
        "nameserver": DEFAULT_NAMESERVER,
        "tls": security.tls is not None,
    }
    if security.tls is not None:
        defaults["tls_verify"] = True
        defaults["tls_ca"] = "the system's"
    rows = []
    for name in SETTINGS:
        said = found.values.get(name)
        value = said.value if said is not None else defaults.get(name, "")
        if name in SECRETS and value:
            value = _MASK
        rows.append((name, value, said.origin if said is not None else _DEFAULT))
    path = find(os.environ)
    there = str(path) if path.exists() else f"{path} (not there)"
    if as_json:
        for name, value, origin in rows:
            echo_json({"setting": name, "value": value, "from": origin})
        return
    click.echo(f"profile file: {there}")
    click.echo(f"profile: {found.profile or 'none'}\n")
    shown = [[name, _shown(value), origin] for name, value, origin in rows]
    print_table(("setting", "value", "from"), shown)


@config_group.command("profiles")
@json_option
def list_profiles(as_json: bool) -> None:
    """List the profiles of the file."""
    from ..security.profile import read
    from ..security.settings import uses_tls

    try:
        file = read(os.environ)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    for warning in file.warnings:
        click.echo(f"tamis: warning: {warning}", err=True)
    if not file.profiles and not as_json:
        click.echo(f"{file.path} has no profiles: see docs/security.md", err=True)
        return
    rows: list[tuple[str | bool, ...]] = []
    for profile in file.profiles.values():
        texts = [
            str(profile.values[name].value) if name in profile.values else ""
            for name in ("nameserver", "access_key")
        ]
        said = {name: one.value for name, one in profile.values.items()}
        rows.append(
            (profile.name, *texts, said.get("tls", uses_tls(said)), profile.name == file.default)
        )
    for name, nameserver, key, tls, is_default in rows if as_json else ():
        echo_json(
            {"profile": name, "nameserver": nameserver, "access_key": key, "tls": tls}
            | {"default": is_default}
        )
    if not as_json:
        names = ("profile", "nameserver", "access_key", "tls", "default")
        print_table(names, [[_shown(cell) for cell in row] for row in rows])


def _shown(value: str | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value
