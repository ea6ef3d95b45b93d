"""The zygote with PyTorch's tests loaded, and the table of how many of them passed."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

from . import survey

ENDINGS = pytest.StashKey[dict]()
KINDS = ("passed", "excepted", "skipped", "failed")


def pytest_configure(config):
    config.stash[ENDINGS] = defaultdict(Counter)


def pytest_terminal_summary(terminalreporter, config):
    endings = config.stash[ENDINGS]
    if endings:
        terminalreporter.section("PyTorch's own distributed tests")
        terminalreporter.write_line("device  ranks " + "".join(f"{kind:>10}" for kind in ("run", *KINDS)))
        for (device, world_size), counts in sorted(endings.items()):
            numbers = [counts.total(), *(counts[kind] for kind in KINDS)]
            terminalreporter.write_line(
                f"{device:6} {world_size:6} " + "".join(f"{number:10}" for number in numbers)
            )


@pytest.fixture(scope="session")
def _upstream_pool():
    with survey.start() as pool:
        yield pool


@pytest.fixture
def ranks(_upstream_pool):
    """``ranks.run(body, world_size, device, ...)``: processes with a default group, kept for other tests."""
    return _upstream_pool


@pytest.fixture
def upstream(_upstream_pool):
    """``upstream(name, device, world_size)`` runs one of PyTorch's tests: `survey.Ending`."""

    def run(name: str, device: str, world_size: int, errors: dict[int, str] | None = None) -> survey.Ending:
        return survey.run(_upstream_pool, name, device, world_size, errors=errors)

    return run


@pytest.fixture
def count(request):
    """Adds to the table at the end of the run: ``count(device, world_size, kind)``."""

    def add(device: str, world_size: int, kind: str) -> None:
        request.config.stash[ENDINGS][device, world_size][kind] += 1

    return add
