"""Networks of hosts, and ranks in them. Where the machine does not allow them, these tests are skipped."""

from __future__ import annotations

import os
from collections.abc import Iterator
from unittest import mock

import pytest

from occl.testing.launch import ForkServer
from tests.hosts.launch import Hosts
from tests.hosts.namespaces import Network, why_not
from tests.support.ranks import Ranks
from tests.support.tables import tell


@pytest.fixture(scope="session")
def permitted() -> None:
    """Skips where networks cannot be made."""
    if reason := why_not():
        pytest.skip(reason)


@pytest.fixture(scope="module")
def ranks(warm: ForkServer) -> Iterator[Ranks]:
    """Ranks on one host; tests say with OCCL_NODE that they are on several nodes."""
    with Ranks(warm.clone()) as pool:
        yield pool


@pytest.fixture(scope="session")
def _hosts(permitted: None, warm: ForkServer) -> Iterator[Hosts]:
    with Network(3) as network, Hosts(network, warm.clone()) as hosts:
        yield hosts


@pytest.fixture
def hosts(_hosts: Hosts) -> Hosts:
    """Three hosts, and ranks with default groups on them, shared with other tests."""
    return _hosts


@pytest.fixture(scope="session")
def logging() -> Iterator[Hosts]:
    """Processes without groups, which print what the package logs. They need no network."""
    with mock.patch.dict(os.environ, {"TORCH_CPP_LOG_LEVEL": "INFO"}):
        pool = Hosts(None)  # its warm process keeps these variables; this process must not
    with pool:
        yield pool


@pytest.fixture
def apart(permitted: None) -> Iterator[Network]:
    """Two hosts of this test's own, for tests that disturb them."""
    with Network(2) as network:
        yield network


@pytest.fixture
def latency(request: pytest.FixtureRequest):
    """Adds to the table of latencies at the end of the run."""

    def add(name: str, milliseconds: list[float]) -> None:
        tell(request.node, "latencies", name, milliseconds)

    return add
