"""The optimizer's step overlapped with the backward pass (DDP with ZeroRedundancyOptimizer).

The hooks update and broadcast parameters in callbacks of the gradients' futures, so these tests show what a
callback's calls depend on: that they come before the next bucket's, on every rank.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import ddp_zero_hook, default_hooks
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from tests.support.devices import DEVICES
from tests.support.references import assert_same_bits

STEPS, LAYERS, WIDTH = 8, 6, 24


def model(device):
    torch.manual_seed(5)
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    return nn.Sequential(*layers).to(device)


def batches(rank, device):
    generator = torch.Generator().manual_seed(rank)
    return [torch.randn(4, WIDTH, generator=generator).to(device) for _ in range(STEPS)]


def loss_of(net, x):
    return net(x).square().mean()


def expected(rank, device, *, unchanged, **options):
    """Parameters after DDP with a step of its own, which begins when PyTorch's hooks begin."""
    net = DistributedDataParallel(model(device), **options)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for step, x in enumerate(batches(rank, device)):
        optimizer.zero_grad()
        loss_of(net, x).backward()
        if step >= unchanged:
            optimizer.step()
    return [p.detach().cpu() for p in net.parameters()]


def overlapped(rank, n, device, *, hook, shard_buckets, static_graph):
    options = {"bucket_cap_mb": 0.002, "gradient_as_bucket_view": True, "static_graph": static_graph}
    alone = expected(rank, device, unchanged=3 if static_graph else 2, **options)
    net = DistributedDataParallel(model(device), **options)
    zero = ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=0.01, overlap_with_ddp=True)
    made = getattr(ddp_zero_hook, hook)(default_hooks.allreduce_hook, net, zero, shard_buckets)
    net.register_comm_hook(None, made)
    for x in batches(rank, device):
        net.zero_grad()
        loss_of(net, x).backward()
    assert len(zero._overlap_info.params_per_bucket) > 3
    for p, reference in zip(net.parameters(), alone, strict=True):
        theirs = [torch.empty_like(p) for _ in range(n)]
        dist.all_gather(theirs, p.detach())
        for other in theirs:
            assert_same_bits(other.cpu(), p.detach().cpu())
        torch.testing.assert_close(p.detach().cpu(), reference)


HOOKS = [(device, "hook_with_zero_step") for device in DEVICES]
if "dev" in DEVICES:
    HOOKS.append(("dev", "hook_with_zero_step_interleaved"))


@pytest.mark.parametrize(("device", "hook"), HOOKS)
@pytest.mark.parametrize("static_graph", [False, True])
@pytest.mark.parametrize("shard_buckets", [False, True])
@pytest.mark.parametrize("world_size", [2, 4])
def test_an_overlapped_step_is_that_of_the_optimizer(
    pool, world_size, shard_buckets, static_graph, device, hook
):
    params = {"hook": hook, "shard_buckets": shard_buckets, "static_graph": static_graph}
    pool.run(overlapped, world_size, device, limit=30, **params)
