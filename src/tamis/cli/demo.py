"""`tamis demo`: what the filter language does, on sample orders."""

import click

__all__ = ["demo"]


@click.command()
def demo() -> None:
    """Show what it does, on sample orders."""
    raise SystemExit(0)
