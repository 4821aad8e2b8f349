"""Brokers with access control, Apache's and ours, with the same accounts; and requests by hand."""

import base64
import hashlib
import hmac
import json
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from interop.cluster import ApacheCluster, ask

from tamis import testing

ACCOUNTS = """\
accounts:
- accessKey: admin-key
  secretKey: admin-secret
  admin: true
- accessKey: nobody-key
  secretKey: nobody-secret
  defaultTopicPerm: DENY
  defaultGroupPerm: DENY
- accessKey: pub-key
  secretKey: pub-secret
  defaultTopicPerm: PUB
  defaultGroupPerm: PUB
- accessKey: sub-key
  secretKey: sub-secret
  defaultTopicPerm: SUB
  defaultGroupPerm: SUB
- accessKey: listed-key
  secretKey: listed-secret
  topicPerms:
  - T=PUB|SUB
  groupPerms:
  - g=SUB
"""
GET_ALL_TOPIC_CONFIG, GET_ROUTE = 21, 105


class GuardedApache(ApacheCluster):
    """With `aclEnable`; ready as soon as it answers, whatever it answers."""

    def __init__(self, store: Path, accounts: str = ACCOUNTS, **settings: object) -> None:
        super().__init__(store, aclEnable=True, **settings)
        (self._home / "conf" / "plain_acl.yml").write_text(accounts)

    def _serve_broker(self) -> None:
        wait, self._wait_for = self._wait_for, lambda what, ready: None  # type: ignore[method-assign,assignment]
        try:
            super()._serve_broker()
        finally:
            self._wait_for = wait  # type: ignore[method-assign]
        topic = {"topic": "SELF_TEST_TOPIC"}
        self._wait_for("broker", lambda: ask(self.broker, GET_ALL_TOPIC_CONFIG, topic) is not None)
        self._wait_for(
            "the name server about the broker",
            lambda: (ask(self.nameserver, GET_ROUTE, topic) or (1, b""))[0] == 0,
        )


@contextmanager
def guarded_apache(store: Path) -> Iterator[str]:
    """Its address."""
    cluster = GuardedApache(store)
    cluster.start()
    try:
        yield cluster.broker
    finally:
        cluster.kill()


@contextmanager
def guarded_cluster(home: Path, accounts: str = ACCOUNTS) -> Iterator[testing.LocalCluster]:
    """Ours."""
    home.mkdir(parents=True, exist_ok=True)
    file = home / "plain_acl.yml"
    file.write_text(accounts)
    with testing.LocalCluster(store=home / "store", aclFile=str(file)) as cluster:
        yield cluster


def signed(fields: Mapping[str, str], body: bytes, key: str, secret: str) -> dict[str, str]:
    """By hand: the code under test has no part in it."""
    made = {**fields, "AccessKey": key}
    content = "".join(made[name] for name in sorted(made)).encode() + body
    digest = hmac.new(secret.encode(), content, hashlib.sha1).digest()
    return {**made, "Signature": base64.b64encode(digest).decode()}


def ask_all(
    address: str, requests: Mapping[int, tuple[dict[str, str] | None, bytes]], seconds: float = 4.0
) -> dict[int, tuple[int, str]]:
    """Code and remark of what is answered within a while, by the code of the request, each on its
    own; those that are not answered are missing."""
    host, _, port = address.partition(":")
    found: dict[int, tuple[int, str]] = {}
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        for code, (fields, body) in requests.items():
            header = json.dumps(
                {"code": code, "flag": 0, "language": "JAVA", "opaque": code, "version": 401}
                | {"serializeTypeCurrentRPC": "JSON"}
                | ({"extFields": fields} if fields is not None else {})
            ).encode()
            size = 4 + len(header) + len(body)
            connection.sendall(struct.pack(">ii", size, len(header)) + header + body)
        connection.settimeout(seconds)
        with connection.makefile("rb") as answers:
            try:
                while len(found) < len(requests):
                    size, length = struct.unpack(">ii", answers.read(8))
                    answer = json.loads(answers.read(length & 0xFFFFFF))
                    answers.read(size - 4 - (length & 0xFFFFFF))
                    if answer["flag"] & 1:
                        found[answer["opaque"]] = (answer["code"], answer.get("remark") or "")
            except (TimeoutError, struct.error):
                pass
    return found
