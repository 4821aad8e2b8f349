"""Apache's Java clients, 4.9.4 and 5.3.3, against our servers: what they see is what they see with
Apache's own. With TAMIS_TARGET=apache, against RocketMQ's servers instead of ours."""

import functools
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from interop import scenarios
from interop.cluster import INSTEAD, Target, apache_cluster, our_cluster
from interop.javaclient import LINES, JavaClient
from interop.scenarios import SCENARIOS, SETTINGS, STRICT, STRICT_SCENARIOS

# Where we mean to differ: RocketMQ answers a pull whose SQL does not compile with every message.
DIFFERENCES = {"refused_pulls": {"bad sql in the pull": [23]}} if INSTEAD is None else {}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with our_cluster(tmp_path_factory.mktemp("ours") / "store", **SETTINGS) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def strict_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with our_cluster(tmp_path_factory.mktemp("strict") / "store", **STRICT) as cluster:
        yield cluster


@pytest.fixture(scope="module", params=LINES)
def java(request: pytest.FixtureRequest) -> Iterator[JavaClient]:
    with JavaClient(request.param) as client:
        yield client


@pytest.fixture(scope="module")
def apaches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Any]]:
    """What a scenario sees with RocketMQ's own servers and client, 4.9.4; each is run once."""
    with ExitStack() as stack:

        @functools.cache
        def java() -> JavaClient:
            return stack.enter_context(JavaClient("4.9"))

        @functools.cache
        def cluster(strict: bool) -> Target:
            store: Path = tmp_path_factory.mktemp("apache") / "store"
            return stack.enter_context(apache_cluster(store, **(STRICT if strict else SETTINGS)))

        @functools.cache
        def result(name: str) -> Any:
            return scenarios.run(name, cluster(name in STRICT_SCENARIOS), java())

        yield result


@pytest.mark.parametrize("name", SCENARIOS)
def test_clients_see_with_our_servers_what_they_see_with_apaches(
    name: str, java: JavaClient, cluster: Target, apaches: Callable[[str], Any]
) -> None:
    if (name, java.line, INSTEAD) == ("lite_pulls", "5.3", "4.9"):
        pytest.skip("a broker of 4.9 does not know 5.3's lite pull")
    expected = plain(apaches(name))
    if name in DIFFERENCES:
        expected |= DIFFERENCES[name]
    assert plain(scenarios.run(name, cluster, java)) == expected


@pytest.mark.parametrize("name", STRICT_SCENARIOS)
def test_clients_are_refused_by_a_strict_broker_of_ours_as_by_apaches(
    name: str, java: JavaClient, strict_cluster: Target, apaches: Callable[[str], Any]
) -> None:
    assert plain(scenarios.run(name, strict_cluster, java)) == plain(apaches(name))


def plain(result: Any) -> Any:
    """As JSON has it, for a difference that is easy to read."""
    return json.loads(json.dumps(result))
