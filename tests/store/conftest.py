"""A disk with room, whatever this machine's has: one in use by more than a share costs a store its
old files."""

import shutil
from collections.abc import Iterator
from types import SimpleNamespace

import pytest


@pytest.fixture(autouse=True, scope="module")
def roomy_disk() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(used=10, free=90))
        yield
