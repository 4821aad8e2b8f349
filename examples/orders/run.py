"""`make demo`: the demo with a real client of RocketMQ, the first there is of

    java   Apache's Java client 4.9.4, if `java` and `mvn` are on the PATH
    cpp    RocketMQ's C++ client, from Python's package of it; by SQL it can't consume
    tamis  our own, as `tamis demo` has it

Both are driven as the tests drive them (`tests/interop`); what is fetched for them stays there.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from tamis.cli.demo import TOPIC, Client, Connect, Group, Order, TamisClient, play
from tamis.testing import LocalCluster

TESTS = Path(__file__).parents[2] / "tests"
TARGET = TESTS / "interop" / "target"
JAVA = "broker-4.9"  # the build that has the client
PATIENCE = {"java": 90, "cpp": 45}  # seconds for fetching it


class JavaGroups:
    """A push consumer for each group, all in one JVM."""

    note = ""

    def __init__(self, nameserver: str, stack: ExitStack) -> None:
        from interop.javaclient import JavaClient

        [jar] = (TARGET / JAVA / "lib").glob("rocketmq-client-[0-9]*.jar")
        version = jar.stem.removeprefix("rocketmq-client-")
        self.title = f"Apache's Java client {version}, a push consumer for each group"
        self._java = stack.enter_context(JavaClient("4.9", nameserver))

    def send(self, orders: Sequence[Order]) -> None:
        producer = self._java.producer()
        rows = self._java.send(producer, *({"topic": TOPIC, **_fields(one)} for one in orders))
        failed = [row for row in rows if row.get("status") != "SEND_OK"]
        if failed:
            raise RuntimeError(f"{len(failed)} of {len(rows)} were refused, first: {failed[0]}")

    def subscribe(self, groups: Sequence[Group]) -> None:
        for group in groups:
            wanted = {"tags": group.tags} if group.tags else {"sql": group.sql}
            self._java.push(group.name, group.name, {TOPIC: wanted})

    def received(self, group: Group, count: int) -> list[str]:
        return [row["keys"] for row in self._java.received(group.name, count)]


class CppGroups:
    """A push consumer in a process of its own for each group with tags; the others are ours."""

    note = "It has no SQL: groups with SQL are served by Tamis's own client."

    def __init__(self, cluster: LocalCluster, stack: ExitStack) -> None:
        from interop.cppclient import PACKAGE

        version = PACKAGE.rpartition("=")[2]
        self.title = f"RocketMQ's C++ client (Python's package rocketmq {version}), push consumers"
        self._nameserver = cluster.nameserver
        self._stack = stack
        self._home = Path(stack.enter_context(TemporaryDirectory(ignore_cleanup_errors=True)))
        self._ours = stack.enter_context(TamisClient(cluster))
        self._consumers = {}

    def send(self, orders: Sequence[Order]) -> None:
        producer = self._client("producer")
        producer.ask("produce", nameserver=self._nameserver, group="demo")
        for order in orders:
            producer.ask("send", topic=TOPIC, **_fields(order))

    def subscribe(self, groups: Sequence[Group]) -> None:
        for group in groups:
            if group.tags:
                consumer = self._consumers[group.name] = self._client(group.name)
                consumer.ask(
                    "consume",
                    nameserver=self._nameserver,
                    group=group.name,
                    topic=TOPIC,
                    expression=group.tags,
                )
        self._ours.subscribe([group for group in groups if group.sql])

    def received(self, group: Group, count: int) -> list[str]:
        if group.sql:
            return self._ours.received(group, count)
        rows = self._consumers[group.name].wait_for(lambda rows: len(rows) >= count)
        return [row["keys"] for row in rows]

    def _client(self, name: str):
        from interop.cppclient import CppClient

        return self._stack.enter_context(CppClient(self._home / name))


def _fields(order: Order) -> dict[str, object]:
    return {
        "body": order.body,
        "tags": order.tag,
        "keys": order.key,
        "properties": order.properties,
    }


@contextmanager
def java(cluster: LocalCluster) -> Iterator[Client]:
    with ExitStack() as stack:
        yield JavaGroups(cluster.nameserver, stack)


@contextmanager
def cpp(cluster: LocalCluster) -> Iterator[Client]:
    with ExitStack() as stack:
        yield CppGroups(cluster, stack)


class Unavailable(Exception):
    """Why there is no such client here."""


def prepare_java() -> Connect:
    missing = [tool for tool in ("java", "mvn") if shutil.which(tool) is None]
    if missing:
        raise Unavailable(f"{' and '.join(missing)} not found on the PATH")
    if not (TARGET / JAVA / "built").exists():
        click.echo("fetching Apache's Java client by Maven, once: about a minute", err=True)
    run(f"from interop.build import classpath; classpath({JAVA!r})", PATIENCE["java"])
    return java


def prepare_cpp() -> Connect:
    if not (TARGET / "cpp" / "installed").exists():
        click.echo("fetching RocketMQ's C++ client by pip, once", err=True)
    run("from interop.cppclient import _python; _python()", PATIENCE["cpp"])
    return cpp


def run(statement: str, seconds: float) -> None:
    """In a process that can be ended with all it started: Maven may wait for a network for long."""
    guarded = (
        f"import sys\ntry:\n    {statement}\n"
        "except Exception as error:\n    sys.exit(str(error).splitlines()[0].rstrip(':'))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", guarded],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _, said = process.communicate(timeout=seconds)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise Unavailable(f"it could not be fetched in {seconds:g} s") from None
        raise
    if process.returncode:
        raise Unavailable((said.strip().splitlines() or ["it could not be fetched"])[-1])


CLIENTS = {"java": prepare_java, "cpp": prepare_cpp, "tamis": lambda: TamisClient}


@click.command()
@click.option("--client", type=click.Choice([*CLIENTS]), help="This one, or none.")
@click.option("--spark/--no-spark", default=True, help="With the pipeline, which takes longest.")
def main(client: str | None, spark: bool) -> None:
    sys.path.append(str(TESTS))
    for name in [client] if client else CLIENTS:
        try:
            connect = CLIENTS[name]()
        except Unavailable as reason:
            if client:
                raise click.ClickException(f"client {name}: {reason}") from None
            click.echo(f"client {name}: {reason}; trying the next", err=True)
        else:
            play(connect, spark=spark)
            return


if __name__ == "__main__":
    main()
