"""The clusters the client is tested with: each started once, for all tests that use it."""

from collections.abc import Iterator

import pytest
from client.targets import SETTINGS, STRICT, TARGETS, Cluster, running


@pytest.fixture(scope="session", params=TARGETS)
def target(request: pytest.FixtureRequest) -> str:
    """Without TAMIS_INTEROP=required only ours: RocketMQ's own need Java, and a minute each."""
    return str(request.param)


@pytest.fixture(scope="session")
def cluster(target: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(target, tmp_path_factory.mktemp("cluster"), **SETTINGS) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def strict_cluster(target: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One that makes no topics and no groups by itself, and knows no SQL."""
    with running(target, tmp_path_factory.mktemp("strict"), **STRICT) as cluster:
        yield cluster
