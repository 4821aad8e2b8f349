"""Filter servers, Apache's 4.2.0 and ours, beside a broker that runs; and Apache's Java clients,
4.2.0 and later, that upload a filter to them."""

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from interop.cluster import GET_ROUTE, JVM, LOGBACK, PATIENCE, ask
from interop.oracle import _classpath

# Of RocketMQ, and the build that has its client. The first of them has the filter server too.
BUILDS = {"4.2": "filtersrv-4.2", "4.9": "broker-4.9", "5.3": "broker-5.3"}
CLIENTS = ("4.9", "4.2")

# 4.2 would log to files in the home directory, and send on the broker's port less two.
OLD = ["-Drocketmq.client.log.loadconfig=false", "-Dcom.rocketmq.sendMessageWithVIPChannel=false"]

# Its sockets receive into 1 KiB unless told otherwise: an answer of a few takes a second then.
WIDE = "-Dcom.rocketmq.remoting.socket.rcvbuf.size=65535"

Row = dict[str, Any]


class FilterServer:
    """A process from `start` to `stop`; a context manager that starts and stops it. `address` is
    known once clients can find it, so is `process`."""

    address: str
    process: subprocess.Popen[bytes]

    def __init__(self, home: Path, broker: str, nameserver: str) -> None:
        self._home = home
        self._broker = broker
        self._nameserver = nameserver
        home.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def command(self) -> list[str]:
        raise NotImplementedError

    def start(self) -> None:
        """Returns when the name server tells clients of it."""
        before = set(known(self._nameserver, self._broker))
        with (self._home / "filterserver.log").open("wb") as log:
            self.process = subprocess.Popen(
                self.command(),
                stdin=subprocess.PIPE,  # its end, with us, ends Apache's
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + PATIENCE
        while not (new := set(known(self._nameserver, self._broker)) - before):
            if self.process.poll() is not None or time.monotonic() > deadline:
                code = self.process.poll()
                self.stop()
                raise RuntimeError(f"no filter server in the route (exit {code})\n{self.log()}")
            time.sleep(0.05)
        (self.address,) = new

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()

    def log(self) -> str:
        return (self._home / "filterserver.log").read_text(errors="replace")


class ApacheFilterServer(FilterServer):
    def command(self) -> list[str]:
        home = self._home
        (home / "conf").mkdir(exist_ok=True)
        logs = LOGBACK.replace("{level}", "INFO")
        (home / "conf" / "logback_filtersrv.xml").write_text(logs)
        settings = {
            "connectWhichBroker": self._broker,
            "filterServerIP": "127.0.0.1",
            "namesrvAddr": self._nameserver,
        }
        config = home / "conf" / "filtersrv.properties"
        config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        places = [f"-Duser.home={home}", f"-Drocketmq.home.dir={home}"]
        run = ["-cp", _classpath("filtersrv-4.2"), "tamis.interop.LoopbackFilterServer"]
        return [*JVM, *OLD, WIDE, *places, *run, "-c", str(config)]


class OurFilterServer(FilterServer):
    def __init__(
        self, home: Path, broker: str, nameserver: str, options: Sequence[str] = ()
    ) -> None:
        super().__init__(home, broker, nameserver)
        self._options = options

    def command(self) -> list[str]:
        servers = ["--broker", self._broker, "--nameserver", self._nameserver]
        command = [sys.executable, "-m", "tamis", "filterserver", *servers]
        return [*command, "--uploads", "--port", "0", *self._options]


def known(nameserver: str, broker: str) -> list[str]:
    """The filter servers of a broker that its name server tells clients of."""
    answer = ask(nameserver, GET_ROUTE, {"topic": "SELF_TEST_TOPIC"})
    if answer is None or answer[0] != 0:
        return []
    pattern = rf'"filterServerTable":{{.*?"{re.escape(broker)}":\[([^\]]*)\]'
    found = re.search(pattern, answer[1].decode())
    return re.findall(r"[\d.]+:\d+", found[1]) if found else []


class CodeConsumer:
    """Apache's push consumer with a filter's source; a context manager that ends it."""

    def __init__(
        self,
        line: str,
        home: Path,
        nameserver: str,
        group: str,
        topic: str,
        class_name: str,
        source: str,
    ) -> None:
        home.mkdir(parents=True)
        (home / "logback.xml").write_text(LOGBACK.replace("{level}", "WARN"))
        (home / "source").write_text(source)
        self._log = home / "client.log"
        self._rows: list[Row] = []
        self._more = threading.Condition()
        options = [f"-Duser.home={home}", f"-Dlogback.configurationFile={home}/logback.xml"]
        run = ["-cp", _classpath(BUILDS[line]), "tamis.interop.CodeConsumer"]
        arguments = [nameserver, group, topic, class_name, str(home / "source")]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*JVM, *OLD, *options, *run, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=home,
                text=True,
                encoding="utf-8",
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._reader.join()
        self._process.stdout.close()

    def received(self, count: int = 0, seconds: float = PATIENCE) -> list[Row]:
        """All messages so far, once they are `count`; raises if they are not by then."""
        with self._more:
            is_enough = self._more.wait_for(lambda: len(self._rows) >= count, seconds)
            rows = list(self._rows)
        if not is_enough:
            raise AssertionError(f"{len(rows)} messages of {count}\n{self.log()[-3000:]}")
        return rows

    def await_log(self, text: str, seconds: float = PATIENCE) -> str:
        """The log, once it has this text; raises if it has not by then."""
        deadline = time.monotonic() + seconds
        while text not in (log := self.log()):
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise AssertionError(f"no {text!r} in the client's log\n{log[-3000:]}")
            time.sleep(0.1)
        return log

    def log(self) -> str:
        """Warnings and errors of the client."""
        return self._log.read_text(errors="replace")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._more:
                self._rows.append(json.loads(line))
                self._more.notify_all()
