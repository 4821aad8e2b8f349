"""What each request asks for: every code, with too few rights and with enough, to Apache's broker
and to ours."""

import json
from collections.abc import Iterator

import pytest
from interop.aclservers import ask_all, guarded_apache, guarded_cluster, signed

from tamis.acl.needs import STRICTER
from tamis.wire.codes import RequestCode

# All that RocketMQ 4.9.4's RequestCode has but those of the name server, and one that nobody has.
CODES = [
    *(10, 11, 12, 13, 14, 15, 17, 21, 22, 23, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37),
    *(38, 39, 40, 41, 42, 43, 45, 46, 50, 51, 52, 53, 54, 200, 201, 202, 203, 204, 207, 208, 209),
    *(210, 211, 212, 213, 214, 215, 220, 221, 222, 223, 300, 301, 302, 303, 305, 306, 307, 308),
    *(309, 310, 314, 315, 316, 317, 320, 321, 322, 323, 324, 325, 326, 328, 329, 9999),
]
FIELDS = {
    "topic": "T",
    "b": "T",
    "group": "g",
    "a": "g",
    "consumerGroup": "g",
    "producerGroup": "g",
    "groupName": "g",
    "clientID": "c",
    "queueId": "0",
    "commitOffset": "0",
    # of requests about accounts: what they would do harms nobody
    "accessKey": "a-new-key",
    "secretKey": "a-new-secret",
    "globalWhiteAddrs": "10.255.255.255",
    "aclFileFullPath": "",
}
HEARTBEAT = {
    "clientID": "c",
    "producerDataSet": [],
    "consumerDataSet": [
        {
            "groupName": "g",
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "unitMode": False,
            "subscriptionDataSet": [{"topic": "T", "subString": "*", "subVersion": 1}],
        }
    ],
}
KEYS = {
    "no key": None,
    "unknown key": ("stranger", "some-secret"),
    "wrong secret": ("admin-key", "wrong-secret"),
    "nobody": ("nobody-key", "nobody-secret"),
    "pub": ("pub-key", "pub-secret"),
    "sub": ("sub-key", "sub-secret"),
    "listed": ("listed-key", "listed-secret"),
    "admin": ("admin-key", "admin-secret"),
}
EXCEPTION = "org.apache.rocketmq.acl.common.AclException: "


def verdicts(address: str, key: tuple[str, str] | None) -> dict[int, str]:
    requests = {}
    for code in CODES:
        body = json.dumps(HEARTBEAT).encode() if code == 34 else b""
        fields = dict(FIELDS)
        requests[code] = (fields if key is None else signed(fields, body, *key), body)
    found = ask_all(address, requests)
    return {code: verdict(*found.get(code, (0, ""))) for code in CODES}


def verdict(code: int, remark: str) -> str:
    """What access control says, whatever else may be wrong with the request."""
    if not remark.startswith(EXCEPTION):
        return "passed"
    assert code == 1, (code, remark)
    text = remark.removeprefix(EXCEPTION).partition(", org.apache")[0]
    # of a topic and a group that both are denied Java names either
    return "no permission" if text.startswith("No default permission") else text


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with guarded_apache(tmp_path_factory.mktemp("acl") / "store") as broker:
        yield broker


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with guarded_cluster(tmp_path_factory.mktemp("ours")) as cluster:
        yield cluster.broker


@pytest.mark.parametrize("who", KEYS)
def test_each_request_is_refused_as_apaches_broker_refuses_it(
    theirs: str, ours: str, who: str
) -> None:
    expected, found = verdicts(theirs, KEYS[who]), verdicts(ours, KEYS[who])
    differ = {code for code in CODES if expected[code] != found[code]}
    assert differ <= set(STRICTER), {code: (expected[code], found[code]) for code in differ}
    for code in differ:  # stricter, never laxer
        assert expected[code] == "passed"
        assert found[code] != "passed"
    if who == "nobody":
        assert differ == set(STRICTER)
    assert {"passed"} < set(expected.values()) or who not in ("pub", "sub", "listed")


def test_our_own_requests_are_in_the_table(ours: str) -> None:
    own = [code for code in RequestCode if code > 12000]
    requests = {int(code): (signed({}, b"", "nobody-key", "nobody-secret"), b"") for code in own}
    found = {code: verdict(*answer) for code, answer in ask_all(ours, requests).items()}
    needing = "Need admin permission for request code={}, but accessKey=nobody-key is not"
    for code in (12311, 12312, 12313, 12314, 12315, 12316):
        assert found[code] == needing.format(code)
    assert found[12321] == "no permission"


def test_a_request_without_any_fields_is_refused_the_same(theirs: str, ours: str) -> None:
    codes = (10, 11, 17, 21, 34, 310, 9999)
    requests: dict[int, tuple[dict[str, str] | None, bytes]] = dict.fromkeys(codes, (None, b""))
    found = [
        {code: verdict(*answer) for code, answer in ask_all(broker, requests).items()}
        for broker in (theirs, ours)
    ]
    assert found[0] == found[1] == dict.fromkeys(requests, "No accessKey is configured")
