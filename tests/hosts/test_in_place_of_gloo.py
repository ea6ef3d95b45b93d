"""occl in the place of Gloo in groups over several nodes: over UCX where all ranks have it, or not at all."""

from __future__ import annotations

import os
import warnings

import pytest
import torch
import torch.distributed as dist

import torch_occl
from occl.distributed import ucx
from tests.distributed.in_place_of.running import assert_gloo, assert_occl
from tests.hosts.launch import NO_UCX
from tests.support.checks import backend
from tests.support.groups import begin

pytestmark = pytest.mark.skipif(bool(NO_UCX), reason=NO_UCX)


def asks(rank, n, device):
    torch_occl.replace_gloo()


def trains(rank, n, device):
    """What a program does that knows Gloo only."""
    assert_occl()
    assert "ucx over" in backend("cpu")._describe()
    some = dist.new_group([0, n - 1])
    if rank in (0, n - 1):
        assert_occl(some)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(100, 10))
    model(torch.ones(4, 100)).sum().backward()
    objects: list = [None] * n
    dist.all_gather_object(objects, rank)
    assert objects == list(range(n))
    dist.destroy_process_group()


@pytest.mark.parametrize("shape", ["2+1", "1+1"])
def test_a_program_that_asks_for_gloo_gets_occl_over_ucx(hosts, shape):
    with hosts.fresh_on(shape) as team:
        team.run(asks)
        team.meet("gloo")
        team.run(trains)


def lacks(rank, n, device, *, store, what):
    """Each rank is a node. Rank 1 cannot use what rank 0 uses."""
    os.environ |= {"OCCL_NODE": f"node {rank}", "GLOO_SOCKET_IFNAME": "lo"}
    says = "the group spans several nodes, and rank 1 "
    if what == "wish":
        says += "cannot use UCX: OCCL_INTER_NODE is gloo"
        if rank == 1:
            os.environ["OCCL_INTER_NODE"] = "gloo"
    elif what == "library":
        says += "cannot use UCX: "
        if rank == 1:
            ucx.libraries = lambda: ["no such library"]
    elif what == "version":
        says += "has another version of UCX than rank 0"
        ucx.version = lambda: f"1.{rank}"
    torch_occl.replace_gloo()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        begin(rank, n, store)
    assert [says in str(it.message) for it in caught if "Gloo" in str(it.message)] == [True] * (rank == 0), (
        caught
    )
    assert_gloo()


@pytest.mark.parametrize("what", ["wish", "library", "version"])
def test_gloo_stays_where_a_rank_cannot_use_ucx_and_the_rank_is_named(ranks, what):
    with ranks.fresh(2) as team:
        team.run(lacks, store=team.source.new_file(), what=what)
