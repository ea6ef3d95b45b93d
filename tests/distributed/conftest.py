"""Fixtures of the distributed tests."""

from __future__ import annotations

import pytest

from tests.support.processes import in_dev_shm
from tests.support.ranks import Ranks
from tests.support.tables import tell


@pytest.fixture(scope="session")
def _pool(warm):
    with Ranks(warm.clone()) as pool:
        yield pool


@pytest.fixture
def pool(_pool) -> Ranks:
    """Ranks with a default group, shared with other tests."""
    return _pool


@pytest.fixture
def fresh(_pool):
    """``with fresh(n) as team``: processes of this test's own. Nothing of them may be left."""
    before = in_dev_shm()
    yield _pool.fresh
    assert in_dev_shm() == before
    assert _pool.strays() == []


@pytest.fixture
def count(request):
    """Adds to the table of combinations at the end of the run."""

    def add(name: str, number: int) -> None:
        tell(request.node, "combinations", name, number)

    return add


@pytest.fixture
def latency(request):
    """Adds to the table of latencies at the end of the run."""

    def add(name: str, milliseconds: list[float]) -> None:
        tell(request.node, "latencies", name, milliseconds)

    return add
