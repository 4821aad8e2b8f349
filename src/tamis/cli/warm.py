"""`tamis warm`: compiles what is compiled, so that nobody waits for it later."""

import asyncio
import time

import click

from .options import check_spark

__all__ = ["warm"]


@click.command()
@click.option(
    "--spark", is_flag=True, help="Keep Java's classes of a local Spark session too: 150 MB."
)
@click.option("--unasked", is_flag=True, hidden=True)
@click.option("--quiet", is_flag=True, help="Print nothing.")
def warm(spark: bool, unasked: bool, quiet: bool) -> None:
    """Compile the loops of brokers and readers now.

    The first start on a machine does so in the background, and is slower meanwhile; do it before,
    in an image or after an upgrade. What is compiled is kept, for this user, processor and version.
    The first pipeline on a machine leaves the classes of Spark behind by itself.
    """
    _warm_loops(quiet)
    if spark:
        check_spark("warm --spark")
        from ._warm_spark import keep_classes

        if not quiet:
            click.echo("running a small pipeline on Spark, to keep its classes", err=True)
        size = keep_classes(is_asked=not unasked)
        if not quiet:
            click.echo(f"classes: {size / 2**20:.0f} MiB")


def _warm_loops(quiet: bool) -> None:
    from ..filter.engines import warming

    if warming.is_warm():
        if not quiet:
            click.echo("loops: compiled already")
        return
    if not quiet:
        click.echo("compiling loops: half a minute or more", err=True)
    began = time.monotonic()
    try:
        with warming.exclusively():
            if not warming.is_warm():
                _compile()
                warming.mark_warm()
    except OSError as error:
        raise click.ClickException(f"compiled loops can't be kept: {error}") from None
    if not quiet:
        click.echo(f"loops: compiled in {time.monotonic() - began:.0f} s")


def _compile() -> None:
    from ..broker.warmup import compile_loops
    from ..client.warmup import compile_readers

    asyncio.run(compile_loops())
    compile_readers()
