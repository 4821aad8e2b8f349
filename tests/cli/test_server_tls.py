"""The TLS options of servers, as they are given by people."""

import time
import urllib.request
from pathlib import Path

import pytest
from certificates import Authority, Certificate
from cli.test_server import FREE, PATIENCE, Server, running, settings, tamis

from tamis.net import blocking
from tamis.security import ClientTls, Security
from tamis.wire.codes import RequestCode
from tamis.wire.command import Command

PASSWORD = "open sesame"
SERVERS = ("up", "broker", "nameserver", "filterserver")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def certificate(authority: Authority) -> Certificate:
    return authority.issue(password=PASSWORD)


@pytest.mark.parametrize("server", SERVERS)
def test_a_mode_without_a_certificate_is_misuse(server: str) -> None:
    done = tamis(server, "--tls", "enforcing")
    assert (done.returncode, done.stdout) == (2, "")
    said = "tls = enforcing: it needs tls_cert and tls_key; tls_cert is missing"
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("server", SERVERS)
def test_a_certificate_that_cannot_be_used_is_misuse(server: str, certificate: Certificate) -> None:
    tls = ["--tls", "permissive", "--tls-cert", certificate.cert, "--tls-key"]
    for more, said in (
        (["/nowhere.pem"], "tls_key /nowhere.pem: No such file or directory"),
        ([certificate.key], "encrypted with another password"),
    ):
        done = tamis(server, *tls, *more)
        assert (done.returncode, done.stdout) == (2, "")
        assert said in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_a_certificate_without_a_mode_is_misuse(certificate: Certificate) -> None:
    done = tamis("nameserver", "--tls-cert", certificate.cert)
    assert done.returncode == 2
    assert "tls_cert: it needs tls = permissive or enforcing" in done.stderr


def test_settings_go_by_rocketmqs_names_too_and_the_password_is_not_shown() -> None:
    pairs = {
        "tls.server.mode": "permissive",
        "tls.server.certPath": "c.pem",
        "tls.server.keyPath": "k.pem",
        "tls.server.keyPassword": PASSWORD,
        "tls.server.need.client.auth": "optional",
        "tls.server.trustCertPath": "ca.pem",
    }
    given = [part for name, value in pairs.items() for part in ("--set", f"{name}={value}")]
    for table in ("broker", "nameserver"):
        shown = settings(table, *given)[table]
        assert (shown["tls"], shown["tls_cert"], shown["tls_key"]) == (
            *("permissive", "c.pem", "k.pem"),
        )
        assert (shown["tls_client_auth"], shown["tls_ca"]) == ("optional", "ca.pem")
        assert "tls_key_password" not in shown
    shown = settings("up", *given)
    assert shown["nameserver"]["tls_cert"] == "c.pem"  # all that it runs have the same


def test_a_broker_and_its_metrics_are_served_over_tls(
    authority: Authority, certificate: Certificate, tmp_path: Path
) -> None:
    password = tmp_path / "password"
    password.write_text(PASSWORD)
    tls = ["--tls", "enforcing", "--tls-cert", certificate.cert, "--tls-key", certificate.key]
    tls += ["--tls-key-password-file", password]
    client = ClientTls(ca=authority.ca)
    with running(tmp_path / "home", "broker", *FREE, "--metrics-port", 0, *tls) as server:
        with blocking.connect(server.said["broker"], security=Security(tls=client)) as peer:
            request = Command(code=RequestCode.GET_BROKER_CONFIG)
            shown = peer.ask(request, PATIENCE).body.decode()
            assert "tls.server.mode=enforcing" in shown
            assert PASSWORD not in shown
        page = server.said["metrics"]
        assert page.startswith("https://")
        with urllib.request.urlopen(page, timeout=PATIENCE, context=client.context()) as answer:
            assert b"tamis_tls_handshakes_total 1.0" in answer.read()
        with pytest.raises(OSError, match=r"(?i)certificate verify failed"):
            urllib.request.urlopen(page, timeout=PATIENCE)
        with pytest.raises(OSError):
            urllib.request.urlopen(page.replace("https", "http"), timeout=PATIENCE)
        assert server.stop() == 0


def test_a_password_on_the_command_line_is_warned_of_and_one_for_nothing_is_not(
    certificate: Certificate, tmp_path: Path
) -> None:
    tls = ["--tls", "permissive", "--tls-cert", certificate.cert, "--tls-key", certificate.key]
    given = ["nameserver", *FREE, *tls, "--set", f"tls.server.keyPassword={PASSWORD}"]
    with running(tmp_path / "told", *given) as server:
        assert "use --tls-key-password-file" in server.logs[0]
        assert server.stop() == 0
    assert PASSWORD not in "".join(server.logs)
    with running(tmp_path / "plain", *given[:3], TAMIS_TLS_KEY_PASSWORD=PASSWORD) as server:
        assert server.stop() == 0
    assert "password" not in "".join(server.logs)


def test_all_of_up_works_with_tls_only(
    authority: Authority, certificate: Certificate, tmp_path: Path
) -> None:
    """Its broker registers with its name server, and its filter server with its broker."""
    tls = ["--tls", "enforcing", "--tls-cert", certificate.cert, "--tls-key", certificate.key]
    given = ["up", *FREE, "--nameserver-port", 0, *tls]
    security = Security(tls=ClientTls(ca=authority.ca))
    with running(tmp_path, *given, TAMIS_TLS_KEY_PASSWORD=PASSWORD) as server:
        with blocking.connect(server.said["nameserver"], security=security) as peer:
            answer = peer.ask(Command(code=RequestCode.GET_BROKER_CLUSTER_INFO), PATIENCE)
            assert server.said["broker"].encode() in answer.body
        _wait_for_log(server, "registered as")
        assert server.stop() == 0
    assert PASSWORD not in "\n".join(server.logs)


def _wait_for_log(server: Server, text: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not any(text in line for line in server.logs):
        assert time.monotonic() < deadline, server.logs
        time.sleep(0.1)
