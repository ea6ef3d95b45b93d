"""Ranks of occl for the project's own tests: `occl.testing`'s teams with a default group that stays.

    def everyone_knows_the_sum(rank, world_size, device):
        ...collectives of the default group; a failed assertion here fails the test

    def test_sum(pool):
        pool.run(everyone_knows_the_sum, world_size=3, device="cpu")

The ranks are forked from one warm process for all test modules, and a body is a function of a module. A
test that kills ranks, or wants no group, takes a team of its own: ``with fresh(3) as team``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from unittest import mock

from occl.testing import team
from occl.testing.launch import Clone, ForkServer
from occl.testing.pool import Pool
from tests.support import worker

LIMIT = float(os.environ.get("OCCL_TEST_LIMIT", "60"))
"""Seconds that a body may take on an overloaded machine before the test fails."""

PRELOAD = (
    "pytest",
    "torch.distributed.tensor",
    "torch.nn.parallel",
    "torch_occl._C",
    "torch._dynamo",  # which DistributedDataParallel imports when the first one is made
)

SETTINGS = {"PYTHONWARNINGS": "ignore::FutureWarning"}  # PyTorch renames its functions


class Team(team.Team):
    """Processes that are ranks 0 to size - 1, with the limit of these tests."""

    source: ForkServer | Clone

    def __init__(self, source: ForkServer | Clone, size: int) -> None:
        super().__init__(source, size, limit=LIMIT)

    def join(self, timeout: float = 300.0) -> Team:
        """Makes the default group, with this timeout in seconds."""
        self.run(worker.join, store=self.source.new_file(), timeout=timeout)
        return self


def warm(preload: tuple[str, ...] = PRELOAD) -> ForkServer:
    """Starts a warm process, which takes seconds."""
    with mock.patch.dict(os.environ, SETTINGS):
        return ForkServer(preload)


class Ranks(Pool[ForkServer | Clone]):
    """A team with its default group for each world size that tests have asked for."""

    def __init__(self, source: ForkServer | Clone | None = None) -> None:
        """``source``: None for a warm process of its own."""
        super().__init__(source or warm())

    def __exit__(self, *_: object) -> None:
        strays = self.strays()
        self.close()
        assert not strays, f"tests left processes behind: {strays}"

    def run(self, body: Callable, world_size: int, device: str = "cpu", **params) -> list:
        """Runs ``body(rank, world_size, device, **params)`` in the default group of this size."""
        with self.lend(world_size, lambda: self.fresh(world_size), Team.join) as kept:
            return kept.run(body, device, **params)

    def fresh(self, size: int) -> Team:
        """Processes for one test, without any group yet."""
        return Team(self.source, size)

    def strays(self) -> list[tuple[int, str]]:
        """Processes that ended ranks have left behind."""
        return self.source.ask("strays")
