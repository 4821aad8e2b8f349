"""Apache's servers with access control (`plain_acl.yml`), with TLS, or both."""

import contextlib
import json
import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from client.access_cases import ACCOUNTS
from interop.cluster import GET_ALL_TOPIC_CONFIG, GET_ROUTE, SETTINGS, SUCCESS, ApacheCluster


class SecuredCluster(ApacheCluster):
    """With `acl`, of `ACCOUNTS`; with `tls`, every port takes TLS only, with the certificate that
    RocketMQ makes for tests, or with `certificate` and its key."""

    def __init__(
        self,
        store: Path,
        *,
        acl: bool = True,
        tls: bool = False,
        certificate: tuple[str, str] | None = None,
        **settings: object,
    ) -> None:
        super().__init__(store, **({"aclEnable": True} if acl else {}), **settings)
        self._is_tls = tls
        self._certificate = certificate
        (self._home / "conf" / "plain_acl.yml").write_text(ACCOUNTS)

    def _java(self, main: str, *arguments: str) -> list[str]:
        made = super()._java(main, *arguments)
        if not self._is_tls:
            return made
        options = ["-Dtls.server.mode=enforcing", "-Dtls.enable=true"]
        if self._certificate is not None:
            options.append("-Dtls.test.mode.enable=false")
            names = ("tls.server.certPath", "tls.server.keyPath")
            options += [f"-D{n}={v}" for n, v in zip(names, self._certificate, strict=True)]
        made = [one for one in made if not one.startswith("-Dtls.")]
        return [made[0], *options, *made[1:]]

    def _serve_names(self, port: int) -> None:
        self._serve("nameserver", {"listenPort": port})
        address = f"127.0.0.1:{port}"
        self._wait_for("the name server", lambda: self._answer(address, GET_ROUTE) is not None)

    def _serve_broker(self) -> None:
        settings = {
            **SETTINGS,
            **self._settings,
            "listenPort": self.broker.rpartition(":")[2],
            "namesrvAddr": self.nameserver,
            "storePathRootDir": self.store,
        }
        self._serve("broker", settings)
        self._wait_for(  # with access control it refuses us, but it answers
            "the broker", lambda: self._answer(self.broker, GET_ALL_TOPIC_CONFIG) is not None
        )
        self._wait_for(
            "the name server about the broker",
            lambda: self._answer(self.nameserver, GET_ROUTE) == SUCCESS,
        )

    def _answer(self, address: str, code: int) -> int | None:
        """The code answered to a request by hand; None while nobody does."""
        header = json.dumps(
            {"code": code, "flag": 0, "language": "JAVA", "opaque": 1, "version": 399}
            | {"extFields": {"topic": "SELF_TEST_TOPIC"}, "serializeTypeCurrentRPC": "JSON"}
        ).encode()
        host, _, port = address.partition(":")
        with contextlib.ExitStack() as stack:
            try:
                end = stack.enter_context(socket.create_connection((host, int(port)), timeout=5))
                if self._is_tls:
                    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                    end = stack.enter_context(context.wrap_socket(end))
                end.sendall(struct.pack(">ii", 4 + len(header), len(header)) + header)
                file = stack.enter_context(end.makefile("rb"))
                _, length = struct.unpack(">ii", file.read(8))
                return int(json.loads(file.read(length))["code"])
            except (OSError, struct.error, ValueError):
                return None


@contextmanager
def secured_cluster(
    store: Path,
    *,
    acl: bool = True,
    tls: bool = False,
    certificate: tuple[str, str] | None = None,
    **settings: object,
) -> Iterator[SecuredCluster]:
    cluster = SecuredCluster(store, acl=acl, tls=tls, certificate=certificate, **settings)
    cluster.start()
    try:
        yield cluster
    finally:
        cluster.kill()
