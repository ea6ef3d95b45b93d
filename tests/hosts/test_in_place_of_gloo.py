"""occl in the place of Gloo in groups over several nodes."""

from __future__ import annotations

import os
import re
import warnings

import pytest
import torch
import torch.distributed as dist

import torch_occl
from occl.distributed.place_agreement import place, vote_between
from tests.distributed.in_place_of.running import assert_gloo, assert_occl
from tests.support.checks import backend
from tests.support.groups import begin


def asks(rank, n, device):
    torch_occl.replace_gloo()


def trains(rank, n, device):
    """What a program does that knows Gloo only."""
    assert_occl()
    assert re.search(r"(tcp|ucx) over", backend("cpu")._describe())
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
def test_a_program_that_asks_for_gloo_gets_occl(hosts, shape):
    with hosts.fresh_on(shape) as team:
        team.run(asks)
        team.meet("gloo")
        team.run(trains)


def lacks(rank, n, device, *, store):
    """Each rank is a node. Rank 1 has another environment than rank 0."""
    os.environ |= {"OCCL_NODE": f"node {rank}", "GLOO_SOCKET_IFNAME": "lo"}
    if rank == 1:
        os.environ["OCCL_INTER_NODE"] = "gloo"
    says = "the group spans several nodes, and rank 1 cannot connect them: OCCL_INTER_NODE is gloo"
    torch_occl.replace_gloo()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        begin(rank, n, store)
    assert [says in str(it.message) for it in caught if "Gloo" in str(it.message)] == [True] * (rank == 0), (
        caught
    )
    assert_gloo()


def test_gloo_stays_where_a_rank_cannot_connect_nodes_and_the_rank_is_named(ranks):
    with ranks.fresh(2) as team:
        team.run(lacks, store=team.source.new_file())


@pytest.mark.parametrize(
    ("name", "value", "cannot"),
    [
        ("GLOO_DEVICE_TRANSPORT", "TCP_TLS", "GLOO_DEVICE_TRANSPORT is TCP_TLS"),
        (
            "GLOO_SOCKET_IFNAME",
            "none0",
            "GLOO_SOCKET_IFNAME names the interface 'none0', which does not exist",
        ),
        ("OCCL_INTER_NODE", "tcp", ""),
        ("GLOO_DEVICE_TRANSPORT", "TCP", ""),
    ],
)
def test_a_rank_says_why_it_cannot_connect_nodes(monkeypatch, name, value, cannot):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setenv(name, value)
    said = vote_between([place(), place()])["cannot"]
    assert said.startswith(cannot) and bool(said) == bool(cannot)
