"""Options: what is taken, and the one line that refuses the rest."""

from pathlib import Path
from typing import Any

import pytest

from tamis.errors import ConfigError, Error
from tamis.spark.options import EARLIEST, LATEST, Options, Time
from tamis.wire.bodies import MessageQueue

WIRE = {"nameserver": "127.0.0.1:9876", "topic": "orders"}
QUEUE = MessageQueue("orders", "broker-a", 0)


@pytest.mark.parametrize(
    ("option", "text", "attribute", "value"),
    [
        ("topic", "a, b,a", "topics", ("a", "b")),
        ("path", "a", "topics", ("a",)),
        ("topicPattern", "o.*", "pattern", "o.*"),
        ("assign", '{"orders": {"broker-a": [0]}}', "assigned", (QUEUE,)),
        ("startingOffsets", "Earliest", "start", EARLIEST),
        ("startingOffsets", "latest", "start", LATEST),
        ("startingOffsets", '{"orders": {"broker-a": {"0": 7}}, "": {"scanned": 9}}', "start",
         {QUEUE: 7}),
        ("startingTimestamp", "1700000000000", "start", Time(1_700_000_000_000)),
        ("startingTimestamp", "2023-11-14T22:13:20", "start", Time(1_700_000_000_000)),
        ("startingTimestamp", "2023-11-15T06:13:20+08:00", "start", Time(1_700_000_000_000)),
        ("endingTimestamp", '{"orders": {"broker-a": {"0": 5}}}', "end", {QUEUE: Time(5)}),
        ("endingOffsets", "latest", "end", LATEST),
        ("maxTriggerDelay", "5m", "max_delay", 300.0),
        ("requestTimeout", "500ms", "timeout", 0.5),
        ("requestTimeout", "3", "timeout", 3.0),
        ("FAILONDATALOSS", "False", "fail_on_data_loss", False),
        ("properties", "region, price:double", "properties",
         (("region", "string"), ("price", "double"))),
        ("columns", "topic,property_string", "columns", ("topic", "property_string")),
    ],
)  # fmt: skip
def test_an_option_is_read(option: str, text: str, attribute: str, value: Any) -> None:
    base = {"nameserver": "n:1"} if attribute in ("topics", "pattern", "assigned") else WIRE
    assert getattr(Options.parse({**base, option: text}, of_log=False), attribute) == value


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"topic": "orders"}, "option nameserver is missing"),
        ({"nameserver": "n:1"}, "give topic, topicPattern or assign"),
        ({**WIRE, "topicPattern": "x"}, "exclude each other"),
        ({**WIRE, "path": "x"}, "both name the topic"),
        ({**WIRE, "maxOfsetsPerTrigger": "5"}, "did you mean maxOffsetsPerTrigger?"),
        ({**WIRE, "kafka.bootstrap.servers": "x"}, "there is no option kafka.bootstrap.servers"),
        ({**WIRE, "broker": "x"}, "there is no option broker"),
        ({**WIRE, "maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger: 0 is too small"),
        ({**WIRE, "minPartitions": "few"}, "minPartitions: 'few' is no whole number"),
        ({**WIRE, "failOnDataLoss": "yes"}, "neither true nor false"),
        ({**WIRE, "startingOffsets": "first"}, "none of earliest, latest, nor JSON"),
        ({**WIRE, "startingOffsets": '{"orders": 5}'}, "orders: not an object"),
        ({**WIRE, "startingOffsets": '{"orders": {"b": {"0": -3}}}'}, "-3 is no offset"),
        ({**WIRE, "startingOffsets": "{"}, "not JSON"),
        ({**WIRE, "endingOffsets": "earliest"}, "none of latest"),
        ({**WIRE, "startingTimestamp": "yesterday"}, "'yesterday' is no time"),
        ({**WIRE, "startingTimestamp": "1", "startingOffsets": "latest"}, "says that already"),
        ({**WIRE, "columns": "topic,bodi"}, "did you mean body?"),
        ({**WIRE, "properties": "price:decimal"}, "the types are string, int, long"),
        ({**WIRE, "properties": "topic"}, "name of a column"),
        ({**WIRE, "properties": "TAGS"}, "name of a column"),
        ({**WIRE, "properties": "a,A"}, "no name twice"),
        ({**WIRE, "startingTimestamp": "--5"}, "'--5' is no time"),
        ({"nameserver": "n:1", "path": " , "}, "load(','): it names no topic"),
        ({**WIRE, "tags": "A", "sql": "a = 1"}, "exclude each other"),
        ({**WIRE, "sql": "a ="}, "column 4"),
        ({**WIRE, "tags": "||"}, "separators with no tag"),
        ({**WIRE, "dialect": "6"}, "'6' is no dialect: there are 4.9, 5.1.3"),
        ({**WIRE, "requestTimeout": "soon"}, "'soon' is no duration"),
        ({**WIRE, "groupId": "a b"}, "group"),
        ({**WIRE, "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "9 is above"),
    ],
)  # fmt: skip
def test_what_can_not_be_is_refused_in_a_line(options: dict[str, str], told: str) -> None:
    with pytest.raises(Error) as caught:
        Options.parse(options, of_log=False)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_store_needs_a_directory_and_has_no_name_server() -> None:
    assert Options.parse({"path": "/x"}, of_log=True).root == "/x"
    for options, told in [({}, "directory"), ({"path": "/x", "nameserver": "n"}, "nameserver")]:
        with pytest.raises(ConfigError, match=told):
            Options.parse(options, of_log=True)


def test_a_store_is_found_from_anywhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for said in ("store", "file:store", f"file://{tmp_path}/store", f"{tmp_path}/store"):
        assert Options.parse({"path": said}, of_log=True).root == f"{tmp_path}/store"


def test_what_is_for_streams_is_refused_in_batches_and_the_other_way_round() -> None:
    with pytest.raises(ConfigError, match="starts at the latest"):
        Options.parse({**WIRE, "startingOffsets": "latest"}, of_log=False).for_batch()
    with pytest.raises(ConfigError, match="maxOffsetsPerTrigger is for streams"):
        Options.parse({**WIRE, "maxOffsetsPerTrigger": "5"}, of_log=False).for_batch()
    with pytest.raises(ConfigError, match="a stream has no end"):
        Options.parse({**WIRE, "endingOffsets": "latest"}, of_log=False).for_stream()
