"""Runs a function in every rank of a group of occl, cheaply and without ever hanging.

    def everyone_knows_the_sum(rank, world_size, device):
        ...collectives of the default group; a failed assertion here fails the test

    def test_sum(pool):
        pool.run(everyone_knows_the_sum, world_size=3, device="cpu")

The ranks are those of ``occl.testing``, forked from a warm process. Where its mark ``ranks`` has new
processes for each test, ``pool`` keeps a `Team` for each world size, with its default group, between tests. A
test that kills ranks, or wants no group, takes a team of its own: ``with fresh(3) as team``.

A body must be a function of a module. What it returns comes back pickled, in rank order. If any rank raises,
dies, or does not finish in time, the test fails with its traceback and output, and the team is thrown away.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from unittest import mock

from occl.testing.launch import ForkServer
from occl.testing.outcomes import RanksFailed
from occl.testing.team import Team as PlainTeam
from tests.support import worker

__all__ = ["LIMIT", "Pool", "RanksFailed", "Team"]

LIMIT = float(os.environ.get("OCCL_TEST_LIMIT", "60"))
"""Seconds that a body may take on an overloaded machine before the test fails."""

PRELOAD = (
    "pytest",
    "torch.distributed.tensor",
    "torch.nn.parallel",
    "torch_occl._C",
    "torch._dynamo",  # which DistributedDataParallel imports when the first one is made
)

SETTINGS = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS")}
SETTINGS["PYTHONWARNINGS"] = "ignore::FutureWarning"  # PyTorch renames its functions


class Team(PlainTeam):
    """Processes that are ranks 0 to size - 1. Used with ``with``, or closed by the pool."""

    def __init__(self, zygote: ForkServer, size: int) -> None:
        self.zygote = zygote
        super().__init__(zygote, size)

    def join(self, timeout: float = 300.0) -> Team:
        """Makes the default group, with this timeout in seconds."""
        self.run(worker.join, store=self.zygote.new_file(), timeout=timeout)
        return self

    def start(self, body: Callable, device: str = "cpu", *, limit: float = LIMIT, **params) -> None:
        """Begins ``body(rank, size, device, **params)`` in every rank that lives."""
        super().start(body, device, limit=limit, **params)

    def run(self, body: Callable, device: str = "cpu", *, limit: float = LIMIT, **params) -> list:
        """Results in rank order; fails the test unless all ranks have one."""
        return super().run(body, device, limit=limit, **params)


class Pool:
    """The zygote, and a team for each world size that tests have asked for. Used with ``with``, or closed."""

    def __init__(self, preload: tuple[str, ...] = PRELOAD) -> None:
        with mock.patch.dict(os.environ, SETTINGS):
            self.zygote = ForkServer(preload)
        self.teams: dict[int, Team] = {}

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_) -> None:
        strays = self.strays()
        self.close()
        assert not strays, f"tests left processes behind: {strays}"

    def run(
        self, body: Callable, world_size: int, device: str = "cpu", *, limit: float = LIMIT, **params
    ) -> list:
        """Runs ``body(rank, world_size, device, **params)`` in the default group of this size."""
        team = self.teams.get(world_size)
        if team is None or not team.alive:
            team = self.teams[world_size] = Team(self.zygote, world_size).join()
        return team.run(body, device, limit=limit, **params)

    def fresh(self, size: int) -> Team:
        """Processes for one test, without any group yet."""
        return Team(self.zygote, size)

    def strays(self) -> list[tuple[int, str]]:
        return self.zygote.ask("strays")

    def close(self) -> None:
        for team in self.teams.values():
            team.close()
        self.zygote.close()
