"""FullyShardedDataParallel and fully_shard against DDP, with models and checks of PyTorch's own FSDP tests.

Those tests themselves are not in the torch wheel, but what they are made of is
(``torch.testing._internal.common_fsdp``): models, ``_test_fsdp_parity`` and ``check_sharded_parity``.
"""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffload,
    MixedPrecision,
    ShardingStrategy,
    fully_shard,
)
from torch.testing._internal import common_fsdp
from torch.testing._internal.common_fsdp import DEVICEInitMode, FSDPInitMode
from torch.testing._internal.common_utils import TestCase


class Parity(common_fsdp.FSDPTestMixin, TestCase):
    """PyTorch's check, without its processes."""

    __test__ = False
    process_group = property(lambda self: dist.group.WORLD)

    def runTest(self):
        raise NotImplementedError


def trains_like_ddp(rank, world_size, device, *, model, **options):
    common_fsdp.DEVICE_TYPE = device
    if device == "dev":
        torch.dev.set_device(rank)
    else:
        options["device_id"] = torch.device("cpu")  # an accelerator is preferred wherever there is one
    Parity()._test_fsdp_parity(
        getattr(common_fsdp, model), FSDPInitMode.RECURSIVE, DEVICEInitMode.DEVICE_BEFORE, **options
    )


def shards_like_ddp(rank, world_size, device, *, mesh_shape):
    """fully_shard (FSDP2): losses, gradients and parameters over some steps."""
    common_fsdp.DEVICE_TYPE = device
    if device == "dev":
        torch.dev.set_device(rank)
    torch.manual_seed(42)
    reference = torch.nn.Sequential(*(common_fsdp.MLP(24, torch.device(device)) for _ in range(3)))
    model = copy.deepcopy(reference)
    mesh = init_device_mesh(device, mesh_shape, mesh_dim_names=("replicas", "shards")[-len(mesh_shape) :])
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizers = [torch.optim.Adam(m.parameters(), lr=1e-2) for m in (reference, model)]
    torch.manual_seed(42 + rank)
    for _ in range(4):
        x = torch.randn(8, 24, device=device)
        losses = []
        for m, optimizer in zip((reference, model), optimizers, strict=True):
            optimizer.zero_grad()
            losses.append(m(x).sum())
            losses[-1].backward()
        for p in reference.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        common_fsdp.check_sharded_parity(TestCase(), reference, model)
        for optimizer in optimizers:
            optimizer.step()
        torch.testing.assert_close(losses[0], losses[1])


STRATEGIES = [ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.NO_SHARD]
OPTIONS = {
    "plain": {},
    "use_orig_params": {"use_orig_params": True},
    "cpu_offload": {"cpu_offload": CPUOffload(offload_params=True)},
    "prefetch": {"backward_prefetch": BackwardPrefetch.BACKWARD_PRE, "forward_prefetch": True},
    "bfloat16": {"mixed_precision": MixedPrecision(torch.bfloat16, torch.bfloat16, torch.bfloat16)},
}
INPUTS_ARE_CAST = {"bfloat16"}  # which the transformer's, being numbers of words, cannot be
NOT_ON_CPU = {
    "cpu_offload": "FSDP asks torch.cpu for streams that can be synchronized, which it does not have",
    "bfloat16": "the check wants a float32 loss of its reference under autocast, which on the CPU has none",
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("device", ["cpu", "dev"])
def test_fsdp_trains_like_ddp(ranks, device, options):
    if device == "cpu" and options in NOT_ON_CPU:
        pytest.skip(NOT_ON_CPU[options])
    model = "NestedWrappedModule" if options in INPUTS_ARE_CAST else "TransformerWithSharedParams"
    ranks.run(trains_like_ddp, 2, device, model=model, **OPTIONS[options])


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.name)
@pytest.mark.parametrize("model", ["NestedWrappedModule", "AlwaysWrapNestedWrappedModule"])
@pytest.mark.parametrize("device", ["cpu", "dev"])
def test_fsdp_with_each_strategy_trains_like_ddp(ranks, device, model, strategy):
    ranks.run(trains_like_ddp, 2, device, model=model, sharding_strategy=strategy)


@pytest.mark.parametrize("mesh_shape", [(2,), (4,), (2, 2)], ids=str)
@pytest.mark.parametrize("device", ["cpu", "dev"])
def test_fully_shard_trains_like_ddp(ranks, device, mesh_shape):
    """(2, 2) is hybrid: sharded in one dimension, replicated in the other."""
    ranks.run(shards_like_ddp, 4 if len(mesh_shape) == 2 else mesh_shape[0], device, mesh_shape=mesh_shape)
