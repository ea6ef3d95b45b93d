"""Training over several hosts gives the losses that one host gives."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from tests.hosts.launch import CASES

STEPS = 5


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8))


def losses(model: nn.Module, rank: int, device: str) -> list[float]:
    """The mean over all ranks, in each step."""
    generator = torch.Generator().manual_seed(100 + rank)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    seen = []
    for _ in range(STEPS):
        inputs, targets = (torch.randn(16, width, generator=generator).to(device) for width in (32, 8))
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        together = loss.detach().clone()
        dist.all_reduce(together)
        seen.append(together.item() / dist.get_world_size())
    return seen


def train_with_ddp(rank, n, device):
    return losses(DistributedDataParallel(make_model().to(device)), rank, device)


def train_with_fsdp(rank, n, device):
    mesh = dist.device_mesh.init_device_mesh(device, (n,))
    model = make_model().to(device)
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    return losses(fully_shard(model, mesh=mesh), rank, device)


def train_with_hsdp(rank, n, device):
    """Sharded within hosts, replicated between them."""
    names = ("between", "within")
    mesh = dist.device_mesh.init_device_mesh(device, (2, n // 2), mesh_dim_names=names)
    model = make_model().to(device)
    return losses(fully_shard(model, mesh=mesh), rank, device)


@pytest.mark.parametrize("backend, device", CASES)
@pytest.mark.parametrize("body", [train_with_ddp, train_with_fsdp, train_with_hsdp], ids=lambda b: b.__name__)
def test_two_hosts_give_the_losses_of_one(hosts, body, backend, device):
    apart = hosts.run_on("2+2", backend, body, device)
    together = hosts.run_on("4", backend, body, device)
    for found in apart[1:]:
        assert found == apart[0]
    assert apart[0][-1] < apart[0][0]
    torch.testing.assert_close(torch.tensor(apart[0]), torch.tensor(together[0]), atol=1e-5, rtol=0)
