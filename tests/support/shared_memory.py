"""For tests of CPU tensors in memory that peers map."""

from __future__ import annotations

import torch

import torch_occl
from tests.support.maps import Maps


def shared_bytes() -> int:
    return torch_occl.shared_cpu_memory_stats()["allocated_bytes.all.current"]


def lies_shared(t: torch.Tensor) -> bool:
    return Maps().lies_shared(t.data_ptr())


def in_one_process(fresh, body, **params):
    with fresh(1) as team:
        team.run(body, **params)


def in_a_group(fresh, body, world_size=2, **params):
    with fresh(world_size) as team:
        team.join().run(body, **params)
