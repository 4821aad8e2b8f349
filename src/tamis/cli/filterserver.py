"""`tamis filterserver`: run the filters that consumers upload, beside a broker; or look at those
that run."""

import asyncio
import contextlib
import json
import logging
import os
import signal
import threading
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import click

from ..errors import ConfigError, Error, ResponseError
from ..security import INSECURE, Security
from . import logs
from .broker_link import broker_options, broker_security, status_cluster
from .connecting import DEFAULT_NAMESERVER, Cluster
from .options import echo_json, parse_limits, parse_modules, run
from .serving import listening, serve, show_address, warn_if_open
from .tls_options import check_tls, given_tls, tls_options

if TYPE_CHECKING:
    from ..filterserver.config import FilterServerConfig
    from ..filterserver.server import FilterServer

__all__ = ["filterserver"]

_BROKER: Final = "127.0.0.1:10911"
_EVERYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # and how to reach it from here
_TIMEOUT: Final = 3.0
_LONGEST_SECRET: Final = 4096
_LAST_SECONDS: Final = 10.0  # to stop in once the broker is gone


@click.command()
@click.option(
    "--broker", metavar="HOST:PORT", help=f"Read from it, register with it.  [default: {_BROKER}]"
)
@click.option(
    "-n",
    "--nameserver",
    metavar="HOST:PORT",
    envvar="NAMESRV_ADDR",
    show_envvar=True,
    help=f"Name server address; separate several with ';'.  [default: {DEFAULT_NAMESERVER}]",
)
@click.option(
    "--uploads",
    is_flag=False,
    flag_value="anywhere",
    type=click.Choice(["anywhere", "loopback"]),
    help="Take filters that consumers upload; --uploads=loopback: from this machine only.",
)
@click.option(
    "--secret-file",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Take uploads only with the secret in this file; RocketMQ's own clients can't send one.",
)
@click.option(
    "--isolation",
    type=click.Choice(["required", "best-effort", "off"]),
    default="required",
    show_default=True,
    help="required: take no uploads if filters can't be isolated here.",
)
@click.option(
    "--on-error",
    type=click.Choice(["skip", "pass", "hold", "dead-letter"]),
    default="skip",
    show_default=True,
    help="What to do with a message that a filter fails on.",
)
@click.option(
    "--modules",
    default="numpy,pyarrow",
    show_default=True,
    metavar="NAME,NAME",
    help="What filters may import besides the standard library.",
)
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="NAME=VALUE",
    help="Of each filter: wall, load_wall and cpu in seconds, memory in bytes, ... Repeatable.",
)
@click.option(
    "--host", metavar="HOST", default="127.0.0.1", show_default=True, help="Listen there."
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=0,
    show_default=True,
    help="0 picks one.",
)
@click.option(
    "--advertise", metavar="HOST", default="", help="What clients are told to connect to."
)
@click.option(
    "--metrics-port",
    type=click.IntRange(-1, 65_535),
    default=-1,
    show_default=True,
    help="For Prometheus, at /metrics; 0 picks one, -1: none.",
)
@click.option(
    "--lag-seconds",
    type=click.FloatRange(0, 3600),
    default=5.0,
    show_default=True,
    help="Count what waits for each group every so often; 0: never.",
)
@tls_options
@click.option(
    "--acl",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Access control: RocketMQ's plain_acl.yml. See docs/security.md.",
)
@broker_options
@click.option(
    "--status",
    is_flag=True,
    help="List the classes of all filter servers that the name server knows, or of the one at"
    " ADDRESS.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="With --status: JSON, a filter server a line."
)
@click.option("--with-stdin", is_flag=True, hidden=True, help="Stop when standard input ends.")
@click.option("--log-level", type=click.Choice(logs.LEVELS), default="info")
@click.option("--log-format", type=click.Choice(logs.FORMATS), default="text")
@click.argument("address", required=False, metavar="[ADDRESS]")
def filterserver(
    address: str | None,
    status: bool,
    as_json: bool,
    log_level: str,
    log_format: str,
    with_stdin: bool,
    nameserver: str | None,
    **options: Any,
) -> None:
    """Run the filters that consumers upload, beside a broker.

    It reads from the broker, gives consumers what their filters match, and is found by them through
    the routes. Filters run apart from it, under limits; see docs/code-filters.md.
    """
    if status:
        _show_status(address, status_cluster(nameserver, options), as_json)
        return
    if address is not None or as_json:
        raise click.UsageError(f"{address or '--json'}: it goes with --status")
    config = replace(_config(nameserver or "", options), security=broker_security(options))
    check_tls(config)
    if with_stdin:  # our broker has started us, with its own TLS
        config = replace(config, security=_with_own_tls(config))
    logs.configure(log_level, log_format)

    async def start(stack: AsyncExitStack) -> str:
        if with_stdin:
            threading.Thread(target=_stop_with_stdin, daemon=True).start()
        return await _start(stack, config, probes=not with_stdin)

    serve(start)


def _config(nameserver: str, options: Mapping[str, Any]) -> "FilterServerConfig":
    from ..filterserver.config import FilterServerConfig

    uploads = {None: False, "anywhere": True, "loopback": "loopback"}[options["uploads"]]
    if options["secret_file"] and not uploads:
        raise click.UsageError("--secret-file: it goes with --uploads")
    try:
        return FilterServerConfig(
            broker=options["broker"] or _BROKER,
            nameservers=nameserver,
            host=options["host"],
            port=options["port"],
            advertise=options["advertise"],
            metrics_port=options["metrics_port"],
            uploads=uploads,  # type: ignore[arg-type]
            secret=_read_secret(options["secret_file"]) if options["secret_file"] else None,
            isolation=options["isolation"],
            on_error=options["on_error"],
            limits=parse_limits(options["limits"]),
            modules=parse_modules(options["modules"]),
            **given_tls(options),
            acl_file=options["acl"] or "",
        )
    except ConfigError as error:
        raise click.UsageError(str(error)) from None


def _with_own_tls(config: "FilterServerConfig") -> Security:
    from ..security import ServerTls

    return replace(config.security, tls=ServerTls.of(config).peers())


def _read_secret(file: str) -> str:
    with open(file, "rb") as opened:
        data = opened.read(_LONGEST_SECRET + 1)
    try:
        secret = data.decode().strip()
    except UnicodeDecodeError:
        raise click.UsageError(f"--secret-file: {file} is not text in UTF-8") from None
    if not secret or len(data) > _LONGEST_SECRET:
        why = "is empty" if not secret else f"has more than {_LONGEST_SECRET} bytes"
        raise click.UsageError(f"--secret-file: {file} {why}")
    if os.stat(file).st_mode & 0o007:
        log = logging.getLogger(__name__)
        log.warning("%s can be read by everybody on this machine (chmod 600)", file)
    return secret


async def _start(stack: AsyncExitStack, config: "FilterServerConfig", probes: bool) -> str:
    """`probes`: find out at once what isolation there is; else the first upload does."""
    from ..filterserver.server import FilterServer

    server = FilterServer(config)
    with listening("filter server", config.host, config.port, "--port", "--host"):
        await server.start()
    stack.push_async_callback(server.close)
    if not config.acl_file:
        warn_if_open(
            *("filter server", config.host), "whoever reaches it may use its filters: see --acl"
        )
    said = f"filter server {_own_address(config, server.port)} for broker {config.broker}"
    said += f" ({await _promise(server, probes)}; on error {config.on_error})"
    if config.metrics_port >= 0:
        from ..filterserver.metrics import Exporter

        with listening("metrics", config.host, config.metrics_port, "--metrics-port", "--host"):
            exporter = Exporter(server)
        stack.push_async_callback(asyncio.to_thread, exporter.close)  # it waits for a scrape
        host = _EVERYWHERE.get(config.host, config.host)
        said += f", metrics {exporter.scheme}://{show_address(host, exporter.port)}/metrics"
    return said


def _own_address(config: "FilterServerConfig", port: int) -> str:
    return show_address(config.advertise or config.host, port)


async def _promise(server: "FilterServer", probes: bool) -> str:
    """Which uploads are taken, and how filters are kept apart."""
    config = server.config
    if not config.uploads:
        return "uploads off: see --uploads"
    isolation = f"isolation {config.isolation}"
    if probes:
        isolation = await server.probe()
    if server.uploads.isolation_failure:
        return f"uploads refused: {isolation}"
    where = "from this machine" if config.uploads == "loopback" else "from anywhere"
    secret = " with the secret" if config.secret is not None else ""
    return f"uploads {where}{secret}, {isolation}"


def _stop_with_stdin() -> None:
    """The broker that started us holds the other end: it closes when the broker ends, whatever
    ends it. Whatever we are at then, we do not stay for long."""
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_LAST_SECONDS)
    os._exit(1)


# Looking.


def _show_status(address: str | None, target: Cluster, as_json: bool) -> None:
    work = _ask_all(target) if address is None else _ask_one(address, target.security)
    _show(run(work), as_json)


def _show(found: list[dict[str, Any]], as_json: bool) -> None:
    failed = 0
    for server in found:
        if as_json:
            echo_json(server)
        elif "error" not in server:
            try:
                _print(server)
            except (LookupError, TypeError, ValueError, AttributeError):
                server["error"] = "its status is not as expected; is it of another version?"
        if "error" in server:
            failed += 1
            line = f"tamis: filter server {server.get('address')}: {server['error']}"
            click.echo(_shown(line), err=True)
    if not found:
        click.echo("tamis: the name server knows no filter server", err=True)
    if failed or not found:
        raise SystemExit(1)


async def _ask_one(address: str, security: Security = INSECURE) -> list[dict[str, Any]]:
    from ..net.aio import parse_address

    try:
        parse_address(address)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    return [await _ask(address, security)]


async def _ask_all(target: Cluster) -> list[dict[str, Any]]:
    from ..client import Admin, ClientConfig

    async with Admin(target.nameserver, config=target.config(ClientConfig)) as admin:
        addresses = await admin.filter_servers()
    return list(await asyncio.gather(*(_ask(one, target.security) for one in addresses)))


async def _ask(address: str, security: Security = INSECURE) -> dict[str, Any]:
    from ..net.aio import connect
    from ..wire.codes import RequestCode, ResponseCode
    from ..wire.command import Command

    try:
        peer = await connect(address, _TIMEOUT, security=security)
        try:
            request = Command(code=RequestCode.GET_FILTER_SERVER_STATUS)
            answer = await peer.ask(request, _TIMEOUT)
        finally:
            peer.close()
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return {"address": address, "error": "not a filter server of Tamis"}
        if answer.code != ResponseCode.SUCCESS:
            error = ResponseError.of(answer.code, answer.remark, security.access_key)
            return {"address": address, "error": error.remark}
        found = json.loads(answer.body)
        return found if isinstance(found, dict) else {"address": address, "error": "not a status"}
    except (OSError, Error, ValueError) as error:
        why = str(error).removeprefix(f"{address}: ") or "no answer in time"
        return {"address": address, "error": why}


_COLUMNS: Final = (
    *("group", "topic", "class", "crc", "uploader", "messages", "matched", "failed"),
    *("restarts", "conflicts"),
)


def _print(server: dict[str, Any]) -> None:
    broker, uploads = server["broker"], server["uploads"]
    where = f"{broker['name'] or 'broker'} {broker['address']}"
    is_known = "" if broker["registered"] else f", not registered: {broker['failure']}"
    allowed = {True: "from anywhere", False: "off"}.get(uploads["allowed"], uploads["allowed"])
    refused = sum(uploads["refused"].values())
    _echo(
        f"filter server {server['address']} for {where}{is_known}; up since"
        f" {datetime.fromtimestamp(server['started']):%Y-%m-%d %H:%M:%S}; uploads {allowed},"
        f" {uploads['accepted']} accepted, {refused} refused; on error {server['on_error']}"
    )
    rows = [[_shown(str(one[name])) for name in _COLUMNS] for one in server["classes"]]
    if not rows:
        _echo("  no classes")
        return
    widths = [max(map(len, column)) for column in zip(_COLUMNS, *rows, strict=True)]
    for row in (_COLUMNS, *rows):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        _echo("  " + "  ".join(cells).rstrip())
    for one in server["classes"]:
        if one["last_failure"]:
            _echo(f"  last failure: {one['last_failure']}")
        for held in one["held"]:
            _echo(
                f"  held back: group {one['group']}, topic {one['topic']}, queue {held['queue']},"
                f" offset {held['offset']}, tried {held['tries']} times: {held['reason']}"
            )
        if one["held_queues"] > len(one["held"]):
            _echo(f"  and {one['held_queues'] - len(one['held'])} other queues are held back")


def _echo(line: str) -> None:
    click.echo(_shown(line))


def _shown(text: str) -> str:
    """With what could upset a terminal spelled out: it is whatever the server says."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
