"""Random operations whose results every rank can work out: the script that faults interrupt."""

from __future__ import annotations

import random
from datetime import timedelta

import torch
import torch.distributed as dist

SIZES = (1, 7, 1000, 40_000, 600_000)
"""Elements: beside the sequence number, in the payload, through slots, and directly."""

PATIENCE = timedelta(seconds=2)
"""How long ranks wait for each other in a new group: a rank that died before it joined is only missed."""


def all_reduce(draw: random.Random, n: int, rank: int, device: str) -> None:
    count = draw.choice(SIZES)
    t = torch.full((count,), float(rank + 1), device=device)
    dist.all_reduce(t)
    assert (t == n * (n + 1) / 2).all(), "all_reduce"


def broadcast(draw: random.Random, n: int, rank: int, device: str) -> None:
    count, root = draw.choice(SIZES), draw.randrange(n)
    t = torch.full((count,), float(rank), device=device)
    dist.broadcast(t, root)
    assert (t == root).all(), "broadcast"


def all_gather(draw: random.Random, n: int, rank: int, device: str) -> None:
    count = draw.choice(SIZES) // n + 1
    out = torch.empty(count * n, dtype=torch.int64, device=device)
    dist.all_gather_into_tensor(out, torch.full((count,), rank, device=device))
    assert (torch.arange(n, device=device) == out.view(n, count).T).all(), "all_gather"


def reduce_scatter(draw: random.Random, n: int, rank: int, device: str) -> None:
    count = draw.choice(SIZES) // n + 1
    out = torch.empty(count, dtype=torch.int32, device=device)
    blocks = torch.arange(n, dtype=torch.int32, device=device).repeat_interleave(count)
    dist.reduce_scatter_tensor(out, blocks)
    assert (out == n * rank).all(), "reduce_scatter"


def all_to_all(draw: random.Random, n: int, rank: int, device: str) -> None:
    count = draw.choice(SIZES) // n + 1
    sent = torch.arange(n, device=device).repeat_interleave(count) + 100 * rank
    out = torch.empty_like(sent)
    dist.all_to_all_single(out, sent)
    assert (torch.arange(n, device=device) * 100 + rank == out.view(n, count).T).all(), "all_to_all"


def ring(draw: random.Random, n: int, rank: int, device: str) -> None:
    count = draw.choice(SIZES)
    out, received = torch.full((count,), float(rank), device=device), torch.empty(count, device=device)
    works = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, out, (rank + 1) % n), dist.P2POp(dist.irecv, received, (rank - 1) % n)]
    )
    for work in works:
        work.wait()
    assert (received == (rank - 1) % n).all(), "ring"


def in_flight(draw: random.Random, n: int, rank: int, device: str) -> None:
    tensors = [torch.ones(draw.choice(SIZES[:4]), device=device) for _ in range(draw.randrange(2, 8))]
    works = [dist.all_reduce(t, async_op=True) for t in tensors]
    for work, t in zip(works, tensors, strict=True):
        work.wait()
        assert (t == n).all(), "in flight"


def barrier(draw: random.Random, n: int, rank: int, device: str) -> None:
    dist.barrier()


def split(draw: random.Random, n: int, rank: int, device: str) -> None:
    """A group of some of the ranks, used and destroyed."""
    ranks = sorted(draw.sample(range(n), draw.randrange(1, n + 1)))
    group = dist.new_group(ranks, backend="occl", timeout=PATIENCE)
    if rank in ranks:
        t = torch.ones(draw.choice(SIZES), device=device)
        dist.all_reduce(t, group=group)
        assert (t == len(ranks)).all(), "split"
        dist.destroy_process_group(group)


ALL = (all_reduce, broadcast, all_gather, reduce_scatter, all_to_all, ring, in_flight, barrier, split)


def run_one(draw: random.Random, device: str) -> None:
    """The next operation of the script, on the default group. All ranks draw from the same numbers."""
    operation = draw.choice(ALL)
    # A number of its own: how much an operation draws may differ between ranks.
    operation(random.Random(draw.random()), dist.get_world_size(), dist.get_rank(), device)
