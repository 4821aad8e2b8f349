"""The command's entry: the list of commands, and how errors end.

Exit codes: 0 done (or matched), 1 failed (or not matched), 2 misused. Commands import what they
need when they run, so that `tamis --help` and shell completion stay quick.
"""

import atexit
import io
import os
import sys

import click

from .. import __version__
from ..errors import Error, InvalidFilter
from .acl import acl_group
from .admin import groups, offsets, topics
from .config import config_group
from .connecting import PROFILE
from .consume import consume
from .demo import demo
from .doctor import doctor
from .explain import explain
from .filter import filter_group
from .filterserver import filterserver
from .options import is_of_spark
from .pipeline import pipeline_group
from .rules import filter_command, policy, rules
from .send import send
from .server import broker, nameserver, up
from .store import store_group
from .warm import warm

__all__ = ["main"]

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(context_settings=_CONTEXT)
@click.version_option(__version__, prog_name="tamis", message="%(prog)s %(version)s")
@click.option(
    "--profile",
    PROFILE,
    metavar="NAME",
    help="Name server, keys and TLS of that profile, see tamis config.  [env var: TAMIS_PROFILE]",
)
def tamis(profile_name: str | None) -> None:
    """RocketMQ's broker, client and message filtering, in Python."""


@tamis.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for a shell.

    For bash, in ~/.bashrc:  eval "$(tamis completion bash)"
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(tamis, {}, "tamis", "_TAMIS_COMPLETE").source())


for server in (up, nameserver, broker, filterserver):
    tamis.add_command(server)
tamis.add_command(send)
tamis.add_command(consume)
tamis.add_command(topics)
for command in (policy, filter_command, rules):
    groups.add_command(command)
tamis.add_command(groups)
tamis.add_command(offsets)
tamis.add_command(acl_group)
tamis.add_command(explain)
tamis.add_command(doctor)
tamis.add_command(demo)
tamis.add_command(filter_group)
tamis.add_command(pipeline_group)
tamis.add_command(store_group)
tamis.add_command(warm)
tamis.add_command(config_group)


def main() -> None:
    for name, mode in ("stdin", "r"), ("stdout", "w"), ("stderr", "w"):
        if getattr(sys, name) is None:  # closed by whoever called: its number is not for a socket
            stream = open(os.devnull, mode)  # noqa: SIM115
            atexit.register(stream.close)
            setattr(sys, name, stream)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(
            stream, io.TextIOWrapper
        ):  # a terminal without some letter is no reason to fail
            stream.reconfigure(errors="backslashreplace")
    try:
        code = tamis.main(prog_name="tamis", standalone_mode=False)
    except InvalidFilter as error:
        click.echo(f"tamis: {error}", err=True)
        if error.text:
            click.echo(_indented(error.picture()), err=True)
        code = 2
    except Error as error:
        click.echo(f"tamis: {error}", err=True)
        code = 1
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        code = 2
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "tamis"
        click.echo(f"{where}: {error.format_message()} (see {where} --help)", err=True)
        code = 2
    except click.ClickException as error:
        click.echo(f"tamis: {error.format_message()}", err=True)
        code = error.exit_code
    except click.exceptions.Exit as exit:
        code = exit.exit_code
    except (click.Abort, KeyboardInterrupt):
        code = 130
    except ModuleNotFoundError as error:
        if not is_of_spark(error):
            raise
        click.echo(f"tamis: {error.name} is missing: pip install 'tamis[spark]'", err=True)
        code = 1
    except BrokenPipeError:
        # Whoever read our output has gone, as `head` does: nothing more to say, at exit neither.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        click.echo(f"tamis: {where}{error.strerror}", err=True)
        sys.stdout = None  # nothing more can be written at exit
        code = 1
    sys.exit(code if isinstance(code, int) else 0)


def _indented(text: str) -> str:
    return "\n".join("  " + line for line in text.split("\n"))
