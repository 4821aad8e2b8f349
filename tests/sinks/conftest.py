from collections.abc import Iterator
from pathlib import Path

import pytest
from sinks.driving import Driver, Pipeline
from sparkling import local_cluster

from tamis.testing import LocalCluster

__all__ = ["local_cluster"]


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    with Driver(tmp_path_factory.mktemp("driver")) as made:
        yield made


@pytest.fixture
def pipeline(driver: Driver, local_cluster: LocalCluster, tmp_path: Path) -> Pipeline:
    return Pipeline.made(driver, local_cluster, tmp_path)
