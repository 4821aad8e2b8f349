"""TLS with RocketMQ 4.9.4: its Java client and mqadmin at our servers, our connections at its."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from certificates import Authority, Certificate
from interop.cluster import SETTINGS, ApacheCluster
from interop.javaclient import JavaClient

from tamis.net import aio, blocking
from tamis.security import ClientTls, Security
from tamis.testing import LocalCluster
from tamis.wire.codes import RequestCode, ResponseCode
from tamis.wire.command import Command

PATIENCE = 30.0
LARGE = "0123456789abcdef" * 2**16  # a mebibyte
ROUTE = Command(code=RequestCode.GET_ROUTEINFO_BY_TOPIC, fields={"topic": "SELF_TEST_TOPIC"})
TOPICS = Command(code=RequestCode.GET_ALL_TOPIC_CONFIG)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def certificate(authority: Authority) -> Certificate:
    return authority.issue(rsa=True)


def verifying(authority: Authority) -> list[str]:
    """A client that verifies servers, which RocketMQ's by default does not."""
    return [
        "-Dtls.enable=true",
        "-Dtls.test.mode.enable=false",
        "-Dtls.client.authServer=true",
        f"-Dtls.client.trustCertPath={authority.ca}",
    ]


@pytest.fixture(scope="module")
def java(authority: Authority) -> Iterator[JavaClient]:
    with JavaClient("4.9", flags=verifying(authority)) as client:
        yield client


@pytest.fixture(scope="module")
def plain_java() -> Iterator[JavaClient]:
    with JavaClient("4.9") as client:
        yield client


def ours(store: Path, certificate: Certificate, mode: str, **more: object) -> LocalCluster:
    files = {"tls_cert": certificate.cert, "tls_key": certificate.key}
    return LocalCluster(store, tls=mode, **files, **more)


def exchange(sender: JavaClient, reader: JavaClient, nameserver: str) -> list[str]:
    """What one sends the other gets: the bodies, in order of size."""
    for one in (sender, reader):
        one.renew()
        one.nameserver = nameserver
    topic = sender.name("tls")
    producer = sender.producer(sender.name("p"))
    bodies = ["x", "small", LARGE]
    sent = sender.send(producer, *({"topic": topic, "body": body} for body in bodies))
    assert [row.get("status") for row in sent] == ["SEND_OK"] * 3, sent
    consumer = reader.push(reader.name("c"), reader.name("g"), {topic: {}})
    return sorted((row["body"] for row in reader.received(consumer, 3)), key=len)


@pytest.mark.parametrize("mode", ["permissive", "enforcing"])
def test_the_java_client_sends_and_receives_over_tls(
    mode: str, tmp_path: Path, certificate: Certificate, java: JavaClient
) -> None:
    with ours(tmp_path / "store", certificate, mode) as cluster:
        assert exchange(java, java, cluster.nameserver) == ["x", "small", LARGE]
        assert cluster._running is not None
        shaken = cluster._running[0].server.handshakes
        assert shaken is not None
        assert shaken.completed
        assert not shaken.failed
        [listed] = java.admin(["clusterList", "-n", cluster.nameserver])
        assert cluster.broker in listed


def test_clients_with_tls_and_without_meet_at_a_permissive_cluster(
    tmp_path: Path, certificate: Certificate, java: JavaClient, plain_java: JavaClient
) -> None:
    with ours(tmp_path / "store", certificate, "permissive") as cluster:
        assert exchange(java, plain_java, cluster.nameserver) == ["x", "small", LARGE]
        assert exchange(plain_java, java, cluster.nameserver) == ["x", "small", LARGE]


def test_a_java_client_without_tls_is_refused_by_an_enforcing_cluster(
    tmp_path: Path, certificate: Certificate, plain_java: JavaClient
) -> None:
    with ours(tmp_path / "store", certificate, "enforcing") as cluster:
        plain_java.renew()
        plain_java.nameserver = cluster.nameserver
        producer = plain_java.producer(plain_java.name("p"))
        (row,) = plain_java.send(producer, {"topic": "any", "body": "x"}, timeout=3)
        assert "error" in row
        assert cluster._running is not None


def test_a_java_client_is_refused_without_the_certificate_that_is_required(
    tmp_path: Path, authority: Authority, certificate: Certificate, java: JavaClient
) -> None:
    auth = {"tls_client_auth": "require", "tls_ca": authority.ca}
    own = authority.issue("client", rsa=True)
    mine = [f"-Dtls.client.certPath={own.cert}", f"-Dtls.client.keyPath={own.key}"]
    with (
        ours(tmp_path / "store", certificate, "enforcing", **auth) as cluster,
        JavaClient("4.9", flags=[*verifying(authority), *mine]) as known,
    ):
        assert exchange(known, known, cluster.nameserver) == ["x", "small", LARGE]
        java.renew()
        java.nameserver = cluster.nameserver
        (row,) = java.send(java.producer(java.name("p")), {"topic": "any", "body": "x"}, timeout=3)
        assert "error" in row


# Apache's servers.


class TlsCluster(ApacheCluster):
    """RocketMQ's servers, which take TLS only; the certificate is one of their own making."""

    def _java(self, main: str, *arguments: str) -> list[str]:
        java, *rest = super()._java(main, *arguments)
        flags = ["-Dtls.server.mode=enforcing", "-Dtls.enable=true"]
        return [java, *flags, *(one for one in rest if not one.startswith("-Dtls."))]

    def _serve_names(self, port: int) -> None:
        self._serve("nameserver", {"listenPort": port})
        address = f"127.0.0.1:{port}"
        self._wait_for("the name server", lambda: code(address, ROUTE) is not None)

    def _serve_broker(self) -> None:
        port = self.broker.rpartition(":")[2]
        places = {"namesrvAddr": self.nameserver, "storePathRootDir": self.store}
        self._serve("broker", {**SETTINGS, **self._settings, "listenPort": port, **places})
        self._wait_for("the broker", lambda: code(self.broker, TOPICS) == ResponseCode.SUCCESS)


def code(address: str, request: Command) -> int | None:
    """The code of an answer by TLS that believes anyone; None while there is none."""
    try:
        security = Security(tls=ClientTls(verify=False))
        with blocking.connect(address, security=security) as peer:
            return peer.ask(request, PATIENCE).code
    except (ConnectionError, TimeoutError):
        return None


@pytest.fixture(scope="module")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsCluster]:
    cluster = TlsCluster(tmp_path_factory.mktemp("apache") / "store")
    cluster.start()
    try:
        yield cluster
    finally:
        cluster.kill()


async def ask(address: str, request: Command, tls: ClientTls | None) -> Command:
    peer = await aio.connect(address, PATIENCE, security=Security(tls=tls))
    try:
        return await peer.ask(request, PATIENCE)
    finally:
        peer.close()


def test_our_clients_talk_to_apaches_servers_that_enforce_tls(apache: TlsCluster) -> None:
    anyone = ClientTls(verify=False)
    for address, request in ((apache.nameserver, ROUTE), (apache.broker, TOPICS)):
        assert asyncio.run(ask(address, request, anyone)).code in (
            *(ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST),
        )
    answer = asyncio.run(ask(apache.broker, TOPICS, anyone))
    with blocking.connect(apache.broker, security=Security(tls=anyone)) as peer:
        assert peer.ask(TOPICS, PATIENCE).body == answer.body
        assert peer.is_idle


def test_our_clients_do_not_believe_a_certificate_that_apache_made_itself(
    apache: TlsCluster,
) -> None:
    said = "its certificate is not signed by an authority that this system knows"
    with pytest.raises(ConnectionError) as raised:
        asyncio.run(ask(apache.broker, TOPICS, ClientTls()))
    assert str(raised.value).startswith(f"{apache.broker}: {said}")
    with pytest.raises(ConnectionError) as raised:
        blocking.connect(apache.nameserver, security=Security(tls=ClientTls()))
    assert str(raised.value).startswith(f"{apache.nameserver}: {said}")


def test_our_clients_without_tls_are_closed_by_apaches_servers_that_enforce_it(
    apache: TlsCluster,
) -> None:
    with pytest.raises(ConnectionError, match="closed the connection"):
        asyncio.run(ask(apache.broker, TOPICS, None))
