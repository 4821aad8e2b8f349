"""Apache's Java client and mqadmin, driven from Python: one JVM, many producers and consumers.

The commands are those of `ClientDriver.java`; a message is a dict as `Rows.java` makes it.
"""

import base64
import json
import os
import secrets
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from interop.cluster import JVM, LOGBACK
from interop.oracle import _classpath

PATIENCE = 30.0  # seconds for a condition to come about

HASTE = [
    "-Drocketmq.client.rebalance.waitInterval=1000",  # 20 s by default, as is the next
    "-Drocketmq.client.rebalance.lockInterval=1000",
    "-Drocketmq.client.rebalance.minInterval=100",  # 5.3 only
    "-Drocketmq.client.unlockDelayTimeMills=500",
]
FIRST = "CONSUME_FROM_FIRST_OFFSET"

Row = dict[str, Any]
Filter = Mapping[str, str]  # {"tags": ...} or {"sql": ...}; empty for all

# Of Apache's clients and tools. The newer where interop is compulsory: minutes more, which a plain
# `make test` has not.
LINES = ("4.9", "5.3") if os.environ.get("TAMIS_INTEROP") == "required" else ("4.9",)


class JavaError(Exception):
    """The client threw; `code` is the server's, if it was the server that refused."""

    def __init__(self, error: str, message: str, code: int | None = None) -> None:
        super().__init__(error, message, code)
        self.error = error
        self.message = message
        self.code = code

    def __str__(self) -> str:
        return f"{self.error} (code {self.code}): {self.message}"


class JavaClient:
    """The client of a line, `4.9` or `5.3`; a context manager that ends it and all it started.

    Several clusters may be used in turn: `nameserver` can be set. `flags` are more of the JVM's.
    """

    def __init__(self, line: str, nameserver: str = "", flags: Sequence[str] = ()) -> None:
        self.line = line
        self.nameserver = nameserver
        self._suffix = secrets.token_hex(3)
        self._started: list[str] = []
        self._directory = tempfile.TemporaryDirectory(
            prefix="tamis-java-", ignore_cleanup_errors=True
        )
        home = Path(self._directory.name)
        (home / "conf").mkdir()
        for name, level in ("client", "WARN"), ("tools", "ERROR"):
            config = LOGBACK.replace("{level}", level)
            (home / "conf" / f"logback_{name}.xml").write_text(config)
        self._log = home / "client.log"
        places = [f"-Duser.home={home}", f"-Drocketmq.home.dir={home}"]
        logs = f"-Dlogback.configurationFile={home}/conf/logback_client.xml"
        command = [*JVM, *HASTE, *places, logs, *flags]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "-cp", _classpath(f"broker-{line}"), "tamis.interop.ClientDriver"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=home,  # mqadmin leaves files there
                text=True,
                encoding="utf-8",
            )

    def __enter__(self) -> "JavaClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._directory.cleanup()

    def name(self, stem: str) -> str:
        """A topic, group or client name that no other run uses; `stem` gives it back."""
        return f"{stem}-{self._suffix}"

    def stem(self, text: str) -> str:
        return text.replace(f"-{self._suffix}", "")

    def renew(self) -> None:
        """From now on, other names."""
        self._suffix = secrets.token_hex(3)

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def set_admin_key(self, access_key: str | None, secret_key: str = "") -> None:
        """With which mqadmin signs from now on; None for not at all."""
        file = Path(self._directory.name, "conf", "tools.yml")
        if access_key is None:
            file.unlink(missing_ok=True)
        else:
            file.write_text(f"accessKey: {access_key}\nsecretKey: {secret_key}\n")

    # producers

    def producer(
        self,
        client: str = "producer",
        group: str | None = None,
        *,
        transactional: bool = False,
        timeout: float = 10,
        retries: int = 0,
        **options: object,
    ) -> str:
        self._start(
            "producer",
            client,
            group=group or f"{client}-group",
            transactional=transactional,
            timeout=int(timeout * 1000),
            retries=retries,
            **options,
        )
        return client

    def send(
        self, client: str, *messages: Row, mode: str = "sync", timeout: float = 20
    ) -> list[Row]:
        """`mode`: sync, async, oneway, batch or transaction. A message has `topic` and `body`, and
        maybe `tags`, `keys`, `properties`, `flag`, `delay` (level), `queue`, `shard` (the queue is
        chosen by a selector, as shard modulo queues); a transaction's `decision`, and `check` for
        the answers to the broker's questions (commit, rollback, unknown; by commas).

        Returns a row each: status, queue, offset, ids, or `error` and `code`."""
        rows: list[Row] = self._do(
            "send", client=client, mode=mode, messages=messages, timeout=int(timeout * 1000)
        )
        return rows

    def checks(self, client: str, count: int, seconds: float = PATIENCE) -> list[Row]:
        """The half messages the broker has asked a transactional producer about."""
        rows: list[Row] = self._do("checks", client=client, count=count, seconds=seconds)
        return rows

    # push consumers

    def push(
        self,
        client: str,
        group: str,
        topics: Mapping[str, Filter],
        *,
        ordered: bool = False,
        broadcast: bool = False,
        origin: str = FIRST,
        fail: int = 0,
        failing: str = "",
        delay_level: int = 1,
        max_reconsume: int = -1,
        batch: int = 1,
        **options: object,
    ) -> str:
        """Its listener fails each message's first `fail` deliveries (-1: all), of those with
        `failing` in their body, and asks for `delay_level`."""
        self._start(
            "push",
            client,
            group=group,
            topics=topics,
            ordered=ordered,
            broadcast=broadcast,
            fail=fail,
            failing=failing,
            delay_level=delay_level,
            max_reconsume=max_reconsume,
            batch=batch,
            **{"from": origin},
            **options,
        )
        return client

    def subscribe(self, client: str, topic: str, filter: Filter) -> None:
        """Subscribes a push consumer that runs, again or anew. Its subscription gets a new version,
        which a heartbeat has told the broker when this returns."""
        self._do("subscribe", client=client, topic=topic, **filter)

    def received(self, client: str, count: int = 0, seconds: float = PATIENCE) -> list[Row]:
        """All that a push consumer's listener was given, once it is `count` or time is up."""
        rows: list[Row] = self._do("received", client=client, count=count, seconds=seconds)
        return rows

    def assignment(self, client: str, topic: str) -> list[int]:
        """The queues of a topic that a push consumer has."""
        pairs = self._do("assignment", client=client)
        return [queue for name, queue in pairs if name == topic]

    # lite pull consumers

    def lite(
        self,
        client: str,
        group: str,
        topics: Mapping[str, Filter],
        *,
        auto_commit: bool = True,
        origin: str = FIRST,
        **options: object,
    ) -> str:
        """With no topics, `assign` gives it queues."""
        self._start(
            "lite",
            client,
            group=group,
            topics=topics,
            auto_commit=auto_commit,
            **{"from": origin},
            **options,
        )
        return client

    def poll(self, client: str, count: int, seconds: float = PATIENCE) -> list[Row]:
        """What polls bring until there are `count` messages or time is up."""
        rows: list[Row] = self._do("poll", client=client, count=count, seconds=seconds)
        return rows

    def assign(self, client: str, topic: str, queues: Sequence[int]) -> None:
        self._do("assign", client=client, topic=topic, queues=queues)

    def seek(self, client: str, topic: str, queue: int, offset: int) -> None:
        self._do("seek", client=client, topic=topic, queue=queue, offset=offset)

    def commit(self, client: str) -> None:
        self._do("commit", client=client)

    def committed(self, client: str, topic: str) -> list[int]:
        """Of each queue."""
        offsets: list[int] = self._do("committed", client=client, topic=topic)
        return offsets

    # pull consumers

    def puller(self, client: str, group: str, **options: object) -> str:
        self._start("puller", client, group=group, **options)
        return client

    def pull(
        self,
        client: str,
        topic: str,
        queue: int,
        offset: int,
        *,
        count: int = 32,
        block: bool = False,
        **filter: str,
    ) -> Row:
        """status, next, min, max, messages; with `block`, held by the broker for 1 s at most."""
        row: Row = self._do(
            "pull",
            client=client,
            topic=topic,
            queue=queue,
            offset=offset,
            count=count,
            block=block,
            **filter,
        )
        return row

    def pull_all(self, client: str, topic: str, **filter: str) -> list[Row]:
        """Every message of every queue that matches."""
        rows: list[Row] = []
        for queue in self.queues(client, topic):
            offset, end = (self.offset(client, topic, queue, what) for what in ("min", "max"))
            while offset < end:
                result = self.pull(client, topic, queue, offset, **filter)
                rows += result["messages"]
                if result["next"] <= offset:
                    raise AssertionError(f"{topic}/{queue} is stuck at {offset}: {result}")
                offset = result["next"]
        return rows

    def queues(self, client: str, topic: str) -> list[int]:
        return [queue for _, queue in self._do("queues", client=client, topic=topic)]

    def offset(self, client: str, topic: str, queue: int, what: str, **values: int) -> int:
        """`what`: max, min, search (`timestamp=`), fetch, update (`offset=`)."""
        asked = self._do("offset", client=client, topic=topic, queue=queue, what=what, **values)
        return -1 if asked is None else int(asked)

    def query(
        self, client: str, topic: str, key: str, count: int = 64, begin: int = 0, end: int = 2**62
    ) -> list[Row]:
        """Those the index has under a key; none is no error."""
        try:
            rows: list[Row] = self._do(
                "query", client=client, topic=topic, key=key, count=count, begin=begin, end=end
            )
        except JavaError as error:
            if error.code != 208:  # NO_MESSAGE
                raise
            return []
        return rows

    def view(self, client: str, topic: str, id: str) -> Row:
        """By either kind of message id."""
        row: Row = self._do("view", client=client, topic=topic, id=id)
        return row

    def send_back(
        self, client: str, topic: str, queue: int, offset: int, delay_level: int = 1
    ) -> None:
        self._do(
            "send_back",
            client=client,
            topic=topic,
            queue=queue,
            offset=offset,
            delay_level=delay_level,
        )

    # all

    def stop(self, *clients: str) -> None:
        for client in clients:
            self._started.remove(client)
            self._do("stop", client=client)

    def stop_all(self) -> None:
        """Waits for none of them."""
        while self._started:
            self._do("dismiss", client=self._started.pop())

    def request(
        self,
        address: str,
        code: int,
        fields: Mapping[str, object] | None = None,
        body: bytes | Mapping[str, object] | None = None,
        timeout: float = 10,
    ) -> Row:
        """Any request as it is, by the client's remoting: code, remark, version, fields, body."""
        if isinstance(body, Mapping):
            body = json.dumps(body).encode()
        texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in (fields or {}).items()}
        row: Row = self._do(
            "request",
            address=address,
            code=code,
            fields=texts,
            body=None if body is None else base64.b64encode(body).decode(),
            timeout=int(timeout * 1000),
        )
        row["body"] = base64.b64decode(row["body"])
        return row

    def create_topic(self, broker: str, topic: str, queues: int = 4, perm: int = 6) -> str:
        """Returns when the name server knows it."""
        fields = {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": queues,
            "writeQueueNums": queues,
            "perm": perm,
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": 0,
            "order": False,
        }
        answer = self.request(broker, 17, fields)
        assert answer["code"] == 0, answer
        wait_for(
            lambda: self.request(self.nameserver, 105, {"topic": topic}),
            lambda route: route["code"] == 0,
        )
        return topic

    def await_commits(self, broker: str, group: str, topic: str, offsets: Sequence[int]) -> None:
        """Returns when the broker has these offsets, by queue: clients send theirs one-way."""

        def stored() -> list[str | None]:
            asked = {"consumerGroup": group, "topic": topic}
            answers = (
                self.request(broker, 14, {**asked, "queueId": queue})
                for queue in range(len(offsets))
            )
            return [(answer["fields"] or {}).get("offset") for answer in answers]

        wait_for(stored, lambda seen: seen == [str(offset) for offset in offsets])

    def admin(self, *commands: Sequence[str]) -> list[str]:
        """What each command of mqadmin printed. A misused one ends this JVM."""
        outputs: list[str] = self._do("admin", commands=commands)
        return outputs

    def _start(self, kind: str, client: str, **request: object) -> None:
        self._do(kind, client=client, **request)
        self._started.append(client)

    def _do(self, command: str, **request: object) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request |= {"do": command, "nameserver": self.nameserver}
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the missing answer says more
        line = self._process.stdout.readline()
        if not line.endswith("\n"):
            raise RuntimeError(f"the client has gone\n{self.log()[-3000:]}")
        answer = json.loads(line)
        if "error" in answer:
            raise JavaError(**answer["error"])
        return answer["ok"]


def wait_for(
    see: Callable[[], Any], enough: Callable[[Any], bool], seconds: float = PATIENCE
) -> Any:
    """What is seen, once it is enough; an error that shows it, if it never is."""
    deadline = time.monotonic() + seconds
    while not enough(seen := see()):
        if time.monotonic() > deadline:
            raise AssertionError(f"still, after {seconds} s: {seen}")
        time.sleep(0.05)
    return seen
