"""Signed SENDs that come in one piece: taken only if each is signed and allowed, and with the same
answers and records as one by one."""

import base64
import hmac
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from broker.test_sends import Broker, brokers, frame, same
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.acl import Access, Account, Accounts
from tamis.acl.addresses import compile_pattern
from tamis.broker._send_signatures import is_signed, note_span, prepare_secret
from tamis.filter.engines.tiers import is_plain
from tamis.security import Credentials
from tamis.security.credentials import sign
from tamis.wire import command
from tamis.wire.command import Command

KEY = Credentials("the-writer", "writer-secret")
OTHER = Credentials("the-other", "another-secret")
FIELDS = {
    "a": "pg",
    "b": "Orders",
    "c": "TBW102",
    "d": "4",
    "e": "0",
    "f": "0",
    "g": "1794726821374",
    "h": "0",
    "i": "TAGS\x01x\x02WAIT\x01true",
    "j": "0",
    "k": "false",
    "m": "false",
}
pytestmark = pytest.mark.skipif(is_plain(), reason="the loops are not compiled here")


def access(white: str = "", **account: Any) -> Access:
    values: dict[str, Any] = {"default_topic": "PUB"} | account
    made = [
        Account(access_key=one.access_key, secret_key=one.secret_key, **values)
        for one in (KEY, OTHER)
    ]
    patterns = (compile_pattern(white),) if white else ()
    return Access(Accounts({one.access_key: one for one in made}, patterns))


@contextmanager
def guarded(tmp_path: Path, **account: Any) -> Iterator[tuple[Broker, Broker, Any]]:
    """As `brokers`, with an access each: they are objects of their own."""
    with brokers(tmp_path, access=access(**account)) as both:
        yield both


def send(
    opaque: int,
    body: bytes = b"body",
    by: Credentials | None = KEY,
    **changed: str | None,
) -> bytes:
    fields = {n: v for n, v in (FIELDS | changed).items() if v is not None}
    made = Command(code=310, opaque=opaque, fields=fields, body=body)
    if by is not None:
        sign(made, by)
    return command.encode(made)


def test_signed_sends_are_taken_together_after_the_first(tmp_path: Path) -> None:
    with guarded(tmp_path) as (fast, slow, run):
        pieces = [send(i, b"x" * i) for i in range(100)]
        run(fast.receive(pieces[0], b"".join(pieces[1:])))
        run(slow.receive(*pieces))
        assert fast.taken == sum(map(len, pieces[1:]))
        same(fast, slow)


@pytest.mark.parametrize(
    "bad",
    [
        send(50, by=None),
        send(50, by=Credentials("the-writer", "wrong-secret")),
        send(50, by=Credentials("stranger", "wrong-secret")),
        send(50, b="Forbidden"),
        send(50).replace(b"body", b"Body"),
        send(50).replace(b'"b":"Orders"', b'"b":"Errors"'),
        send(50).replace(b'"Signature":"', b'"Signaturf":"'),
        send(50).replace(b'"AccessKey":"the-writer"', b'"AccessKey":"the-writes"'),
    ],
    ids=["no key", "wrong secret", "no account", "denied", "body", "field", "no signature", "key"],
)
def test_one_that_is_not_allowed_is_refused_and_the_others_are_stored(
    tmp_path: Path, bad: bytes
) -> None:
    with guarded(tmp_path, topic_perms=("Forbidden=DENY",)) as (fast, slow, run):
        pieces = [*(send(i) for i in range(50)), bad, *(send(i) for i in range(51, 100))]
        run(fast.receive(pieces[0], b"".join(pieces[1:])))
        run(slow.receive(*pieces))
        is_other_topic = b"Forbidden" in bad or b"Errors" in bad  # then the piece is looked at anew
        assert fast.taken > 0 or is_other_topic
        refused = [json.loads(one) for one in fast.answers() if json.loads(one)["code"]]
        assert [one["opaque"] for one in refused] == [50]
        assert "AclException" in refused[0]["remark"]
        slow.answers()
        assert fast.log() == slow.log()


def test_every_key_of_a_connection_is_asked_for_its_own_rights(tmp_path: Path) -> None:
    with guarded(tmp_path) as (fast, slow, run):
        pieces = [send(i, by=KEY if i // 10 % 2 else OTHER) for i in range(100)]
        run(fast.receive(*pieces[:5], b"".join(pieces[5:])))
        run(slow.receive(*pieces))
        same(fast, slow)


def test_white_addresses_are_taken_without_a_signature(tmp_path: Path) -> None:
    with guarded(tmp_path, white="10.1.2.*") as (fast, slow, run):
        pieces = [send(i, by=None) for i in range(20)]
        run(fast.receive(pieces[0], b"".join(pieces[1:])))
        run(slow.receive(*pieces))
        assert fast.taken > 0
        same(fast, slow)


def test_an_accounts_white_address_needs_the_key_alone(tmp_path: Path) -> None:
    with guarded(tmp_path, white_address="10.1.2.3", default_topic="DENY") as (fast, slow, run):
        signed = [send(i) for i in range(10)]
        wrong = [send(i, by=Credentials("the-writer", "wrong-secret")) for i in range(10, 20)]
        keyless = [send(i, by=None) for i in range(20, 25)]
        pieces = [*signed, *wrong, *keyless]
        run(fast.receive(pieces[0], b"".join(pieces[1:])))
        run(slow.receive(*pieces))
        assert fast.taken == sum(map(len, [*signed[1:], *wrong]))
        same(fast, slow)


def test_a_body_too_long_for_the_loop_is_checked_the_usual_way(tmp_path: Path) -> None:
    with guarded(tmp_path) as (fast, slow, run):
        pieces = [send(i, b"x" * (20_000 if i == 5 else 10)) for i in range(10)]
        run(fast.receive(pieces[0], b"".join(pieces[1:])))
        run(slow.receive(*pieces))
        same(fast, slow)


def test_a_change_of_accounts_stops_pieces_at_once(tmp_path: Path) -> None:
    one = access()
    with brokers(tmp_path, access=one) as (fast, _, run):
        run(fast.receive(send(0), send(1) + send(2)))
        taken = fast.taken
        assert taken > 0
        one.change(Accounts())
        run(fast.receive(send(3) + send(4)))
        assert fast.taken == taken
        assert [json.loads(one)["code"] for one in fast.answers()] == [0, 0, 0, 1, 1]


VALUES = st.one_of(
    st.text("abcXYZ012 ./", max_size=70),
    st.text(max_size=10),
    st.sampled_from(["é", "\u2028", "😀", '"', "\\", "\n", "\x01\x02"]),
)
NAMES = st.one_of(
    st.text("abcdefghijklmnoAZ_", min_size=1, max_size=3),
    st.sampled_from(
        ["Signature2", "AccessKeys", "SecurityToken", "_UNIQUE_KEY_QUERY", "signature"]
    ),
)


@settings(max_examples=150, deadline=None)
@given(
    more=st.dictionaries(NAMES, VALUES, max_size=6),
    properties=st.dictionaries(
        st.text("abc\u00e9", min_size=1, max_size=4), st.text(min_size=1, max_size=9), max_size=3
    ),
    body=st.binary(max_size=300),
    order=st.randoms(use_true_random=False),
    change=st.integers(0, 5),
)
def test_pieces_are_answered_as_one_by_one_whatever_is_in_them(
    tmp_path_factory: pytest.TempPathFactory,
    more: dict[str, str],
    properties: dict[str, str],
    body: bytes,
    order: Any,
    change: int,
) -> None:
    text = "\x02".join(f"{name}\x01{value}" for name, value in properties.items())
    fields = {**more, **FIELDS, "i": text}
    made = Command(code=310, opaque=7, fields=fields, body=body)
    sign(made, KEY)
    assert made.fields is not None
    items = list(made.fields.items())
    order.shuffle(items)
    made.fields = dict(items)
    if change == 1:
        made.body += b"!"
    elif change == 2:
        made.fields["i"] += "\x02z\x01z"
    elif change == 3:
        made.fields["extra"] = "x"
    data = command.encode(made)
    with guarded(tmp_path_factory.mktemp("pieces")) as (fast, slow, run):
        pieces = [send(1), data, send(9)]
        run(fast.receive(pieces[0], b"".join(pieces[1:])))
        run(slow.receive(*pieces))
        same(fast, slow)


@given(st.binary(max_size=100), st.binary(max_size=400), st.integers(0, 28))
def test_the_loops_hash_is_pythons(secret: bytes, body: bytes, wrong: int) -> None:
    key, value = b"the-writer", b"some value"
    digest = base64.b64encode(hmac.digest(secret, key + value + body, "sha1"))
    is_right = wrong == 28
    if not is_right:
        other = b"A" if digest[wrong : wrong + 1] != b"A" else b"B"
        digest = digest[:wrong] + other + digest[wrong + 1 :]
    parts = [(b"Signature", digest), (b"z", value), (b"AccessKey", key)]
    memory = np.frombuffer(b"".join(a + b for a, b in parts) + body + b"\0", dtype=np.uint8)
    spans = np.zeros((32, 5), dtype=np.int64)
    at = base = memory.ctypes.data
    for i, (name, text) in enumerate(parts):
        note_span(spans, i, at, len(name), at + len(name), len(text), False)
        at += len(name) + len(text)
    assert base < at
    empty, content = np.zeros(1, dtype=np.uint8), np.zeros(1024, dtype=np.uint8)
    own = np.frombuffer(key, dtype=np.uint8).copy()
    found = is_signed(spans, 3, empty, 0, 0, at, len(body), own, prepare_secret(secret), content)
    assert found is is_right


def test_a_header_with_too_many_fields_or_one_twice_goes_the_usual_way(tmp_path: Path) -> None:
    many = {f"x{i}": "y" for i in range(40)}
    header = json.loads(send(3)[8:].split(b"body")[0])
    text = json.dumps(header).replace('"z": "1"', "").encode()
    twice = text.replace(b'"a": "pg"', b'"a": "no", "a": "pg"').replace(
        b'"AccessKey"', b'"zz": "no", "zz": "", "AccessKey"'
    )
    null = text.replace(b'"AccessKey"', b'"zz": null, "AccessKey"')
    with guarded(tmp_path) as (fast, slow, run):
        pieces = [send(1), send(2, **many), frame(twice, b"body"), frame(null, b"body"), send(5)]
        run(fast.receive(pieces[0], b"".join(pieces[1:])))
        run(slow.receive(*pieces))
        same(fast, slow)
