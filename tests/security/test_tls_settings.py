"""What is wanted of TLS: settings that don't fit together, files that can't be used, secrets."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority, Certificate

from tamis.broker.config import BrokerConfig
from tamis.broker.supervisor import arguments, environment
from tamis.errors import ConfigError
from tamis.filterserver.config import FilterServerConfig
from tamis.nameserver.config import NameServerConfig
from tamis.nameserver.server import Settings as NameServerSettings
from tamis.security import ClientTls, ServerTls
from tamis.security.tls import ServerContext

PASSWORD = "open sesame"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def certificate(authority: Authority) -> Certificate:
    return authority.issue()


@pytest.fixture(scope="module")
def sealed(authority: Authority) -> Certificate:
    return authority.issue(password=PASSWORD)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"mode": "on"}, "tls = 'on': it is disabled, permissive or enforcing"),
        ({"mode": "enforcing"}, "tls = enforcing: it needs tls_cert and tls_key; tls_cert is"),
        ({"mode": "permissive", "cert": "c"}, "it needs tls_cert and tls_key; tls_key is missing"),
        (
            {"mode": "enforcing", "cert": "c", "key": "k", "client_auth": "require"},
            "tls_client_auth = require: it needs tls_ca",
        ),
        ({"client_auth": "maybe"}, "tls_client_auth = 'maybe': it is none, optional or require"),
        (
            {
                "mode": "enforcing",
                "cert": "c",
                "key": "k",
                "key_password": "p",
                "key_password_file": "f",
            },
            "and tls_key_password_file: only one of them",
        ),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        ServerTls(**settings)
    assert said in str(raised.value)


def test_files_that_cannot_be_used_are_named(
    authority: Authority, certificate: Certificate, sealed: Certificate, tmp_path: Path
) -> None:
    other = authority.issue()
    nonsense, empty = tmp_path / "nonsense.pem", tmp_path / "empty"
    nonsense.write_text("no certificate")
    empty.touch()
    good = {"cert": certificate.cert, "key": certificate.key}
    for settings, said in (
        ({"cert": "/nowhere.pem"}, "tls_cert /nowhere.pem: No such file or directory"),
        ({"key": "/nowhere.pem"}, "tls_key /nowhere.pem: No such file or directory"),
        ({"key": other.key}, f"tls_key {other.key}: it is not the key of {certificate.cert}"),
        ({"cert": str(nonsense)}, f"tls_cert {nonsense} and {certificate.key}: not a certificate"),
        ({"cert": sealed.cert, "key": sealed.key}, "encrypted with another password"),
        (
            {"cert": sealed.cert, "key": sealed.key, "key_password": "wrong"},
            "encrypted with another password",
        ),
        ({"key_password_file": str(empty)}, f"tls_key_password_file {empty}: it is empty"),
        ({"key_password_file": "/nowhere"}, "tls_key_password_file /nowhere: No such file"),
        ({"ca": str(nonsense), "client_auth": "require"}, f"tls_ca {nonsense}: no certificates"),
    ):
        with pytest.raises(ConfigError) as raised:
            ServerTls(**{"mode": "enforcing", **good, **settings}).context()  # type: ignore[arg-type]
        assert said in str(raised.value)
        assert "\n" not in str(raised.value)


def test_the_password_of_a_key_may_be_in_a_file(sealed: Certificate, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\n")
    ServerTls("enforcing", sealed.cert, sealed.key, key_password_file=str(file)).context()
    ServerTls("enforcing", sealed.cert, sealed.key, key_password=PASSWORD).context()


def test_a_password_is_never_told(sealed: Certificate) -> None:
    settings: dict[str, Any] = {
        "tls": "enforcing",
        "tls_cert": sealed.cert,
        "tls_key": sealed.key,
        "tls_key_password": PASSWORD,
    }
    broker = BrokerConfig(**settings)
    names = NameServerConfig(**settings)
    tls = ServerTls.of(broker)
    told = [repr(broker), repr(names), repr(FilterServerConfig(**settings)), repr(tls)]
    told += [repr(ClientTls(key_password=PASSWORD)), repr(tls.peers())]
    told += [repr(broker.shown()), repr(NameServerSettings(names).show())]
    told += arguments(broker, 10911)
    assert not [text for text in told if PASSWORD in text]
    assert broker.shown()["tls.server.mode"] == "enforcing"
    assert NameServerSettings(names).show()["tls.server.certPath"] == sealed.cert


def test_a_filter_server_is_started_with_the_tls_of_its_broker(sealed: Certificate) -> None:
    config = BrokerConfig.from_text(
        {
            "tls.server.mode": "permissive",
            "tls.server.certPath": sealed.cert,
            "tls.server.keyPath": sealed.key,
            "tls.server.keyPassword": PASSWORD,
            "tls.server.trustCertPath": "ca.pem",
            "tls.server.need.client.auth": "optional",
        }
    )
    given = " ".join(arguments(config, 10911))
    assert f"--tls permissive --tls-cert {sealed.cert} --tls-key {sealed.key}" in given
    assert "--tls-ca ca.pem --tls-client-auth optional" in given
    made = environment(config)
    assert made is not None
    assert made["TAMIS_TLS_KEY_PASSWORD"] == PASSWORD
    assert made["PATH"] == os.environ["PATH"]
    assert environment(BrokerConfig()) is None
    assert not [part for part in arguments(BrokerConfig(), 1) if "tls" in part]


def test_tls_settings_cannot_be_changed_while_a_broker_runs(certificate: Certificate) -> None:
    config = BrokerConfig(tls="permissive", tls_cert=certificate.cert, tls_key=certificate.key)
    with pytest.raises(ConfigError, match=r"tls.server.mode: it can't be changed"):
        config.changed({"tls.server.mode": "disabled"})


def test_servers_that_share_settings_know_each_other_by_the_certificate(
    authority: Authority, certificate: Certificate
) -> None:
    plain = ServerTls("permissive", certificate.cert, certificate.key)
    assert ServerTls().peers() is None
    assert plain.peers() is None  # which takes plain connections
    alone = ServerTls("enforcing", certificate.cert, certificate.key).peers()
    assert alone == ClientTls(pinned=certificate.cert)
    both = ServerTls(
        "enforcing",
        certificate.cert,
        certificate.key,
        ca=authority.ca,
        client_auth="require",
    ).peers()
    assert both == ClientTls(pinned=certificate.cert, cert=certificate.cert, key=certificate.key)


def test_files_are_loaded_again_once_they_have_stopped_changing(
    authority: Authority, tmp_path: Path
) -> None:
    """The key of a new certificate may come a moment after it."""
    old, new = authority.issue(), authority.issue()
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    shutil.copy(old.cert, cert)
    shutil.copy(old.key, key)
    context = ServerContext(ServerTls("enforcing", str(cert), str(key)))
    first = context.context
    assert not context.reload()
    shutil.copy(new.cert, cert)
    assert not context.reload()  # it has just changed
    shutil.copy(new.key, key)
    assert not context.reload()
    assert context.context is first
    assert context.reload()
    assert context.context is not first
    assert not context.reload()
    cert.unlink()
    assert not context.reload()
    with pytest.raises(ConfigError, match="No such file"):
        context.reload()
    assert not context.reload()  # told once
