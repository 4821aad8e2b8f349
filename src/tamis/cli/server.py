"""`tamis up`, `nameserver` and `broker`: the servers, from their settings to a clean stop.

Settings are taken from a TOML file, then `--set`, then the options, the later winning. When a
server takes requests it says so in one line on standard output; logs go to standard error.
"""

import asyncio
import difflib
import json
import logging
import socket
import tomllib
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args, get_origin, get_type_hints

import click

from ..errors import ConfigError
from . import logs
from .serving import Start, listening, serve, show_address, warn_if_open
from .tls_options import check_tls, copy_tls, given_tls, tls_options

if TYPE_CHECKING:
    from ..broker.config import BrokerConfig
    from ..nameserver.config import NameServerConfig
    from ..security import Security

__all__ = ["broker", "nameserver", "up"]

log = logging.getLogger(__name__)

_DATA: Final = "tamis-data"

# Options, in the order of the help.

_data = click.option(
    "--data", metavar="DIR", help=f"Where messages and tables are kept.  [default: {_DATA}]"
)
_flush = click.option(
    "--flush",
    type=click.Choice(["sync", "async"]),
    help="sync: a send is answered when the message is on the disk. async: before that, so a power "
    "cut may lose the last half second.  [default: sync]",
)
_bind = click.option("--bind", metavar="HOST", help="Listen there.  [default: 127.0.0.1]")
_advertise = click.option(
    "--advertise", metavar="HOST", help="What clients are told to connect to, if not --bind's."
)
_acl = click.option(
    "--acl",
    "acl_file",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Access control: RocketMQ's plain_acl.yml. See docs/security.md.",
)
_port_range = click.IntRange(0, 65_535)


def _port(name: str, default: int) -> Callable[[Any], Any]:
    return click.option(name, type=_port_range, help=f"0 picks one.  [default: {default}]")


def _metrics_port(default: str) -> Callable[[Any], Any]:
    return click.option(
        "--metrics-port",
        type=click.IntRange(-1, 65_535),
        help=f"For Prometheus, at /metrics; 0 picks one, -1: none.  [default: {default}]",
    )


_common = (
    click.option(
        "--config",
        "file",
        type=click.Path(exists=True, dir_okay=False),
        metavar="FILE",
        help="TOML, with the tables [broker] and [nameserver]; see --show-config.",
    ),
    click.option(
        "--set",
        "pairs",
        multiple=True,
        metavar="NAME=VALUE",
        help="Any setting, by our name and units or RocketMQ's. May be repeated.",
    ),
    click.option("--show-config", is_flag=True, help="Print the settings as TOML and end."),
    click.option("--log-level", type=click.Choice(logs.LEVELS), default="info"),
    click.option("--log-format", type=click.Choice(logs.FORMATS), default="text"),
)


def _common_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_common):
        function = option(function)
    return function


@click.command()
@_data
@_flush
@_port("--port", 10911)
@_port("--nameserver-port", 9876)
@_metrics_port("0")
@click.option(
    "--filter-servers",
    type=click.IntRange(0, 64),
    help="Filter servers beside the broker; they take uploads from this machine.  [default: 1]",
)
@_bind
@_advertise
@tls_options
@_acl
@_common_options
def up(nameserver_port: int | None, **options: Any) -> None:
    """Run a name server, a broker and a filter server.

    Prints a line when it is ready; ends, with everything saved, on Ctrl-C or SIGTERM.
    """
    given = _Given(options)
    nameserver_config = given.nameserver(
        {"port": nameserver_port, "bind": options["bind"], **given.tls}
    )
    config = given.broker(
        {
            "metrics_port": 0,
            "filter_servers": 1,
            "filter_server_options": "--uploads=loopback",
        }
    )
    if nameserver_config.tls == "disabled":
        nameserver_config = copy_tls(config, nameserver_config)
    if nameserver_config.data is None:
        nameserver_config = replace(nameserver_config, data=given.data / "nameserver")
    if given.show_config:
        _show(("nameserver", nameserver_config, {}), ("broker", config, {"data": str(given.data)}))
        return
    for checked in (nameserver_config, config):
        check_tls(checked)

    async def start(stack: AsyncExitStack) -> str:
        address, told = await _start_nameserver(stack, nameserver_config, "--nameserver-port")
        others = f";{config.nameservers}" if config.nameservers else ""
        ours = replace(
            config, nameservers=address + others, security=_inner_security(nameserver_config)
        )
        return f"{told}, {await _start_broker(stack, ours, given)}"

    given.run(start)


@click.command()
@_port("--port", 9876)
@_bind
@click.option("--data", metavar="DIR", help="Where its table of keys is kept; else in memory.")
@tls_options
@_common_options
def nameserver(**options: Any) -> None:
    """Run a name server."""
    given = _Given(options)
    config = given.nameserver(
        {name: options[name] for name in ("port", "bind", "data")} | given.tls
    )
    if given.show_config:
        _show(("nameserver", config, {}))
        return
    check_tls(config)

    async def start(stack: AsyncExitStack) -> str:
        return (await _start_nameserver(stack, config, "--port"))[1]

    given.run(start)


@click.command()
@click.option("--name", help="Its name in routes.  [default: broker-a]")
@click.option("--cluster", metavar="NAME", help="[default: DefaultCluster]")
@click.option(
    "--nameserver",
    "nameservers",
    metavar="HOST:PORT",
    envvar="NAMESRV_ADDR",
    show_envvar=True,
    help="Where it registers; several are separated by semicolons.",
)
@_data
@_flush
@_port("--port", 10911)
@_metrics_port("-1")
@_bind
@_advertise
@tls_options
@_acl
@_common_options
def broker(**options: Any) -> None:
    """Run a broker."""
    given = _Given(options)
    config = given.broker({})
    if given.show_config:
        _show(("broker", config, {"data": str(given.data)}))
        return
    check_tls(config)
    given.run(lambda stack: _start_broker(stack, config, given))


# Settings.


class _Given:
    """What was said on the command line and in the file."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.show_config: bool = options.pop("show_config")
        self.tls = given_tls(options)
        options.update(self.tls)
        self._options = options
        self._log = (options.pop("log_level"), options.pop("log_format"))
        self._file: str = options.pop("file") or ""
        self._tables = _read_file(self._file) if self._file else {}
        self._pairs = [_pair(text) for text in options.pop("pairs")]
        self.data = Path(_DATA)

    def broker(self, defaults: dict[str, Any]) -> "BrokerConfig":
        """Sets `data` too."""
        from ..broker.config import BrokerConfig
        from ..broker.registration import parse_nameservers

        settings = _settings(BrokerConfig)
        table = dict(self._tables.get("broker", {}))
        data = _Setting("data", str).typed(table.pop("data", _DATA), self._file)
        _check_known(table, settings, f"{self._file}: [broker] ")
        pairs = {n: v for n, v in self._pairs if not n.startswith("nameserver.")}
        data = pairs.pop("data", data)
        _check_known(pairs, settings, "--set ", either=True)
        try:
            config = BrokerConfig(**defaults | table)
        except ConfigError as error:
            raise click.UsageError(f"{self._file}: [broker] {error}") from None
        ours = {setting.name for setting in settings}
        options = {n: v for n, v in self._options.items() if n in ours and v is not None}
        try:
            config = replace(BrokerConfig.from_text(_texts(config) | pairs), **options)
            parse_nameservers(config.nameservers)
        except ConfigError as error:
            raise click.UsageError(str(error)) from None
        self.data = Path(self._options["data"] or data)
        return _advertised(config)

    def nameserver(self, options: dict[str, Any]) -> "NameServerConfig":
        from ..nameserver.config import NameServerConfig

        settings = _settings(NameServerConfig)
        table = self._tables.get("nameserver", {})
        _check_known(table, settings, f"{self._file}: [nameserver] ")
        alone = "nameservers" not in self._options and "flush" not in self._options
        pairs = {n.removeprefix("nameserver."): v for n, v in self._pairs
                 if alone or n.startswith("nameserver.")}  # fmt: skip
        _check_known(pairs, settings, "--set ", either=True)
        found: dict[str, Any] = {}
        for setting in settings:
            if setting.name in table:
                found[setting.name] = setting.typed(table[setting.name], self._file)
            for name in (setting.name, setting.theirs):
                if name in pairs:
                    found[setting.name] = setting.read(name, pairs[name])
            if options.get(setting.name) is not None:
                found[setting.name] = options[setting.name]
        if "data" in found:
            found["data"] = Path(found["data"]) if found["data"] else None
        try:
            return NameServerConfig(**found)
        except ConfigError as error:
            raise click.UsageError(f"name server: {error}") from None

    @property
    def log_arguments(self) -> list[str]:
        """For a server that logs as this one does."""
        level, form = self._log
        return ["--log-level", level, "--log-format", form]

    def run(self, start: Start) -> None:
        logs.configure(*self._log)
        for name in (name.removeprefix("nameserver.") for name, _ in self._pairs):
            if name in ("tls_key_password", "tls.server.keyPassword"):
                log.warning(
                    "--set %s: others on this machine can see it; use --tls-key-password-file", name
                )
        serve(start)


@dataclass(frozen=True, slots=True)
class _Setting:
    """One field of a configuration; `theirs` is RocketMQ's name."""

    name: str
    kind: Any
    theirs: str = ""

    def typed(self, value: Any, file: str) -> Any:
        """A value of the file."""
        if type(value) is self.kind or (self.kind is float and type(value) is int):
            return value
        raise click.UsageError(f"{file}: {self.name} = {value!r}: it takes {_KINDS[self.kind]}")

    def read(self, name: str, text: str) -> Any:
        """A value of `--set`; RocketMQ counts milliseconds."""
        try:
            if self.kind is bool:
                return {"true": True, "false": False}[text.lower()]
            value = self.kind(text)
        except (ValueError, KeyError):
            raise click.UsageError(f"{name} = {text!r}: it takes {_KINDS[self.kind]}") from None
        return value / 1000 if self.kind is float and name == self.theirs else value


_KINDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
_NAMESERVER_NAMES = {
    "bind": "bindAddress",
    "port": "listenPort",
    "order_messages": "orderMessageEnable",
    "scan_seconds": "scanNotActiveBrokerInterval",
    "most_connections": "serverChannelMaxConnections",
    "connection_memory": "connectionMemory",
    "most_brokers": "mostBrokers",
    "most_topics": "mostTopics",
    "most_keys": "mostKeys",
    "tls": "tls.server.mode",
    "tls_cert": "tls.server.certPath",
    "tls_key": "tls.server.keyPath",
    "tls_key_password": "tls.server.keyPassword",
    "tls_key_password_file": "tlsServerKeyPasswordFile",
    "tls_ca": "tls.server.trustCertPath",
    "tls_client_auth": "tls.server.need.client.auth",
}
_SECRETS: Final = ("tls_key_password", "nameserver_tls_key_password")


def _settings(config: type) -> list[_Setting]:
    found = []
    hints = get_type_hints(config, include_extras=True)
    for field in fields(config):
        if field.name == "security":
            continue  # no setting
        kind, theirs = hints[field.name], _NAMESERVER_NAMES.get(field.name, "")
        if hasattr(kind, "__metadata__"):
            kind, switch = get_args(kind)
            theirs = switch.name
        elif get_origin(kind) is Literal:
            kind = str  # which one is looked at by the configuration
        found.append(_Setting(field.name, str if field.name == "data" else kind, theirs))
    return found


def _read_file(file: str) -> dict[str, dict[str, Any]]:
    try:
        tables = tomllib.loads(Path(file).read_text("utf-8"))
    except ValueError as error:  # no TOML, or no UTF-8
        raise click.UsageError(f"{file}: {error}") from None
    known = [_Setting("broker", dict), _Setting("nameserver", dict)]
    _check_known(tables, known, f"{file}: ", "table")
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise click.UsageError(f"{file}: {name} is not a table: write [{name}]")
    return tables


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.BadParameter(f"'{text}' is not NAME=VALUE", param_hint="--set")
    return name.strip(), value.strip()


def _check_known(
    names: Iterable[str],
    settings: Iterable[_Setting],
    where: str,
    what: str = "setting",
    either: bool = False,
) -> None:
    """`either`: RocketMQ's names will do. In a file they would have other units than ours."""
    ours = {setting.name: setting.name for setting in settings}
    theirs = {setting.theirs: setting.name for setting in settings if setting.theirs}
    for name in names:
        if name in ours or (either and name in theirs):
            continue
        near = [theirs[name]] if name in theirs else []
        near = near or difflib.get_close_matches(name, [*ours, *(theirs if either else ())], 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise click.UsageError(f"{where}{name}: there is no such {what}{hint}")


def _texts(config: "BrokerConfig") -> dict[str, str]:
    return {one.name: _text(getattr(config, one.name)) for one in _settings(type(config))}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _advertised(config: "BrokerConfig") -> "BrokerConfig":
    """Nobody can connect to "all addresses": the one that leads out of this machine instead."""
    if config.advertise or config.bind not in _EVERYWHERE:
        return config
    family = socket.AF_INET6 if ":" in config.bind else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            # a datagram socket sends nothing when it connects; these are addresses of nobody
            probe.connect(("2001:db8::1" if family == socket.AF_INET6 else "192.0.2.1", 9))
            return replace(config, advertise=probe.getsockname()[0])
    except OSError:
        raise click.UsageError(
            f"bind = {config.bind}: say by --advertise which address clients are to use"
        ) from None


_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # and how to reach it from here


def _show(*tables: tuple[str, Any, Mapping[str, Any]]) -> None:
    click.echo("# Durations are seconds, sizes bytes. After the #: RocketMQ's name.")
    for name, config, more in tables:
        click.echo(f"\n[{name}]")
        settings = {setting.name: setting.theirs for setting in _settings(type(config))}
        values = {name: getattr(config, name) for name in settings if name not in _SECRETS}
        for key, value in {**more, **values}.items():
            line = f"{key} = {_toml(value)}"
            theirs = settings.get(key)
            click.echo(f"{line:<40} # {theirs}" if theirs else line)


def _toml(value: object) -> str:
    if isinstance(value, bool | int | float):
        return _text(value)
    return json.dumps("" if value is None else str(value), ensure_ascii=False)


# Running.


async def _start_nameserver(
    stack: AsyncExitStack, config: "NameServerConfig", option: str
) -> tuple[str, str]:
    """Gives where to reach it from here, and what to tell."""
    from ..nameserver.server import NameServer

    server = NameServer(config)
    with listening("name server", config.bind, config.port, option, "--bind"):
        await server.start()
    stack.push_async_callback(server.close)
    warn_if_open(
        *("name server", config.bind),
        "whoever reaches it can change routes: RocketMQ's name servers have no access control",
    )
    host = _EVERYWHERE.get(config.bind, config.bind)
    return show_address(host, server.port), f"name server {server.address}"


def _inner_security(nameserver_config: "NameServerConfig") -> "Security":
    """For connections to a name server that has the same certificate as the broker."""
    from ..security import Security, ServerTls

    return Security(tls=ServerTls.of(nameserver_config).peers())


async def _start_broker(stack: AsyncExitStack, config: "BrokerConfig", given: _Given) -> str:
    from ..broker.broker import Broker

    data = given.data
    server = Broker(config, data, filter_arguments=given.log_arguments)
    with listening("broker", config.bind, config.port, "--port", "--bind"):
        await server.start()
    stack.push_async_callback(server.close)
    if not config.acl:
        warn_if_open(*("broker", config.bind), "whoever reaches it may do everything: see --acl")
    told = f"broker {server.address} ({config.name}, data {data}, {_promise(config)})"
    if config.metrics_port >= 0:
        from ..broker.metrics import Exporter

        with listening("metrics", config.bind, config.metrics_port, "--metrics-port", "--bind"):
            exporter = Exporter(server)
        stack.push_async_callback(asyncio.to_thread, exporter.close)  # it waits for a scrape
        host = config.advertise if config.bind in _EVERYWHERE else config.bind
        told += f", metrics {exporter.scheme}://{show_address(host, exporter.port)}/metrics"
    level = logging.WARNING if config.subscription_conflicts == "rocketmq" else logging.INFO
    log.log(level, _policy(config))
    return told


def _policy(config: "BrokerConfig") -> str:
    """What becomes of members of a group that subscribe differently."""
    if config.subscription_conflicts == "rocketmq":
        return (
            "subscription_conflicts rocketmq: members of a group that subscribe differently LOSE "
            "messages, as in RocketMQ; reject or isolate them to lose none"
        )
    if config.subscription_conflicts == "reject":
        return (
            "subscription_conflicts reject: a member that subscribes differently from the others "
            "of its group is refused"
        )
    return (
        "subscription_conflicts isolate: members of a group that subscribe differently are each "
        "served by their own subscription"
    )


def _promise(config: "BrokerConfig") -> str:
    if config.flush == "sync":
        return "flush sync: what is acknowledged survives a power cut"
    return f"flush async: a power cut may lose the last {config.flush_interval:g} s"
