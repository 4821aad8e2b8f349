"""A load for a RocketMQ broker, over one connection: sends in flight, batches, pulls.

It has its own few lines of the protocol, so that nothing of Tamis takes part in measuring it.
Requests are written once; what differs from one to the next (opaque, keys) is stamped in place, and
answers are walked where they were received, by compiled loops.

    .venv/bin/python benchmarks/loadgen.py      requests a second it can make, against a mere sink
"""

import base64
import hmac
import json
import socket
import ssl
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit

QUEUES = 4
CYCLE = 1000  # messages of a batch; their scores are 0 to 999, each once
NEEDLE = b"needle"
STRIDE = 617  # no divisor in common with CYCLE: rare scores lie apart
NUMBER = b"########"  # where a message's number goes
OPAQUE = b"@@@@@@@@"
FIRST_OPAQUE = 10_000_000
PATIENCE = 60  # seconds for any answer

BATCH, CREATE_TOPIC, HEARTBEAT, MAX_OFFSET, PULL, SEND = 320, 17, 34, 30, 11, 310
HAS_SUBSCRIPTION, CLASS_FILTER = 4, 8  # of a pull's sysFlag


# Access key and secret, if requests are to be signed. Then numbers are not stamped: they would have
# to be signed anew, and the load would be slower than what it measures.
KEY: tuple[str, str] | None = None


class Failed(Exception):
    """The broker's answer is not what it must be."""


def request(code: int, fields: dict[str, object], body: bytes = b"", opaque: str = "1") -> bytes:
    """A whole frame, with the header as the Java client writes it."""
    texts = {name: str(value) for name, value in fields.items()}
    if KEY is not None and "Signature" not in texts:
        texts["AccessKey"] = KEY[0]
        texts["Signature"] = signature("".join(texts[name] for name in sorted(texts)), body)
    dumped = json.dumps(texts, separators=(",", ":"))
    header = (
        f'{{"code":{code},"extFields":{dumped},"flag":0,"language":"JAVA","opaque":{opaque},'
        f'"serializeTypeCurrentRPC":"JSON","version":401}}'
    ).encode()
    return struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body


def signature(text: str, body: bytes = b"") -> str:
    assert KEY is not None
    digest = hmac.digest(KEY[1].encode(), text.encode() + body, "sha1")
    return base64.b64encode(digest).decode()


def _send_fields(topic: str, queue: int, properties: str, is_batch: bool) -> dict[str, object]:
    return {
        "a": "bench-producer",
        "b": topic,
        "c": "TBW102",
        "d": QUEUES,
        "e": queue,
        "f": 0,
        "g": int(time.time() * 1000),
        "h": 0,
        "i": properties,
        "j": 0,
        "k": "false",
        "m": str(is_batch).lower(),
    }


def _properties(tag: str, **others: object) -> str:
    number = NUMBER.decode()
    named = {
        "KEYS": f"order-{number}",
        **others,
        "UNIQ_KEY": f"7F0000011A2B18B4AAC2{'0' * 4}{number}",
        "WAIT": "true",
        "TAGS": tag,
    }
    return "\x02".join(f"{name}\x01{value}" for name, value in named.items())


def _numbered(properties: str, number: int) -> str:
    """With its number, if it is not stamped later."""
    return properties if KEY is None else properties.replace(NUMBER.decode(), f"{number:08}")


class Frames:
    """Requests of one layout, one after another in memory, each with `messages` messages; every
    message has its number in two places."""

    def __init__(self, frames: Sequence[bytes], messages: int) -> None:
        self.size, self.count, self.messages = len(frames[0]), len(frames), messages
        self.opaque_at = frames[0].index(OPAQUE)
        self.places = np.array(_find_all(frames[0], NUMBER), np.int64)
        assert len(self.places) == (2 * messages if KEY is None else 0)
        assert all(len(frame) == self.size for frame in frames)
        self.data = np.frombuffer(bytearray(b"".join(frames)), np.uint8)
        self.view = memoryview(self.data)


def sends(topic: str, body_size: int) -> Frames:
    """One message a request, to each queue in turn."""
    body = (b"0123456789abcdef" * 64)[:body_size]
    fields = (
        _send_fields(topic, n % QUEUES, _numbered(_properties("TagA"), n), False)
        for n in range(1024)
    )
    return Frames([request(SEND, each, body, OPAQUE.decode()) for each in fields], 1)


def batches(topic: str, body_size: int) -> Frames:
    """A cycle of messages a request; the one at queue offset n has the score n * STRIDE % CYCLE.
    Bodies of those with a score below 10 have a word in their middle that the others have not."""
    parts = []
    for n in range(CYCLE):
        score = n * STRIDE % CYCLE
        body = (NEEDLE if score < 10 else b"x").center(body_size, b"x")
        tag = "rare" if score == 0 else "few" if 10 <= score < 20 else "common"
        block = _properties(tag, region="eu", score=score, price="12.50", vip="true")
        block = _numbered(block, n).encode()
        size = 4 * 5 + len(body) + 2 + len(block)
        parts.append(struct.pack(">iiiii", size, 0, 0, 0, len(body)) + body)
        parts.append(struct.pack(">h", len(block)) + block)
    fields = (_send_fields(topic, queue, "WAIT\x01true", True) for queue in range(QUEUES))
    joined = b"".join(parts)
    return Frames([request(BATCH, each, joined, OPAQUE.decode()) for each in fields], CYCLE)


@dataclass(frozen=True, kw_only=True)
class Pull:
    """What a consumer asks for, and the scores that its answers must have."""

    topic: str
    group: str
    scores: range = range(CYCLE)
    subscription: str | None = "*"  # None relies on the one registered by heartbeat
    expression_type: str = "TAG"
    version: int = 0
    is_by_class: bool = False  # asked of a filter server

    def template(self) -> bytes:
        """The header, with places for queue, offset and opaque."""
        flag = 0 if self.subscription is None else HAS_SUBSCRIPTION
        fields = {
            "queueId": "%d",
            "maxMsgNums": 32,
            "sysFlag": CLASS_FILTER if self.is_by_class else flag,
            "suspendTimeoutMillis": 15_000,
            "commitOffset": 0,
            "topic": self.topic,
            "queueOffset": "%d",
            "expressionType": self.expression_type,
            "subVersion": self.version,
            "consumerGroup": self.group,
        }
        if self.subscription is not None:
            fields["subscription"] = self.subscription
        if KEY is not None:
            fields |= {"AccessKey": KEY[0], "Signature": "%s"}
        return request(PULL, fields, opaque="%d")[8:]

    def signed(self) -> str:
        """What is signed of it, with places for queue and offset; empty if nothing is."""
        if KEY is None:
            return ""
        header = self.template().replace(b'"opaque":%d', b'"opaque":0')
        fields = json.loads(header)["extFields"]
        return "".join(fields[name] for name in sorted(fields) if name != "Signature")


class Connection:
    """To a broker, blocking; with TLS, whatever its certificate, if `tls` is set."""

    tls = False

    def __init__(self, address: str) -> None:
        host, _, port = address.partition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # The kernel's, because Python's own timeout costs a system call each time.
        patience = struct.pack("ll", PATIENCE, 0)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, patience)
        if self.tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            self._socket = context.wrap_socket(self._socket)
        self._data = np.zeros(2**23, np.uint8)
        self._view = memoryview(self._data)
        self._end = 0
        self._opaque = FIRST_OPAQUE
        self._waiting = np.zeros(2**16, np.int64)  # opaque, by its last bits

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, code: int, fields: dict[str, object], body: bytes = b"") -> dict[str, Any]:
        """The header of the answer, when nothing else is under way."""
        self._opaque += 1
        self._socket.sendall(request(code, fields, body, str(self._opaque)))
        while True:
            header = self._next_header()
            if header["flag"] & 1:  # else a notice of the broker's
                break
        if header["code"] != 0 or header["opaque"] != self._opaque:
            raise Failed(f"request {code}: {header}")
        return header

    def create_topic(self, topic: str) -> None:
        fields = {"readQueueNums": QUEUES, "writeQueueNums": QUEUES, "perm": 6, "topic": topic}
        more = {"topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false"}
        self.ask(CREATE_TOPIC, {**fields, **more, "defaultTopic": "TBW102"})

    def register(self, pulls: Sequence[Pull], expressions: Sequence[str]) -> None:
        """The groups of these pulls, each with its SQL92 expression."""
        consumers = [
            {
                "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                "consumeType": "CONSUME_PASSIVELY",
                "groupName": pull.group,
                "messageModel": "CLUSTERING",
                "subscriptionDataSet": [
                    {
                        "classFilterMode": False,
                        "codeSet": [],
                        "expressionType": pull.expression_type,
                        "subString": expression,
                        "subVersion": pull.version,
                        "tagsSet": [],
                        "topic": pull.topic,
                    }
                ],
                "unitMode": False,
            }
            for pull, expression in zip(pulls, expressions, strict=True)
        ]
        client = {"clientID": "127.0.0.1@bench", "consumerDataSet": consumers}
        self.ask(HEARTBEAT, {}, json.dumps({**client, "producerDataSet": []}).encode())

    def wait_for_offsets(self, topic: str, each: int) -> None:
        """Until every queue has as many messages, which a broker may list after it answered."""
        deadline = time.monotonic() + PATIENCE
        while True:
            asked = ({"topic": topic, "queueId": queue} for queue in range(QUEUES))
            seen = [int(self.ask(MAX_OFFSET, f)["extFields"]["offset"]) for f in asked]
            if seen == [each] * QUEUES:
                return
            if time.monotonic() > deadline:
                raise Failed(f"{topic}: {seen} messages in its queues, not {each} in each")
            time.sleep(0.02)

    def send_all(self, frames: Frames, count: int, in_flight: int) -> None:
        """So many requests, to the last answer."""
        sent = answered = 0
        while answered < count:
            more = min(in_flight - (sent - answered), count - sent)
            self._send(frames, more)
            sent += more
            answered += self._receive()

    def send_rates(
        self, frames: Frames, in_flight: int, warm: float, seconds: float, repeats: int
    ) -> list[float]:
        """Messages a second in windows that follow each other, after a time to warm up."""
        self._send(frames, in_flight)
        rates: list[float] = []
        answered, start, length = 0, time.perf_counter(), warm
        while True:
            free = self._receive()
            answered += free
            spent = time.perf_counter() - start
            if spent >= length:
                rates.append(answered * frames.messages / spent)
                if len(rates) > repeats:
                    break
                answered, start, length = 0, start + spent, seconds
            self._send(frames, free)
        left = in_flight - free
        while left:
            left -= self._receive()
        return rates[1:]

    def consume(self, pull: Pull, each: int) -> int:
        """Every queue from its first message to its last, of `each`, one pull in flight in each
        queue; the number of messages got."""
        template, text = pull.template(), pull.signed()
        low, high = pull.scores.start, pull.scores.stop
        waiting, offsets = np.zeros(QUEUES, np.int64), np.zeros(QUEUES, np.int64)
        got = 0
        while True:
            pulls = []
            for queue in range(QUEUES):
                if not waiting[queue] and offsets[queue] < each:
                    self._opaque += QUEUES
                    opaque = self._opaque - self._opaque % QUEUES + queue
                    waiting[queue] = opaque
                    places: tuple[object, ...] = (queue, offsets[queue], opaque)
                    if text:
                        mark = signature(text % places[:2]).encode()
                        places = (queue, offsets[queue], mark, opaque)
                    header = template % places
                    pulls += struct.pack(">ii", 4 + len(header), len(header)), header
            if pulls:
                self._socket.sendall(b"".join(pulls))
            elif not waiting.any():
                return got
            self._fill()
            walked = _walk_pulls(self._data, self._end, waiting, offsets, each, low, high)
            self._take(walked[0], walked[2])
            got += walked[1]

    def _send(self, frames: Frames, count: int) -> None:
        if not count:
            return
        opaque = self._opaque + 1
        self._opaque += count
        _stamp(
            frames.data,
            frames.size,
            frames.count,
            frames.opaque_at,
            frames.places,
            opaque,
            count,
            self._waiting,
        )
        while count:
            first = opaque % frames.count
            together = min(count, frames.count - first)
            self._socket.sendall(
                frames.view[first * frames.size : (first + together) * frames.size]
            )
            opaque += together
            count -= together

    def _receive(self) -> int:
        """The number of requests answered by what came."""
        self._fill()
        end, answered, bad = _walk_answers(self._data, self._end, self._waiting)
        self._take(end, bad)
        return answered

    def _fill(self) -> None:
        try:
            size = self._socket.recv_into(self._view[self._end :])
        except BlockingIOError:
            raise Failed(f"no answer within {PATIENCE} s") from None
        if not size:
            raise Failed("the broker closed the connection")
        self._end += size

    def _take(self, end: int, bad: int) -> None:
        """Drops what was walked, and tells of the frame at its end that is `bad` bytes long."""
        if bad:
            raise Failed(f"not an answer expected: {bytes(self._view[end : end + min(bad, 600)])}")
        rest = self._end - end
        if rest and end:
            self._data[:rest] = self._data[end : self._end]
        self._end = rest

    def _next_header(self) -> dict[str, Any]:
        while True:
            if self._end >= 8:
                size, header = struct.unpack_from(">ii", self._view)
                if self._end >= 4 + size:
                    text = bytes(self._view[8 : 8 + header])
                    self._take(4 + size, 0)
                    return dict(json.loads(text))
            self._fill()


def _find_all(data: bytes, wanted: bytes) -> list[int]:
    found, at = [], data.find(wanted)
    while at >= 0:
        found.append(at)
        at = data.find(wanted, at + len(wanted))
    return found


def _key(name: str) -> np.ndarray:
    return np.frombuffer(f'"{name}":'.encode(), np.uint8).copy()


_CODE, _FLAG, _OPAQUE = _key("code"), _key("flag"), _key("opaque")
_NEXT, _MAX = _key("nextBeginOffset"), _key("maxOffset")
_ABSENT = -(2**40)


@njit(cache=True)
def _int4(data, at):  # type: ignore[no-untyped-def]
    value = np.int64(0)
    for n in range(4):
        value = value << 8 | data[at + n]
    return value


@njit(cache=True)
def _int8(data, at):  # type: ignore[no-untyped-def]
    return _int4(data, at) << 32 | _int4(data, at + 4)


@njit(cache=True)
def _write8(data, at, number):  # type: ignore[no-untyped-def]
    for n in range(7, -1, -1):
        data[at + n] = 48 + number % 10
        number //= 10


@njit(cache=True)
def _field(data, at, end, key):  # type: ignore[no-untyped-def]
    """The number after a key of a JSON header, bare or as text."""
    size = len(key)
    while at + size < end:
        if data[at] == key[0] and data[at + 1] == key[1]:
            n = 2
            while n < size and data[at + n] == key[n]:
                n += 1
            if n == size:
                break
        at += 1
    else:
        return _ABSENT
    at += size
    while data[at] == 32 or data[at] == 34:  # blank, quote
        at += 1
    value = np.int64(0)
    sign = 1
    if data[at] == 45:
        sign = -1
        at += 1
    while 48 <= data[at] <= 57:
        value = value * 10 + (data[at] - 48)
        at += 1
    return sign * value


@njit(cache=True)
def _stamp(data, size, ring, opaque_at, places, opaque, count, waiting):  # type: ignore[no-untyped-def]
    messages = len(places) // 2
    for each in range(opaque, opaque + count):
        frame = each % ring * size
        _write8(data, frame + opaque_at, each)
        for n in range(len(places)):
            _write8(data, frame + places[n], (each * messages + n // 2) % 100_000_000)
        waiting[each % len(waiting)] = each


@njit(cache=True)
def _walk_answers(data, end, waiting):  # type: ignore[no-untyped-def]
    """Where the whole frames end, how many answers they are, and the size of a bad one there."""
    at = 0
    answered = 0
    while end - at >= 8:
        size = 4 + _int4(data, at)
        if end - at < size:
            break
        first, last = at + 8, at + 8 + _int4(data, at + 4)  # a JSON header: its type is 0
        if last > at + size:
            return at, answered, size
        if _field(data, first, last, _FLAG) & 1:
            opaque = _field(data, first, last, _OPAQUE)
            slot = opaque % len(waiting)
            if _field(data, first, last, _CODE) != 0 or waiting[slot] != opaque:
                return at, answered, size
            waiting[slot] = 0
            answered += 1
        at += size
    return at, answered, 0


@njit(cache=True)
def _walk_pulls(data, end, waiting, offsets, each, low, high):  # type: ignore[no-untyped-def]
    """As `_walk_answers`; every record is of its queue, after the one before it, and of a score
    asked for."""
    at = 0
    got = 0
    while end - at >= 8:
        size = 4 + _int4(data, at)
        if end - at < size:
            break
        first, last = at + 8, at + 8 + _int4(data, at + 4)
        if last > at + size:
            return at, got, size
        if _field(data, first, last, _FLAG) & 1:
            code = _field(data, first, last, _CODE)
            opaque = _field(data, first, last, _OPAQUE)
            following = _field(data, first, last, _NEXT)
            queue = opaque % len(waiting)
            is_good = (code == 0 or code == 20) and waiting[queue] == opaque  # 20: none matched
            is_good &= (code == 0) == (last < at + size)
            is_good &= _field(data, first, last, _MAX) == each
            is_good &= offsets[queue] < following <= each
            offset = offsets[queue]
            record = last
            while is_good and record < at + size:
                here = _int8(data, record + 20)
                score = here * STRIDE % CYCLE
                is_good = offset <= here < following and low <= score < high
                is_good &= _int4(data, record + 12) == queue
                is_good &= _int4(data, record + 4) == 0xDAA320A7
                offset = here + 1
                record += _int4(data, record)
                got += 1
            if not is_good or record != at + size:
                return at, got, size
            offsets[queue] = following
            waiting[queue] = 0
        at += size
    return at, got, 0


def ceiling(in_flight: int, body_size: int, seconds: float) -> float:
    """Requests a second against a process that answers at once."""
    frames = sends("Bench", body_size)
    layout = (str(frames.size), str(frames.opaque_at))
    with subprocess.Popen([sys.executable, __file__, *layout], stdout=subprocess.PIPE) as sink:
        assert sink.stdout is not None
        port = int(sink.stdout.readline())
        with Connection(f"127.0.0.1:{port}") as connection:
            return max(connection.send_rates(frames, in_flight, 1.0, seconds, 2))


def sink(size: int, opaque_at: int) -> None:
    """Answers each of one connection's frames, all of one size, as a broker answers a send."""
    fields = {"queueId": "2", "TRACE_ON": "true", "MSG_REGION": "DefaultRegion"}
    ids = {"msgId": "7F000001000051AF0000000000000000", "queueOffset": "0"}
    one = request(0, {**fields, **ids}, opaque=OPAQUE.decode()).replace(b'flag":0', b'flag":1')
    many = 2**14
    answers = np.frombuffer(bytearray(one * many), np.uint8)
    data = np.zeros(size * many, np.uint8)
    received, answered = memoryview(data), memoryview(answers)
    end, place = 0, one.index(OPAQUE)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        connection, _ = listener.accept()
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while more := connection.recv_into(received[end:]):
            end += more
            count = end // size
            _copy8(data, size, opaque_at, answers, len(one), place, count)
            connection.sendall(answered[: count * len(one)])
            data[: end - count * size] = data[count * size : end]
            end -= count * size


@njit(cache=True)
def _copy8(source, source_size, source_at, target, target_size, target_at, count):  # type: ignore[no-untyped-def]
    for each in range(count):
        for n in range(8):
            byte = source[each * source_size + source_at + n]
            target[each * target_size + target_at + n] = byte


def main() -> None:
    if len(sys.argv) == 3:
        sink(int(sys.argv[1]), int(sys.argv[2]))
        return
    for in_flight in (1, 16, 128):
        for size in (100, 1024):
            rate = ceiling(in_flight, size, 2.0)
            print(f"{size} B, {in_flight} in flight {rate:>12,.0f} requests/s", flush=True)


if __name__ == "__main__":
    main()
