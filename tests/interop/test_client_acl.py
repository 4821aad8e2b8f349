"""Our client and commands against Apache's 4.9.4 with access control, in the clear and where only
TLS is taken. The tests are those of `client.access_cases`."""

from collections.abc import Iterator

import pytest
from certificates import Authority
from client.access_cases import *  # noqa: F403
from client.access_cases import Target
from interop.secured import secured_cluster


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with secured_cluster(tmp_path_factory.mktemp("plain") / "store") as made:
        yield Target(made.nameserver, {})


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    home = tmp_path_factory.mktemp("encrypted")
    authority = Authority(home / "ca")
    issued = authority.issue(rsa=True)
    certificate = (issued.cert, issued.key)
    with secured_cluster(home / "store", tls=True, certificate=certificate) as made:
        yield Target(made.nameserver, {"tls_ca": authority.ca})


@pytest.fixture(scope="module", params=["plain", "encrypted"])
def cluster(request: pytest.FixtureRequest) -> Target:
    found: Target = request.getfixturevalue(request.param)
    return found
