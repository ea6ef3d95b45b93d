"""The versions of the lesson train as PyTorch's DistributedDataParallel does, to the bit."""

from __future__ import annotations

import re
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.support.devices import DEVICES
from tests.support.references import assert_same_bits

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "ddp_from_scratch"))
from bucketed import BucketedDDP, fill_buckets
from naive import NaiveDDP
from overlapped import OverlappedDDP

CAPS = [0.0001, 0.002, 25]
"""MiB: nearly a bucket for each parameter, some buckets, one bucket."""


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(9, 20), nn.BatchNorm1d(20), nn.GELU(), nn.Linear(20, 20), nn.Linear(20, 3))
    net[3].bias.requires_grad_(False)
    return net


class Choosing(nn.Module):
    """Three layers, of which a forward pass uses those it is told to."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.own = nn.Linear(4, 4)
        self.elsewhere = torch.ones(1, requires_grad=True)

    def forward(self, x: torch.Tensor, which: tuple[int, ...]) -> torch.Tensor:
        x = x * self.elsewhere.to(x.device)
        for i in which:
            x = self.layers[i](x).tanh()
        return x if which == () else self.own(x)


def versions(net, cap):
    return {
        "naive": lambda: NaiveDDP(net),
        "bucketed": lambda: BucketedDDP(net, bucket_cap_mb=cap),
        "overlapped": lambda: OverlappedDDP(net, bucket_cap_mb=cap),
        "ddp": lambda: DistributedDataParallel(net, bucket_cap_mb=cap),
    }


def state(net: nn.Module) -> list[torch.Tensor]:
    return [t.detach().cpu().clone() for t in net.state_dict().values()]


def assert_all_same(actual: list[torch.Tensor], expected: list[torch.Tensor], *what) -> None:
    for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
        assert_same_bits(a, e, i, *what)


def train(rank: int, device: str, version: str, cap: float, set_to_none: bool) -> tuple[list, list]:
    """State and gradients after some steps. Replicas begin with what is rank 0's."""
    net = network(seed=rank).to(device)
    wrapped = versions(net, cap)[version]()
    finish = getattr(wrapped, "average_gradients", lambda: None)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(100 + rank)
    for _ in range(4):
        x = torch.randn(6, 9, generator=generator).to(device)
        optimizer.zero_grad(set_to_none=set_to_none)
        wrapped(x).square().mean().backward()
        finish()
        optimizer.step()
    return state(net), [p.grad.cpu() for p in net.parameters() if p.grad is not None]


def trained_alike(rank, n, device, *, version, cap):
    # Statistics of batch normalization are the rank's own: broadcast (step 3, DDP) or not (steps 1 and 2).
    broadcast = version == "overlapped"
    mine, gradients = train(rank, device, version, cap, True)
    theirs, expected = train(rank, device, "ddp", cap, True)
    assert_all_same(gradients, expected, "gradients")
    names = list(network(0).state_dict())
    for name, a, b in zip(names, mine, theirs, strict=True):
        if broadcast or "running" not in name:
            assert_same_bits(a, b, name)
    # Gradients that stay, and are zeroed, have other roundings where n is no power of 2.
    kept, _ = train(rank, device, version, cap, False)
    for name, a, b in zip(names, kept, mine, strict=True):
        if broadcast or "running" not in name:
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("version", ["naive", "bucketed", "overlapped"])
def test_every_version_trains_as_ddp_does(pool, version, world_size, device):
    for cap in [25] if version == "naive" else CAPS:
        pool.run(trained_alike, world_size, device, version=version, cap=cap)


def unused_alike(rank, n, device, *, schedule):
    """``schedule``: for each step, which layers each rank uses, and whether gradients are averaged."""
    results = []
    for wrap in (OverlappedDDP, DistributedDataParallel):
        net = Choosing().to(device)
        wrapped = wrap(net, find_unused_parameters=True, bucket_cap_mb=0.0001)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        seen = []
        for step, (layers, sync) in enumerate(schedule):
            x = torch.full((2, 4), 1.0 + rank + step).to(device)
            with nullcontext() if sync else wrapped.no_sync():
                wrapped(x, layers[rank % len(layers)]).square().sum().backward()
            if sync:
                seen += [None if p.grad is None else p.grad.cpu().clone() for p in net.parameters()]
                optimizer.step()
                optimizer.zero_grad()
        results.append((seen, state(net)))
    (gradients, mine), (expected, theirs) = results
    for i, (a, b) in enumerate(zip(gradients, expected, strict=True)):
        assert (a is None) == (b is None), (i, a, b)
        if a is not None:
            assert_same_bits(a, b, i)
    assert_all_same(mine, theirs)


SCHEDULES = {
    "a layer that only some use": [(((0, 1), (0, 2)), True)] * 3,
    "a layer that is not used": [(((0,), (0, 1)), True), (((2,), (2,)), True)],
    "one that was used only where nothing was averaged": [
        (((0, 1), (0,)), False),
        (((0,), (0,)), True),
        (((1,), (1,)), True),
    ],
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", SCHEDULES)
def test_unused_parameters_are_treated_as_ddp_treats_them(pool, name, device):
    pool.run(unused_alike, 2, device, schedule=SCHEDULES[name])


def idle(rank, n, device):
    """A rank whose loss depends on none of its parameters. (DDP's hooks would never begin there.)"""
    wrapped = OverlappedDDP(Choosing().to(device), find_unused_parameters=True, bucket_cap_mb=0.0001)
    alone = Choosing().to(device)
    for step in range(3):
        busy = step % 2
        x = torch.full((2, 4), 1.0 + step).to(device)
        wrapped.zero_grad()
        wrapped(x, (0, 2) if rank == busy else ()).square().sum().backward()
        alone.zero_grad()
        alone(x, (0, 2)).square().sum().backward()
        for p, q in zip(wrapped.parameters(), alone.parameters(), strict=True):
            assert (p.grad is None) == (q.grad is None)
            if p.grad is not None:
                assert_same_bits(p.grad.cpu(), q.grad.cpu() * 0.5)


@pytest.mark.parametrize("device", DEVICES)
def test_a_rank_that_uses_none_of_its_parameters_counts_as_zero(pool, device):
    pool.run(idle, 2, device)


def missing(rank, n, device):
    wrapped = OverlappedDDP(Choosing().to(device))
    with pytest.raises(
        RuntimeError, match=r"no gradient came for layers\.1\.weight, layers\.1\.bias, layers"
    ):
        wrapped(torch.ones(2, 4, device=device), (0,)).sum().backward()
    wrapped(torch.ones(2, 4, device=device), (0, 1, 2)).sum().backward()  # usable afterwards
    assert all(p.grad is not None for p in wrapped.parameters())


@pytest.mark.parametrize("device", DEVICES)
def test_a_missing_gradient_is_an_error_unless_it_is_expected(pool, device):
    pool.run(missing, 2, device)


def interrupted(rank, n, device):
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).to(device)
    wrapped = OverlappedDDP(net, bucket_cap_mb=0.0001)
    handle = net[0].register_full_backward_hook(lambda *_: [][0])
    with pytest.raises(IndexError):
        wrapped(torch.ones(2, 4, device=device, requires_grad=True)).sum().backward()
    handle.remove()
    with pytest.raises(RuntimeError, match="the last backward pass has not come to its end"):
        wrapped(torch.ones(2, 4, device=device))
    for work in wrapped.sent:
        work.wait()
    with wrapped.no_sync(), torch.no_grad():
        wrapped(torch.ones(2, 4, device=device))


@pytest.mark.parametrize("device", DEVICES)
def test_a_backward_pass_that_has_raised_is_not_passed_over(pool, device):
    pool.run(interrupted, 2, device)


def overlapping(rank, n, device):
    """Buckets are sent off, in their order, while the backward pass goes on."""
    net = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4))).to(device)
    wrapped = OverlappedDDP(net, bucket_cap_mb=0.0001)
    events = []
    for i, layer in enumerate(net):
        layer.register_full_backward_hook(lambda *_, i=i: events.append(("layer", i)))
    send = dist.all_reduce

    def watched(tensor, **options):
        events.append(("bucket", next(i for i, b in enumerate(wrapped.buckets) if b.flat is tensor)))
        return send(tensor, **options)

    dist.all_reduce = watched
    try:
        wrapped(torch.ones(2, 8, device=device)).sum().backward()
    finally:
        dist.all_reduce = send
    buckets = [i for kind, i in events if kind == "bucket"]
    assert buckets == list(range(len(wrapped.buckets))) and len(buckets) >= 4
    assert events.index(("bucket", 0)) < events.index(("layer", 1))
    for bucket in wrapped.buckets:
        for p, view in zip(bucket.parameters, bucket.views, strict=True):
            assert p.grad is view and view.untyped_storage()._cdata == bucket.flat.untyped_storage()._cdata


@pytest.mark.parametrize("device", DEVICES)
def test_buckets_travel_while_the_backward_pass_goes_on(pool, device):
    pool.run(overlapping, 2, device)


def same_buckets(rank, n, device, *, cap):
    from ddp_digits import make_network

    net = make_network().to(device)
    ddp = DistributedDataParallel(net, bucket_cap_mb=cap)
    for _ in range(3):  # the buckets of the second are told in the third
        ddp(torch.ones(2, 1, 8, 8, device=device)).sum().backward()
    sizes = [int(size) for size in re.findall(r"\d+", ddp._get_ddp_logging_data()["rebuilt_bucket_sizes"])]
    assert [b.flat.numel() * b.flat.element_size() for b in fill_buckets(net.parameters(), cap)] == sizes


@pytest.mark.parametrize("cap", [0.25, 25])
def test_the_table_compares_with_the_same_buckets(pool, cap, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    pool.run(same_buckets, 2, "cpu", cap=cap)


def test_kinds_of_parameters_do_not_mix_in_a_bucket():
    parameters = [
        nn.Parameter(torch.zeros(4)),
        nn.Parameter(torch.zeros(4, dtype=torch.float64)),
        nn.Parameter(torch.zeros(2), requires_grad=False),
        nn.Parameter(torch.zeros(4)),
        nn.Parameter(torch.zeros(4)),
    ]
    buckets = fill_buckets(parameters, cap_mb=32 / 2**20)
    positions = [[next(i for i, q in enumerate(parameters) if q is p) for p in b.parameters] for b in buckets]
    assert positions == [[4, 3], [1], [0]]
    assert [b.flat.dtype for b in buckets] == [torch.float32, torch.float64, torch.float32]
