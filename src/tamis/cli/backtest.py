"""`tamis filter backtest`: what a filter would have matched, on Spark."""

import json
import sys

import click
from click.core import ParameterSource

from ..errors import ConfigError
from ..filter import Dialect, parse
from ..filter.tags import parse_tags
from .connecting import Cluster, cluster_options
from .options import check_spark, parse_time
from .pipeline import parse_settings

__all__ = ["backtest"]


# `cli.filter` makes a command of it, with the class of its other ones.
@click.argument("expression", metavar="EXPR")
@click.option("-t", "--topic", "topics", multiple=True, help="May be repeated.")
@click.option("--since", default="earliest", show_default=True, help="7d (so long ago), or a time.")
@click.option("--until", default="now", show_default=True, help="As --since; not included.")
@click.option("--against", metavar="EXPR", help="The old filter: what is gained and lost.")
@cluster_options
@click.option("--store", metavar="DIR", help="A broker's store, instead of a name server.")
@click.option("--archive", metavar="DIR", help="An archive, instead of a name server.")
@click.option("--tags", is_flag=True, help="Tag expressions (a || b), not SQL92.")
@click.option(
    "--dialect",
    type=click.Choice([d.value for d in Dialect]),
    default=Dialect.V4_9.value,
    show_default=True,
    help="RocketMQ's language before or since 5.1.3 (CONTAINS, STARTSWITH, ENDSWITH).",
)
@click.option("--buckets", default="auto", show_default=True, help="How wide: 5m, 1h, 1d.")
@click.option(
    "--samples", default=5, show_default=True, type=click.IntRange(0, 1000), help="Of each kind."
)
@click.option("--plot", metavar="FILE", help="A picture: FILE.png or FILE.html.")
@click.option("--summary", metavar="FILE", help="The same as JSON, beside what is printed.")
@click.option("--master", metavar="URL", help="Of the Spark cluster.  [default: local[*]]")
@click.option(
    "--conf", "pairs", multiple=True, metavar="NAME=VALUE", help="Of Spark. May be repeated."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object for programs.")
@click.pass_context
def backtest(
    context: click.Context,
    expression: str,
    topics: tuple[str, ...],
    since: str,
    until: str,
    against: str | None,
    target: Cluster,
    store: str | None,
    archive: str | None,
    tags: bool,
    dialect: str,
    buckets: str,
    samples: int,
    plot: str | None,
    summary: str | None,
    master: str | None,
    pairs: tuple[str, ...],
    as_json: bool,
) -> None:
    """What EXPR would have matched, over time, and against another filter.

    Exit code 0: done, also if there was nothing to look at; 2: EXPR does not compile.
    """
    given = [name for name, value in (("--store", store), ("--archive", archive)) if value]
    if context.get_parameter_source("nameserver") is ParameterSource.COMMANDLINE:
        given.append("--nameserver")
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(given)}: give one of them")
    if not store and not archive and not topics:
        raise click.UsageError("name the topic: --topic T")
    start = "earliest" if since == "earliest" else str(parse_time(since))
    end = "latest" if until == "now" else str(parse_time(until))
    if start != "earliest" and end != "latest" and int(start) >= int(end):
        raise click.UsageError(f"nothing is since {since} and before {until}")

    settings = parse_settings(pairs)
    for text in (expression, against):
        if text is not None:
            parse_tags(text) if tags else parse(text, dialect)

    check_spark("tamis filter backtest")
    from ..pipeline import plot as plots
    from ..pipeline.backtest import check_file, run_on
    from ..pipeline.config import Filter, Source
    from ..pipeline.runner import Report

    source = Source(
        nameserver=None if store or archive else target.nameserver,
        connection={} if store or archive else target.source_options(),
        store=store,
        archive=archive,
        topics=topics,
        start=start,
        end=end,
    )
    kind = "tags" if tags else "sql"
    new = Filter(kind, expression, dialect)
    old = None if against is None else Filter(kind, against, dialect)
    try:
        if plot is not None:
            plots.check(plot)
        if summary is not None:
            check_file(summary)
        found = run_on(
            source,
            new,
            old,
            bucket=buckets,
            samples=samples,
            master=master,
            config=settings,
            report=Report(sys.stderr),
        )
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    except TimeoutError as error:
        raise click.ClickException(str(error) or "no answer in time") from None
    if as_json:
        click.echo(json.dumps(found.to_dict(), allow_nan=False, ensure_ascii=False))
    else:
        for line in found.lines():
            click.echo(line)
    if summary is not None:
        found.write(summary)
        click.echo(f"summary: {summary}", err=as_json)
    if plot is not None:
        if found.totals.messages:
            plots.write(found, plot)
            click.echo(f"plot: {plot}", err=as_json)
        else:
            click.echo("nothing to plot", err=True)
