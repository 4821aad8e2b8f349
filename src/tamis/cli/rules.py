"""`tamis groups policy`, `filter` and `rules`: members that disagree, and a change of filter."""

from collections.abc import Iterable
from typing import Any

import click

from .connecting import Cluster, cluster_options, with_admin
from .options import echo_json, json_option, parse_time
from .tables import print_table

__all__ = ["filter_command", "policy", "rules"]

_POLICIES = ("rocketmq", "reject", "isolate", "default")


@click.command("policy")
@click.argument("group")
@click.argument("policy", type=click.Choice(_POLICIES))
@cluster_options
@json_option
def policy(group: str, policy: str, target: Cluster, as_json: bool) -> None:
    """Say what becomes of members of GROUP that subscribe differently.

    rocketmq: the last heartbeat decides for all, and messages are lost. reject: the later member is
    refused. isolate: each is served by its own subscription. default: what the broker's setting
    subscription_conflicts says.
    """
    made = with_admin(target, lambda admin: admin.set_group_policy(group, policy))
    for one in made:
        if as_json:
            echo_json(one)
        else:
            own = "" if one["own_policy"] else " (the broker's)"
            click.echo(f"group {group} at {one['broker']}: {one['policy']}{own}")


@click.command("filter")
@click.argument("group")
@click.argument("topic")
@click.option("--sql", metavar="EXPRESSION", help="The new filter, in SQL92.")
@click.option("--tags", metavar="EXPRESSION", help="The new filter, as tags: A || B, or *.")
@click.option(
    "--from",
    "start",
    metavar="now|OFFSET|TIME",
    default="now",
    show_default=True,
    help="From where on it is in force: each queue's end, an offset, or a time such as "
    "2024-05-01T12:00 or 30m (ago).",
)
@click.option("--old-sql", metavar="EXPRESSION", help="The present filter, if no member has it.")
@click.option("--old-tags", metavar="EXPRESSION", help="Likewise, as tags.")
@click.option("--cancel", is_flag=True, help="End a change that is under way.")
@cluster_options
@json_option
def filter_command(
    group: str,
    topic: str,
    sql: str | None,
    tags: str | None,
    start: str,
    old_sql: str | None,
    old_tags: str | None,
    cancel: bool,
    target: Cluster,
    as_json: bool,
) -> None:
    """Change the filter of GROUP on TOPIC without losing messages.

    Before the cut-over the old filter holds, for members that have it; from there on the new one,
    for members that have that. Then restart the members one by one with the new filter.
    """
    if cancel:
        if sql is not None or tags is not None:
            raise click.UsageError("--cancel takes no filter")
        made = with_admin(target, lambda admin: admin.cancel_group_filter(group, topic))
        _show_changes(made, as_json, "is cancelled")
        return
    if (sql is None) == (tags is None):
        raise click.UsageError("give the new filter by --sql or by --tags")
    if old_sql is not None and old_tags is not None:
        raise click.UsageError("--old-sql or --old-tags, not both")
    where: dict[str, Any] = {}
    if start.strip().isdecimal():
        where["start"] = int(start)
    elif start.strip().lower() != "now":
        where["time"] = parse_time(start)
    made = with_admin(
        target,
        lambda admin: admin.set_group_filter(
            group, topic, tags=tags, sql=sql, old_tags=old_tags, old_sql=old_sql, **where
        ),
    )
    _show_changes(made, as_json, "is in force")


def _show_changes(made: Iterable[dict[str, Any]], as_json: bool, what: str) -> None:
    for one in made:
        if as_json:
            echo_json(one)
            continue
        old, new = _filter(one["old"]), _filter(one["new"])
        click.echo(f"{one['broker']}: the change of {one['topic']} from {old} to {new} {what}")
        rows = [(int(queue), cut) for queue, cut in one["cuts"].items()]
        print_table(("queue", "from offset"), sorted(rows))


@click.command("rules")
@click.argument("group", required=False)
@cluster_options
@json_option
def rules(group: str | None, target: Cluster, as_json: bool) -> None:
    """Show policies, changes of filters and lanes, of GROUP or of all groups that have some."""
    found = with_admin(target, lambda admin: admin.group_rules(group))
    for broker in found:
        if as_json:
            echo_json(broker)
            continue
        click.echo(f"broker {broker['broker']}: policy {broker['policy']}")
        for one in broker["groups"]:
            _show_group(one)
    if not found:
        raise click.ClickException("no broker of this cluster is Tamis's: there are no rules")


def _show_group(one: dict[str, Any]) -> None:
    own = "" if one["own_policy"] else " (the broker's)"
    click.echo(f"group {one['group']}: policy {one['policy']}{own}")
    for why in one["refused"]:
        click.echo(f"  refused: {why}")
    for change in one["cutovers"]:
        cuts = ", ".join(f"{queue}: {cut}" for queue, cut in change["cuts"].items())
        old, new = _filter(change["old"]), _filter(change["new"])
        click.echo(f"  {change['topic']} changes from {old} to {new}, from offset {cuts} on")
    for lane in one["lanes"]:
        filters = "; ".join(f"{topic} {_filter(one)}" for topic, one in lane["filters"].items())
        who = ", ".join(lane["members"]) or f"no member for {lane['held_seconds']:.0f} s"
        click.echo(f"  {filters}: {who}")
        for at in lane["progress"]:
            click.echo(f"    {at['topic']}/{at['queue']} at {at['offset']}")


def _filter(one: dict[str, Any]) -> str:
    return f"{one['kind']} '{one['text']}'"
