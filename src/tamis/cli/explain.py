"""`tamis explain`: why a message was, or was not, consumed by each group."""

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from .connecting import Cluster, cluster_options
from .options import echo_json, json_option, run

if TYPE_CHECKING:
    from ..fate import Judgement

__all__ = ["explain", "print_cards"]


@click.command()
@click.argument("message_id", required=False)
@click.option("--key", help="A key of the message, with --topic; the newest 64 that have it.")
@click.option("--topic", help="Of the message.")
@click.option("--queue", metavar="[BROKER:]ID", help="Of the message, with --topic and --offset.")
@click.option("--offset", type=click.IntRange(min=0), help="Of the message in its queue.")
@click.option("--group", help="Explain this group only.")
@cluster_options
@json_option
def explain(
    message_id: str | None,
    key: str | None,
    topic: str | None,
    queue: str | None,
    offset: int | None,
    group: str | None,
    target: Cluster,
    as_json: bool,
) -> None:
    """Say why a message was, or was not, consumed by the groups of its topic.

    The message is named by MESSAGE_ID (an offset message id, or a unique key, whose topic --topic
    can tell), by --key and --topic, or by --topic, --queue and --offset.

    A Tamis broker answers from its history: what was in force when the group's progress passed the
    message. Of an Apache broker it is said what can be learnt, and what can't: docs/explain.md.

    Exit code 0: explained, 1: there is no such message or group, or it failed, 2: misused.
    """
    from ..client import Admin, ClientConfig

    place = queue if offset is None else offset
    ways = {"MESSAGE_ID": message_id, "--key": key, "--queue and --offset": place}
    given = [name for name, value in ways.items() if value is not None]
    if not given:
        raise click.UsageError("name a message: MESSAGE_ID, --key, or --queue and --offset")
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(given)} name a message in two ways: give one")
    if message_id is None and topic is None:
        raise click.UsageError(f"{given[0]} needs --topic")
    if (queue is None) != (offset is None):
        there, missing = ("--queue", "--offset") if offset is None else ("--offset", "--queue")
        raise click.UsageError(f"{there} needs {missing}")
    broker, queue_id = _queue(queue)

    config = target.config(ClientConfig)

    async def ask() -> "list[Judgement]":
        async with Admin(target.nameserver, config=config) as admin:
            return await admin.explain(
                message_id,
                topic=topic,
                key=key,
                queue_id=queue_id,
                offset=offset,
                broker=broker,
                group=group,
            )

    judgements = run(ask())
    if as_json:
        for one in judgements:
            echo_json(one.to_json())
    elif judgements:
        print_cards(judgements)
    else:
        click.echo("no group consumes the topic of this message, or ever did", err=True)


def _queue(text: str | None) -> tuple[str | None, int | None]:
    if text is None:
        return None, None
    broker, colon, queue_id = text.rpartition(":")
    if not queue_id.isdecimal() or (colon and not broker):
        raise click.BadParameter(f"'{text}' is not ID or BROKER:ID", param_hint="--queue")
    return broker or None, int(queue_id)


# The cards.

_LOOKS: Final = {  # of each fate: colour and symbol
    "LOST_TO_INCONSISTENCY": ("red", "✗"),
    "DEAD_LETTERED": ("red", "✗"),
    "FILTER_FAILED": ("red", "✗"),
    "EXPIRED": ("red", "✗"),
    "SKIPPED_BY_RESET": ("yellow", "»"),
    "HASH_COLLISION": ("yellow", "≈"),
    "RETRYING": ("yellow", "↻"),
    "NOT_ONLINE": ("yellow", "◌"),
    "UNKNOWN": ("magenta", "?"),
    "NOT_CONSUMED_YET": ("cyan", "…"),
    "PULL": ("cyan", "↓"),
    "BROADCASTING": ("cyan", "*"),
    "FILTERED": (None, "-"),
    "CONSUMED": ("green", "✓"),
}
_MOVES: Final = 3  # of progress, the newest
_NAMES: Final = 3  # of members with one filter
_ORDER: Final = {fate: at for at, fate in enumerate(_LOOKS)}  # the worst first


def print_cards(judgements: "list[Judgement]") -> None:
    """Print the messages in the order given; of each, the groups with what went wrong first."""
    by_message: dict[tuple[Any, ...], list[Judgement]] = {}
    for one in judgements:
        place = tuple(one.evidence.get(name) for name in ("topic", "broker", "queue", "offset"))
        by_message.setdefault(place, []).append(one)
    for at, of_message in enumerate(by_message.values()):
        if at:
            click.echo()
        _print_message(of_message[0].evidence)
        for one in sorted(of_message, key=lambda one: (_ORDER[one.fate.value], one.group)):
            click.echo()
            _print_card(one)


def _print_message(evidence: dict[str, Any]) -> None:
    rows = [
        ("message", evidence.get("message_id") or "has left the log"),
        (
            "at",
            f"{evidence.get('topic')}, queue {evidence.get('broker')}:{evidence.get('queue')},"
            f" offset {evidence.get('offset')}",
        ),
    ]
    if evidence.get("stored") is not None:
        rows.append(("stored", _time(evidence["stored"])))
    if evidence.get("tag") is not None:
        rows.append(("tag", f"{evidence['tag']} (hash {evidence.get('tags_code')})"))
    _print_rows(rows, "")


def _print_card(judgement: "Judgement") -> None:
    colour, symbol = _LOOKS[judgement.fate.value]
    head = click.style(f"{symbol} {judgement.fate.value}", fg=colour, bold=True)
    click.echo(f"{head}  {click.style(judgement.group, bold=True)}")
    click.echo(f"  {judgement.reason}")
    _print_rows(list(_facts(judgement)), "    ")
    sql = judgement.evidence.get("sql")
    if sql is not None:
        from .filter import print_parts

        click.echo(f"    {click.style('SQL', dim=True)} part by part:")
        print_parts(list(_part_rows(sql["part"], 0)), "      ")
    for advice in _advice(judgement):
        click.echo(f"    {click.style('→', fg='cyan')} {advice}")


def _facts(judgement: "Judgement") -> Iterator[tuple[str, str]]:
    evidence = judgement.evidence
    committed = evidence.get("committed")
    progress = "nothing is committed" if committed is None else str(committed)
    begin, end = evidence.get("queue_begins_at"), evidence.get("queue_ends_at")
    yield "progress", f"{progress}; the queue has {begin} to {end}"
    for reading in evidence.get("readings") or ():
        yield "read by", _reading(reading)
        if judgement.fate.value == "LOST_TO_INCONSISTENCY":
            for wanted in reading["wanted_by"]:
                yield "wanted by", f"{', '.join(wanted['members'])}, by {_filter(wanted)}"
    for move in (evidence.get("moves") or ())[-_MOVES:]:
        before = "nothing" if move["before"] is None else move["before"]
        yield (
            "moved",
            f"{before} to {move['after']} at {_time(move['time'])}, by {move['by']}"
            f" ({move['why']})",
        )
    yield from _facts_of_now(evidence)
    for lane in evidence.get("lanes") or ():
        members = ", ".join(lane["members"]) or "nobody"
        yield "lane", f"{_filter(lane['filter'])}: {lane['committed']}, {members}"
    retry = evidence.get("retry")
    if retry is not None:
        due = f", due {_time(retry['due'])}" if retry.get("due") else ""
        times = "once" if retry["times"] == 1 else f"{retry['times']} times"
        yield "copy", f"{retry['message_id']} in {retry['topic']}, sent back {times}{due}"
    bitmap = evidence.get("bitmap")
    if bitmap is not None:
        said = {True: "matched", False: "not matched", None: "not said"}[bitmap["group_matched"]]
        yield "bitmap", f"{bitmap['bits']}; this group: {said}"
    since = evidence.get("history_since")
    if since is not None:
        yield "history", f"since {_time(since)}"
    for sentence in evidence.get("unknown") or ():
        yield "unknown", sentence


def _reading(reading: dict[str, Any]) -> str:
    own, used = reading["member_filter"], reading["broker_filter"]
    said = {"true": "matched", "false": "not matched", "null": "not matched", "error": "failed"}
    verdict = said.get(reading["broker_said"], "what it said is not known")
    if own is None or own == used:
        text = f"{reading['member']}, by {_filter(used)}: {verdict}"
    else:
        text = f"{reading['member']}, which wants {_filter(own)}; the broker filtered by"
        text += f" {_filter(used)}: {verdict}"
    if reading.get("left_to_others") and reading["broker_said"] == "true":
        text += ", but it was left to other members that want it"
    elif reading["client_keeps"] is False:
        text += ", but the client dropped it"
    return text + ("; progress passed it" if reading["acknowledged"] else "; not acknowledged")


def _facts_of_now(evidence: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What the group is today; not what decided, where there is history."""
    if not evidence.get("online"):
        yield "now", "no member is connected"
        return
    members = evidence.get("members_now") or {}
    kinds = [
        word
        for name, word in (("consume_type", "CONSUME_ACTIVELY"), ("message_model", "BROADCASTING"))
        if evidence.get(name) == word
    ]
    if evidence.get("policy") not in (None, "rocketmq"):
        kinds.append(f"policy {evidence['policy']}")
    used = _filter(evidence.get("filter_now"))
    count = f"{len(members)} member{'s' * (len(members) != 1)}"
    is_split = bool(evidence.get("lanes"))
    how = "each is served by its own filter" if is_split else f"the broker filters by {used}"
    yield "now", "; ".join([count, *kinds, how])
    by_filter: dict[str, list[str]] = {}
    for member, own in members.items():
        by_filter.setdefault(_filter(own), []).append(member)
    if set(by_filter) == {used}:
        return
    for shown, names in by_filter.items():
        more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
        yield "members", f"{', '.join(names[:_NAMES])}{more}: {shown}"


def _filter(by: dict[str, Any] | None) -> str:
    from ..fate import Filter

    return "no subscription" if by is None else str(Filter(by["kind"], by["expression"]))


def _part_rows(part: dict[str, Any], depth: int) -> Iterator[tuple[str, str, str]]:
    """The rows that `tamis filter test` prints, of an explanation that came as JSON."""
    from ..filter.explain import Operand
    from ..filter.nodes import Kind

    facts = []
    for one in part["operands"]:
        read_as = None if one["read_as"] == one["value"] else one["read_as"]
        operand = Operand(one["text"], Kind(one["kind"]), one["value"], read_as)
        if not operand.is_literal:
            facts.append(str(operand))
    if part["error"] and not part["parts"]:
        facts.append(part["error"])
    yield part["outcome"] or "skipped", "  " * depth + part["text"], "; ".join(facts)
    for inner in part["parts"]:
        yield from _part_rows(inner, depth + 1)


def _advice(judgement: "Judgement") -> Iterator[str]:
    group, evidence = judgement.group, judgement.evidence
    topic, offset = evidence.get("topic"), evidence.get("offset")
    group, topic = shlex.quote(group), shlex.quote(str(topic))
    match judgement.fate.value:
        case "LOST_TO_INCONSISTENCY":
            yield 'find and replay all that was lost: tamis pipeline run, with job = "audit"'
            if evidence.get("history_since") is None:  # not a Tamis broker: it has no policies
                yield "let it not happen again: give all members the same subscriptions"
            elif evidence.get("policy") in (None, "rocketmq"):
                yield f"let it not happen again: tamis groups policy {group} isolate"
        case "DEAD_LETTERED":
            yield f"look at it: tamis consume {shlex.quote(f'%DLQ%{judgement.group}')}"
        case "SKIPPED_BY_RESET":
            yield (
                f"read it again: tamis offsets reset {group} --topic {topic} --queue"
                f" {evidence.get('broker')}:{evidence.get('queue')} --to {offset}"
            )
        case "HASH_COLLISION":
            yield "give one of the two tags another name"
        case "FILTER_FAILED":
            yield "try the filter on it: tamis filter test"
        case "NOT_ONLINE":
            yield f"start a consumer of {group}"
        case "EXPIRED":
            yield "keep messages longer (fileReservedTime), or consume faster"


def _print_rows(rows: list[tuple[str, str]], indent: str) -> None:
    width = max(len(name) for name, _ in rows)
    last = ""
    for name, text in rows:
        label = "" if name == last else name
        click.echo(f"{indent}{click.style(label.ljust(width), dim=True)}  {text}")
        last = name


def _time(milliseconds: int) -> str:
    from datetime import datetime

    moment = datetime.fromtimestamp(milliseconds / 1000).astimezone()
    return moment.isoformat(" ", "milliseconds")
