"""Plain SENDs by the piece: the same records and answers as one by one, and never a crash."""

import asyncio
import base64
import json
import random
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.acl import Access
from tamis.broker._sends import Sends
from tamis.broker.config import BrokerConfig, Settings
from tamis.broker.groups import Groups
from tamis.broker.handlers.send import Sender, born_host
from tamis.broker.intake import Intake
from tamis.broker.members import Producers
from tamis.broker.offsets import Offsets
from tamis.broker.stats import Stats
from tamis.broker.topics import Topics
from tamis.broker.transactions import Transactions
from tamis.message import LOOPBACK, Host
from tamis.net.server import Route, Server, _ServerPeer
from tamis.store.config import StoreConfig
from tamis.store.files import Data, DiskFull
from tamis.store.store import Store
from tamis.testing import LossyFiles
from tamis.wire import command, headers
from tamis.wire.bodies import TopicConfig, TopicFilterType
from tamis.wire.codes import RequestCode, ResponseCode
from tamis.wire.command import Command
from tamis.wire.frame import FrameReader

GOLDEN = Path(__file__).parents[1] / "golden" / "frames" / "json.jsonl"
SIZES: dict[str, Any] = {
    "log_file_size": 2**22,
    "queue_file_size": 20_000,
    "index_slots": 64,
    "index_entries": 256,
}
NOW = 1_800_000_000.5
TOPICS = ("Orders", "Bills")


class Transport(asyncio.Transport):
    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__()
        self.address = address
        self.written = b""
        self.is_closed = False

    def get_extra_info(self, name: str, default: object = None) -> object:
        return self.address if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    abort = close


class Files(LossyFiles):
    def __init__(self) -> None:
        super().__init__(random.Random(0))
        self.is_full = False

    def write(self, path: Path, descriptor: int, offset: int, data: Data) -> None:
        if self.is_full and path.parent.name == "commitlog":
            raise DiskFull("the disk is full")
        super().write(path, descriptor, offset, data)


class Broker:
    """What a SEND needs of one. `taken` counts bytes taken by the piece."""

    def __init__(
        self,
        root: Path,
        *,
        together: bool,
        sync: bool = False,
        host: Host = LOOPBACK,
        peer: tuple[str, int] = ("10.1.2.3", 5555),
        config: BrokerConfig | None = None,
        access: Access | None = None,
        **sizes: int,
    ) -> None:
        self.files = Files()
        self.store = Store(
            root,
            StoreConfig(flush="async", store_host=host, **{**SIZES, **sizes}),
            files=self.files,
            now=lambda: NOW,
        )
        self.settings = Settings(config or BrokerConfig())
        folder = self.store.paths.config
        self.topics = Topics(folder, self.settings.config, lambda: NOW, {})
        for name in TOPICS:
            self.topics.put(TopicConfig(name=name, read_queues=4, write_queues=4))
        self.intake = Intake(self.store, sync=sync, on_stored=lambda: None)
        self.stats = Stats(now=lambda: NOW)
        producers, groups = Producers(), Groups(folder, lambda: NOW)
        transactions = Transactions(
            *(
                self.store,
                self.intake,
                Offsets(folder, self.store),
                self.topics,
                producers,
                self.settings,
            ),
            lambda: NOW,
        )
        sender = Sender(
            *(self.settings, self.store, self.intake, self.topics, groups, producers),
            *(transactions, self.stats, host),
            lambda: NOW,
        )
        self.server = Server(
            {
                RequestCode.SEND_MESSAGE: Route(headers.SendMessage, sender.send),
                RequestCode.SEND_MESSAGE_V2: Route(headers.SendMessage, sender.send, letters=True),
                RequestCode.SEND_BATCH_MESSAGE: Route(
                    headers.SendMessage, sender.send, letters=True
                ),
            },
            gate=access.check if access is not None else None,
        )
        self.taken = 0
        if together:
            sends = Sends(
                *(self.settings, self.intake, self.topics, self.stats, sender.id_prefix),
                *(born_host, sender.refuse, access),
            )

            def take(peer: Any, data: bytes) -> int:
                taken = sends.take(peer, data)
                self.taken += taken
                return taken

            self.server._take = take
        self.address = peer
        self.connect()

    def connect(self) -> None:
        self.peer = _ServerPeer(self.server)
        self.transport = Transport(self.address)
        self.peer.connection_made(self.transport)

    async def receive(self, *pieces: bytes) -> None:
        random.seed(7)  # for messages without a queue
        for piece in pieces:
            if not self.transport.is_closed:
                self.peer.data_received(piece)
                await asyncio.sleep(0)
                await asyncio.sleep(0)
        while self.intake.backlog:
            await asyncio.sleep(0.001)

    def answers(self) -> list[bytes]:
        """Frames written since, in the order of their opaques."""
        written, self.transport.written = self.transport.written, b""
        found = [frame.header for frame in FrameReader().feed(written)]
        return sorted(found, key=lambda header: (json.loads(header)["opaque"], header))

    def log(self, begin: int = 0) -> bytes:
        log = self.store.log
        return log.files.view(begin, log.end).tobytes()

    def counts(self) -> dict[str, tuple[int, int]]:
        return {topic: (each.messages, each.bytes) for topic, each in self.stats.puts.items()}


@contextmanager
def brokers(tmp_path: Path, **options: Any) -> Iterator[tuple[Broker, Broker, Any]]:
    """One that takes pieces, one that does not, and what runs something in their loop."""
    loop = asyncio.new_event_loop()

    async def make(name: str, together: bool) -> Broker:
        return Broker(tmp_path / name, together=together, **options)

    fast = loop.run_until_complete(make("fast", True))
    slow = loop.run_until_complete(make("slow", False))
    try:
        yield fast, slow, loop.run_until_complete
    finally:
        for broker in (fast, slow):
            loop.run_until_complete(broker.intake.close())
            broker.store.close()
        loop.close()


def frame(header: bytes | str, body: bytes = b"") -> bytes:
    data = header.encode() if isinstance(header, str) else header
    return struct.pack(">ii", 4 + len(data) + len(body), len(data)) + data + body


def send(opaque: int, body: bytes = b"body", *, flag: int = 0, **changed: str | None) -> bytes:
    fields: dict[str, str | None] = {
        "a": "pg",
        "b": "Orders",
        "c": "TBW102",
        "d": "4",
        "e": str(opaque % 4),
        "f": "0",
        "g": "1794726821374",
        "h": "0",
        "i": "TAGS\x01x\x02WAIT\x01true",
        "j": "0",
        "k": "false",
        "m": "false",
        **changed,
    }
    given = {name: value for name, value in fields.items() if value is not None}
    return command.encode(Command(code=310, opaque=opaque, flag=flag, fields=given, body=body))


def same(fast: Broker, slow: Broker) -> None:
    assert fast.log() == slow.log()
    assert fast.answers() == slow.answers()
    assert fast.counts() == slow.counts()


def test_recorded_sends_give_the_same_records_and_answers(tmp_path: Path) -> None:
    lines = [json.loads(line) for line in GOLDEN.read_text().splitlines()]
    sends = [
        base64.b64decode(line["frame"])
        for line in lines
        if line["kind"] == "request" and line["code"] in (10, 310, 320)
    ]
    with brokers(tmp_path) as (fast, slow, run):
        run(fast.receive(sends[0], b"".join(sends[1:])))
        run(slow.receive(*sends))
        same(fast, slow)
        assert fast.taken > 1000


@pytest.mark.parametrize("cut", [1, 7, 8, 100, 300])
def test_a_frame_in_two_pieces_is_taken_with_those_after_it(tmp_path: Path, cut: int) -> None:
    data = b"".join(map(send, range(20)))
    with brokers(tmp_path) as (fast, slow, run):
        run(fast.receive(send(99), data[:cut], data[cut:1000], data[1000:]))
        run(slow.receive(send(99), data))
        same(fast, slow)
        assert fast.taken == len(data)


@pytest.mark.parametrize(
    "changed",
    [
        {"i": "DELAY\x011"},
        {"i": "TRAN_MSG\x01true"},
        {"i": "CLUSTER\x01mine\x02TAGS\x01x"},
        {"i": "a\x011\x02a\x012"},
        {"m": "true"},
        {"b": "%RETRY%g"},
        {"b": "New"},
        {"b": "SCHEDULE_TOPIC_XXXX"},
        {"e": "9"},
        {"e": "-1"},
        {"f": "4"},
        {"f": str(2**31)},
        {"g": "x"},
        {"h": None},
        {"i": "n\x01" + "v" * 40_000},
    ],
    ids=str,
)
def test_what_is_not_plain_is_left_with_all_after_it_and_answered_the_same(
    tmp_path: Path, changed: dict[str, str | None]
) -> None:
    frames = [send(1), send(2), send(3, **changed), send(4)]
    with brokers(tmp_path) as (fast, slow, run):
        run(fast.receive(send(0), b"".join(frames)))
        run(slow.receive(send(0), *frames))
        same(fast, slow)
        assert fast.taken in (0, len(frames[0] + frames[1]))


@pytest.mark.parametrize(
    "properties",
    [
        "",
        "WAIT\x01true",
        "WAIT\x01true\x02",
        "\x02\x02a\x01\x02\x01b\x02c\x02TAGS\x01x\x02WAIT\x01false\x02WAIT\x01",
        "price\x0112\x01\x01\x02KEYS\x01a b",
        'quote\x01"\\/\b\f\n\r\t\x00\x7f',
        "Ünïcode\x01日本語 𝄞 \U0010ffff\x02TAGS\x01é",
        "DELAX\x01x\x02TRAN_MSX\x01y\x02CLUSTEX\x01z",
        None,
    ],
)
@pytest.mark.parametrize("escaped", [False, True])
def test_properties_are_stored_the_same(
    tmp_path: Path, properties: str | None, escaped: bool
) -> None:
    """Also as clients write them that escape all that is not ASCII."""
    frames = [send(n, i=properties) for n in range(3)]
    if escaped:
        for n, raw in enumerate(frames):
            (found,) = FrameReader().feed(raw)
            frames[n] = frame(json.dumps(json.loads(found.header)), found.body)
    with brokers(tmp_path) as (fast, slow, run):
        run(fast.receive(send(99), b"".join(frames)))
        run(slow.receive(send(99), *frames))
        same(fast, slow)
        assert fast.taken == len(b"".join(frames)) or (properties and "DELAX" in properties)


def test_addresses_of_sixteen_bytes_are_stored_the_same(tmp_path: Path) -> None:
    host = Host(bytes(15) + b"\1", 10911)
    frames = [send(n, f=str(0x30 | n)) for n in range(3)]
    with brokers(tmp_path, host=host, peer=("fe80::1%eth0", 77)) as (fast, slow, run):
        run(fast.receive(send(99), b"".join(frames)))
        run(slow.receive(send(99), *frames))
        same(fast, slow)
        assert fast.taken


def test_topics_queues_bodies_and_one_way_requests_may_be_mixed(tmp_path: Path) -> None:
    frames = [
        send(n, bytes([n]) * (n % 40), b=TOPICS[n % 3 % 2], e=str(n % 4), flag=2 * (n % 5 == 0))
        for n in range(200)
    ]
    with brokers(tmp_path) as (fast, slow, run):
        run(fast.receive(send(999), b"".join(frames)))
        run(slow.receive(send(999), *frames))
        same(fast, slow)
        assert fast.taken == len(b"".join(frames))
        assert fast.store.dispatch() == slow.store.dispatch()


def test_more_queues_and_messages_than_one_go_holds_take_several(tmp_path: Path) -> None:
    frames = b"".join(send(n, b="Many", e=str(n % 700)) for n in range(2500))
    with brokers(tmp_path) as (fast, slow, run):
        for broker in (fast, slow):
            broker.topics.put(TopicConfig(name="Many", read_queues=700, write_queues=700))
        run(fast.receive(send(9999), frames))
        run(slow.receive(send(9999), frames))
        same(fast, slow)
        assert fast.taken == len(frames)


def test_a_piece_that_does_not_fit_into_the_log_file_begins_the_next(tmp_path: Path) -> None:
    pieces = [b"".join(send(10 * n + k) for k in range(10)) for n in range(20)]
    with brokers(tmp_path, log_file_size=10_000) as (fast, slow, run):
        run(fast.receive(*pieces))
        run(slow.receive(*pieces))
        assert fast.answers() == slow.answers()
        assert fast.store.log.files.starts == slow.store.log.files.starts
        starts = fast.store.log.files.starts
        assert len(starts) > 2
        for start in starts:
            found = [each.store.log.files.view(start).tobytes() for each in (fast, slow)]
            assert found[0] == found[1]
        assert 0 < fast.taken < sum(map(len, pieces))


def test_a_topic_of_several_tags_a_message_goes_the_usual_way(tmp_path: Path) -> None:
    frames = [send(n) for n in range(3)]
    with brokers(tmp_path) as (fast, slow, run):
        for broker in (fast, slow):
            topic = TopicConfig(name="Orders", filter_type=TopicFilterType.MULTI_TAG)
            broker.topics.put(topic)
        run(fast.receive(send(99), b"".join(frames)))
        run(slow.receive(send(99), *frames))
        same(fast, slow)
        assert not fast.taken


def test_a_changed_configuration_is_seen(tmp_path: Path) -> None:
    with brokers(tmp_path) as (fast, slow, run):
        for change in ({"region": "Ünder"}, {"trace": "false"}, {"max_message_size": "3"}):
            for broker in (fast, slow):
                broker.settings.change(change)
                run(broker.receive(send(0, b"abc") + send(1, b"abc") + send(2)))
            same(fast, slow)


def test_a_region_is_written_as_json_whatever_is_in_it(tmp_path: Path) -> None:
    with brokers(tmp_path) as (fast, slow, run):
        for broker in (fast, slow):
            run(broker.receive(send(3)))  # makes the topic
            broker.answers()
            config = replace(broker.settings.config)
            object.__setattr__(config, "region", 'a","code":1,"b\\":"%d')  # no check is asked
            broker.settings.config = config
            run(broker.receive(send(0, b"abc") + send(1, b"abc") + send(2)))
        assert fast.taken
        answers = fast.answers()
        assert answers == slow.answers()
        for answer in answers:
            found = json.loads(answer)
            assert found["code"] == 0
            assert found["extFields"]["MSG_REGION"] == 'a","code":1,"b\\":"%d'


def test_a_message_put_before_a_piece_is_stored_before_it(tmp_path: Path) -> None:
    with brokers(tmp_path) as (fast, slow, run):

        async def go(broker: Broker) -> None:
            broker.peer.data_received(send(0))
            await asyncio.sleep(0)
            broker.peer.data_received(send(1, b="New") + send(2))  # waits for the turn's end
            broker.peer.data_received(send(3) + send(4))
            await broker.receive()

        run(go(fast))
        run(go(slow))
        same(fast, slow)
        assert fast.taken


def test_a_full_disk_is_answered_the_same_and_nothing_is_stored(tmp_path: Path) -> None:
    piece = b"".join(map(send, range(5)))
    with brokers(tmp_path) as (fast, slow, run):
        for broker in (fast, slow):
            run(broker.receive(send(99), piece))
            broker.files.is_full = True
            run(broker.receive(piece))
            broker.files.is_full = False
            run(broker.receive(piece))
        same(fast, slow)


def test_too_many_that_wait_for_the_disk_are_refused_as_one_by_one(tmp_path: Path) -> None:
    config = BrokerConfig(send_backlog=3)
    with brokers(tmp_path, sync=True, config=config) as (fast, slow, run):
        for broker in (fast, slow):
            run(broker.receive(send(99), b"".join(map(send, range(5)))))
        same(fast, slow)


def test_with_sync_flush_an_answer_waits_for_the_disk(tmp_path: Path) -> None:
    with brokers(tmp_path, sync=True) as (fast, slow, run):

        async def go(broker: Broker) -> None:
            await broker.receive(send(99))
            broker.answers()
            broker.peer.data_received(b"".join(map(send, range(5))))
            assert broker.answers() == []
            await broker.receive()

        run(go(fast))
        run(go(slow))
        same(fast, slow)
        assert fast.taken


def test_a_disk_that_fails_to_sync_refuses_all_that_waited_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with brokers(tmp_path, sync=True) as (fast, slow, run):

        async def go(broker: Broker) -> None:
            await broker.receive(send(99))
            broker.answers()

            def fails() -> None:
                raise OSError(5, "Input/output error")

            with monkeypatch.context() as patch:
                patch.setattr(broker.store.log, "flush", fails)
                await broker.receive(send(1) + send(2, flag=2) + send(3))

        run(go(fast))
        run(go(slow))
        got = [json.loads(answer) for answer in fast.answers()]
        assert [one["opaque"] for one in got] == [1, 3]
        assert {one["code"] for one in got} == {ResponseCode.SERVICE_NOT_AVAILABLE}
        assert [json.loads(a)["code"] for a in slow.answers()] == [one["code"] for one in got]
        assert fast.taken
        for broker in (fast, slow):
            broker.store._flusher.failure = None


# Whatever comes: the same as one by one, or left alone.

NAMES = ["TAGS", "KEYS", "WAIT", "UNIQ_KEY", "CLUSTER", "DELAY", "TRAN_MSG", "a", "é", ""]
VALUES = st.one_of(
    st.sampled_from(["", "x", "true", "k1 k2", "1", "日本", "\\", '"', "a\x01b"]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
)
PROPERTIES = st.lists(
    st.one_of(st.tuples(st.sampled_from(NAMES), VALUES).map("\x01".join), VALUES), max_size=6
).map("\x02".join)
INTS = st.one_of(
    st.sampled_from([0, 1, 3, 4, 8, -1, 2**31 - 1, 2**31, -(2**31), 10**17, 2**63]),
    st.integers(-10, 10),
)
NUMBERS = st.one_of(
    INTS, INTS.map(str), st.sampled_from(["", "+1", " 1", "1_0", "007", "-0", "x", None, 1.5, True])
)
TEXT = st.one_of(st.sampled_from(["pg", "", "Größe", 'a"b', 5, None]), st.text(max_size=4))
FIELDS = st.fixed_dictionaries(
    {
        "a": st.one_of(st.just("pg"), TEXT),
        "b": st.sampled_from([*TOPICS, *TOPICS, "Orders", "No", "%RETRY%g", 5, "TBW102"]),
        "c": st.one_of(st.just("TBW102"), TEXT),
        "d": st.one_of(st.just("4"), NUMBERS),
        "e": st.one_of(st.sampled_from(["0", "1", "3", 2]), NUMBERS),
        "f": st.one_of(st.just("0"), NUMBERS),
        "g": st.one_of(st.just("1794726821374"), NUMBERS),
        "h": st.one_of(st.just("0"), NUMBERS),
    },
    optional={
        "i": st.one_of(PROPERTIES, PROPERTIES, st.none(), st.just(4)),
        "j": st.one_of(st.just("0"), NUMBERS),
        "k": st.sampled_from(["false", "true", False, None, 1]),
        "l": st.one_of(st.just("16"), NUMBERS),
        "m": st.sampled_from(["false", "false", "FALSE", False, "", None, "true"]),
        "n": TEXT,
        "bname": TEXT,
        "nested": st.just({"a": [1]}),
    },
)


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    fields = draw(FIELDS)
    if draw(st.booleans()):
        fields = dict(draw(st.permutations(list(fields.items()))))
    header: dict[str, Any] = {
        "code": draw(st.sampled_from([310, 310, 310, 310, 10, "310"])),
        "extFields": fields,
        "flag": draw(st.sampled_from([0, 0, 0, 2, 4, 1, "0"])),
        "language": draw(st.sampled_from(["JAVA", "GO", 3, None, "x"])),
        "opaque": draw(st.one_of(st.integers(-(2**31), 2**31 - 1), st.just(2**31))),
        "serializeTypeCurrentRPC": "JSON",
        "version": draw(st.sampled_from([401, 0, -1, 2**31, "x"])),
    }
    if draw(st.booleans()):
        dropped = draw(st.sampled_from(list(header)))
        if dropped != "opaque":  # answers are put in its order
            del header[dropped]
    if draw(st.booleans()):
        header = dict(draw(st.permutations(list(header.items()))))
    separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\t", "\n:\r ")]))
    ascii_only = draw(st.booleans())
    data = json.dumps(header, separators=separators, ensure_ascii=ascii_only).encode()
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 3]))):  # damage
        at = draw(st.integers(0, len(data)))
        more = draw(
            st.sampled_from([b"", b'"', b"\\", b"\\u00e9", b"\\ud83d", b"\xc3", b"}", b"1"])
        )
        data = data[:at] + more + data[at + draw(st.integers(0, 2)) :]
    return frame(data + draw(st.sampled_from([b"", b"", b"\n"])), draw(st.binary(max_size=20)))


def test_any_piece_gives_the_same_records_and_answers(tmp_path: Path) -> None:
    plain = st.integers(0, 100).map(send)
    taken = []
    with brokers(tmp_path, log_file_size=2**28) as (fast, slow, run):

        @settings(max_examples=400)
        @given(st.lists(st.one_of(frames(), frames(), plain), min_size=1, max_size=6))
        def check(pieces: list[bytes]) -> None:
            begin = fast.store.log.end
            assert begin == slow.store.log.end
            fast.taken = 0
            fast.connect()
            slow.connect()
            run(slow.receive(*pieces))
            if slow.transport.is_closed:
                pieces = pieces[: good_before_the_end(pieces)]
                if not pieces:
                    return
            run(fast.receive(b"".join(pieces)))
            assert fast.log(begin) == slow.log(begin)
            assert fast.answers() == slow.answers()
            assert fast.counts() == slow.counts()
            taken.append(fast.taken)

        check()
    assert sum(map(bool, taken)) > 20


def good_before_the_end(pieces: list[bytes]) -> int:
    """How many commands come before one that can't be read."""
    for n, piece in enumerate(pieces):
        try:
            for found in FrameReader().feed(piece):
                command.decode(found)
        except Exception:
            return n
    raise AssertionError("a connection was closed for nothing")


def test_no_bytes_crash_it(tmp_path: Path) -> None:
    plain = b"".join(map(send, range(3)))
    with brokers(tmp_path) as (fast, _, run):

        @settings(max_examples=300)
        @given(st.data())
        def check(data: st.DataObject) -> None:
            changed = bytearray(plain)
            for _ in range(data.draw(st.integers(1, 4))):
                changed[data.draw(st.integers(0, len(plain) - 1))] = data.draw(st.integers(0, 255))
            cut = data.draw(st.integers(0, len(plain)))
            fast.connect()
            run(fast.receive(bytes(changed[:cut]), bytes(changed[cut:])))

        check()
