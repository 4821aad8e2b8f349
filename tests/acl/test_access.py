"""Who may do what: keys, signatures, permissions, white addresses, and what is remembered."""

import logging
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis.acl import ACL_EXCEPTION, Access, Account, Accounts
from tamis.acl.addresses import compile_pattern
from tamis.acl.needs import ADMIN
from tamis.acl.permissions import Perm
from tamis.security import Credentials
from tamis.security.credentials import sign
from tamis.wire.bodies import ConsumerData, Heartbeat, Subscription
from tamis.wire.codes import RequestCode
from tamis.wire.command import Command

KEY, SECRET = "some-key", "some-secret"


@dataclass(eq=False)
class Peer:
    host: str = "10.1.2.3"


def access(*white: str, **account: Any) -> Access:
    made = Account(access_key=KEY, secret_key=SECRET, **account)
    return Access(Accounts({KEY: made}, tuple(map(compile_pattern, white))))


def request(code: int, secret: str = SECRET, key: str = KEY, /, **fields: str) -> Command:
    made = Command(code=code, fields=fields, body=b"body")
    sign(made, Credentials(key, secret))
    return made


def why(found: str | None) -> str | None:
    return None if found is None else found.removeprefix(ACL_EXCEPTION)


SEND, PULL = RequestCode.SEND_MESSAGE_V2, RequestCode.PULL_MESSAGE


def test_each_step_is_refused_with_rocketmqs_text() -> None:
    one = access(default_topic="PUB")
    assert why(one.check(Peer(), Command(code=SEND))) == "No accessKey is configured"
    assert why(one.check(Peer(), Command(code=SEND, fields={}))) == "No accessKey is configured"
    assert why(one.check(Peer(), request(SEND, SECRET, "another"))) == "No acl config for another"
    wrong = "Check signature failed for accessKey=some-key"
    assert why(one.check(Peer(), request(SEND, "another"))) == wrong
    unsigned = Command(code=SEND, fields={"AccessKey": KEY})
    assert why(one.check(Peer(), unsigned)) == wrong
    strange = Command(code=SEND, fields={"AccessKey": KEY, "Signature": "\ud800é"})
    assert why(one.check(Peer(), strange)) == wrong
    assert one.check(Peer(), request(SEND, b="T", a="p")) is None
    denied = one.check(Peer(), request(PULL, topic="T", consumerGroup="g"))
    assert why(denied) == "No default permission for topic:T"
    admin = one.check(Peer(), request(RequestCode.UPDATE_AND_CREATE_TOPIC, topic="T"))
    assert why(admin) == (
        "Need admin permission for request code=17, but accessKey=some-key is not"
    )


def test_a_signature_covers_fields_and_body_and_is_checked_each_time() -> None:
    one, peer = access(default_topic="PUB"), Peer()
    good = request(SEND, b="T", a="p")
    assert one.check(peer, good) is None
    for changed in (
        Command(code=SEND, fields={**(good.fields or {}), "b": "U"}, body=good.body),
        Command(code=SEND, fields={**(good.fields or {}), "z": "1"}, body=good.body),
        Command(code=SEND, fields=good.fields, body=b"other"),
    ):
        assert why(one.check(peer, changed)) == "Check signature failed for accessKey=some-key"
    assert one.check(peer, good) is None


def test_the_flag_that_javas_client_adds_after_signing_is_not_signed() -> None:
    good = request(RequestCode.QUERY_MESSAGE, topic="T", key="k")
    good.fields = {**(good.fields or {}), "_UNIQUE_KEY_QUERY": "true"}
    assert access(default_topic="SUB").check(Peer(), good) is None


@pytest.mark.parametrize("code", sorted(ADMIN))
def test_what_changes_the_broker_needs_an_administrator(code: int) -> None:
    assert "Need admin permission" in (
        access(default_topic="PUB|SUB", default_group="PUB|SUB").check(
            Peer(), request(code, topic="T", group="g")
        )
        or ""
    )
    assert access(is_admin=True).check(Peer(), request(code, topic="T", group="g")) is None


def test_an_administrator_with_listed_permissions_has_only_those() -> None:
    one = access(is_admin=True, topic_perms=("T=SUB",))
    assert one.check(Peer(), request(RequestCode.UPDATE_BROKER_CONFIG)) is None
    assert why(one.check(Peer(), request(SEND, b="T", a="p"))) == (
        "No default permission for topic:T"
    )
    assert access(is_admin=True).check(Peer(), request(SEND, b="T", a="p")) is None


@pytest.mark.parametrize(
    ("code", "account", "fields", "denied"),
    [
        (SEND, {"default_topic": "PUB"}, {"b": "T"}, None),
        (SEND, {"default_topic": "SUB"}, {"b": "T"}, "topic:T"),
        (SEND, {"default_topic": "PUB", "topic_perms": ("T=DENY",)}, {"b": "T"}, "topic:T"),
        (SEND, {"topic_perms": ("T=PUB",)}, {"b": "T"}, None),
        (SEND, {"topic_perms": ("T=SUB|PUB",)}, {"b": "T"}, None),
        (SEND, {}, {"b": "RMQ_SYS_TRACE_TOPIC"}, None),
        (SEND, {"group_perms": ("g=SUB",)}, {"b": "%RETRY%g", "a": "g"}, None),
        (SEND, {"default_topic": "PUB"}, {"b": "%RETRY%g", "a": "g"}, "group:g"),
        # the group is named by who sends: it has to be the topic's own
        (SEND, {"group_perms": ("mine=SUB",)}, {"b": "%RETRY%g", "a": "mine"}, "group:g"),
        (RequestCode.SEND_BATCH_MESSAGE, {"default_topic": "SUB"}, {"b": "T"}, "topic:T"),
        (RequestCode.SEND_MESSAGE, {"default_topic": "SUB"}, {"topic": "T"}, "topic:T"),
        (PULL, {"default_topic": "SUB"}, {"topic": "T", "consumerGroup": "g"}, "group:g"),
        (PULL, {"default_group": "SUB"}, {"topic": "T", "consumerGroup": "g"}, "topic:T"),
        (
            PULL,
            {"topic_perms": ("T=SUB",), "group_perms": ("g=SUB",)},
            {"topic": "T", "consumerGroup": "g"},
            None,
        ),
        (
            PULL,
            {"group_perms": ("g=SUB",)},
            {"topic": "%RETRY%g", "consumerGroup": "g"},
            None,
        ),
        (PULL, {"group_perms": ("g=SUB",)}, {"topic": "%DLQ%g", "consumerGroup": "g"}, None),
        (
            PULL,
            {"default_topic": "SUB", "group_perms": ("me=SUB",)},
            {"topic": "%DLQ%g", "consumerGroup": "me"},
            "topic:%DLQ%g",
        ),
        (
            PULL,
            {"group_perms": ("g=SUB",), "topic_perms": ("%DLQ%g=DENY",)},
            {"topic": "%DLQ%g", "consumerGroup": "g"},
            "topic:%DLQ%g",
        ),
        (RequestCode.GET_HISTORY, {"default_group": "SUB"}, {"group": "g"}, None),
        (RequestCode.GET_HISTORY, {}, {"group": "g"}, "group:g"),
        (RequestCode.GET_MATCHING_LAG, {}, {"topic": "T"}, "topic:T"),
        (RequestCode.REGISTER_FILTER_SERVER, {}, {}, "group:FILTERSRV_CONSUMER"),
        (RequestCode.GET_BROKER_RUNTIME_INFO, {}, {}, None),
    ],
)
def test_what_a_request_needs(
    code: int, account: dict[str, Any], fields: dict[str, str], denied: str | None
) -> None:
    found = why(access(**account).check(Peer(), request(code, **fields)))
    assert found == (None if denied is None else f"No default permission for {denied}")


def test_what_is_about_all_groups_needs_an_administrator() -> None:
    everything = {"default_topic": "PUB|SUB", "default_group": "PUB|SUB"}
    for code in (RequestCode.GET_HISTORY, RequestCode.GET_FILTER_VERDICTS):
        assert "Need admin" in (access(**everything).check(Peer(), request(code)) or "")
        assert access(is_admin=True).check(Peer(), request(code)) is None


def test_a_heartbeat_needs_its_groups_and_topics() -> None:
    one, peer = access(topic_perms=("T=SUB",), group_perms=("g=SUB",)), Peer()
    beat = request(RequestCode.HEART_BEAT)

    def heartbeat(group: str, *topics: str) -> str | None:
        subscriptions = [Subscription(topic=topic, expression="*") for topic in topics]
        consumer = ConsumerData(group=group, subscriptions=subscriptions)
        data = Heartbeat(client_id="c", producers=[], consumers=[consumer])
        return why(one.check_heartbeat(peer, beat, data))

    assert one.check(peer, beat) is None
    assert heartbeat("g", "T", "%RETRY%g") is None
    assert heartbeat("h", "T") == "No default permission for group:h"
    assert heartbeat("g", "U") == "No default permission for topic:U"
    one.change(Accounts())
    assert heartbeat("g", "T") == "No accessKey is configured"


def test_white_addresses_need_no_signature() -> None:
    assert access("10.1.2.*").check(Peer(), Command(code=SEND)) is None
    assert access("10.1.3.*").check(Peer(), Command(code=SEND)) is not None
    own = access(white_address="10.1.2.3")
    assert own.check(Peer(), Command(code=SEND, fields={"AccessKey": KEY})) is None
    assert own.check(Peer("10.1.2.4"), Command(code=SEND, fields={"AccessKey": KEY})) is not None
    assert own.check(Peer(), Command(code=SEND)) is not None


def test_a_change_of_accounts_holds_for_connections_that_are_known() -> None:
    one, peer = access(default_topic="PUB"), Peer()
    good = request(SEND, b="T", a="p")
    assert one.check(peer, good) is None
    assert one.known(peer) is not None
    one.change(Accounts({KEY: Account(access_key=KEY, secret_key=SECRET)}))
    assert one.known(peer) is None
    assert why(one.check(peer, good)) == "No default permission for topic:T"
    one.change(Accounts({KEY: Account(access_key=KEY, secret_key="another", default_topic="PUB")}))
    assert why(one.check(peer, good)) == "Check signature failed for accessKey=some-key"
    one.change(Accounts())
    assert why(one.check(peer, good)) == "No acl config for some-key"


def test_a_connection_may_use_several_keys_and_none_has_anothers_rights() -> None:
    reader = Account(access_key="a-reader", secret_key="reader-secret", default_topic="SUB")
    writer = Account(access_key="a-writer", secret_key="writer-secret", default_topic="PUB")
    one, peer = Access(Accounts({"a-reader": reader, "a-writer": writer})), Peer()
    for _ in range(3):
        assert one.check(peer, request(SEND, "writer-secret", "a-writer", b="T")) is None
        found = one.check(peer, request(SEND, "reader-secret", "a-reader", b="T"))
        assert why(found) == "No default permission for topic:T"


def test_a_captured_request_can_be_sent_again_from_anywhere() -> None:
    """What RocketMQ's scheme can't prevent: nothing in a request says when or to whom it was
    sent. docs/security.md says so."""
    one = access(default_topic="PUB")
    captured = request(SEND, b="T", a="p")
    assert one.check(Peer("10.1.2.3"), captured) is None
    assert one.check(Peer("10.9.9.9"), captured) is None


def test_what_is_remembered_is_limited_and_forgotten_with_the_connection() -> None:
    one, peer = access(default_topic="PUB"), Peer()
    for i in range(5000):
        assert one.check(peer, request(SEND, b=f"T{i}", a="p")) is None
    known = one.known(peer)
    assert known is not None
    assert len(known.verdicts) <= 4096
    for i in range(300):
        assert one.check(peer, request(SEND, **{"b": "T", f"field{i}": "x"})) is None
    assert len(one._orders) <= 256
    one.forget(peer)
    assert not one._known


def test_refusals_are_counted_and_logged_now_and_then_without_secrets(
    caplog: pytest.LogCaptureFixture,
) -> None:
    one = access()
    with caplog.at_level(logging.WARNING):
        for _ in range(100):
            one.check(Peer(), request(SEND, "wrong-secret", b="T"))
            one.check(Peer(), request(SEND, SECRET, "line\nbreak"))
    assert one.refused == 200
    assert 1 <= len(caplog.records) <= 3
    assert "secret" not in caplog.text
    assert caplog.text.count("\n") == len(caplog.records)


@given(st.dictionaries(st.text(max_size=8), st.text(max_size=20), max_size=6), st.binary())
def test_whatever_is_signed_is_taken_and_nothing_else(fields: dict[str, str], body: bytes) -> None:
    made = Command(code=9999, fields=dict(fields), body=body)
    sign(made, Credentials(KEY, SECRET))
    assert access().check(Peer(), made) is None
    made.body += b"x"
    assert "Check signature failed" in (access().check(Peer(), made) or "")


@given(st.sampled_from([None, "DENY", "PUB", "SUB", "PUB|SUB", "SUB|PUB", "nonsense"]))
def test_a_permission_gives_what_it_says(word: str | None) -> None:
    account = Account(access_key=KEY, secret_key=SECRET, default_topic=word)
    assert account.may("T", Perm.PUB) is ("PUB" in (word or ""))
    assert account.may("T", Perm.SUB) is ("SUB" in (word or ""))
