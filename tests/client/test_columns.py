"""Pull answers to record batches: the same as reading each record by itself, and as strict."""

import zlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis.client.columns import EXTRA, KINDS, SCHEMA, Chunk, Placed, decode, read_as, schema_of
from tamis.client.compression import compress, decompress
from tamis.errors import CorruptRecord, FilterValueError, UnreadableMessage
from tamis.filter import parse
from tamis.filter.coercion import to_boolean, to_double, to_int, to_long
from tamis.filter.engines.closures import compile_closure, evaluate
from tamis.filter.engines.columnar import compile_batch
from tamis.filter.logic import Outcome
from tamis.filter.tags import tags_code
from tamis.java import decode_utf8
from tamis.message import Host, StoredMessage, SysFlag
from tamis.wire import record
from tamis.wire.record import Draft

V4 = Host(bytes([10, 0, 0, 2]), 10911)
OTHER_V4 = Host(bytes([192, 168, 0, 77]), 40000)
V6 = Host(bytes.fromhex("20010db8000000000000000000000002"), 10911)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BLOCK = b"TAGS\x01red\x02KEYS\x01k1 k2\x02UNIQ_KEY\x010A0B\x02region\x01eu\x02"


def encoded(
    draft: Draft, offset: int = 0, host: Host = V4, stored: int = 1_700_000_000_123
) -> bytes:
    return draft.encode(offset, 4096 + 1000 * offset, stored, record.pack_host(host))


def chunk(*drafts: Draft, topic: str = "T", broker: str = "a") -> Chunk:
    return Chunk(broker, topic, b"".join(encoded(d, i) for i, d in enumerate(drafts)))


def records(chunk: Chunk) -> list[StoredMessage]:
    found, at = [], 0
    while at < len(chunk.body):
        found.append(record.decode(chunk.body, at))
        at += found[-1].size
    return found


def one_by_one(
    chunks: Sequence[Chunk], named: Sequence[str] = (), tags: frozenset[str] = frozenset()
) -> list[dict[str, Any]]:
    """The slow way, a dict a message."""
    rows = []
    for chunk in chunks:
        for message in records(chunk):
            properties = message.properties
            if message.queue_offset >= chunk.before or (tags and message.tag not in tags):
                continue
            topic, body = message.topic, message.body
            if topic.startswith("%RETRY%"):
                topic = properties.get("RETRY_TOPIC", topic)
            if message.sys_flag & SysFlag.COMPRESSED:
                body = decompress(body, message.sys_flag)
            row = {
                "topic": topic,
                "broker": chunk.broker_name,
                "queue_id": message.queue_id,
                "offset": message.queue_offset,
                "store_timestamp": EPOCH + timedelta(milliseconds=message.store_timestamp),
                "born_timestamp": EPOCH + timedelta(milliseconds=message.born_timestamp),
                "tags": message.tag,
                "keys": properties.get("KEYS"),
                "properties": list(properties.items()),
                "body": body,
                "message_id": properties.get("UNIQ_KEY", message.message_id),
                "reconsume_times": message.reconsume_times,
                "flag": message.flag,
                "sys_flag": int(message.sys_flag),
                "log_offset": message.log_offset,
                "born_host": str(message.born_host),
                "store_host": str(message.store_host),
            }
            rows.append(row | {name: properties.get(name) for name in named})
    return rows


NAMES = ("TAGS", "KEYS", "UNIQ_KEY", "RETRY_TOPIC", "a", "ab", "region", "a_name_of_many_bytes")
NAMES += ("ключ", "\ufffd")
names = st.sampled_from([name.encode() for name in NAMES]) | st.binary(max_size=4)
values = st.sampled_from(
    [b"", b"red", b"green", b"\x01", "цвет".encode(), b"\xff", b"\xed\xa0\x80"]
)
parts = st.tuples(names, st.sampled_from([b"\x01", b"\x01", b"\x01", b""]), values | st.binary())
blocks = (
    st.lists(parts.map(b"".join), max_size=12).map(b"\x02".join)
    | st.binary(max_size=150)
    | st.just(BLOCK)
)
topics = st.sampled_from(["T", "orders", "%RETRY%g", "%RETRY%", "%RETRY", "тема", 40 * "long"])
hosts = st.sampled_from([V4, OTHER_V4, V6])


@st.composite
def some_records(draw: st.DrawFn) -> bytes:
    body = draw(st.binary(max_size=100))
    sys_flag = draw(st.sampled_from([0, 0, SysFlag.COMMIT, 0x1, 0x301]))
    if sys_flag & SysFlag.COMPRESSED and body:
        body = compress(body, 5)
    draft = Draft(
        topic=draw(topics)[:60],
        queue_id=draw(st.integers(0, 2**31 - 1)),
        body=body,
        properties=draw(blocks),
        flag=draw(st.integers(-(2**31), 2**31 - 1)),
        sys_flag=sys_flag,
        born_timestamp=draw(st.integers(0, 2**43)),
        born_host=draw(hosts),
        reconsume_times=draw(st.integers(0, 16)),
    )
    # several alike, as a producer's are
    count, first = draw(st.integers(1, 3)), draw(st.integers(0, 2**40))
    host = draw(hosts)
    return b"".join(encoded(draft, first + i, host) for i in range(count))


chunk_lists = st.lists(
    st.builds(
        Chunk,
        st.sampled_from(["a", "b", "ц"]),
        st.sampled_from(["T", "%RETRY%g"]),
        st.lists(some_records(), max_size=5).map(b"".join) | st.just(memoryview(b"")),
        st.just(2**63 - 1) | st.integers(0, 2**40),
    ),
    max_size=4,
)


@given(chunk_lists, st.sets(st.sampled_from(["red", "green", "цвет", "\ufffd"])))
def test_a_batch_is_what_the_records_are(chunks: list[Chunk], tags: set[str]) -> None:
    named = ["a", "ab", "region", "ключ", "\ufffd", "UNIQ_KEY", "RETRY_TOPIC", NAMES[7]]
    batch = decode(chunks, properties=named, tags=frozenset(tags))
    batch.validate(full=True)
    assert batch.schema.names == [*SCHEMA.names, *named]
    assert batch.to_pylist() == one_by_one(chunks, named, frozenset(tags))


@given(chunk_lists, st.lists(st.sampled_from(SCHEMA.names), unique=True, min_size=1))
def test_only_the_columns_asked_for_are_made(chunks: list[Chunk], wanted: list[str]) -> None:
    batch = decode(chunks, columns=wanted)
    assert batch.schema == pa.schema([SCHEMA.field(name) for name in wanted])
    assert batch.to_pylist() == [{n: row[n] for n in wanted} for row in one_by_one(chunks)]


@given(chunk_lists)
def test_extra_columns_are_made_if_named(chunks: list[Chunk]) -> None:
    batch = decode(chunks, columns=["offset", "property_string", "tags_code"])
    batch.validate(full=True)
    kept = [one for c in chunks for one in records(c) if one.queue_offset < c.before]
    blocks = [b for c in chunks for b, o in stored_blocks(c) if o < c.before]
    assert batch["property_string"].to_pylist() == [decode_utf8(block) for block in blocks]
    assert batch["tags_code"].to_pylist() == [tags_code(one.tag) for one in kept]


def stored_blocks(chunk: Chunk) -> list[tuple[bytes, int]]:
    """Properties as they lie there, and queue offsets."""
    found, at = [], 0
    for one in records(chunk):
        end = at + one.size
        fixed = record.FIXED_SIZE + 12 * (one.sys_flag & 0x30).bit_count()
        size = one.size - fixed - len(one.body) - len(one.topic.encode())
        found.append((bytes(chunk.body[end - size : end]), one.queue_offset))
        at = end
    return found


@given(chunk_lists)
def test_records_give_the_same_wherever_they_lie(chunks: list[Chunk]) -> None:
    chunks = [c._replace(broker_name="a", before=2**63 - 1) for c in chunks]
    bodies = [np.frombuffer(bytes(c.body) + bytes(8), dtype=np.uint8) for c in chunks]
    rows = list[tuple[int, int, int]]()
    for chunk, data in zip(chunks, bodies, strict=True):
        at = data.ctypes.data
        for one in records(chunk):
            rows.append((at, one.size, data.ctypes.data + len(data)))
            at += one.size
    columns = np.array(rows, dtype=np.int64).reshape(-1, 3).T.copy()
    wanted = [*SCHEMA.names, *EXTRA.names]
    placed = decode(Placed("a", "T", *columns, bodies), columns=wanted, properties=["a"])
    assert placed == decode(chunks, columns=wanted, properties=["a"])


def test_a_record_that_is_none_is_refused_wherever_it_lies() -> None:
    data = np.zeros(200, dtype=np.uint8)
    at = np.array([data.ctypes.data])
    with pytest.raises(CorruptRecord, match="the log, topic T"):
        decode(Placed("a", "T", at, np.array([200]), at + 200, data))


NUMBERS = ["1", "-7", "+7", "2147483647", "2147483648", "-2147483648", "9223372036854775807", "٣"]
NUMBERS += ["9223372036854775808", "", "1.5", " 1", " 1.5 ", "1e3", "0x1p3", "NaN", "-Infinity"]
NUMBERS += ["-0.0", "1d", "true", "TRUE", "tRuE", "truE ", "yes", "x", "1" * 400, "0.1", "1,5"]


@pytest.mark.parametrize(
    ("kind", "read"),
    [("int", to_int), ("long", to_long), ("double", to_double), ("boolean", to_boolean)],
)
def test_properties_are_read_as_java_reads_them(kind: str, read: Callable[[str], object]) -> None:
    texts = [text for text in NUMBERS if text]  # an empty value is none
    drafts = [Draft(topic="T", properties=f"n\x01{text}\x02".encode()) for text in texts]
    batch = decode([chunk(*drafts, Draft(topic="T"))], columns=[], properties=[("n", kind)])

    def expected(text: str) -> object:
        try:
            return read(text)
        except FilterValueError:
            return None

    wanted = [*map(expected, texts), None]
    assert batch.schema == pa.schema({"n": KINDS[kind]})
    assert list(map(repr, batch["n"].to_pylist())) == list(map(repr, wanted))
    column = pa.array(["first", *texts, None])  # a slice has an offset
    for part, values in (column.slice(1), wanted), (column.slice(5, 3), wanted[4:7]):
        read_part = read_as(part, kind)
        assert read_part.type == KINDS[kind]
        assert list(map(repr, read_part.to_pylist())) == list(map(repr, values))
    assert read_as(column.slice(0, 0), kind) == pa.array([], KINDS[kind])
    assert read_as(pa.array([None], pa.string()), kind).to_pylist() == [None]


@given(chunk_lists, st.sampled_from(["TAGS = 'red'", "a IS NULL", "region <> '\ufffd'", "a > 5"]))
def test_sql_keeps_what_it_says_true_of(chunks: list[Chunk], text: str) -> None:
    sql = compile_closure(parse(text))
    rows = one_by_one(chunks)
    kept = [row for row in rows if evaluate(sql, dict(row["properties"])) is Outcome.TRUE]
    assert decode(chunks, sql=compile_batch(parse(text))).to_pylist() == kept


def test_times_may_be_in_microseconds() -> None:
    one = chunk(Draft(topic="T", born_timestamp=1_700_000_000_456))
    columns = ["store_timestamp", "born_timestamp"]
    batch = decode([one], columns=columns, time_unit="us")
    assert batch.schema == schema_of(columns, time_unit="us")
    assert batch.schema.field(0).type == pa.timestamp("us", "UTC")
    assert batch.to_pylist() == decode([one], columns=columns).to_pylist()


@pytest.mark.parametrize("chunks", [[], [Chunk("a", "T", b"")]])
def test_nothing_gives_an_empty_batch_of_the_schema(chunks: list[Chunk]) -> None:
    batch = decode(chunks, properties=["region"])
    assert batch.num_rows == 0
    assert batch.schema == SCHEMA.append(pa.field("region", pa.string()))


def test_a_batch_holds_nothing_of_the_answers() -> None:
    answer = bytearray(chunk(Draft(topic="T", body=b"hello", properties=BLOCK)).body)
    batch = decode([Chunk("a", "T", memoryview(answer))])
    before = batch.to_pylist()
    answer[:] = bytes(len(answer))
    assert batch.to_pylist() == before
    answer.clear()  # would raise if anything still looked at it


def test_many_records_smaller_than_guessed_are_all_met() -> None:
    chunks = [chunk(*[Draft(topic="T", queue_id=i % 7) for i in range(5000)])]
    batch = decode(chunks, columns=["offset", "queue_id"])
    assert batch.column("offset").to_pylist() == list(range(5000))
    assert batch.column("queue_id").to_pylist() == [i % 7 for i in range(5000)]


def test_a_block_may_hold_as_many_properties_as_fit() -> None:
    block = b"\x02".join(b"%x\x01v" % i for i in range(4500)) + b"\x027\x01last"
    chunks = [chunk(Draft(topic="T", properties=block), Draft(topic="T", properties=BLOCK))]
    batch = decode(chunks, columns=["properties"], properties=["7", "1193"])
    expected = [dict(row["properties"]) for row in one_by_one(chunks)]
    assert [dict(entries) for entries in batch.column("properties").to_pylist()] == expected
    assert batch.column("7").to_pylist() == ["last", None]
    assert batch.column("1193").to_pylist() == ["v", None]


@pytest.mark.parametrize("size", [*range(55, 75), *range(120, 135)])
def test_properties_are_found_wherever_the_blocks_of_64_bytes_end(size: int) -> None:
    filler = b"f\x01" + b"x" * (size - 2)
    block = filler + b"\x02region\x01eu"
    for chunks in (
        [chunk(Draft(topic="T", properties=block))],
        [chunk(Draft(topic="T", properties=block), Draft(topic="T", properties=filler))],
    ):
        batch = decode(chunks, columns=["properties"], properties=["region"])
        assert batch.to_pylist() == [
            {n: row[n] for n in ("properties", "region")} for row in one_by_one(chunks, ["region"])
        ]


def test_a_retried_message_has_its_original_topic() -> None:
    block = b"RETRY_TOPIC\x01orders"
    retried = Draft(topic="%RETRY%g", properties=block)
    plain = Draft(topic="T", properties=block)
    without = Draft(topic="%RETRY%g", properties=BLOCK)
    batch = decode([chunk(retried, plain, without, topic="%RETRY%g")])
    assert batch.column("topic").to_pylist() == ["orders", "T", "%RETRY%g"]


def test_only_messages_of_exactly_a_wanted_tag_are_kept() -> None:
    texts = [b"red", b"re", b"redd", b"green", b"Red", b""]
    drafts = [Draft(topic="T", body=t, properties=b"TAGS\x01" + t) for t in texts]
    kept = decode(
        [chunk(*drafts, Draft(topic="T", body=b"none"))], tags=frozenset({"red", "green"})
    )
    assert kept.column("body").to_pylist() == [b"red", b"green"]
    assert kept.column("tags").to_pylist() == ["red", "green"]


def test_a_body_that_is_filtered_out_is_not_decompressed() -> None:
    broken = Draft(topic="T", body=b"?", sys_flag=1, properties=b"TAGS\x01green")
    sound = Draft(topic="T", body=b"hello", properties=b"TAGS\x01red")
    batch = decode([chunk(broken, sound)], tags=frozenset({"red"}))
    assert batch.column("body").to_pylist() == [b"hello"]
    with pytest.raises(CorruptRecord):
        decode([chunk(broken, sound)])
    assert decode([chunk(broken, sound)], columns=["offset"]).num_rows == 2


def test_an_offset_message_id_is_given_without_a_unique_one() -> None:
    body = encoded(Draft(topic="T"), 1, V4) + encoded(Draft(topic="T", properties=BLOCK), 2)
    body += encoded(Draft(topic="T"), 1, V6)
    batch = decode([Chunk("a", "T", body)], columns=["message_id"], properties=["UNIQ_KEY"])
    assert batch.column("message_id").to_pylist() == [
        "0A00000200002A9F00000000000013E8",
        "0A0B",
        "20010DB800000000000000000000000200002A9F00000000000013E8",
    ]
    assert batch.column("UNIQ_KEY").to_pylist() == [None, "0A0B", None]


@pytest.mark.parametrize("last", [Draft(topic="T", body=b"hello", properties=BLOCK)])
@pytest.mark.parametrize("host", [V4, V6])
def test_an_answer_cut_anywhere_is_refused(last: Draft, host: Host) -> None:
    first, whole = encoded(last), encoded(last, 1, host)
    for size in range(1, len(whole)):
        with pytest.raises(CorruptRecord) as raised:
            decode([Chunk("a", "T", first), Chunk("b", "T2", first + whole[:size])])
        assert raised.value.offset == len(first)
        assert raised.value.file == "an answer of b for T2"


def test_bytes_after_the_last_record_are_refused() -> None:
    with pytest.raises(CorruptRecord, match=r"offset 92: .*"):
        decode([Chunk("a", "T", encoded(Draft(topic="T")) + bytes(200))])


@given(st.binary(max_size=300), st.integers(0, 100), st.integers(0, 255))
def test_a_changed_byte_is_refused_as_a_single_record_is(noise: bytes, at: int, value: int) -> None:
    data = bytearray(encoded(Draft(topic="T", body=b"hello", properties=BLOCK)) + noise)
    data[at] = value
    answer = Chunk("a", "T", bytes(data))
    outcomes = []
    for read in (
        lambda: [message.queue_offset for message in records(answer)],
        lambda: decode([answer], columns=["offset"]).column("offset").to_pylist(),
    ):
        try:
            outcomes.append(read())
        except CorruptRecord as error:
            outcomes.append((error.offset, error.reason))
    assert outcomes[0] == outcomes[1]


def test_properties_of_a_negative_size_are_refused() -> None:
    data = bytearray(encoded(Draft(topic="T", body=b"hello", properties=b"a\x01b")))
    data[-5:-3] = (0xFFFF).to_bytes(2)
    data[:4] = (len(data) - 4).to_bytes(4)
    with pytest.raises(CorruptRecord, match="negative"):
        decode([Chunk("a", "T", bytes(data))])


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"columns": ["offset", "bodies"]}, "no column 'bodies': there are topic, broker, "),
        ({"columns": ["offset", "offset"]}, "'offset' is asked for twice"),
        ({"properties": ["body"]}, "property 'body' would have the name of a column"),
        ({"properties": ["a", "a"]}, "'a' is asked for twice"),
        ({"properties": [""]}, "no property can have the name ''"),
        ({"properties": ["a\x01b"]}, "no property can have the name"),
    ],
)
def test_columns_that_cannot_be_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError) as raised:
        decode([], **options)
    assert str(raised.value).startswith(reason)


def arrow_stream(body: bytes, codec: str) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(body)
    return sink.getvalue().to_pybytes()


BODY = b"hello, hello, hello " * 5000
COMPRESSED = [
    (0x001, compress(BODY, 5)),
    (0x301, zlib.compress(BODY, 9)),
    (0x101, arrow_stream(BODY, "lz4")),
    (0x201, arrow_stream(BODY, "zstd")),
]


@pytest.mark.parametrize(("sys_flag", "body"), COMPRESSED, ids=["old zlib", "zlib", "lz4", "zstd"])
def test_a_compressed_body_is_read_however_it_was_compressed(sys_flag: int, body: bytes) -> None:
    assert len(body) < len(BODY)
    assert decompress(body, sys_flag) == BODY
    batch = decode([chunk(Draft(topic="T", body=body, sys_flag=sys_flag), Draft(topic="T"))])
    assert batch.column("body").to_pylist() == [BODY, b""]
    assert batch.column("sys_flag").to_pylist() == [sys_flag, 0]


@pytest.mark.parametrize(("sys_flag", "body"), COMPRESSED, ids=["old zlib", "zlib", "lz4", "zstd"])
def test_a_compressed_body_that_is_cut_or_wrong_is_refused(sys_flag: int, body: bytes) -> None:
    for wrong in (body[:-10], body[:1], b"?" + body[1:]):
        with pytest.raises(CorruptRecord):
            decompress(wrong, sys_flag)
    broken = chunk(Draft(topic="T"), Draft(topic="T", body=body[:-10], sys_flag=sys_flag))
    with pytest.raises(UnreadableMessage, match=r"^topic T, queue 0 of a, offset 1: ") as raised:
        decode([broken])
    assert raised.value.offset == 1


def test_a_kind_of_compression_not_known_is_refused() -> None:
    with pytest.raises(CorruptRecord, match="compression of kind 5 is not known"):
        decompress(b"?", 0x501)


def test_an_empty_body_stays_empty_whatever_the_flag_says() -> None:
    assert decompress(b"", 0x1) == b""
    batch = decode([chunk(Draft(topic="T", sys_flag=1))], columns=["body"])
    assert batch.column("body").to_pylist() == [b""]
