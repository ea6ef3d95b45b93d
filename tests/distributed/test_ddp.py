"""Training: DistributedDataParallel, its hooks, and FSDP2."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook, quantization_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from tests.support.devices import DEVICES
from tests.support.references import assert_same_bits

BATCH, WIDTH = 12, 33  # divisible by 2, 3 and 4 ranks


def model():
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Linear(WIDTH, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 64), nn.Linear(64, 7)
    )


def batches(steps):
    generator = torch.Generator().manual_seed(11)
    return [torch.randn(BATCH, WIDTH, generator=generator) for _ in range(steps)]


def loss_of(net, x):
    return net(x).square().mean()


def trained_alone(steps):
    """Gradients of the first step, and the parameters after all, of one process with the whole batch."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    first = None
    for x in batches(steps):
        optimizer.zero_grad()
        loss_of(net, x).backward()
        first = first or [p.grad.clone() for p in net.parameters()]
        optimizer.step()
    return first, [p.detach().clone() for p in net.parameters()]


def assert_same_everywhere(tensors, device):
    """The same bits on every rank."""
    for t in tensors:
        mine = t.detach().to(device).contiguous()
        everybody = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(everybody, mine)
        for theirs in everybody:
            assert_same_bits(theirs.cpu(), mine.cpu())


def assert_all_close(actual, expected, **tolerance):
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a.detach().cpu(), e, **tolerance)


def parallel(rank, n, device, *, options, hook, tolerance):
    net = DistributedDataParallel(model().to(device), **options)
    if hook == "powerSGD":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=64, start_powerSGD_iter=2)
        net.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif hook:
        # A name of our own: PyTorch wants NCCL for a hook that is called bf16_compress_hook.
        net.register_comm_hook(None, lambda state, bucket: getattr(default_hooks, hook)(state, bucket))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    gradients, parameters = trained_alone(steps=5)
    for step, x in enumerate(batches(5)):
        optimizer.zero_grad()
        loss_of(net, x.to(device).chunk(n)[rank]).backward()
        if step == 0:
            assert_all_close([p.grad for p in net.parameters()], gradients, **tolerance)
        optimizer.step()
        assert_same_everywhere(net.parameters(), device)
    if hook != "powerSGD":
        assert_all_close(net.parameters(), parameters, **tolerance)


def quantized(rank, n, device, *, hook):
    """The hooks look for one tensor in the future of an all_gather. Eight bits are all that is left."""
    net = DistributedDataParallel(model().to(device))
    net.register_comm_hook(dist.group.WORLD, getattr(quantization_hooks, hook))
    (x,) = batches(1)
    loss_of(net, x.to(device).chunk(n)[rank]).backward()
    gradients, _ = trained_alone(steps=1)
    for p, alone in zip(net.parameters(), gradients, strict=True):
        coarse = max(g.abs().max() for g in gradients) / 20
        assert (p.grad.cpu() - alone).abs().max() < coarse
    assert_same_everywhere([p.grad for p in net.parameters()], device)


def accumulated(rank, n, device):
    """no_sync: gradients of two batches, reduced once."""
    net = DistributedDataParallel(model().to(device))
    first, second = batches(2)
    with net.no_sync():
        loss_of(net, first.to(device).chunk(n)[rank]).backward()
    loss_of(net, second.to(device).chunk(n)[rank]).backward()
    alone = model()
    for x in (first, second):
        loss_of(alone, x).backward()
    assert_all_close([p.grad for p in net.parameters()], [p.grad for p in alone.parameters()])


def unused(rank, n, device):
    """Parameters that some ranks do not use in a step."""
    net = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)]).to(device)

    class Choose(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = net

        def forward(self, x, which):
            return self.layers[which](x)

    wrapped = DistributedDataParallel(Choose(), find_unused_parameters=True)
    for step in range(3):
        wrapped(torch.ones(2, 4, device=device), (rank + step) % 2).sum().backward()
    assert_same_everywhere([p.grad for p in wrapped.parameters()], device)


def sharded(rank, n, device):
    mesh = init_device_mesh(device, (n,))
    net = copy.deepcopy(model()).to(device)
    for layer in net:
        if any(True for _ in layer.parameters()):
            fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    gradients, parameters = trained_alone(steps=5)
    for step, x in enumerate(batches(5)):
        optimizer.zero_grad()
        loss_of(net, x.to(device).chunk(n)[rank]).backward()
        if step == 0:
            assert_all_close([p.grad.full_tensor() for p in net.parameters()], gradients)
        optimizer.step()
    assert_all_close([p.full_tensor() for p in net.parameters()], parameters)


EXACT = {"rtol": 1e-5, "atol": 1e-6}
ROUGH = {"rtol": 5e-2, "atol": 5e-3}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize(
    ("options", "hook", "tolerance"),
    [
        ({}, None, EXACT),
        ({"bucket_cap_mb": 0.001}, None, EXACT),
        ({"gradient_as_bucket_view": True, "static_graph": True}, None, EXACT),
        ({}, "allreduce_hook", EXACT),
        ({}, "bf16_compress_hook", ROUGH),
        ({}, "fp16_compress_hook", ROUGH),
        ({}, "powerSGD", EXACT),
    ],
)
def test_data_parallel_training_is_that_of_one_process(pool, options, hook, tolerance, world_size, device):
    pool.run(parallel, world_size, device, limit=30, options=options, hook=hook, tolerance=tolerance)


@pytest.mark.skipif("dev" not in DEVICES, reason="on the CPU callbacks of several buckets come in any order")
@pytest.mark.parametrize("hook", ["fp16_compress_hook", "powerSGD"])
def test_hooks_of_several_buckets_keep_their_order(pool, hook):
    options = {"bucket_cap_mb": 0.005}
    pool.run(parallel, 3, "dev", limit=30, options=options, hook=hook, tolerance=ROUGH)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("hook", ["quantization_pertensor_hook", "quantization_perchannel_hook"])
def test_quantization_hooks_reduce_gradients(pool, hook, device):
    pool.run(quantized, 2, device, hook=hook)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("body", [accumulated, unused])
def test_data_parallel_features(pool, body, device):
    pool.run(body, 2, device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("world_size", [2, 3])
def test_sharded_training_is_that_of_one_process(pool, world_size, device):
    pool.run(sharded, world_size, device)
