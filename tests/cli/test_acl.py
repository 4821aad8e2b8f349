"""`--acl` of the servers: what it starts, what it refuses, and the warning without it."""

import json
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli.test_server import running, tamis
from interop.aclservers import ask_all, signed

from tamis.cli.main import main
from tamis.cli.serving import warn_if_open
from tamis.testing import LocalCluster

ACCOUNTS = "accounts:\n- accessKey: admin-key\n  secretKey: admin-secret\n  admin: true\n"


def test_a_broker_with_acl_asks_for_a_key_and_shows_no_secret(tmp_path: Path) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text(ACCOUNTS)
    given = ["broker", "--port", "0", "--data", tmp_path / "data", "--acl", file]
    shown = tamis(*given, "--show-config").stdout
    assert f'acl_file = "{file}"' in shown
    assert "acl = true" in shown
    assert "admin-secret" not in shown
    with running(tmp_path / "home", *given) as server:
        broker = server.said["broker"]
        assert ask_all(broker, {21: (None, b"")})[21][0] == 1
        request = signed({}, b"", "admin-key", "admin-secret")
        assert ask_all(broker, {21: (request, b"")})[21][0] == 0
        assert "secret" not in (tmp_path / "home" / "stderr").read_text()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("accounts:\n- accessKey: admin-key\n", "line 2: an account without secretKey"),
        ("accounts: [", "line 2: not valid YAML"),
    ],
)
def test_a_file_that_is_wrong_is_named_in_one_line(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text(text)
    for server in ("broker", "filterserver"):
        arguments = ["--data", tmp_path / "data"] if server == "broker" else []
        done = tamis(server, "--port", "0", *arguments, "--acl", file, "--log-level", "error")
        assert done.returncode in (1, 2)
        assert f"{file}, {why}" in done.stderr
        assert done.stderr.count("\n") == 1, done.stderr


def test_a_file_that_is_not_there_is_misuse(tmp_path: Path) -> None:
    done = tamis("up", "--acl", tmp_path / "nowhere.yml")
    assert done.returncode == 2
    assert "nowhere.yml" in done.stderr


# Changing accounts.


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    file = tmp_path_factory.mktemp("acl") / "plain_acl.yml"
    file.write_text(ACCOUNTS)
    with LocalCluster(aclFile=str(file)) as cluster:
        yield cluster


@pytest.fixture
def acl(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[object, str, str]]:
    monkeypatch.setenv("NAMESRV_ADDR", cluster.nameserver)
    monkeypatch.setenv("TAMIS_ACCESS_KEY", "admin-key")
    monkeypatch.setenv("TAMIS_SECRET_KEY", "admin-secret")

    def run(*arguments: object) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["tamis", "acl", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return (ended.value.code, *capsys.readouterr())

    return run


def test_an_account_is_made_changed_listed_and_deleted(
    acl: Callable[..., tuple[object, str, str]], cluster: LocalCluster
) -> None:
    code, out, _ = acl("set", "a-writer", "--topic", "T=PUB", "--topic", "U=DENY")
    assert code == 0
    said, secret = out.splitlines()
    assert said == "account a-writer is set at broker-a"
    secret = secret.removeprefix("secret: ")
    fields = {"b": "T", "a": "p"}
    request = {310: (signed(fields, b"", "a-writer", secret), b"")}
    assert "AclException" not in ask_all(cluster.broker, request)[310][1]
    assert acl("set", "a-writer", "--default-group", "SUB", "--white-address", "10.1.2.*")[0] == 0
    assert "AclException" not in ask_all(cluster.broker, request)[310][1]  # the secret stays
    code, out, _ = acl("list", "--json")
    assert code == 0
    rows = [json.loads(line) for line in out.splitlines()]
    assert rows[0] == {"broker": "broker-a", "white_addresses": []}
    assert rows[-1] == {
        "broker": "broker-a",
        "access_key": "a-writer",
        "admin": False,
        "white_address": "10.1.2.*",
        "default_topic": None,
        "default_group": "SUB",
        "topics": ["T=PUB", "U=DENY"],
        "groups": [],
    }
    assert secret not in out
    code, out, _ = acl("list")
    assert "T=PUB U=DENY" in out
    assert secret not in out
    assert "admin-secret" not in out
    assert acl("delete", "a-writer")[:2] == (0, "account a-writer is deleted at broker-a\n")
    code, _, told = acl("delete", "a-writer")
    assert code == 1
    assert "has been deleted failed" in told


def test_white_addresses_are_set_and_taken_back(
    acl: Callable[..., tuple[object, str, str]], cluster: LocalCluster
) -> None:
    assert acl("white", "10.1.2.3", "127.0.0.*")[0] == 0
    assert ask_all(cluster.broker, {21: (None, b"")})[21][0] == 0
    assert acl("white")[:2] == (0, "white addresses at broker-a: none\n")
    assert ask_all(cluster.broker, {21: (None, b"")})[21][0] == 1
    assert json.loads(acl("list", "--json")[1].splitlines()[0])["white_addresses"] == []
    code, _, told = acl("white", "nowhere")
    assert code == 1
    assert "white address 'nowhere'" in told


def test_a_secret_is_read_from_a_file_and_a_wrong_one_is_misuse(
    acl: Callable[..., tuple[object, str, str]], cluster: LocalCluster, tmp_path: Path
) -> None:
    file = tmp_path / "secret"
    file.write_text("given-secret\n")
    code, out, _ = acl("set", "by-file", "--new-secret-file", file)
    assert (code, out) == (0, "account by-file is set at broker-a\n")
    request = {21: (signed({}, b"", "by-file", "given-secret"), b"")}
    assert ask_all(cluster.broker, request)[21][0] == 0
    file.write_text("short")
    assert acl("set", "by-file", "--new-secret-file", file)[0] == 2


@pytest.mark.parametrize(
    ("host", "warns"),
    [("127.0.0.1", 0), ("::1", 0), ("localhost", 0), ("0.0.0.0", 1), ("10.1.2.3", 1), ("box", 1)],
)
def test_a_server_that_others_reach_without_access_control_warns(
    host: str, warns: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        warn_if_open("broker", host, "whoever reaches it may do everything: see --acl")
    assert len(caplog.records) == warns
