"""`tamis acl`: accounts of brokers with access control. It needs an administrator's key."""

import secrets
from typing import TYPE_CHECKING, Any

import click

from .connecting import Cluster, cluster_options, with_admin
from .options import echo_json, json_option
from .tables import print_table

if TYPE_CHECKING:
    from ..client import Admin
    from ..wire.access import PlainAccessConfig

__all__ = ["acl_group"]

_PERMISSION = click.Choice(["DENY", "PUB", "SUB", "PUB|SUB"])
_LONGEST_SECRET = 4096


@click.group("acl")
def acl_group() -> None:
    """Show and change accounts of brokers with access control.

    See docs/security.md.
    """


@acl_group.command("list")
@cluster_options
@json_option
def list_accounts(target: Cluster, as_json: bool) -> None:
    """List accounts and white addresses. Secrets are not shown."""
    from ..client.accounts import get_accounts

    rows = []
    for broker, found in sorted(with_admin(target, get_accounts).items()):
        if as_json:
            echo_json({"broker": broker, "white_addresses": found.global_white_addrs})
        elif found.global_white_addrs:
            addresses = ", ".join(found.global_white_addrs)
            click.echo(f"white addresses at {broker}: {addresses}")
        for one in found.plain_access_configs:
            if as_json:
                echo_json(_row(broker, one))
            else:
                rows.append([*map(_shown, _row(broker, one).values())])
    if rows:
        columns = ("BROKER", "KEY", "ADMIN", "FROM", "TOPICS", "GROUPS", "TOPIC", "GROUP")
        print_table(columns, rows)


def _row(broker: str, one: "PlainAccessConfig") -> dict[str, Any]:
    return {
        "broker": broker,
        "access_key": one.access_key,
        "admin": one.admin,
        "white_address": one.white_remote_address,
        "default_topic": one.default_topic_perm,
        "default_group": one.default_group_perm,
        "topics": one.topic_perms or [],
        "groups": one.group_perms or [],
    }


def _shown(value: object) -> str:
    if isinstance(value, list):
        return " ".join(value) or "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value or "-")


@acl_group.command("set")
@click.argument("key")
@click.option(
    "--new-secret-file",
    type=click.File("rb"),
    metavar="FILE",
    help="Its secret, - for standard input. Else it keeps the one it has; a new account gets one"
    " that is printed.",
)
@click.option("--admin/--no-admin", default=None, help="May it change topics, groups, accounts?")
@click.option("--white-address", metavar="PATTERN", help="From where its key alone is enough.")
@click.option("--default-topic", type=_PERMISSION, help="For topics that are not listed.")
@click.option("--default-group", type=_PERMISSION, help="For groups that are not listed.")
@click.option("--topic", "topics", multiple=True, metavar="NAME=PUB|SUB", help="Repeatable.")
@click.option("--group", "groups", multiple=True, metavar="NAME=SUB", help="Repeatable.")
@cluster_options
def set_account(key: str, target: Cluster, **options: Any) -> None:
    """Make the account KEY, or change it at all brokers. What is not given stays as it is."""
    from ..client.accounts import get_accounts, put_account
    from ..wire.access import CreateAccessConfig

    given = _read_secret(options["new_secret_file"]) if options["new_secret_file"] else None

    async def work(admin: "Admin") -> tuple[list[str], str | None]:
        found = await get_accounts(admin)
        known = [
            one
            for config in found.values()
            for one in config.plain_access_configs
            if one.access_key == key
        ]
        made = None if known or given else secrets.token_urlsafe(24)
        is_admin = options["admin"]
        header = CreateAccessConfig(
            access_key=key,
            secret_key=given or made or known[0].secret_key,
            admin=is_admin if is_admin is not None else bool(known) and known[0].admin,
            white_remote_address=options["white_address"],
            default_topic_perm=options["default_topic"],
            default_group_perm=options["default_group"],
            topic_perms=",".join(options["topics"]) or None,
            group_perms=",".join(options["groups"]) or None,
        )
        return await put_account(admin, header), made

    brokers, made = with_admin(target, work)
    click.echo(f"account {key} is set at {', '.join(brokers)}")
    if made is not None:
        click.echo(f"secret: {made}")


def _read_secret(file: Any) -> str:
    try:
        text: str = file.read(_LONGEST_SECRET + 1).decode().strip()
    except UnicodeDecodeError:
        raise click.UsageError("--new-secret-file: it is not text in UTF-8") from None
    if not 7 <= len(text) <= _LONGEST_SECRET:
        raise click.UsageError("--new-secret-file: a secret has 7 characters or more")
    return text


@acl_group.command("delete")
@click.argument("key")
@cluster_options
def delete(key: str, target: Cluster) -> None:
    """Delete the account KEY at all brokers."""
    from ..client.accounts import delete_account

    brokers = with_admin(target, lambda admin: delete_account(admin, key))
    click.echo(f"account {key} is deleted at {', '.join(brokers)}")


@acl_group.command("white")
@click.argument("addresses", nargs=-1)
@cluster_options
def white(addresses: tuple[str, ...], target: Cluster) -> None:
    """Set the addresses from which nothing is asked for: no key and no permission.

    They take the place of those that are there; without ADDRESSES there are none. Patterns such as
    10.1.2.* and 10.1.2.3-9 will do.
    """
    from ..client.accounts import put_white_addresses

    brokers = with_admin(target, lambda admin: put_white_addresses(admin, list(addresses)))
    shown = ", ".join(addresses) or "none"
    click.echo(f"white addresses at {', '.join(brokers)}: {shown}")
