"""The warm process with PyTorch's tests loaded."""

from __future__ import annotations

import pytest

from tests.support.tables import tell

from . import survey


@pytest.fixture(scope="session")
def _upstream_pool(warm):
    with survey.start(warm.clone()) as pool:
        yield pool


@pytest.fixture
def ranks(_upstream_pool):
    """``ranks.run(body, world_size, device, ...)``: processes with a default group, kept for other tests."""
    return _upstream_pool


@pytest.fixture
def upstream(_upstream_pool):
    """``upstream(name, device, world_size)`` runs one of PyTorch's tests: `survey.Ending`."""

    def run(
        name: str,
        device: str,
        world_size: int,
        errors: dict[int, str] | None = None,
        in_place_of: str | None = None,
        nodes: str = "",
    ) -> survey.Ending:
        backend = in_place_of or "occl"
        return survey.run(
            _upstream_pool,
            name,
            device,
            world_size,
            backend,
            errors=errors,
            in_place=bool(in_place_of),
            nodes=nodes,
        )

    return run


@pytest.fixture
def count(request):
    """Adds to the table at the end of the run: ``count(device, world_size, kind)``."""

    def add(device: str, world_size: int, kind: str) -> None:
        tell(request.node, "upstream", device, world_size, kind)

    return add
