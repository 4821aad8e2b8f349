"""Profiles, and which of option, environment and profile counts; no secret is shown."""

import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from certificates import Authority

from tamis.cli.connecting import NAMES, PROFILE, find_cluster
from tamis.cli.main import main
from tamis.testing import LocalCluster

SECRET = "s3cr3t-do-not-show"
FILE = f"""
[profiles.prod]
nameserver = "mq.example.com:9876"
access_key = "prodkey"
secret_key = "{SECRET}"
tls_ca = "ca.pem"

[profiles.dev]
nameserver = "dev.example.com:9876"
access_key = "devkey"
secret_key_file = "dev.secret"

[profiles.bare]
nameserver = "bare.example.com:9876"
"""


class Done(NamedTuple):
    code: object
    stdout: str
    stderr: str


Tamis = Callable[..., Done]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the file is; nothing of the environment that tests run in counts."""
    for name in list(os.environ):
        if (name.startswith("TAMIS_") and name != "TAMIS_LOOPS") or name == "NAMESRV_ADDR":
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = tmp_path / "tamis"
    folder.mkdir()
    write(folder, FILE)
    (folder / "dev.secret").write_text(f"{SECRET}\n")
    (folder / "dev.secret").chmod(0o600)
    return folder


def write(folder: Path, text: str, mode: int = 0o600) -> None:
    (folder / "config.toml").write_text(text)
    (folder / "config.toml").chmod(mode)


@pytest.fixture
def tamis(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tamis:
    def run(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "stdin", io.StringIO())
        monkeypatch.setattr(sys, "argv", ["tamis", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        done = Done(ended.value.code, *capsys.readouterr())
        assert SECRET not in done.stdout + done.stderr
        return done

    return run


def shown(tamis: Tamis, *arguments: str) -> dict[str, tuple[object, str]]:
    """Value and origin of each setting."""
    done = tamis(*arguments, "config", "show", "--json")
    assert done.code == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return {row["setting"]: (row["value"], row["from"]) for row in rows}


def test_without_anything_defaults_hold(tamis: Tamis) -> None:
    found = shown(tamis)
    assert found["nameserver"] == ("127.0.0.1:9876", "default")
    assert found["access_key"] == ("", "default")
    assert found["tls"] == (False, "default")


def test_a_profile_has_name_server_keys_and_tls(tamis: Tamis, home: Path) -> None:
    found = shown(tamis, "--profile", "prod")
    assert found["nameserver"] == ("mq.example.com:9876", "profile prod")
    assert found["access_key"] == ("prodkey", "profile prod")
    assert found["secret_key"] == ("****", "profile prod")
    assert found["tls"] == (True, "default")  # since it has an authority
    assert found["tls_ca"] == (str(home / "ca.pem"), "profile prod")  # beside the file


def test_options_count_before_all_and_a_profile_that_is_named_before_the_environment(
    tamis: Tamis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "env.example.com:9876")
    monkeypatch.setenv("TAMIS_TLS", "off")
    named = shown(tamis, "--profile", "prod")
    assert named["nameserver"][1] == "profile prod"
    assert named["tls"] == (False, "TAMIS_TLS")  # the profile does not say
    done = tamis("--profile", "prod", "config", "show", "--json", "-n", "cli.example.com:9876")
    assert json.loads(done.stdout.splitlines()[0])["from"] == "--nameserver"


def test_variables_count_before_a_profile_that_a_variable_names(
    tamis: Tamis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAMIS_PROFILE", "prod")
    monkeypatch.setenv("NAMESRV_ADDR", "env.example.com:9876")
    found = shown(tamis)
    assert found["nameserver"] == ("env.example.com:9876", "NAMESRV_ADDR")
    assert found["access_key"] == ("prodkey", "profile prod")


def test_the_file_can_name_a_default_and_an_empty_name_is_none(tamis: Tamis, home: Path) -> None:
    write(home, f'default_profile = "bare"\n{FILE}')
    assert shown(tamis)["nameserver"] == ("bare.example.com:9876", "profile bare")
    assert shown(tamis, "--profile", "prod")["access_key"][0] == "prodkey"
    assert shown(tamis, "--profile", "")["nameserver"][1] == "default"


def test_another_file_can_be_named(
    tamis: Tamis, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = home / "other.toml"
    other.write_text('[profiles.x]\nnameserver = "x.example.com:1"\n')
    monkeypatch.setenv("TAMIS_CONFIG", str(other))
    assert shown(tamis, "--profile", "x")["nameserver"][0] == "x.example.com:1"
    monkeypatch.setenv("TAMIS_CONFIG", str(home / "missing.toml"))
    done = tamis("--profile", "x", "config", "show")
    assert done.code == 2
    assert "there is no file" in done.stderr


@pytest.mark.parametrize("text", ["1", "true", "yes", "ON"])
def test_truths_of_the_environment_are_read_as_people_write_them(
    tamis: Tamis, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("TAMIS_TLS", text)
    assert shown(tamis)["tls"] == (True, "TAMIS_TLS")


def test_a_secret_is_not_combined_with_the_key_of_another_source(
    tamis: Tamis, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = tamis("--profile", "prod", "config", "show", "--access-key", "mine")
    assert done.code == 2
    assert "access key mine (--access-key) has no secret key" in done.stderr
    assert "that of profile prod belongs to another access key" in done.stderr
    monkeypatch.setenv("TAMIS_SECRET_KEY", SECRET)
    assert tamis("config", "show", "--access-key", "mine").code == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[profiles.p]\nacess_key = "k"\n', "acess_key is not known; did you mean access_key?"),
        ('[profiles.p]\nsecret_key_fle = "k"\n', "did you mean secret_key_file?"),
        ("[profiles.p]\ntls = 'yes'\n", "tls: it takes true or false"),
        (f'[profiles.p]\nsecret_key = ["{SECRET}"]\n', "secret_key: it takes text in quotes"),
        (f'[profiles.p]\nsecret_key = "{SECRET}"\nsecret_key_env = "X"\n', "said twice"),
        (f'[profiles.p]\nsecret_key = "{SECRET}\n', "line 2"),
        ('profile = "x"\n', "profile is not known; did you mean profiles?"),
        ('default_profile = "prd"\n[profiles.prod]\n', "did you mean prod?"),
        ("profiles = 3\n", "write [profiles.NAME]"),
        ('[profiles.p]\naccess_key = "k"\n', "access key k (profile p) has no secret key"),
        (f'[profiles.p]\nsecret_key = "{SECRET}"\n', "without an access key"),
        ('[profiles.p]\naccess_key = "k"\nsecret_key_env = "NO_SUCH"\n', "no variable NO_SUCH"),
        ('[profiles.p]\naccess_key = "k"\nsecret_key_file = "gone"\n', "No such file"),
        ("[profiles.q]\n", "there is no profile p; it has q"),
    ],
)
def test_what_is_wrong_in_the_file_is_one_line(
    tamis: Tamis, home: Path, text: str, said: str
) -> None:
    write(home, text)
    done = tamis("--profile", "p", "topics", "list")
    assert done.code == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_files_with_secrets_that_others_can_read_are_warned_of(tamis: Tamis, home: Path) -> None:
    write(home, FILE, mode=0o644)
    done = tamis("--profile", "prod", "config", "show")
    assert f"warning: {home / 'config.toml'} holds a secret and others can read it" in done.stderr
    write(home, FILE)
    assert not tamis("--profile", "prod", "config", "show").stderr
    (home / "dev.secret").chmod(0o640)
    done = tamis("--profile", "dev", "config", "show")
    assert f"{home / 'dev.secret'} holds a secret and others can read it" in done.stderr


def test_a_secret_on_the_command_line_is_warned_of(tamis: Tamis) -> None:
    done = tamis("config", "show", "--access-key", "k", "--secret-key", SECRET)
    assert done.code == 0
    assert "--secret-key: others on this machine can see it" in done.stderr


def test_an_empty_option_is_misuse(tamis: Tamis) -> None:
    done = tamis("topics", "list", "--access-key", "")
    assert done.code == 2
    assert "--access-key: it is empty" in done.stderr


def test_a_file_of_tls_that_can_not_be_used_is_misuse(tamis: Tamis, home: Path) -> None:
    done = tamis("topics", "list", "--tls-ca", str(home / "none.pem"))
    assert done.code == 2
    assert "none.pem: No such file or directory" in done.stderr
    done = tamis("topics", "list", "--tls-ca", str(home / "config.toml"))
    assert done.code == 2
    assert "no certificates in PEM" in done.stderr


def test_profiles_are_listed_without_secrets(tamis: Tamis, home: Path) -> None:
    write(home, f'default_profile = "dev"\n{FILE}')
    done = tamis("config", "profiles", "--json")
    rows = {row["profile"]: row for row in map(json.loads, done.stdout.splitlines())}
    assert list(rows) == ["prod", "dev", "bare"]
    assert rows["prod"]["access_key"] == "prodkey"
    assert rows["prod"]["tls"] is True
    assert rows["dev"]["default"] is True
    assert rows["bare"]["tls"] is False
    assert tamis("config", "profiles").code == 0


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as cluster:
        yield cluster


def test_all_commands_take_the_profile(tamis: Tamis, home: Path, cluster: LocalCluster) -> None:
    write(
        home,
        f'[profiles.local]\nnameserver = "{cluster.nameserver}"\naccess_key = "k"\n'
        f'secret_key = "{SECRET}"\n',
    )
    for command in (
        ("topics", "create", "Profiled"),
        ("send", "Profiled", "hello"),
        ("consume", "Profiled"),
        ("topics", "show", "Profiled"),
        ("groups", "list"),
        ("groups", "rules"),
        ("groups", "lag"),
        ("doctor",),
        ("config", "show"),
    ):
        done = tamis("--profile", "local", *command)
        assert done.code == 0, (command, done)
        if command[0] == "consume":
            assert json.loads(done.stdout)["body"] == "hello"
    assert tamis("consume", "Profiled", "--profile", "local").code == 0


def test_a_server_without_tls_is_said_to_be_so(
    tamis: Tamis, cluster: LocalCluster, tmp_path: Path
) -> None:
    ca = Authority(tmp_path / "ca").ca
    done = tamis("topics", "list", "-n", cluster.nameserver, "--tls-ca", ca)
    assert done.code == 1
    assert "TLS" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({PROFILE: "prod"}, {"accessKey": "prodkey", "profile": "prod"}),
        ({PROFILE: "dev"}, {"accessKey": "devkey", "secretKeyFile": "dev.secret"}),
        ({"access_key": "k"}, {"accessKey": "k", "secretKeyEnv": "TAMIS_SECRET_KEY"}),
        ({"tls": False}, {"tls": "false"}),
    ],
)
def test_what_spark_is_told_has_names_in_the_place_of_secrets(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, object],
    options: dict[str, str],
) -> None:
    """`tamis filter backtest` hands it to the source, whose options Spark may show."""
    (home / "ca.pem").write_text(Path(Authority(home / "ca").ca).read_text())
    if "access_key" in given:
        monkeypatch.setenv("TAMIS_SECRET_KEY", SECRET)
    found = find_cluster({**dict.fromkeys(NAMES), **given}).source_options()
    assert SECRET not in str(found)
    if "secretKeyFile" in options:
        options = {**options, "secretKeyFile": str(home / options["secretKeyFile"])}
    assert {name: found.get(name) for name in options} == options
