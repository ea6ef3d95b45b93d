"""FullyShardedDataParallel and fully_shard against DDP, with models and checks of PyTorch's own FSDP tests.

Those tests themselves are not in the torch wheel, but what they are made of is
(``torch.testing._internal.common_fsdp``): models, ``_test_fsdp_parity`` and ``check_sharded_parity``.
"""

from __future__ import annotations

import copy
import functools

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffload,
    CPUOffloadPolicy,
    MixedPrecision,
    MixedPrecisionPolicy,
    OffloadPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.tensor import DTensor
from torch.testing._internal import common_fsdp
from torch.testing._internal.common_fsdp import DEVICEInitMode, FSDPInitMode
from torch.testing._internal.common_utils import TestCase

from occl import compat


class Parity(common_fsdp.FSDPTestMixin, TestCase):
    """PyTorch's check, without its processes."""

    __test__ = False
    process_group = property(lambda self: dist.group.WORLD)

    def runTest(self):
        raise NotImplementedError


def begin(rank, device):
    common_fsdp.DEVICE_TYPE = device
    if device == "dev":
        torch.dev.set_device(rank)


def trains_like_ddp(rank, world_size, device, *, model, **options):
    begin(rank, device)
    if model == "MixtureOfExperts":  # the experts differ from rank to rank
        options["ref_init_fn"] = common_fsdp.DummyDDP
    if device == "cpu":
        options["device_id"] = torch.device("cpu")  # an accelerator is preferred wherever there is one
    Parity()._test_fsdp_parity(
        getattr(common_fsdp, model), FSDPInitMode.RECURSIVE, DEVICEInitMode.DEVICE_BEFORE, **options
    )


def shards_like_ddp(rank, world_size, device, *, mesh_shape):
    """fully_shard (FSDP2): losses, gradients and parameters over some steps."""
    begin(rank, device)
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


def mean_gradients(model, group=None):
    for p in model.parameters():
        dist.all_reduce(p.grad, op=dist.ReduceOp.AVG, group=group)


def sharded_layers(model, **options):
    for layer in model:
        fully_shard(layer, **options)
    return fully_shard(model, **options)


def layers(device):
    torch.manual_seed(42)
    return torch.nn.Sequential(*(common_fsdp.MLP(24, torch.device(device)) for _ in range(3)))


def whole(t):
    return t.full_tensor() if isinstance(t, DTensor) else t


def in_two_dimensions(rank, world_size, device, *, sequence, recompute):
    """Tensor or sequence parallelism in one dimension, shards in the other."""
    begin(rank, device)
    mesh = init_device_mesh(device, (2, world_size // 2), mesh_dim_names=("data", "tensor"))
    torch.manual_seed(42)
    reference = common_fsdp.MLPStack(10, with_seq_parallel=sequence).to(device, torch.float64)
    model = copy.deepcopy(reference).parallelize(mesh["tensor"], mesh["data"], recompute)
    optimizers = [torch.optim.SGD(m.parameters(), lr=1e-2) for m in (reference, model)]
    torch.manual_seed(42 + mesh["data"].get_local_rank())
    for _ in range(3):
        x = torch.randn(4, 6, 10, device=device, dtype=torch.float64)
        losses = []
        for m, optimizer in zip((reference, model), optimizers, strict=True):
            optimizer.zero_grad()
            losses.append((whole(m(x)) - x).square().sum())
            losses[-1].backward()
        mean_gradients(reference, mesh["data"].get_group())
        torch.testing.assert_close(losses[0], losses[1])
        for (name, p), q in zip(reference.named_parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(whole(q.grad), p.grad, msg=lambda text, name=name: f"{name}: {text}")
        for optimizer in optimizers:
            optimizer.step()


def computes_in_bfloat16(rank, world_size, device):
    """Weights are gathered in bfloat16, gradients summed in float32."""
    begin(rank, device)
    reference = layers(device)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    mesh = init_device_mesh(device, (world_size,))
    model = sharded_layers(copy.deepcopy(reference), mesh=mesh, mp_policy=policy)
    half = copy.deepcopy(reference).to(torch.bfloat16)
    torch.manual_seed(42 + rank)
    x = torch.randn(8, 24, device=device)
    half(x.to(torch.bfloat16)).sum().backward()
    for p, q in zip(reference.parameters(), half.parameters(), strict=True):
        p.grad = q.grad.float()
    mean_gradients(reference)
    dtypes = []
    watched = functools.partial(
        common_fsdp.reduce_scatter_with_assert,
        None,
        compat.reduce_scatter_single(),
        lambda t: dtypes.append(t.dtype),
    )
    with common_fsdp.patch_reduce_scatter(watched):
        model(x).sum().backward()
    assert dtypes == [torch.float32] * 3
    common_fsdp.check_sharded_parity(TestCase(), reference, model)


def communicates_as_often_as_it_must(rank, world_size, device):
    begin(rank, device)
    calls = []

    def counted(call, name):
        return lambda *args, **keywords: calls.append(name) or call(*args, **keywords)

    def count(again, sums):
        model.set_requires_gradient_sync(sums)
        calls.clear()
        model(x).sum().backward()
        assert calls.count("gather") == (6 if again else 3), calls
        assert calls.count("reduce") == (3 if sums else 0), calls

    x = torch.ones(8, 24, device=device)
    mesh = init_device_mesh(device, (world_size,))
    with (
        common_fsdp.patch_all_gather(counted(compat.all_gather_single(), "gather")),
        common_fsdp.patch_reduce_scatter(counted(compat.reduce_scatter_single(), "reduce")),
    ):
        for again in (True, False):
            model = sharded_layers(layers(device), mesh=mesh, reshard_after_forward=again)
            count(again, sums=True)
            count(again, sums=False)


def shares_parameters(rank, world_size, device, *, offload):
    """A transformer whose first and last weights are one parameter."""
    begin(rank, device)
    reference = common_fsdp.TransformerWithSharedParams.init(
        dist.group.WORLD, FSDPInitMode.NO_FSDP, DEVICEInitMode.DEVICE_BEFORE, deterministic=True, add_bn=False
    )
    model = copy.deepcopy(reference)
    options = {
        "mesh": init_device_mesh(device, (world_size,)),
        "offload_policy": CPUOffloadPolicy(pin_memory=False) if offload else OffloadPolicy(),
    }
    for layer in (*model.transformer.encoder.layers, *model.transformer.decoder.layers):
        fully_shard(layer, **options)
    fully_shard(model, **options)
    optimizers = [torch.optim.SGD(m.parameters(), lr=1e-2) for m in (reference, model)]
    for _ in range(3):
        losses = []
        for m, optimizer in zip((reference, model), optimizers, strict=True):
            optimizer.zero_grad()
            x = reference.get_input(torch.device(device))
            losses.append(reference.get_loss(x, m(*x)))
            losses[-1].backward()
        mean_gradients(reference)
        torch.testing.assert_close(losses[0], losses[1])
        for optimizer in optimizers:
            optimizer.step()
    for p, q in zip(reference.parameters(), model.parameters(), strict=True):
        assert q.device.type == ("cpu" if offload else device)
        torch.testing.assert_close(q.to(device).full_tensor(), p)


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
@pytest.mark.parametrize(
    "model", ["NestedWrappedModule", "AlwaysWrapNestedWrappedModule", "MixtureOfExperts"]
)
@pytest.mark.parametrize("device", ["cpu", "dev"])
def test_fsdp_with_each_strategy_trains_like_ddp(ranks, device, model, strategy):
    ranks.run(trains_like_ddp, 2, device, model=model, sharding_strategy=strategy)


@pytest.mark.parametrize("mesh_shape", [(2,), (4,), (2, 2)], ids=str)
@pytest.mark.parametrize("device", ["cpu", "dev"])
def test_fully_shard_trains_like_ddp(ranks, device, mesh_shape):
    """(2, 2) is hybrid: sharded in one dimension, replicated in the other."""
    ranks.run(shards_like_ddp, 4 if len(mesh_shape) == 2 else mesh_shape[0], device, mesh_shape=mesh_shape)


@pytest.mark.parametrize("device", ["cpu", "dev"])
def test_fsdp_trains_some_of_the_parameters(ranks, device):
    """All of which lie on one rank."""
    ranks.run(trains_like_ddp, 2, device, model="NonUniformReqGradNWM", use_orig_params=True)


@pytest.mark.parametrize("recompute", [False, True], ids=["", "recomputed"])
@pytest.mark.parametrize("sequence", [False, True], ids=["tensor", "sequence"])
@pytest.mark.parametrize("device", ["cpu", "dev"])
def test_fully_shard_and_tensor_parallelism_train_like_the_whole_model(ranks, device, sequence, recompute):
    ranks.run(in_two_dimensions, 4, device, sequence=sequence, recompute=recompute)


@pytest.mark.parametrize("device", ["cpu", "dev"])
def test_fully_shard_computes_in_bfloat16_and_sums_in_float32(ranks, device):
    ranks.run(computes_in_bfloat16, 2, device)


@pytest.mark.parametrize("device", ["cpu", "dev"])
def test_fully_shard_communicates_as_often_as_it_must(ranks, device):
    ranks.run(communicates_as_often_as_it_must, 2, device)


@pytest.mark.parametrize(("device", "offload"), [("cpu", False), ("dev", False), ("dev", True)])
def test_fully_shard_shares_parameters(ranks, device, offload):
    ranks.run(shares_parameters, 2, device, offload=offload)
