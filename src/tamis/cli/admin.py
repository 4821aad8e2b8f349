"""`tamis topics`, `groups` and `offsets`: look into a cluster and change it."""

import sys
import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final

import click

from .connecting import Cluster, cluster_options, with_admin
from .lag import by_topic, lag, lag_fields, matching_text, next_match_text, print_totals
from .options import echo_json, json_option, parse_time
from .tables import print_table, time_text

if TYPE_CHECKING:
    from ..client import Admin, MessageQueue
    from ..client.reports import GroupInfo, MatchingLag, QueueProgress, TopicInfo

__all__ = ["groups", "offsets", "topics"]

_COUNTING: Final = 3.0  # seconds for the exact lag, where it is not what was asked for


class _Lists(click.Group):
    """Lists if no command is named; options may come before the command's name."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        if not context.resilient_parsing:
            at = next((i for i, arg in enumerate(args) if arg in self.commands), None)
            if at is not None:
                args = [args[at], *args[:at], *args[at + 1 :]]
            elif not args or (args[0].startswith("-") and args[0] not in ("-h", "--help")):
                args = ["list", *args]
        return super().parse_args(context, args)


_all = click.option("--all", "everything", is_flag=True, help="Those of the system too.")
_cluster = click.option("--cluster", metavar="NAME", help="On its brokers only.")
_broker = click.option("--broker", metavar="NAME", help="On this broker only.")
_yes = click.option("-y", "--yes", is_flag=True, help="Do not ask.")


# Topics.


@click.group(cls=_Lists)
def topics() -> None:
    """List, show, create and delete topics."""


@topics.command("list")
@_all
@cluster_options
@json_option
def list_topics(everything: bool, target: Cluster, as_json: bool) -> None:
    """The topics there are."""
    _list("topic", with_admin(target, lambda admin: admin.topics(all=everything)), as_json)


@topics.command("show")
@click.argument("name")
@cluster_options
@json_option
def show_topic(name: str, target: Cluster, as_json: bool) -> None:
    """Where a topic is, what is in it and who consumes it."""
    info = with_admin(target, lambda admin: admin.topic(name))
    if as_json:
        echo_json(_topic(info))
        return
    places = (
        f"{one.broker} ({one.read_queues} queues, {one.permission or 'closed'})"
        if one.read_queues == one.write_queues
        else f"{one.broker} ({one.read_queues} queues to read, {one.write_queues} to write,"
        f" {one.permission or 'closed'})"
        for one in info.places
    )
    click.echo(f"topic   {info.name}")
    click.echo(f"at      {', '.join(places)}")
    click.echo(f"groups  {', '.join(info.groups) or 'none'}")
    click.echo()
    print_table(
        ("broker", "queue", "first", "end", "messages", "last stored"),
        [
            (
                *(one.queue.broker_name, one.queue.queue_id, one.first, one.end),
                *(one.end - one.first, time_text(one.last_stored)),
            )
            for one in info.queues
        ],
    )


@topics.command("create")
@click.argument("name")
@click.option("--queues", type=int, default=4, show_default=True, metavar="N", help="A broker.")
@click.option("--permission", type=click.Choice(["rw", "r", "w"]), default="rw", show_default=True)
@click.option("--order", is_flag=True, help="Keep its queues in the same order for all clients.")
@_cluster
@_broker
@_yes
@cluster_options
@json_option
def create_topic(
    name: str,
    queues: int,
    permission: str,
    order: bool,
    cluster: str | None,
    broker: str | None,
    yes: bool,
    target: Cluster,
    as_json: bool,
) -> None:
    """Create a topic, or change it, on all brokers.

    Messages in queues that it has and will not have any more can't be consumed until it has as many
    queues again: that is asked about.
    """
    if not yes and queues >= 1:
        count, messages = with_admin(
            target, lambda admin: _beyond(admin, name, queues, cluster, broker)
        )
        if messages:
            _confirm(
                f"Topic {name} has {count} more queue{'s' * (count != 1)}: with {queues} a broker,"
                f" {messages:,} message{'s' * (messages != 1)} in them can't be consumed. Go on?",
                yes,
            )
    made = with_admin(
        target,
        lambda admin: admin.create_topic(
            name,
            queues=queues,
            permission=permission,
            order=order,
            cluster=cluster,
            broker=broker,
        ),
    )
    if as_json:
        echo_json({"topic": name, "queues": queues, "permission": permission, "brokers": made})
    else:
        _say(f"topic {name} is at {', '.join(made)}, with {queues} queue{'s' * (queues != 1)} each")


async def _beyond(
    admin: "Admin", name: str, queues: int, cluster: str | None, broker: str | None
) -> tuple[int, int]:
    """How many queues a topic has with a number of `queues` or more, and messages in them."""
    from ..client.config import check_topic
    from ..errors import TopicNotFound

    check_topic(name)
    try:
        info = await admin.topic(name)
    except TopicNotFound:
        return 0, 0
    concerned = {
        one.name
        for one in await admin.brokers()
        if cluster in (None, one.cluster) and broker in (None, one.name)
    }
    found = [
        one
        for one in info.queues
        if one.queue.queue_id >= queues and one.queue.broker_name in concerned
    ]
    return len(found), sum(one.end - one.first for one in found)


@topics.command("delete")
@click.argument("name")
@_yes
@cluster_options
def delete_topic(name: str, yes: bool, target: Cluster) -> None:
    """Delete a topic and its messages, on all brokers."""
    _confirm(f"Delete topic {name} and its messages?", yes)
    with_admin(target, lambda admin: admin.delete_topic(name))
    _say(f"topic {name} is deleted")


def _topic(info: "TopicInfo") -> dict[str, Any]:
    return {
        "topic": info.name,
        "brokers": [
            {
                "broker": one.broker,
                "read_queues": one.read_queues,
                "write_queues": one.write_queues,
                "permission": one.permission,
            }
            for one in info.places
        ],
        "queues": [
            {
                "broker": one.queue.broker_name,
                "queue": one.queue.queue_id,
                "first": one.first,
                "end": one.end,
                "last_stored": one.last_stored,
            }
            for one in info.queues
        ],
        "groups": info.groups,
    }


# Groups.


@click.group(cls=_Lists)
def groups() -> None:
    """List, show, create and delete consumer groups."""


groups.add_command(lag)


@groups.command("list")
@_all
@cluster_options
@json_option
def list_groups(everything: bool, target: Cluster, as_json: bool) -> None:
    """The groups brokers know."""
    _list("group", with_admin(target, lambda admin: admin.groups(all=everything)), as_json)


@groups.command("show")
@click.argument("name")
@cluster_options
@json_option
def show_group(name: str, target: Cluster, as_json: bool) -> None:
    """Who is in a group, what each subscribes to, whether they agree, and what waits for it."""
    from ..client.subscriptions import shown

    async def ask(
        admin: "Admin",
    ) -> tuple["GroupInfo", list["MatchingLag"], dict[str, dict[str, Any]]]:
        info, behind = await admin.group(name), await admin.matching_lag(name, seconds=_COUNTING)
        rules = await admin.group_rules(name)
        return info, behind, {one["broker"]: one["groups"][0] for one in rules}

    info, behind, rules = with_admin(target, ask)
    split = {broker for broker, one in rules.items() if one["lanes"]}
    refused = sorted({why for one in rules.values() for why in one["refused"]})
    policies = sorted({one["policy"] for one in rules.values()})
    if as_json:
        more = {"lag": _topic_lags(behind), "policies": policies, "refused": refused}
        echo_json(_group(info, split) | more)
        return
    how: tuple[str, ...] = ("offline",)
    if info.is_online:
        how = (info.consume_type, info.message_model, info.consume_from_where)
    click.echo(f"group    {info.name}{'' if info.is_enabled else ' (may not consume)'}")
    click.echo(f"at       {', '.join(info.brokers)}")
    click.echo(f"is       {', '.join(how)}")
    click.echo(f"retries  {info.retries}")
    if policies:
        click.echo(f"policy   {', '.join(policies)}")
    if info.subscriptions:
        click.echo()
        rows = [(topic, shown(one)) for topic, one in info.subscriptions.items()]
        print_table(("topic", "filter the broker has"), rows)
    if behind:
        click.echo()
        _print_topic_lags(behind)
    if info.members:
        click.echo()
        members = [
            (
                *(one.client_id, one.address, one.language, one.version),
                one.error
                if one.subscriptions is None
                else "; ".join(f"{topic} {shown(s)}" for topic, s in one.subscriptions.items()),
            )
            for one in info.members
        ]
        print_table(("member", "address", "language", "version", "subscribes to"), members)
    if info.mismatches or refused:
        click.echo()
    for one in info.mismatches:
        if one.broker in split:
            told = "; each member is served by its own subscription, so nothing is lost"
            click.echo(f"{click.style('mismatch', fg='yellow')}: {one}{told}")
        else:
            click.echo(f"{click.style('mismatch', fg='red')}: {one}; messages are lost")
    for why in refused:
        click.echo(f"{click.style('refused', fg='red')}: {why}")


@groups.command("create")
@click.argument("name")
@click.option(
    "--retries",
    type=int,
    default=16,
    show_default=True,
    metavar="N",
    help="Of a message, before it is a dead letter.",
)
@_cluster
@_broker
@cluster_options
@json_option
def create_group(
    name: str,
    retries: int,
    cluster: str | None,
    broker: str | None,
    target: Cluster,
    as_json: bool,
) -> None:
    """Create a group, or change it, on all brokers."""
    made = with_admin(
        target,
        lambda admin: admin.create_group(name, retries=retries, cluster=cluster, broker=broker),
    )
    if as_json:
        echo_json({"group": name, "retries": retries, "brokers": made})
    else:
        _say(f"group {name} is known to {', '.join(made)}")


@groups.command("delete")
@click.argument("name")
@_yes
@cluster_options
def delete_group(name: str, yes: bool, target: Cluster) -> None:
    """Delete a group without members, its offsets and its retries; dead letters stay."""
    _confirm(f"Delete group {name} and how far it has come?", yes)
    with_admin(target, lambda admin: admin.delete_group(name))
    _say(f"group {name} is deleted")


def _group(info: "GroupInfo", split: Collection[str]) -> dict[str, Any]:
    return {
        "group": info.name,
        "brokers": info.brokers,
        "enabled": info.is_enabled,
        "retries": info.retries,
        "online": info.is_online,
        "consume_type": info.consume_type or None,
        "message_model": info.message_model or None,
        "consume_from_where": info.consume_from_where or None,
        "subscriptions": _filters(info.subscriptions),
        "members": [
            {
                "client_id": one.client_id,
                "address": one.address,
                "language": one.language,
                "version": one.version,
                "subscriptions": None if one.subscriptions is None else _filters(one.subscriptions),
                "error": one.error,
            }
            for one in info.members
        ],
        "mismatches": [
            {
                "client_id": one.client_id,
                "broker": one.broker,
                "topic": one.topic,
                "member": one.member and one.member.expression,
                "effective": one.effective and one.effective.expression,
                "loses_messages": one.broker not in split,
            }
            for one in info.mismatches
        ],
    }


def _print_topic_lags(rows: "list[MatchingLag]") -> None:
    now = time.time()
    cells = [
        (
            one.topic,
            "-" if one.lag is None else one.lag,
            one.matching_text,
            one.age_text(now),
            one.reason,
        )
        for one in by_topic(rows).values()
    ]
    print_table(("topic", "lag", "matching", "next matching", ""), cells)


def _topic_lags(rows: "list[MatchingLag]") -> list[dict[str, Any]]:
    now = time.time()
    return [
        {
            "topic": one.topic,
            "lag": one.lag,
            "matching_lag": one.matching,
            "is_complete": one.is_complete,
            "next_match_stored": one.oldest,
            "next_match_age": None
            if one.oldest is None
            else round(max(now - one.oldest / 1000, 0.0), 3),
            "reason": one.reason or None,
        }
        for one in by_topic(rows).values()
    ]


def _filters(found: Any) -> list[dict[str, Any]]:
    return [
        {
            "topic": topic,
            "type": one.expression_type or "TAG",
            "expression": one.expression,
        }
        for topic, one in found.items()
    ]


# Offsets.


@click.group()
def offsets() -> None:
    """Show how far groups are, and reset them."""


@offsets.command("show")
@click.argument("group")
@click.option("--topic", help="Of this topic only.")
@cluster_options
@json_option
def show_offsets(group: str, topic: str | None, target: Cluster, as_json: bool) -> None:
    """How far a group is in each queue, and what lies before it.

    `matching` counts the messages of the lag that the group's filter matches, where that is known;
    `next matching` is the age of the first of them.
    """

    async def ask(admin: "Admin") -> tuple[list["QueueProgress"], list["MatchingLag"]]:
        progress = await admin.offsets(group, topic)
        return progress, await admin.matching_lag(group, topic, seconds=_COUNTING)

    found, counted = with_admin(target, ask)
    matching, now = {row.queue: row for row in counted if not row.lane}, time.time()
    if as_json:
        for one in found:
            told = lag_fields(matching.get(one.queue), now)
            echo_json({"group": group} | _progress(one) | told)
        return
    if not found:
        _say(f"group {group} has consumed nothing yet")
        return
    columns = (
        *("topic", "broker", "queue", "committed", "end", "lag", "matching", "next matching"),
        "last consumed",
    )
    rows = [
        (
            *(one.queue.topic, one.queue.broker_name, one.queue.queue_id),
            *(one.committed, one.end, one.lag, matching_text(matching.get(one.queue))),
            *(next_match_text(matching.get(one.queue), now), time_text(one.last_consumed)),
        )
        for one in found
    ]
    print_table(columns, rows)
    print_totals(by_topic(counted).values(), sum(one.lag for one in found))


def _progress(one: "QueueProgress") -> dict[str, Any]:
    return {
        "topic": one.queue.topic,
        "broker": one.queue.broker_name,
        "queue": one.queue.queue_id,
        "committed": one.committed,
        "end": one.end,
        "lag": one.lag,
        "last_consumed": one.last_consumed,
    }


@offsets.command("reset")
@click.argument("group")
@click.option("--topic", required=True)
@click.option(
    "--to",
    "goal",
    required=True,
    metavar="first|last|TIME|OFFSET",
    help="TIME: 2024-05-01T12:00, 30m, 2h or 7d (so long ago), now. OFFSET: a number.",
)
@click.option("--queue", metavar="BROKER:ID", help="This queue only.")
@click.option("--only-back", is_flag=True, help="Leave queues that would go forward.")
@click.option("--dry-run", is_flag=True, help="Say what would be done.")
@_yes
@cluster_options
@json_option
def reset_offsets(
    group: str,
    topic: str,
    goal: str,
    queue: str | None,
    only_back: bool,
    dry_run: bool,
    yes: bool,
    target: Cluster,
    as_json: bool,
) -> None:
    """Let a group go on elsewhere in a topic.

    Members that are connected are told, and move. RocketMQ 4 can tell them a TIME (or first, last)
    only: stop them to give an OFFSET or a --queue.
    """
    given = _goal(goal) | {"force": not only_back, "queue": _queue(topic, queue)}

    async def plan(admin: "Admin") -> tuple[dict["MessageQueue", int], dict["MessageQueue", int]]:
        committed = {one.queue: one.committed for one in await admin.offsets(group, topic)}
        return committed, await admin.planned_offsets(group, topic, **given)

    before, after = with_admin(target, plan)
    if not dry_run:
        if not yes:
            _print_moves(before, after, as_json=False, err=True)
            _confirm(f"Reset group {group} in {topic} so?", yes)
        after = with_admin(target, lambda a: a.reset_offsets(group, topic, **given))
    _print_moves(before, after, as_json=as_json)


def _goal(text: str) -> dict[str, Any]:
    said = text.strip().lower()
    if said in ("first", "last"):
        return {"to": said}
    if said == "now":
        return {"to": "last"}  # a time would be that of the last message: it would come again
    if said.isdecimal():
        return {"offset": int(said)}
    try:
        return {"time": parse_time(text) / 1000}
    except click.BadParameter as error:
        why = f"{error.message}; or first, last, or an offset"
        raise click.BadParameter(why, param_hint="--to") from None


def _queue(topic: str, text: str | None) -> "MessageQueue | None":
    from ..client import MessageQueue

    if text is None:
        return None
    broker, _, queue_id = text.rpartition(":")
    if not broker or not queue_id.isdecimal():
        raise click.BadParameter(f"'{text}' is not BROKER:ID", param_hint="--queue")
    return MessageQueue(topic, broker, int(queue_id))


def _print_moves(
    before: dict["MessageQueue", int],
    after: dict["MessageQueue", int],
    *,
    as_json: bool,
    err: bool = False,
) -> None:
    if as_json:
        for queue, offset in after.items():
            echo_json(
                {
                    "topic": queue.topic,
                    "broker": queue.broker_name,
                    "queue": queue.queue_id,
                    "from": before.get(queue, 0),
                    "to": offset,
                }
            )
        return
    rows = [
        (queue.topic, queue.broker_name, queue.queue_id, before.get(queue, 0), offset)
        for queue, offset in after.items()
    ]
    print_table(("topic", "broker", "queue", "from", "to"), rows, err=err)


# What they print.


def _list(what: str, names: list[str], as_json: bool) -> None:
    for name in names:
        if as_json:
            echo_json({what: name})
        else:
            click.echo(name)


def _confirm(question: str, yes: bool) -> None:
    """Ends the command, with 1, if the answer is no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(
            f"{question} This is not a terminal, so confirmation can't be asked for; pass --yes"
        )
    if not click.confirm(question, err=True):
        _say("nothing is changed")
        raise click.exceptions.Exit(1)


def _say(text: str) -> None:
    click.echo(text, err=True)
