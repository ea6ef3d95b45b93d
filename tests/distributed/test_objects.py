"""Object collectives, which PyTorch builds on tensors of differing sizes."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from tests.support.devices import DEVICES
from tests.support.matrix import WORLD_SIZES


def thing(rank, size):
    return {"rank": rank, "payload": bytes([rank]) * size, "text": "é" * rank}


def gather_everywhere(rank, n, device, *, size):
    got = [None] * n
    dist.all_gather_object(got, thing(rank, size * rank))
    assert got == [thing(r, size * r) for r in range(n)]


def gather_at_each(rank, n, device, *, size):
    for root in range(n):
        got = [None] * n if rank == root else None
        dist.gather_object(thing(rank, size), got, dst=root)
        assert got is None or got == [thing(r, size) for r in range(n)]


def broadcast_from_each(rank, n, device, *, size):
    for root in range(n):
        got = [thing(root, size), "second", 3] if rank == root else [None] * 3
        dist.broadcast_object_list(got, src=root, device=torch.device(device))
        assert got == [thing(root, size), "second", 3]


def scatter_from_each(rank, n, device, *, size):
    for root in range(n):
        got = [None]
        dist.scatter_object_list(
            got, [thing(r, size * r) for r in range(n)] if rank == root else None, src=root
        )
        assert got == [thing(rank, size * rank)]


def pass_around(rank, n, device, *, size):
    """From rank to rank along a ring."""
    to, source = (rank + 1) % n, (rank - 1) % n
    got = [None, None]
    device = torch.device(device)
    if rank == 0:
        dist.send_object_list([thing(rank, size), rank], dst=to, device=device)
        dist.recv_object_list(got, src=source, device=device)
    else:
        dist.recv_object_list(got, src=source, device=device)
        dist.send_object_list([thing(rank, size), rank], dst=to, device=device)
    assert got == [thing(source, size), source]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("size", [0, 1000, 300000])
@pytest.mark.parametrize("body", [gather_everywhere, gather_at_each, broadcast_from_each, scatter_from_each])
def test_objects_arrive(pool, body, size, world_size, device):
    pool.run(body, world_size, device, size=size)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("world_size", WORLD_SIZES[1:])  # PyTorch lets no rank send objects to itself
@pytest.mark.parametrize("size", [0, 1000, 300000])
def test_objects_are_passed_from_rank_to_rank(pool, size, world_size, device):
    pool.run(pass_around, world_size, device, size=size)
