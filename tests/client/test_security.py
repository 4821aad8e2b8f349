"""Keys and TLS in a client's settings; what a broker's refusal becomes."""

import pickle
from dataclasses import replace

import pytest

from tamis.client import (
    ClientConfig,
    ConsumerConfig,
    ProducerConfig,
    blocking,
    compat,
)
from tamis.errors import AccessDenied, ConfigError, NoPermission, ResponseError, ServerFault
from tamis.security import ClientTls, Credentials, Security
from tamis.security.settings import fields_of

SECRETS = {
    "secret_key": "s3cr3t-key",
    "security_token": "s3cr3t-token",
    "tls_key_password": "s3cr3t-word",
}
ALL = {
    "access_key": "orders",
    **SECRETS,
    "tls": True,
    "tls_ca": "ca.pem",
    "tls_verify": False,
    "tls_server_name": "mq.example.com",
    "tls_cert": "client.pem",
    "tls_key": "client-key.pem",
}
SOURCE = "org.apache.rocketmq.acl.plain.PlainPermissionManager.validate(PlainPermission.java:663)"


@pytest.mark.parametrize("kind", [ClientConfig, ProducerConfig, ConsumerConfig])
def test_settings_are_what_connections_get_and_secrets_are_not_shown(
    kind: type[ClientConfig],
) -> None:
    config = kind(**ALL)
    assert config.security == Security(
        Credentials("orders", "s3cr3t-key", "s3cr3t-token"),
        ClientTls(
            ca="ca.pem",
            verify=False,
            server_name="mq.example.com",
            cert="client.pem",
            key="client-key.pem",
            key_password="s3cr3t-word",
        ),
    )
    assert "s3cr3t" not in f"{config!r} {config} {config.security!r}"
    assert kind(**fields_of(config.security)).security == config.security
    assert pickle.loads(pickle.dumps(config)) == config


def test_without_settings_nothing_is_signed_and_nothing_encrypted() -> None:
    assert ClientConfig().security == Security()
    assert fields_of(Security()) == {}


@pytest.mark.parametrize(
    ("settings", "is_on"),
    [
        ({"tls_ca": "ca.pem"}, True),
        ({"tls_verify": False}, True),
        ({"tls_server_name": "x"}, True),
        ({"tls": False, "tls_ca": "ca.pem"}, False),
        ({"tls_verify": True}, False),
        ({"tls_key_password": "x"}, False),
    ],
)
def test_tls_is_on_if_a_setting_of_it_means_nothing_without(
    settings: dict[str, object], is_on: bool
) -> None:
    config = ClientConfig(**settings)  # type: ignore[arg-type]
    assert (config.security.tls is not None) is is_on


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"access_key": "k"}, "access_key without secret_key"),
        ({"secret_key": "s3cr3t"}, "secret_key without access_key"),
        ({"security_token": "s3cr3t"}, "security_token without"),
        ({"access_key": "k", "secret_key": b"s3cr3t"}, "secret_key: it takes text, not bytes"),
        ({"tls": "yes"}, "tls: it takes True or False, not str"),
        ({"tls_verify": None}, "tls_verify: it takes True or False"),
        ({"tls_key": "k.pem"}, "tls_key without tls_cert"),
    ],
)
def test_settings_that_do_not_go_together_are_refused_without_showing_secrets(
    settings: dict[str, object], said: str
) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        ClientConfig(**settings)  # type: ignore[arg-type]
    assert "s3cr3t" not in str(refused.value)


def test_files_that_can_not_be_used_are_said_when_it_connects() -> None:
    config = ClientConfig(tls_ca="/no/such/ca.pem")
    with (
        pytest.raises(ConfigError, match=r"tls_ca /no/such/ca\.pem: No such file"),
        blocking.Admin("127.0.0.1:1", config=config) as admin,
    ):
        admin.topics()


@pytest.mark.parametrize(
    ("code", "sentence", "key", "advice"),
    [
        (1, "No accessKey is configured", None, "set access_key and secret_key"),
        (1, "No acl config for orders", "orders", "the broker does not know it"),
        (1, "Check signature failed for accessKey=orders", "orders", "the secret key is not"),
        (1, "No default permission for topic:T", "orders", "in its plain_acl.yml"),
        (16, "Need admin permission for request code=17, but accessKey=orders is not",
         "orders", "made an admin"),
    ],
)  # fmt: skip
def test_refusals_of_access_control_say_which_key_what_and_what_to_do(
    code: int, sentence: str, key: str | None, advice: str
) -> None:
    for end in ("", f", {SOURCE}"):
        remark = f"org.apache.rocketmq.acl.common.AclException: {sentence}{end}"
        error = ResponseError.of(code, remark, key)
        assert isinstance(error, AccessDenied)
        assert isinstance(error, NoPermission)
        assert (error.refusal, error.access_key, error.code) == (sentence, key, code)
        assert not error.retriable  # the same key would be refused again
        said = str(error)
        assert sentence in said
        assert advice in said
        assert "\n" not in said
        assert "java" not in said
        assert (f"key {key}" if key else "no access key was used") in said
        again = pickle.loads(pickle.dumps(error))
        assert (str(again), type(again)) == (said, AccessDenied)


def test_other_faults_stay_faults() -> None:
    assert type(ResponseError.of(1, "java.lang.NullPointerException: null")) is ServerFault
    assert type(ResponseError.of(16, "the topic forbids it", "orders")) is NoPermission


def test_a_secret_that_the_broker_quotes_is_not_repeated() -> None:
    sentence = "The accessKey=ab and secretKey=s3cr3t cannot be null and length should longer"
    error = ResponseError.of(1, f"AclException: {sentence}", "admin")
    assert "s3cr3t" not in str(error)
    assert "secretKey=****" in str(error)


def test_programs_of_the_rocketmq_package_give_their_keys_by_its_call() -> None:
    for made in (compat.Producer("P"), compat.PushConsumer("G"), compat.PullConsumer("G")):
        made.set_session_credentials("orders", "s3cr3t", "ALIYUN")
        assert made._settings["access_key"] == "orders"
        assert made._settings["secret_key"] == "s3cr3t"
        assert "s3cr3t" not in repr(made)


def test_a_setting_can_be_changed_by_replace() -> None:
    config = replace(ClientConfig(**ALL), tls=False)  # type: ignore[arg-type]
    assert config.security.tls is None
    assert config.security.credentials is not None
