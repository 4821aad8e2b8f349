"""The attacks of benchmarks/hostile.py on a real `tamis up`, made small: the server lives on, a
well-behaved client beside gets all its answers, and everything acknowledged is there.

No times are asserted here; the benchmark measures them.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

from hostile import Neighbour, attack_beside, measure, tls_settings
from hostile_attacks import ATTACKS
from hostile_client import find_missing
from hostile_server import Server
from hostile_wire import Ack

SECONDS, SCALE = 0.5, 0.02
OWN = ("every-queue", "full-disk", "no-inodes", "file-size-limit")
KILL = "kill"
# the one at 1,024 descriptors is `every-queue`
SHARED = sorted(ATTACKS.keys() - {*OWN, KILL, "idle", "new-topics-1024"})


class Besieged:
    """A server that is attacked in many ways, one after the other, and a client beside it. It takes
    TLS as well as plain connections."""

    def __init__(self, directory: Path) -> None:
        self.server = Server(directory, settings=tls_settings(directory))
        self.server.start()
        self.neighbour = Neighbour(self.server)
        self.acks: list[Ack] = []

    def attack(self, name: str, seconds: float = SECONDS) -> None:
        """Run an attack; the client gets all its answers."""
        attack = ATTACKS[name]
        report, done = attack_beside(
            self.server, self.neighbour, attack, seconds=seconds, scale=SCALE, after=0.0
        )
        self.acks += [*report.acks, *done.acks]
        assert not report.faults, report.faults
        assert not report.refusals, report.refusals
        assert report.acks, "the client was not served"

    def close(self) -> None:
        self.neighbour.end()
        self.server.kill()


@pytest.fixture(scope="module")
def besieged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Besieged]:
    one = Besieged(tmp_path_factory.mktemp("besieged"))
    yield one
    one.close()


@pytest.mark.parametrize("name", SHARED)
def test_a_client_beside_an_attack_is_served_and_nothing_is_lost(
    besieged: Besieged, name: str
) -> None:
    besieged.attack(name)
    assert besieged.server.exit_code is None
    assert find_missing(besieged.server.broker, besieged.acks) == []


def test_everything_acknowledged_is_there_after_all_attacks_and_a_kill(besieged: Besieged) -> None:
    besieged.attack(KILL, seconds=1.0)
    besieged.server.start()
    assert find_missing(besieged.server.broker, besieged.acks) == []


@pytest.mark.parametrize("name", OWN)
def test_under_limits_of_the_system_nothing_acknowledged_is_lost(tmp_path: Path, name: str) -> None:
    arguments = argparse.Namespace(seconds=3.0, scale=0.5, seed=1, flush="sync")
    row = measure(ATTACKS[name], tmp_path, arguments)
    if row.skipped:
        pytest.skip(row.skipped)
    assert row.is_alive, row.bad
    assert not row.missing, row.missing[:3]
    assert not row.bad, row.bad
