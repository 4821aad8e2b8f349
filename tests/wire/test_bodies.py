"""Bodies: RocketMQ's own texts are read into what is declared, and written again as they were."""

import types
import zlib
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.wire import beans, bodies, fastjson
from tamis.wire.bodies import (
    BrokerData,
    ConsumeFromWhere,
    ConsumeType,
    Heartbeat,
    MessageModel,
    MessageQueue,
    Perm,
    QueueData,
    Registration,
    Subscription,
    TopicConfig,
    TopicRoute,
)

QUEUE = '{"brokerName":"b","queueId":0,"topic":"T"}'
SUBSCRIPTION = (
    '{"classFilterMode":false,"codeSet":[2598919,2598920],"expressionType":"TAG",'
    '"subString":"TagA || TagB","subVersion":1700000000000,"tagsSet":["TagA","TagB"],"topic":"T"}'
)
TOPIC = (
    '{"order":false,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG","topicName":"T",'
    '"topicSysFlag":0,"writeQueueNums":4}'
)
GROUP = (
    '{"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,"consumeFromMinEnable":true,'
    '"groupName":"g","notifyConsumerIdsChangedEnable":true,"retryMaxTimes":16,"retryQueueNums":1,'
    '"whichBrokerWhenConsumeSlowly":1}'
)
CONNECTION = (
    '{"clientAddr":"10.0.0.9:51234","clientId":"10.0.0.9@1#2","language":"JAVA","version":401}'
)
STATS = '{"avgpt":0.0,"sum":0,"tps":0.0}'

# As RocketMQ 4.9.4 writes them; "..." fields that are only for reading are left out.
SAMPLES: dict[str, tuple[Any, str]] = {
    "cluster": (
        bodies.ClusterInfo,
        '{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"},'
        '"brokerName":"broker-a","cluster":"DefaultCluster"}},'
        '"clusterAddrTable":{"DefaultCluster":["broker-a"]}}',
    ),
    "topics": (
        bodies.TopicTable,
        '{"dataVersion":{"counter":3,"timestamp":1700000000000},"topicConfigTable":{"T":'
        + TOPIC
        + "}}",
    ),
    "groups": (
        bodies.GroupTable,
        '{"dataVersion":{"counter":1,"timestamp":1700000000000},"subscriptionGroupTable":{"g":'
        + GROUP
        + "}}",
    ),
    "group": (bodies.GroupConfig, GROUP),
    "topic stats": (
        bodies.TopicStats,
        f'{{"offsetTable":{{{QUEUE}:'
        '{"lastUpdateTimestamp":1700000000000,"maxOffset":5,"minOffset":0}}}',
    ),
    "consume stats": (
        bodies.ConsumeStats,
        f'{{"consumeTps":0.0,"offsetTable":{{{QUEUE}:'
        '{"brokerOffset":5,"consumerOffset":3,"lastTimestamp":1700000000000,"pullOffset":0}}}',
    ),
    "reset": (bodies.ResetOffsets, f'{{"offsetTable":{{{QUEUE}:7}}}}'),
    "reset for C++": (
        bodies.ResetOffsetsOfCpp,
        '{"offsetTable":[{"brokerName":"b","offset":7,"queueId":0,"topic":"T"}]}',
    ),
    "status": (
        bodies.ConsumerStatus,
        f'{{"consumerTable":{{"clientId":{{{QUEUE}:7}}}},"messageQueueTable":{{}}}}',
    ),
    "consumers": (
        bodies.ConsumerConnection,
        f'{{"connectionSet":[{CONNECTION}],"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",'
        '"consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING",'
        f'"subscriptionTable":{{"T":{SUBSCRIPTION}}}}}',
    ),
    "producers": (bodies.ProducerConnection, f'{{"connectionSet":[{CONNECTION}]}}'),
    "all producers": (
        bodies.ProducerTable,
        '{"data":{"pg":[{"clientId":"c","language":"JAVA","lastUpdateTimestamp":5,'
        '"remoteIP":"1.1.1.1","version":401}]}}',
    ),
    "broker consume stats": (
        bodies.BrokerConsumeStats,
        '{"brokerAddr":"10.0.0.1:10911","consumeStatsList":[{"g":['
        '{"consumeTps":0.0,"offsetTable":{}}]}],"totalDiff":0}',
    ),
    "time spans": (
        bodies.TimeSpans,
        '{"consumeTimeSpanSet":[{"consumeTimeStamp":0,"delayTime":0,"maxTimeStamp":0,'
        f'"messageQueue":{QUEUE},"minTimeStamp":0}}]}}',
    ),
    "stats": (
        bodies.BrokerStats,
        f'{{"statsDay":{STATS},"statsHour":{STATS},"statsMinute":{STATS}}}',
    ),
    "offsets": (bodies.OffsetWrapper, '{"offsetTable":{"T@g":{0:5}}}'),
    "delay offsets": (bodies.OffsetTable, '{"offsetTable":{1:0}}'),
    "correction": (bodies.CorrectionOffsets, '{"correctionOffsets":{0:5}}'),
    "lock": (
        bodies.LockRequest,
        f'{{"clientId":"c","consumerGroup":"g","mqSet":[{QUEUE}]}}',
    ),
    "locked": (bodies.LockResponse, f'{{"lockOKMQSet":[{QUEUE}]}}'),
    "members": (bodies.ConsumerIds, '{"consumerIdList":["c1","c2"]}'),
    "check": (
        bodies.CheckClientConfig,
        f'{{"clientId":"c","group":"g","subscriptionData":{SUBSCRIPTION}}}',
    ),
    "who": (bodies.GroupList, '{"groupList":["g"]}'),
    "table": (bodies.KvTable, '{"table":{"k":"v"}}'),
    "topic list": (
        bodies.TopicList,
        '{"brokerAddr":"10.0.0.1:10911","topicList":["T1","T2"]}',
    ),
    "queue": (
        bodies.QueueUnits,
        '{"maxQueueIndex":9,"minQueueIndex":0,"queueData":[{"eval":false,"physicOffset":0,'
        '"physicSize":120,"tagsCode":2598919}]}',
    ),
    "registration": (
        bodies.Registration,
        '{"filterServerList":["10.0.0.5:40001"],"topicConfigSerializeWrapper":'
        '{"dataVersion":{"counter":3,"timestamp":1700000000000},"topicConfigTable":{"T":'
        + TOPIC
        + "}}}",
    ),
    "heartbeat": (
        bodies.Heartbeat,
        '{"clientID":"10.0.0.9@12345#678","consumerDataSet":[{"consumeFromWhere":'
        '"CONSUME_FROM_LAST_OFFSET","consumeType":"CONSUME_PASSIVELY","groupName":"cg",'
        f'"messageModel":"CLUSTERING","subscriptionDataSet":[{SUBSCRIPTION}],"unitMode":false}}],'
        '"producerDataSet":[{"groupName":"pg"}]}',
    ),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_rocketmqs_text_is_read_and_written_again_as_it_was(name: str) -> None:
    kind, text = SAMPLES[name]
    bean = beans.decode(kind, text.encode())
    assert beans.encode(bean).decode() == text


@pytest.mark.parametrize("name", SAMPLES)
def test_fields_we_do_not_know_are_passed_over(name: str) -> None:
    kind, text = SAMPLES[name]
    more = '{"stateVersion":0,"attributes":{"a":{}},' + text[1:]
    assert beans.decode(kind, more.encode()) == beans.decode(kind, text.encode())


@pytest.mark.parametrize("name", SAMPLES)
def test_an_empty_object_is_read_as_javas_zeros(name: str) -> None:
    kind, _ = SAMPLES[name]
    bean = beans.decode(kind, b"{}")
    assert beans.decode(kind, beans.encode(bean)) == bean


ROUTE = TopicRoute(
    queues=[QueueData(broker_name="broker-a", read_queues=4, write_queues=4, perm=Perm(6))],
    brokers=[
        BrokerData(
            cluster="DefaultCluster",
            broker_name="broker-a",
            addresses={0: "10.0.0.1:10911", 1: "10.0.0.2:10911"},
        )
    ],
    order_topic_conf="broker-a:4",
)


@pytest.mark.parametrize("standard", [True, False])
def test_a_route_quotes_its_keys_if_asked_to(standard: bool) -> None:
    zero, one = ('"0"', '"1"') if standard else ("0", "1")
    assert ROUTE.encode(standard=standard).decode() == (
        f'{{"brokerDatas":[{{"brokerAddrs":{{{zero}:"10.0.0.1:10911",{one}:"10.0.0.2:10911"}},'
        '"brokerName":"broker-a","cluster":"DefaultCluster"}],"filterServerTable":{},'
        '"orderTopicConf":"broker-a:4","queueDatas":[{"brokerName":"broker-a","perm":6,'
        '"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}'
    )
    assert beans.decode(TopicRoute, ROUTE.encode(standard=standard)) == ROUTE


def test_keys_may_be_in_quotes() -> None:
    text = fastjson.render({"offsetTable": {QUEUE: 7}})  # a string that holds the object's JSON
    queue = MessageQueue(topic="T", broker_name="b", queue_id=0)
    assert beans.decode(bodies.ResetOffsets, text.encode()).offsets == {queue: 7}
    assert beans.decode(bodies.OffsetTable, b'{"offsetTable":{"1":5}}').offsets == {1: 5}


def test_the_heartbeat_of_the_cpp_client_is_read() -> None:
    """As captured: enums by their place, versions in quotes, no producers."""
    body = (
        b'{"clientID":"12435-127.0.0.1@DEFAULT","consumerDataSet":[{"consumeFromWhere":0,'
        b'"consumeType":1,"groupName":"cg","messageModel":1,"subscriptionDataSet":[{"subString":'
        b'"*","subVersion":"1794745170744","topic":"%RETRY%cg"},{"codeSet":[0,0],"subString":'
        b'"A||B","subVersion":"1794745170744","tagsSet":["A","B"],"topic":"T"}]}]}\n'
    )
    found = beans.decode(Heartbeat, body)
    assert found.producers == []
    (group,) = found.consumers
    assert group.consume_type is ConsumeType.CONSUME_PASSIVELY
    assert group.message_model is MessageModel.CLUSTERING
    assert group.consume_from_where is ConsumeFromWhere.LAST_OFFSET
    assert [one.version for one in group.subscriptions] == [1_794_745_170_744] * 2
    assert all(one.is_tags for one in group.subscriptions)


@pytest.mark.parametrize(
    ("kind", "body", "said"),
    [
        (Heartbeat, b"[]", "Heartbeat: [] is not an object"),
        (Heartbeat, b'{"clientID":5}', "clientID: 5 is not of type str"),
        (Heartbeat, b'{"consumerDataSet":{}}', "consumerDataSet: {} is not of type"),
        (Heartbeat, b'{"consumerDataSet":[5]}', "5 is not an object"),
        (Heartbeat, b'{"consumerDataSet":[{"consumeType":2}]}', "consumeType: 2"),
        (Heartbeat, b'{"consumerDataSet":[{"consumeType":true}]}', "consumeType: True"),
        (Heartbeat, b'{"consumerDataSet":[{"unitMode":1}]}', "unitMode: 1 is not of type bool"),
        (Subscription, b'{"subVersion":"x"}', "subVersion: 'x' is not of type int"),
        (Subscription, b'{"subVersion":9223372036854775808}', "subVersion: 9223372036854775808"),
        (Subscription, b'{"subVersion":"99999999999999999999"}', "subVersion: "),
        (bodies.OffsetTable, b'{"offsetTable":{"x":1}}', "offsetTable: 'x' can't be its key"),
        (bodies.ResetOffsets, b'{"offsetTable":{"x":1}}', "offsetTable: 'x' can't be its key"),
        (bodies.ResetOffsets, b'{"offsetTable":{5:1}}', "offsetTable: 5 can't be its key"),
        (bodies.KvTable, b'{"table":' + b"[" * 900 + b"]" * 900 + b"}", "table: [["),
    ],
)
def test_what_does_not_fit_is_refused_by_name(kind: type, body: bytes, said: str) -> None:
    with pytest.raises(ValueError) as caught:
        beans.decode(kind, body)
    assert said in str(caught.value)


BEANS = [
    kind
    for kind in vars(bodies).values()
    if is_dataclass(kind) and isinstance(kind, type) and kind.__module__ == bodies.__name__
]
_texts = st.text(st.characters(exclude_categories=["Cs"]))


def values(hint: Any) -> st.SearchStrategy[Any]:
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return values(inner[0])
    if origin in (Union, types.UnionType):
        return st.none() | values(next(one for one in inner if one is not type(None)))
    if origin is list:
        return st.lists(values(inner[0]), max_size=2)
    if origin is dict:
        return st.dictionaries(values(inner[0]), values(inner[1]), max_size=2)
    if is_dataclass(hint):
        hints = get_type_hints(hint)
        made = {field.name: values(hints[field.name]) for field in fields(hint)}
        return st.builds(hint, **made)  # type: ignore[arg-type]
    if hint is Perm:
        return st.integers(0, 15).map(Perm)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return st.sampled_from(hint)
    return {
        str: _texts,
        int: st.integers(-(2**63), 2**63 - 1),
        bool: st.booleans(),
        float: st.floats(allow_nan=False, allow_infinity=False),
        Any: _texts | st.integers(-(2**63), 2**63 - 1),
    }[hint]


@pytest.mark.parametrize("kind", BEANS, ids=lambda kind: kind.__name__)
@settings(max_examples=20)
@given(st.data())
def test_a_bean_comes_back_from_its_body(kind: Any, data: st.DataObject) -> None:
    bean = data.draw(values(kind))
    assert beans.decode(kind, beans.encode(bean)) == bean


ODD: list[Any] = [
    *(None, True, 0, 5, -1, 2**70, 1.5, -0.0, "", "x", "5", "SINGLE_TAG", "{}", '{"queueId":0}'),
    *([], [None], [5], ["x"], [{}], [[[]]], [{"queueId": "x"}], [{"x": [{}]}]),
    *({}, {"a": 1}, {"topic": 5}, {0: 1}, {0: {}}, {"x": {}}, {"x": [{}]}, {"{}": 5}),
    *({fastjson.ObjectKey.of({"topic": "T"}): 5}, {fastjson.ObjectKey.of({"topic": 1}): {}}),
]


@pytest.mark.parametrize("kind", BEANS, ids=lambda kind: kind.__name__)
@settings(max_examples=20)
@given(st.data())
def test_any_object_is_a_bean_or_a_value_error(kind: Any, data: st.DataObject) -> None:
    names = [column.outer[0] if column.outer else column.last for column in beans._columns(kind)]
    given_object = data.draw(st.dictionaries(st.sampled_from(names), st.sampled_from(ODD)))
    try:
        bean = beans.from_json(kind, given_object)
    except ValueError:
        return
    assert isinstance(bean, kind)


def packed(*parts: bytes | int) -> bytes:
    """A registration's parts: a count as it is, a text with its length before it."""
    return zlib.compress(
        b"".join(
            part.to_bytes(4) if isinstance(part, int) else len(part).to_bytes(4) + part
            for part in parts
        ),
        9,
    )


VERSION = b'{"counter":3,"timestamp":1700000000000}'


def test_a_compressed_registration_is_read() -> None:
    body = packed(VERSION, 2, b"T 4 8 6 SINGLE_TAG", b"U 1 1 2 MULTI_TAG {}", b'["a:1"]', 0)
    found = Registration.decode(body, compressed=True)
    assert found.table.version == bodies.DataVersion(timestamp=1_700_000_000_000, counter=3)
    assert found.table.topics["T"] == TopicConfig(name="T", read_queues=4, write_queues=8)
    assert found.table.topics["U"].perm == Perm.WRITE
    assert found.filter_servers == ["a:1"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nonsense",
        packed(),
        packed(VERSION),
        packed(VERSION, 2**31 - 1),
        packed(VERSION, 1, b"T 4"),
        packed(VERSION, 1, b"T x 4 6 SINGLE_TAG", b"[]"),
        packed(VERSION, 1, b"T 4 4 6 NO_TAG", b"[]"),
        packed(VERSION, 0),
        packed(VERSION, 0, b"5"),
        packed(VERSION, 0, b"{}"),
        packed(VERSION, 0, b"[5]"),
        packed(VERSION, 0, b"[" * 100_000),
        packed(b"[]", 0, b"[]"),
        zlib.compress(bytes(40 * 2**20)),
        packed(VERSION, 0, b"[]")[:10],
    ],
)
def test_a_compressed_registration_that_is_none_is_a_value_error(body: bytes) -> None:
    with pytest.raises(ValueError):
        Registration.decode(body, compressed=True)


@given(st.binary(), st.booleans())
def test_any_bytes_are_a_registration_or_a_value_error(body: bytes, compressed: bool) -> None:
    for data in (body, zlib.compress(body)):
        try:
            Registration.decode(data, compressed=compressed)
        except ValueError:
            continue


def test_properties_come_back() -> None:
    values = {"brokerName": "b", "path": "a=b"}
    assert bodies.decode_properties(bodies.encode_properties(values)) == values
    assert bodies.decode_properties(b"# c=d\n a = b \n\nnothing\n") == {"a": "b"}
