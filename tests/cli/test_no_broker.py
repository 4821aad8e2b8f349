"""Commands where no broker is registered, and where the address given is not a name server's."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tamis.testing import LocalCluster

TAMIS = [sys.executable, "-W", "error", "-c", "from tamis.cli.main import main; main()"]
COMMANDS = [
    ("send", "Orders", "x"),
    ("send", "Orders", "x", "--oneway"),
    ("consume", "Orders"),
    ("consume", "Orders", "--group", "g"),
    ("topics", "show", "Orders"),
    ("doctor",),
    ("doctor", "--json"),
]


def tamis(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*TAMIS, *arguments], capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as made:
        assert tamis("topics", "create", "Orders", "-n", made.nameserver).returncode == 0
        made.stop_broker()
        yield made


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_that_no_broker_is_registered_is_said(
    cluster: LocalCluster, command: tuple[str, ...]
) -> None:
    cluster.stop_broker()
    done = tamis(*command, "-n", cluster.nameserver)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert f"no broker is registered with the name server {cluster.nameserver}" in line
    assert f"start a broker (tamis broker --nameserver {cluster.nameserver})" in line
    assert "spelling" not in line


@pytest.mark.parametrize("command", [*COMMANDS, ("topics",), ("groups",)], ids=" ".join)
def test_that_the_address_is_a_brokers_is_said(
    cluster: LocalCluster, command: tuple[str, ...]
) -> None:
    cluster.start_broker()
    done = tamis(*command, "-n", cluster.broker)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert f"{cluster.broker} is not a name server" in line
    assert "is it the address of a broker?" in line


def test_a_topic_that_no_broker_has_is_checked_for_its_spelling(cluster: LocalCluster) -> None:
    cluster.start_broker()
    done = tamis("consume", "Oders", "-n", cluster.nameserver)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert "topic Oders is not known" in line
    assert "check the spelling" in line
