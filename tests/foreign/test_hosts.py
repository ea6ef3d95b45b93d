"""A group over several nodes serves another package's device. The ranks say which node they are on, so these
tests need no network."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist

from tests.foreign import test_pieces
from tests.foreign.test_group import BODIES, DEVICE, begins_when_the_stream_reaches_it
from tests.support.worker import join

NAMES = ("reductions", "uneven all_gather", "uneven all_to_all_single", "strided order", "ring", "objects")


def join_over_two(rank: int, n: int, device: str, *, store: str) -> None:
    os.environ |= {"OCCL_NODE": f"node {2 * rank // n}", "GLOO_SOCKET_IFNAME": "lo"}
    join(rank, n, device, store=store, timeout=60)


def bodies(rank: int, n: int, device: str) -> None:
    assert "on several nodes" in dist.group.WORLD._get_backend(torch.device(device))._describe()
    for name in NAMES:
        body, params = BODIES[name]
        body(rank, n, device, **params)
    for large in test_pieces.BODIES.values():
        large(rank, n, device)
    begins_when_the_stream_reaches_it(rank, n, device)


@pytest.mark.full
def test_a_group_over_two_nodes_serves_it(pool):
    with pool.fresh(3) as team:
        team.run(join_over_two, store=pool.source.new_file())
        team.run(bodies, DEVICE)
