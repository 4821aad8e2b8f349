"""`tamis pipeline run`: the jobs of a pipeline file, on Spark.

Exit codes: 0 done, 1 failed (with --fail-on-filter-errors also if a filter failed on a message),
2 misused: the file, a sink or the checkpoint is not as it must be. A run that ends with what is
there and is interrupted before that ends as Unix has it, 130 or 143; one that goes on until it is
stopped ends with 0.
"""

import contextlib
import importlib
import json
import sys
from typing import TYPE_CHECKING, Any

import click

from ..errors import ConfigError, Error
from .connecting import named_profile
from .options import check_spark

if TYPE_CHECKING:
    from ..pipeline.config import Config
    from ..pipeline.summary import Summary

__all__ = ["parse_settings", "pipeline_group"]


@click.group("pipeline")
def pipeline_group() -> None:
    """Route, archive, replay and audit messages, on Spark."""


class _Misused(click.ClickException):
    exit_code = 2


@pipeline_group.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--continuous", is_flag=True, help="Go on with what comes, until Ctrl-C.")
@click.option("--master", metavar="URL", help="Of the Spark cluster.  [default: local[*]]")
@click.option(
    "--conf", "pairs", multiple=True, metavar="NAME=VALUE", help="Of Spark. May be repeated."
)
@click.option("--dry-run", is_flag=True, help="Check everything; say what would be done.")
@click.option("--json", "as_json", is_flag=True, help="The summary as JSON on standard output.")
@click.option(
    "--fail-on-filter-errors", is_flag=True, help="Exit with 1 if a filter failed on a message."
)
@click.pass_context
def run(
    context: click.Context,
    file: str,
    continuous: bool,
    master: str | None,
    pairs: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
    fail_on_filter_errors: bool,
) -> None:
    """Run the job of a pipeline FILE.

    It takes what is there and ends. Run again, it goes on where it ended, or was killed.
    """
    from ..pipeline import load

    settings = parse_settings(pairs)
    try:
        config = load(file, named_profile())
        check_spark("tamis pipeline run")
        code, summary = _run(config, continuous, master, settings, dry_run, as_json)
    except ConfigError as error:
        raise _Misused(str(error)) from None
    except TimeoutError as error:
        raise click.ClickException(str(error) or "no answer in time") from None
    if fail_on_filter_errors and summary.filter_errors and code == 0:
        count = summary.filter_errors
        times = "once" if count == 1 else f"{count:,} times"
        raise click.ClickException(f"filters failed on messages {times} (--fail-on-filter-errors)")
    context.exit(code)


def parse_settings(pairs: tuple[str, ...]) -> dict[str, str]:
    """Of `--conf NAME=VALUE`. Raises click.BadParameter."""
    settings = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"'{pair}' is not NAME=VALUE", param_hint="--conf")
        settings[name] = value
    return settings


def _run(
    config: "Config",
    continuous: bool,
    master: str | None,
    settings: dict[str, str],
    dry_run: bool,
    as_json: bool,
) -> "tuple[int, Summary]":
    """The exit code, and what was done."""
    from ..pipeline import metrics_file
    from ..pipeline.runner import JobFailed, Report, Stop, is_quick, one_line, spark_session
    from ..pipeline.summary import check_place

    if continuous and config.job in ("replay", "audit"):
        what = "a replay" if config.job == "replay" else "an audit"
        raise ConfigError(f"{config.file}: {what} has an end: it can't be continuous")
    job: Any = importlib.import_module(f"tamis.pipeline.{config.job}")
    check_place(config.summary)
    if config.metrics is not None:
        metrics_file.check_place(config.metrics)
    ahead: int | None = job.check(config)
    report = Report(sys.stderr)
    name = f"tamis {config.file.name}"
    messages = None if continuous else ahead
    with (
        spark_session(name, master, settings, messages=messages) as spark,
        Stop(report.say) as stop,
    ):
        try:
            summary = job.run(
                spark,
                config,
                continuous=continuous,
                dry_run=dry_run,
                stop=stop,
                report=report,
                out=lambda text: click.echo(text, err=as_json),
            )
        except JobFailed as error:
            if error.summary is not None:
                _tell(error.summary, as_json, is_failed=True)
                with contextlib.suppress(OSError):  # what failed first is what to tell
                    error.summary.write(config.summary, spark)
            raise
        except (Error, OSError, TimeoutError):
            raise
        except Exception as error:  # of Spark's, at a place where none was expected
            raise JobFailed(one_line(error)) from error
        _tell(summary, as_json)
        if not dry_run:
            summary.write(config.summary, spark)
        is_local = is_quick(spark)
    if is_local and not dry_run:
        from ._warm_spark import keep_classes_later

        keep_classes_later()
    return 128 + stop.signal if stop.asked and not continuous else 0, summary


def _tell(summary: "Summary", as_json: bool, *, is_failed: bool = False) -> None:
    for line in summary.lines():
        click.echo(line, err=as_json or is_failed)
    if as_json:
        click.echo(json.dumps(summary.to_dict(), ensure_ascii=False))
