"""RocketMQ's JSON tables: its own files both ways, damage, crashes, and the dialect."""

import json
import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from disks import replace_call
from hypothesis import example, given
from hypothesis import strategies as st

from tamis.errors import StoreError
from tamis.filter.bloom import BloomFilter, group_key
from tamis.message import QueueOffset
from tamis.store import tables
from tamis.store.tables import DataVersion, FilterData, GroupConfig, Perm, TopicConfig
from tamis.wire import fastjson

GOLDEN = Path(__file__).parents[1] / "golden" / "tables"
FILES = sorted(GOLDEN.glob("*/*.json"))

OLD = {"offsetTable": {"T@G": {0: 1}}}
NEW = {"offsetTable": {"T@G": {0: 2}}}

FILTER = FilterData(
    group="G",
    topic="T",
    expression="a > 1",
    expression_type="SQL92",
    born_time=5,
    client_version=9,
    bloom_positions=(1, 2, 3),
    bloom_bits=112,
)


class Crash(BaseException):
    """The power goes."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.json"


def text_of(value: Any) -> str:
    return fastjson.render(value, pretty=True, ascii_only=True)


def backup(path: Path) -> Path:
    return path.with_name(path.name + ".bak")


def save_again(name: str, source: Path, target: Path) -> None:
    match name:
        case "topics.json":
            tables.save_topics(target, *tables.load_topics(source))
        case "subscriptionGroup.json":
            tables.save_groups(target, *tables.load_groups(source))
        case "consumerOffset.json":
            tables.save_consumer_offsets(target, tables.load_consumer_offsets(source))
        case "delayOffset.json":
            tables.save_delay_offsets(target, tables.load_delay_offsets(source))
        case "consumerFilter.json":
            tables.save_filters(target, tables.load_filters(source))
        case _:
            pytest.fail(f"no table is called {name}")


# RocketMQ's own files


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_a_table_of_rocketmq_is_saved_as_it_was(file: Path, tmp_path: Path) -> None:
    save_again(file.name, file.parent, tmp_path)
    assert (tmp_path / file.name).read_bytes() == file.read_bytes()


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_a_table_of_rocketmq_is_written_as_it_was_read(file: Path, path: Path) -> None:
    table = tables.read_table(file)
    assert table is not None
    tables.write_table(path, table)
    assert path.read_bytes() == file.read_bytes()


def test_topics_of_rocketmq_are_read() -> None:
    topics, version = tables.load_topics(GOLDEN / "clean")
    assert version == DataVersion(timestamp=1794727051503, counter=14)
    assert len(topics) == 22
    assert topics["Orders"] == TopicConfig(name="Orders", read_queues=4, write_queues=4)
    assert topics["SCHEDULE_TOPIC_XXXX"].read_queues == 18
    assert {name: topic.perm for name, topic in topics.items() if topic.perm != 6} == {
        "TBW102": Perm.READ | Perm.WRITE | Perm.INHERIT,
        "broker-a": Perm.READ | Perm.WRITE | Perm.INHERIT,
        "DefaultCluster": Perm.READ | Perm.WRITE | Perm.INHERIT,
    }


def test_groups_of_rocketmq_are_read() -> None:
    groups, version = tables.load_groups(GOLDEN / "clean")
    assert version == DataVersion(timestamp=1794727051498, counter=4)
    assert groups["lite"] == GroupConfig(name="lite")
    assert groups[""] == GroupConfig(name="")


def test_offsets_of_rocketmq_are_read() -> None:
    offsets = tables.load_consumer_offsets(GOLDEN / "clean")
    assert offsets["Orders", "cheap"] == {0: 100, 1: 100, 2: 100, 3: 100}
    assert offsets["%RETRY%retry", "retry"] == {0: 5}
    assert len(offsets) == 16
    assert tables.load_delay_offsets(GOLDEN / "clean") == {1: 8, 2: 2}


def test_filters_of_rocketmq_are_read() -> None:
    stopped, killed = (tables.load_filters(GOLDEN / name) for name in ("clean", "killed"))
    assert killed["Orders", "vip-only"] == FilterData(
        group="vip-only",
        topic="Orders",
        expression="vip = TRUE",
        expression_type="SQL92",
        born_time=1794726924957,
        client_version=1794726925022,
        bloom_positions=(36, 0, 5),
        bloom_bits=112,
    )
    assert not any(data.is_dead for data in killed.values())
    assert all(data.is_dead for data in stopped.values())
    bloom = BloomFilter()
    for (topic, group), data in killed.items():
        assert data.bloom_positions == bloom.positions(group_key(group, topic))
        assert bloom.accepts(data.bloom_positions, data.bloom_bits)


# Fields


def test_a_table_without_a_file_is_empty(tmp_path: Path) -> None:
    assert tables.load_topics(tmp_path) == ({}, DataVersion())
    assert tables.load_groups(tmp_path) == ({}, DataVersion())
    assert tables.load_consumer_offsets(tmp_path) == {}
    assert tables.load_delay_offsets(tmp_path) == {}
    assert tables.load_filters(tmp_path) == {}
    assert tables.read_table(tmp_path / "x.json") is None


def test_missing_fields_have_rocketmqs_defaults_and_unknown_ones_are_left_out(
    tmp_path: Path,
) -> None:
    (tmp_path / "topics.json").write_text('{"topicConfigTable":{"T":{"perm":4,"new":[1]}},"v":5}')
    (tmp_path / "subscriptionGroup.json").write_text('{"subscriptionGroupTable":{"G":{}}}')
    (tmp_path / "consumerFilter.json").write_text(
        '{"filterDataByTopic":{"T":{"groupFilterData":{"G":{"bornTime":3,"deadTime":null}}}}}'
    )
    assert tables.load_topics(tmp_path) == (
        {"T": TopicConfig(name="T", read_queues=16, write_queues=16, perm=Perm.READ)},
        DataVersion(),
    )
    assert tables.load_groups(tmp_path)[0] == {"G": GroupConfig(name="G", retry_max_times=16)}
    assert tables.load_filters(tmp_path)["T", "G"] == FilterData(
        group="G",
        topic="T",
        expression="",
        expression_type="",
        born_time=3,
        client_version=0,
        bloom_positions=(),
        bloom_bits=0,
    )


@pytest.mark.parametrize(
    ("name", "load", "text", "said"),
    [
        ("topics", tables.load_topics, '{"topicConfigTable":[]}', "topicConfigTable: []"),
        ("topics", tables.load_topics, '{"topicConfigTable":{"T":7}}', "T: 7"),
        ("topics", tables.load_topics, '{"topicConfigTable":{"T":{"perm":"6"}}}', "perm: '6'"),
        ("topics", tables.load_topics, '{"topicConfigTable":{"T":{"perm":true}}}', "perm: True"),
        ("topics", tables.load_topics, '{"topicConfigTable":{"T":{"order":1}}}', "order: 1"),
        (
            "topics",
            tables.load_topics,
            '{"topicConfigTable":{"T":{"topicFilterType":"NO"}}}',
            "'NO'",
        ),
        ("consumerOffset", tables.load_consumer_offsets, '{"offsetTable":{"T":{}}}', "topic@group"),
        ("delayOffset", tables.load_delay_offsets, '{"offsetTable":{"$ref":"$"}}', "'$ref'"),
        ("delayOffset", tables.load_delay_offsets, '{"offsetTable":{1:1.5}}', "1: 1.5"),
        (
            "consumerFilter",
            tables.load_filters,
            '{"filterDataByTopic":{"T":{"groupFilterData":{"G":{"bloomFilterData":{"bitPos":3}}}}}}',
            "bitPos: 3",
        ),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_by_name(
    tmp_path: Path, name: str, load: Callable[[Path], object], text: str, said: str
) -> None:
    (tmp_path / f"{name}.json").write_text(text)
    with pytest.raises(StoreError) as caught:
        load(tmp_path)
    assert said in str(caught.value)


def test_a_backup_replaces_a_table_of_the_wrong_shape_and_outlives_the_next_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "delayOffset.json"
    path.write_text('{"offsetTable":[]}')
    backup(path).write_text('{"offsetTable":{1:4}}')
    assert tables.load_delay_offsets(tmp_path) == {1: 4}
    dies_at(monkeypatch, tmp_path, 1)
    with pytest.raises(Crash):
        tables.save_delay_offsets(tmp_path, {1: QueueOffset(5)})
    assert tables.load_delay_offsets(tmp_path) == {1: 4}


def test_dead_is_to_have_died_after_birth_or_with_it() -> None:
    assert not FILTER.is_dead
    assert not replace(FILTER, dead_time=4).is_dead
    assert replace(FILTER, dead_time=5).is_dead


def test_a_new_version_counts_up() -> None:
    assert DataVersion(timestamp=1, counter=2).next(9) == DataVersion(timestamp=9, counter=3)


# Damage

DAMAGE = {
    "empty": b"",
    "zeros": bytes(64),
    "cut": b'{\n\t"offsetTable":{0:1',
    "not an object": b"[]",
    "not UTF-8": b'{"a":"\xff"}',
    "too deep": b'{"a":' + b"[" * 100_000,
    "doubled": b"{}{}",
    "a number too long": b'{"a":' + b"1" * 5000 + b"}",
    "not a number": b'{"a":NaN}',
}


@pytest.mark.parametrize("damage", [*DAMAGE.values(), None], ids=[*DAMAGE, "missing"])
def test_the_backup_is_read_for_a_bad_table_and_said_once(
    path: Path, damage: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    if damage is not None:
        path.write_bytes(damage)
    backup(path).write_text(text_of(OLD))
    assert tables.read_table(path) == OLD
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "x.json.bak" in record.getMessage()


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("other", [b"{", None], ids=["backup broken", "no backup"])
def test_a_bad_table_without_a_good_backup_is_an_error(
    path: Path, damage: bytes, other: bytes | None
) -> None:
    path.write_bytes(damage)
    if other is not None:
        backup(path).write_bytes(other)
    with pytest.raises(StoreError, match=r"x\.json.*move both files away"):
        tables.read_table(path)


def test_a_broken_backup_alone_is_an_error(path: Path) -> None:
    backup(path).write_text("{")
    with pytest.raises(StoreError, match=r"x\.json is missing; x\.json\.bak: .*line 1 column 2"):
        tables.read_table(path)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('{\n\t"a":{0:1,1:2\n\t},\n\t"b":?}', "line 4 column 6"),
        ("{0:10,1:20,x:3}", "line 1 column 12"),
        ('{"a" 1}', "line 1 column 6"),
        ('{"a":[1 2]}', "line 1 column 9"),
        ('{"a":\n"\\q"}', "line 2 column 2"),
    ],
)
def test_the_error_names_the_line_and_the_column(path: Path, text: str, where: str) -> None:
    path.write_text(text)
    with pytest.raises(StoreError, match=where):
        tables.read_table(path)


def test_text_that_is_not_utf_8_is_named_by_its_place(path: Path) -> None:
    path.write_bytes('{\n"a":"é'.encode() + b'\xe9"}')
    with pytest.raises(StoreError, match=r"Not UTF-8 .*line 2 column 7"):
        tables.read_table(path)


# Crashes


def dies_at(
    monkeypatch: pytest.MonkeyPatch, folder: Path, step: int, *, done: bool = False
) -> list[str]:
    """Crash at the nth sync or rename, before it or once it is done. Returns those seen."""
    seen: list[str] = []

    def dying(name: str, real: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            seen.append(name)
            if len(seen) == step and not done:
                raise Crash
            real(*arguments)
            if len(seen) == step:
                raise Crash

        return call

    for name in ("fsync", "fdatasync", "replace"):
        fake = dying(name.replace("fdata", "f"), getattr(os, name))
        replace_call(monkeypatch, folder, name, fake)
    return seen


def test_a_table_and_its_backup_are_synced_before_they_are_renamed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables.write_table(path, OLD)
    seen = dies_at(monkeypatch, path.parent, 0)
    tables.write_table(path, NEW)
    assert seen == ["fsync", "fsync", "replace", "replace", "fsync"]
    assert sorted(file.name for file in path.parent.iterdir()) == ["x.json", "x.json.bak"]
    assert fastjson.parse(backup(path).read_text()) == OLD


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", range(1, 6))
def test_a_crash_at_any_step_leaves_the_old_table_or_the_new(
    path: Path, monkeypatch: pytest.MonkeyPatch, step: int, done: bool
) -> None:
    tables.write_table(path, OLD)
    with monkeypatch.context() as patch:
        dies_at(patch, path.parent, step, done=done)
        with pytest.raises(Crash):
            tables.write_table(path, NEW)
    # Both names are whole at every step, so the loss of either still leaves one to be read.
    for file in {path, backup(path)} & set(path.parent.iterdir()):
        assert fastjson.parse(file.read_text()) in (OLD, NEW)
    assert tables.read_table(path) == (NEW if step + done > 4 else OLD)
    tables.write_table(path, NEW)  # what the crash left over is no hindrance
    assert tables.read_table(path) == NEW


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", range(1, 4))
@pytest.mark.parametrize("damage", [b"", b"{", None], ids=["empty", "broken", "missing"])
def test_a_crash_over_a_bad_table_leaves_the_backup(
    path: Path, monkeypatch: pytest.MonkeyPatch, step: int, done: bool, damage: bytes | None
) -> None:
    if damage is not None:
        path.write_bytes(damage)
    backup(path).write_text(text_of(OLD))
    dies_at(monkeypatch, path.parent, step, done=done)
    with pytest.raises(Crash):
        tables.write_table(path, NEW)
    assert tables.read_table(path) == (NEW if step + done > 2 else OLD)


@pytest.mark.parametrize("step", range(1, 4))
def test_a_crash_in_the_first_write_leaves_nothing_or_all(
    path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    dies_at(monkeypatch, path.parent, step)
    with pytest.raises(Crash):
        tables.write_table(path, NEW)
    assert tables.read_table(path) == (NEW if step == 3 else None)


@pytest.mark.parametrize("value", [{"a": object()}, {"a": float("nan")}])
def test_a_value_that_cannot_be_written_touches_no_file(path: Path, value: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        tables.write_table(path, value)
    assert not list(path.parent.iterdir())


def test_a_save_makes_the_folder(tmp_path: Path) -> None:
    tables.save_delay_offsets(tmp_path / "store" / "config", {1: QueueOffset(2)})
    assert tables.load_delay_offsets(tmp_path / "store" / "config") == {1: 2}


# The dialect


def test_integer_keys_may_do_without_quotes() -> None:
    assert fastjson.parse('{"a":{0:10, -1 :20,"2":30}}') == {"a": {0: 10, -1: 20, "2": 30}}


def test_text_that_looks_like_a_key_is_left_alone() -> None:
    text = '{"x{1:":"{1:2,3:\\"4:5","b":["6:7",8]}'
    assert fastjson.parse(text) == {"x{1:": '{1:2,3:"4:5', "b": ["6:7", 8]}


def test_quoted_and_bare_numbers_of_queues_are_the_same(tmp_path: Path) -> None:
    (tmp_path / "consumerOffset.json").write_text('{"offsetTable":{"T@G":{"0":10,1:20}}}')
    assert tables.load_consumer_offsets(tmp_path) == {("T", "G"): {0: 10, 1: 20}}


def test_the_text_is_ascii_whatever_it_says() -> None:
    assert text_of({"a": "上海\u2028\x01"}) == '{\n\t"a":"\\u4e0a\\u6d77\\u2028\\u0001"\n}'


def test_empty_maps_and_lists_stay_on_their_line() -> None:
    assert text_of({}) == "{}"
    assert text_of({"a": {}, "b": []}) == '{\n\t"a":{},\n\t"b":[]\n}'


plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
keys = st.text() | st.integers(-(10**18), 10**18)
values = st.recursive(
    plain | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
)
objects = st.dictionaries(st.text(), values, max_size=5)
dialect = st.text(alphabet='{}[]",:0123-.e\\ut \n\taé\x00', max_size=60)


@given(objects)
def test_what_is_rendered_is_parsed_again(value: dict[str, Any]) -> None:
    assert fastjson.parse(text_of(value)) == value


@given(st.dictionaries(st.text(), st.recursive(plain | st.text(), st.lists), max_size=5))
def test_strict_json_is_read_as_json_reads_it(value: dict[str, Any]) -> None:
    for text in (json.dumps(value), json.dumps(value, indent=1, ensure_ascii=False)):
        assert fastjson.parse(text) == json.loads(text) == value


@given(dialect | st.text() | objects.map(text_of).flatmap(lambda t: st.just(t[1:] + t[:1])))
@example('{"a":' * 5000)
@example("{1")
@example('{"')
def test_any_text_is_parsed_or_a_value_error(text: str) -> None:
    try:
        parsed = fastjson.parse(text)
    except ValueError:
        return
    assert fastjson.parse(text_of(parsed)) == parsed


@given(
    st.binary() | dialect.map(str.encode) | st.sampled_from(FILES).map(Path.read_bytes), st.data()
)
def test_any_file_is_read_or_a_store_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, draw: st.DataObject
) -> None:
    at = draw.draw(st.integers(0, len(data)))
    cut = draw.draw(st.integers(at, min(at + 4, len(data))))
    folder = tmp_path_factory.mktemp("any")
    damaged = data[:at] + draw.draw(st.binary(max_size=3)) + data[cut:]
    for file in FILES[:5]:
        (folder / file.name).write_bytes(damaged)
        try:
            save_again(file.name, folder, folder / "saved")
        except StoreError:
            continue
        shutil.rmtree(folder / "saved")
    shutil.rmtree(folder)


names = st.text(st.characters(codec="utf-8", exclude_characters="@"), max_size=8)
numbers = st.integers(-(2**63), 2**63 - 1)
offsets = st.dictionaries(st.integers(0, 2**31 - 1), numbers.map(QueueOffset), max_size=4)
versions = st.builds(DataVersion, timestamp=numbers, counter=numbers)
perms = st.integers(0, 15).map(Perm)
topics = st.builds(TopicConfig, name=names, perm=perms, read_queues=numbers, order=st.booleans())
groups = st.builds(GroupConfig, name=names, broker_id=numbers, consume_enabled=st.booleans())
filters = st.builds(
    replace,
    st.just(FILTER),
    group=names,
    topic=names,
    expression=st.text(),
    born_time=numbers,
    dead_time=numbers,
    bloom_positions=st.lists(numbers, max_size=3).map(tuple),
)


@given(
    st.lists(topics, max_size=4),
    st.lists(groups, max_size=4),
    st.dictionaries(st.tuples(names, names), offsets, max_size=4),
    offsets,
    st.lists(filters, max_size=4),
    versions,
)
def test_tables_are_loaded_as_they_were_saved(
    tmp_path_factory: pytest.TempPathFactory,
    topics: list[TopicConfig],
    groups: list[GroupConfig],
    consumed: dict[tuple[str, str], dict[int, QueueOffset]],
    delayed: dict[int, QueueOffset],
    filters: list[FilterData],
    version: DataVersion,
) -> None:
    folder = tmp_path_factory.mktemp("saved")
    by_topic = {topic.name: topic for topic in topics}
    by_group = {group.name: group for group in groups}
    by_both = {(data.topic, data.group): data for data in filters}
    tables.save_topics(folder, by_topic, version)
    tables.save_groups(folder, by_group, version)
    tables.save_consumer_offsets(folder, consumed)
    tables.save_delay_offsets(folder, delayed)
    tables.save_filters(folder, by_both)
    assert tables.load_topics(folder) == (by_topic, version)
    assert tables.load_groups(folder) == (by_group, version)
    assert tables.load_consumer_offsets(folder) == consumed
    assert tables.load_delay_offsets(folder) == delayed
    assert tables.load_filters(folder) == by_both
    shutil.rmtree(folder)
