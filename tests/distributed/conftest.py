"""Fixtures of the distributed tests."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.support.harness import Pool

COMBINATIONS = pytest.StashKey[Counter]()
LATENCIES = pytest.StashKey[list]()


def pytest_configure(config):
    config.stash[COMBINATIONS] = Counter()
    config.stash[LATENCIES] = []


def pytest_terminal_summary(terminalreporter, config):
    combinations, latencies = config.stash[COMBINATIONS], config.stash[LATENCIES]
    if combinations:
        terminalreporter.section(
            "combinations of operation, type, reduction, size and layout, all ranks compared"
        )
        for name, count in sorted(combinations.items()):
            terminalreporter.write_line(f"{count:8}  {name}")
        terminalreporter.write_line(f"{combinations.total():8}  in all")
    if latencies:
        terminalreporter.section("milliseconds from kill -9 to the exception, over survivors (not asserted)")
        for name, values in latencies:
            terminalreporter.write_line(f"{min(values):8.1f} .. {max(values):8.1f}  {name}")


@pytest.fixture(scope="session")
def _pool():
    with Pool() as pool:
        yield pool


@pytest.fixture
def pool(_pool) -> Pool:
    """Ranks with a default group, shared with other tests."""
    return _pool


@pytest.fixture
def fresh(_pool):
    """``with fresh(n) as team``: processes of this test's own. Nothing of them may be left."""
    before = sorted(Path("/dev/shm").iterdir())
    yield _pool.fresh
    assert sorted(Path("/dev/shm").iterdir()) == before
    assert _pool.strays() == []


@pytest.fixture
def count(request):
    """Adds to the table of combinations at the end of the run."""

    def add(name: str, number: int) -> None:
        request.config.stash[COMBINATIONS][name] += number

    return add


@pytest.fixture
def latency(request):
    """Adds to the table of latencies at the end of the run."""

    def add(name: str, milliseconds: list[float]) -> None:
        request.config.stash[LATENCIES].append((name, milliseconds))

    return add
