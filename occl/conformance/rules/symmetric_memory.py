"""Rules of symmetric memory, whose allocator belongs to a device type and whose handles belong to a group."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from occl.conformance.catalog import Source, over, rule
from occl.conformance.rank_api import Rank

HEADER = "include/torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp"
MODULE = "distributed/_symmetric_memory/__init__.py"


def _memory(rank: Rank, *values: float) -> tuple[torch.Tensor, Any]:
    """A tensor of these values in symmetric memory, which all ranks have written, and its handle."""
    import torch.distributed._symmetric_memory as symm_mem

    if symm_mem.get_backend(rank.device) is None:
        raise NotImplementedError(f"there is no symmetric memory for {rank.device.type}")
    tensor = symm_mem.empty(len(values), device=rank.device)
    tensor.copy_(rank.tensor(*values))
    handle = symm_mem.rendezvous(tensor, rank.group)
    handle.barrier()
    return tensor, handle


@rule(
    "symmetric_memory", "buffers", "A rank reads and writes the memory of every other one.",
    Source(HEADER, "The allocations represented by a SymmetricMemory object are accessible by"),
)  # fmt: skip
def buffers(rank: Rank) -> None:
    tensor, handle = _memory(rank, *[10.0 * rank.rank + i for i in range(4)])
    for peer in range(rank.size):
        expected = torch.tensor([10.0 * peer + i for i in range(1, 4)])
        found = handle.get_buffer(peer, (3,), torch.float32, 1)
        rank.same(found.cpu(), expected, f"the buffer of rank {peer}")
    handle.barrier()
    right = (rank.rank + 1) % rank.size
    handle.get_buffer(right, (4,), torch.float32).copy_(rank.tensor(*[float(rank.rank)] * 4))
    handle.barrier()
    left = float((rank.rank - 1) % rank.size)
    rank.same(tensor.cpu(), torch.tensor([left] * 4), "what the rank on the left wrote")
    handle.barrier()


@rule(
    "symmetric_memory", "signals", "A wait takes a signal of its channel, and sees what came before it.",
    Source(HEADER, "consider the case in which two barriers are issued on two streams for"),
)  # fmt: skip
def signals(rank: Rank) -> None:
    tensor, handle = _memory(rank, 0.0)
    right, left = (rank.rank + 1) % rank.size, (rank.rank - 1) % rank.size
    handle.put_signal(right, 1)
    handle.get_buffer(right, (1,), torch.float32).copy_(rank.tensor(rank.rank + 1.0))
    handle.put_signal(right, 0)
    handle.wait_signal(left, 0)
    rank.same(tensor.cpu(), torch.tensor([left + 1.0]), "what was written before the signal")
    handle.wait_signal(left, 1)
    handle.barrier()


@rule(
    "symmetric_memory", "reduce", "An operator on symmetric memory gives what all_reduce gives.",
    Source(MODULE, "torch.ops.symm_mem.one_shot_all_reduce("),
    cases=over(operator=("one_shot_all_reduce", "two_shot_all_reduce_")),
)  # fmt: skip
def reduces(rank: Rank, *, operator: str) -> None:
    values = [0.1 * rank.rank + 1.7 * i for i in range(100)]
    tensor, handle = _memory(rank, *values)
    expected = rank.tensor(*values)
    dist.all_reduce(expected)
    found = getattr(torch.ops.symm_mem, operator)(tensor, "sum", rank.group.group_name)
    rank.same(found.cpu(), expected.cpu(), operator)
    handle.barrier()
