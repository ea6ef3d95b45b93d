"""Small checks that several tests run in their ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist


def backend(device: str = "cpu", group=None) -> dist.Backend:
    """The ProcessGroupOCCL behind a group."""
    return (group or dist.group.WORLD)._get_backend(torch.device(device))


def assert_works(device: str = "cpu", group=None) -> None:
    """The group does its job: small and large collectives, with the right results, on every rank."""
    n = dist.get_world_size(group)
    for count in (1, 1000, 100_000):
        t = torch.ones(count, device=device)
        dist.all_reduce(t, group=group)
        assert (t == n).all(), (count, t)
    out = torch.zeros(3 * n, dtype=torch.int64, device=device)
    dist.all_gather_into_tensor(out, torch.full((3,), dist.get_rank(group), device=device), group=group)
    assert out.tolist() == [r for r in range(n) for _ in range(3)]
