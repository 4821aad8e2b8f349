"""Raw connections for the attacks of `hostile_attacks.py`: frames made with `tamis.wire`, sent
without the manners of a client.
"""

import json
import socket
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from tamis.wire import command as commands
from tamis.wire import record
from tamis.wire.codes import CommandFlag, PullFlag, RequestCode
from tamis.wire.command import Command
from tamis.wire.frame import FrameReader
from tamis.wire.headers import CreateTopic, Header, PullMessage, SendMessage

__all__ = [
    "Ack",
    "Stream",
    "ask_frame",
    "create_topic",
    "heartbeat",
    "messages_of",
    "oneway_frame",
    "pull",
    "send",
]

ANSWER_SECONDS = 30.0  # an attacker waits so long for the answer to one request
Ack = tuple[str, int, int, int]  # topic, queue, offset, CRC-32 of the body

# Commands.


def request(header: Header | None, code: int = 0, body: bytes = b"") -> Command:
    code = code or (header.CODE if header is not None else 0)
    letters = code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
    fields = header.to_fields(letters=letters) if header is not None else None
    return Command(code=code, fields=fields, body=body)


def send(
    topic: str,
    queue_id: int,
    body: bytes,
    *,
    sys_flag: int = 0,
    queues: int = 4,
    batch: bool = False,
) -> Command:
    header = SendMessage(
        producer_group="hostile",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=queues,
        queue_id=queue_id,
        sys_flag=sys_flag,
        born_timestamp=int(time.time() * 1000),
        flag=0,
        properties="",
        batch=batch,
    )
    code = RequestCode.SEND_BATCH_MESSAGE if batch else RequestCode.SEND_MESSAGE_V2
    return request(header, code, body)


def pull(
    topic: str,
    queue_id: int,
    offset: int,
    *,
    group: str = "hostile",
    count: int = 32,
    hold: float = 0.0,
    sql: str | None = None,
    tags: str = "*",
) -> Command:
    header = PullMessage(
        consumer_group=group,
        topic=topic,
        queue_id=queue_id,
        queue_offset=offset,
        max_msg_nums=count,
        sys_flag=PullFlag.SUBSCRIPTION | (PullFlag.SUSPEND if hold else PullFlag(0)),
        suspend_timeout_millis=int(hold * 1000),
        subscription=tags if sql is None else sql,
        expression_type="TAG" if sql is None else "SQL92",
    )
    return request(header)


def create_topic(topic: str, queues: int) -> Command:
    return request(
        CreateTopic(
            topic=topic,
            default_topic="TBW102",
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=6,
            topic_filter_type="SINGLE_TAG",
        )
    )


def heartbeat(client_id: str, consumers: list[dict[str, Any]]) -> Command:
    body = {"clientID": client_id, "producerDataSet": [], "consumerDataSet": consumers}
    return Command(code=RequestCode.HEART_BEAT, body=json.dumps(body).encode())


def ask_frame(command: Command) -> bytes:
    return commands.encode(command)


def oneway_frame(command: Command) -> bytes:
    command.flag |= CommandFlag.ONEWAY
    return commands.encode(command)


def messages_of(body: bytes) -> Iterator[tuple[int, bytes]]:
    """The offset and the body of each record in the answer to a pull."""
    at = 0
    while at < len(body):
        message = record.decode(body, at)
        yield message.queue_offset, message.body
        at += message.size


def ack_of(topic: str, body: bytes, answer: Command) -> Ack:
    """Of a message whose send was answered with success."""
    fields = answer.fields or {}
    return topic, int(fields["queueId"]), int(fields["queueOffset"]), zlib.crc32(body)


# Connections.


class Stream:
    """A blocking connection. Either `ask` one request after the other, or `pour` many at once."""

    def __init__(
        self,
        address: str,
        *,
        answers: Counter[str] | None = None,
        timeout: float = ANSWER_SECONDS,
        receive_buffer: int = 0,
    ) -> None:
        host, _, port = address.rpartition(":")
        self.answers: Counter[str] = Counter() if answers is None else answers
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(timeout)
        self.socket.connect((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = FrameReader()

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def receive(self) -> list[Command]:
        """The answers in the next piece that comes. Raises ConnectionError at the end, OSError."""
        data = self.socket.recv(2**18)
        if not data:
            raise ConnectionError("the server closed the connection")
        found = [commands.decode(frame) for frame in self._reader.feed(data)]
        found = [one for one in found if one.is_response]  # not the notices of a broker
        self.answers.update(str(one.code) for one in found)
        return found

    def ask(self, command: Command) -> Command:
        """Raises OSError, of which TimeoutError is one."""
        self.socket.sendall(commands.encode(command))
        while True:
            found = self.receive()
            if found:
                return found[-1]

    def pour(self, frames: Iterable[bytes], deadline: float, *, answered: bool = True) -> int:
        """Send the frames as fast as they are taken, until the deadline (monotonic); returns how
        many were sent. Where they are answered, the answers are read meanwhile, to the last."""
        self.socket.settimeout(max(deadline - time.monotonic(), 0.1))
        reading = threading.Thread(target=self._read_all, daemon=True) if answered else None
        before = self.answers.total()
        if reading is not None:
            reading.start()
        sent, parts, size = 0, list[bytes](), 0
        try:
            for frame in frames:
                parts.append(frame)
                size += len(frame)
                sent += 1
                if size >= 2**16:
                    self.socket.sendall(b"".join(parts))
                    parts, size = [], 0
                    if time.monotonic() > deadline:
                        break
            self.socket.sendall(b"".join(parts))
            while reading is not None and self.answers.total() - before < sent:
                if time.monotonic() > deadline or not reading.is_alive():
                    break
                time.sleep(0.01)
        except OSError as error:
            self.answers[f"{type(error).__name__} while sending"] += 1
        return sent

    def _read_all(self) -> None:
        try:
            while True:
                self.receive()
        except OSError:
            pass  # closed by either side
