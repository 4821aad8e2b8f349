"""RocketMQ itself, on loopback: name server, broker, and a client to fill and read them.

Line 4.9 is 4.9.4, line 5.3 is 5.3.3; only the former has the client (`produce`, `consume`, ...).
"""

import json
import os
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, Self

from interop.oracle import _classpath

from tamis import testing

SERVERS = {"4.9": "LoopbackServer", "5.3": "LoopbackServer5"}  # our entry points
PATIENCE = 60.0  # seconds for a start, a stop and for each run of the client

JVM = [
    "java",
    "-Xms128m",
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",  # these processes are too short-lived for the optimising compiler
    # MappedFile.clean unmaps by reflection: DirectByteBuffer.attachment(), then its cleaner.
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",  # the transient pool and warming
    "-Dtls.server.mode=disabled",  # a certificate of its own costs each server a second
    "-Djava.net.preferIPv4Stack=true",
    "-Drocketmq.client.logUseSlf4j=true",
]
# A test's files are never too old, nor its machine too full or too busy.
SETTINGS = {
    "brokerClusterName": "DefaultCluster",
    "brokerName": "broker-a",
    "brokerIP1": "127.0.0.1",
    "brokerIP2": "127.0.0.1",
    "autoCreateTopicEnable": True,
    "enablePropertyFilter": True,
    "fileReservedTime": 1_000_000,  # hours
    "diskMaxUsedSpaceRatio": 95,
    "cleanFileForciblyEnable": False,
    "waitTimeMillsInSendQueue": 20_000,
    "osPageCacheBusyTimeOutMills": 20_000,
}
LOGBACK = """<configuration>
  <appender name="err" class="ch.qos.logback.core.ConsoleAppender">
    <target>System.err</target>
    <encoder><pattern>%d{HH:mm:ss.SSS} %-5level %logger{0} - %msg%n</pattern></encoder>
  </appender>
  <root level="{level}"><appender-ref ref="err"/></root>
</configuration>
"""

Row = dict[str, Any]


class _Servers:
    """Child processes from `start` to `stop` or `kill`; a context manager that starts and stops.

    Configuration and logs are kept in `home`.
    """

    def __init__(self, home: Path, line: str) -> None:
        self._home = home
        self._line = line
        self._classpath = _classpath(f"broker-{line}")
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._held: list[socket.socket] = []
        (home / "conf").mkdir(parents=True, exist_ok=True)
        for name, level in ("broker", "INFO"), ("namesrv", "INFO"), ("client", "WARN"):
            config = LOGBACK.replace("{level}", level)
            (home / "conf" / f"logback_{name}.xml").write_text(config)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        """The broker as its operator would, to the end of its shutdown hook; the name server, which
        keeps nothing, at once."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """As a power cut would, but for what the kernel still holds."""
        self._end(signal.SIGKILL)

    def log(self, name: str = "broker") -> str:
        """What `broker`, `nameserver` or the last run of the `client` has said."""
        path = self._home / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def _java(self, main: str, *arguments: str) -> list[str]:
        home = self._home
        places = [f"-Duser.home={home}", f"-Drocketmq.home.dir={home}"]
        logs = f"-Dlogback.configurationFile={home}/conf/logback_client.xml"
        command = [*JVM, *places, logs, "-cp", self._classpath, f"tamis.interop.{main}"]
        return [*command, *arguments]

    def _serve_names(self, port: int) -> None:
        self._serve("nameserver", {"listenPort": port})
        # A broker tries to register once, then again only after ten seconds.
        address = f"127.0.0.1:{port}"
        self._wait_for("the name server", lambda: _ask(address, GET_ROUTE) is not None)

    def _serve(self, name: str, settings: dict[str, object]) -> None:
        if self._line != "4.9":
            settings = {**settings, "bindAddress": "127.0.0.1"}
        config = self._home / "conf" / f"{name}.properties"
        config.write_text("".join(f"{k}={_setting(v)}\n" for k, v in settings.items()))
        with (self._home / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                self._java(SERVERS[self._line], name, "-c", str(config)),
                stdin=subprocess.PIPE,  # its end, with us, ends the server
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _wait_for(self, what: str, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not ready():
            dead = any(process.poll() is not None for process in self._processes.values())
            if dead or time.monotonic() > deadline:
                reason = "a server died" if dead else f"not within {PATIENCE} s"
                raise RuntimeError(
                    f"no answer from {what}: {reason}\n{self._tails('nameserver', 'broker')}"
                )
            time.sleep(0.05)

    def _end(self, how: signal.Signals) -> None:
        late = [name for name in ("broker", "nameserver") if not self._end_one(name, how)]
        while self._held:
            self._held.pop().close()
        if late:
            raise RuntimeError(f"no end within {PATIENCE} s\n{self._tails(*late)}")

    def _end_one(self, name: str, how: signal.Signals) -> bool:
        """Whether it ended in time; if not, it was killed."""
        process = self._processes.pop(name, None)
        if process is None:
            return True
        process.send_signal(how if name == "broker" else signal.SIGKILL)
        in_time = True
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            in_time = False
            process.kill()
            process.wait()
        assert process.stdin is not None
        process.stdin.close()
        return in_time

    def _tails(self, *names: str) -> str:
        return "\n".join(f"--- {name}.log\n{self.log(name)[-3000:]}" for name in names)


class ApacheNameServer(_Servers):
    """A name server alone, for a broker of ours or of theirs."""

    nameserver: str

    def __init__(self, home: Path, line: str = "4.9") -> None:
        super().__init__(home, line)

    def start(self) -> None:
        assert not self._processes, "already started"
        self._held = _hold()
        port = self._held[0].getsockname()[1]
        self.nameserver = f"127.0.0.1:{port}"
        try:
            self._serve_names(port)
        except BaseException:
            self.kill()
            raise


class ApacheCluster(_Servers):
    """Name server and broker, again if wanted on the same store; given the address of a name
    server, a broker alone that registers there.

    `settings` are the broker's own, by RocketMQ's names. Configuration and logs are kept beside the
    store, in `<store>.home`.
    """

    nameserver: str
    broker: str

    def __init__(
        self, store: Path, nameserver: str | None = None, line: str = "4.9", **settings: object
    ) -> None:
        super().__init__(store.with_name(f"{store.name}.home"), line)
        self.store = store
        self._given = nameserver
        self._settings = settings

    def start(self) -> None:
        assert not self._processes, "already started"
        # Held as long as we run, so that nobody is given a port before the server listens on it.
        self._held = [*_hold(-2, 1), *_hold()]  # the broker's VIP and replication ports
        nameserver = self._held[-1].getsockname()[1]
        self.nameserver = self._given or f"127.0.0.1:{nameserver}"
        self.broker = f"127.0.0.1:{self._held[0].getsockname()[1]}"
        try:
            if self._given is None:
                self._serve_names(nameserver)
            self._serve_broker()
        except BaseException:
            self.kill()
            raise

    def restart_broker(self, kill: bool = False) -> None:
        """On the same port and store, after a stop or a kill."""
        how = signal.SIGKILL if kill else signal.SIGTERM
        if not self._end_one("broker", how):
            raise RuntimeError(f"no end within {PATIENCE} s\n{self._tails('broker')}")
        self._serve_broker()

    def _serve_broker(self) -> None:
        self._serve(
            "broker",
            {
                **SETTINGS,
                **self._settings,
                "listenPort": self.broker.rpartition(":")[2],
                "namesrvAddr": self.nameserver,
                "storePathRootDir": self.store,
            },
        )
        self._wait_for("the broker", lambda: _ask(self.broker, GET_ALL_TOPIC_CONFIG) == SUCCESS)
        self._wait_for(
            "the name server about the broker", lambda: _ask(self.nameserver, GET_ROUTE) == SUCCESS
        )

    def produce(self, seed: int, count: int, wait: float = 30) -> list[Row]:
        """Sends a mixture to `Orders`, `Plain` and `Batches`; returns what was sent, in order, when
        all can be read. With `wait=0`, one-way and delayed ones may still be under way."""
        return self._drive("produce", str(seed), str(count), str(wait))

    def consume(self, *topics: str, tags: str | None = None, sql: str | None = None) -> list[Row]:
        """Every message of every queue, or those that match."""
        options = [("--tags", tags), ("--sql", sql)]
        given = (part for name, value in options if value is not None for part in (name, value))
        return self._drive("consume", *topics, *given)

    def subscribe(self, *filters: tuple[str, str, str]) -> None:
        """Makes each (group, topic, SQL92 expression) known to the broker, which from then on
        computes the filter's bits, and creates the topic if need be."""
        self._drive("subscribe", *(part for filter in filters for part in filter))

    def query(self, topic: str, key: str) -> list[Row]:
        """The messages the index has under a key."""
        return self._drive("query", topic, key)

    def _drive(self, command: str, *arguments: str) -> list[Row]:
        with (self._home / "client.log").open("wb") as log:
            try:
                done = subprocess.run(
                    self._java("StoreDriver", command, self.nameserver, *arguments),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    timeout=PATIENCE,
                    check=True,
                )
            except subprocess.SubprocessError as reason:
                raise RuntimeError(f"{reason}\n{self._tails('client', 'broker')}") from None
        return [json.loads(line) for line in done.stdout.splitlines()]


class Target(Protocol):
    """A cluster of one name server and one broker: "host:port" each."""

    nameserver: str
    broker: str

    def restart_broker(self) -> None:
        """Stops it in an orderly way and starts it on the same port and store."""


@contextmanager
def apache_cluster(
    store: Path, nameserver: str | None = None, line: str = "4.9", **settings: object
) -> Iterator[ApacheCluster]:
    """One whose store nobody looks at afterwards: a stop takes seconds, a kill none."""
    cluster = ApacheCluster(store, nameserver, line, **settings)
    cluster.start()
    try:
        yield cluster
    finally:
        cluster.kill()


# With TAMIS_TARGET=apache (or apache-5.3), "ours" are RocketMQ's: so are tests shown to be right.
INSTEAD = {"apache": "4.9", "apache-4.9": "4.9", "apache-5.3": "5.3"}.get(
    os.environ.get("TAMIS_TARGET", "")
)
OURS: dict[str, object] = {"enablePropertyFilter": True}  # what of SETTINGS clients notice


@contextmanager
def our_cluster(store: Path, **settings: object) -> Iterator[Target]:
    if INSTEAD is not None:
        with apache_cluster(store, line=INSTEAD, **settings) as theirs:
            yield theirs
    else:
        with testing.LocalCluster(store=store, **(OURS | settings)) as ours:
            yield ours


@contextmanager
def our_nameserver(home: Path) -> Iterator[str]:
    """Its address."""
    if INSTEAD is not None:
        with ApacheNameServer(home, INSTEAD) as theirs:
            yield theirs.nameserver
    else:
        with testing.LocalNameServer() as ours:
            yield ours.nameserver


@contextmanager
def our_broker(nameserver: str, store: Path, **settings: object) -> Iterator[str]:
    """Its address."""
    if INSTEAD is not None:
        with apache_cluster(store, nameserver, INSTEAD, **settings) as theirs:
            yield theirs.broker
    else:
        broker = testing.LocalBroker(nameserver=nameserver, store=store, **(OURS | settings))
        with broker as ours:
            yield ours.broker


SUCCESS = 0
GET_ALL_TOPIC_CONFIG = 21
GET_ROUTE = 105


def _ask(address: str, code: int) -> int | None:
    """The code answered about a topic that every broker has; None while nobody listens."""
    answer = ask(address, code, {"topic": "SELF_TEST_TOPIC"})
    return None if answer is None else answer[0]


def ask(address: str, code: int, fields: dict[str, str]) -> tuple[int, bytes] | None:
    """The code and the body answered to a request by hand (the code under test has no part in it);
    None while nobody listens."""
    header = json.dumps(
        {"code": code, "flag": 0, "language": "JAVA", "opaque": 1, "version": 399}
        | {"extFields": fields, "serializeTypeCurrentRPC": "JSON"}
    ).encode()
    host, _, port = address.partition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            connection.sendall(struct.pack(">ii", 4 + len(header), len(header)) + header)
            with connection.makefile("rb") as answer:
                size, length = struct.unpack(">ii", answer.read(8))
                code = int(json.loads(answer.read(length))["code"])
                return code, answer.read(size - 4 - length)
    except (OSError, struct.error):
        return None


def _hold(*neighbours: int) -> list[socket.socket]:
    """A loopback port of the kernel's choice with these neighbours: bound, and free to be bound by
    a server that sets SO_REUSEADDR, as RocketMQ's do."""
    while True:
        held = [socket.socket()]
        try:
            held[0].bind(("127.0.0.1", 0))
            port = held[0].getsockname()[1]
            for distance in neighbours:
                held.append(socket.socket())
                held[-1].bind(("127.0.0.1", port + distance))
        except OSError:  # a neighbour is taken
            for one in held:
                one.close()
            continue
        for one in held:  # only now, or we would share a port that another holds like this
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return held


def _setting(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
