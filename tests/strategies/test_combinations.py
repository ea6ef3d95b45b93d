"""Three dimensions at once, experts, checkpoints in the background and RPC, against one process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed import rpc
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed._shard import sharded_tensor
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from occl.testing import assert_same_on_all_ranks
from tests.support.thinning import first
from tests.test_example_gpt import CLOSE, SIZE, STEPS, WholeModel, make_mesh, train

from data import Text  # isort: skip  (in the folder that the line above has added)
from model import GPT  # isort: skip
from strategies import Pipeline, shard, split  # isort: skip


@pytest.fixture(scope="module")
def alone() -> list[float]:
    """The losses of the GPT example in one process, without torch.distributed."""
    return train("single", "cpu")


def replicated_sharded_and_split(model: GPT, device: torch.device) -> WholeModel:
    """Replicas of shards of tensor-parallel blocks, two of each."""
    mesh = make_mesh(device, None, nodes=2, node=2, tensor=2)
    model = shard(split(model, mesh["tensor"]), mesh["nodes", "node"])
    return WholeModel(model, [mesh["nodes"], mesh["node"]])


class PipelineOfShards(Pipeline):
    """A pipeline of two stages, each of them sharded over the ranks that take other rows."""

    def __init__(self, model: GPT, device: torch.device) -> None:
        mesh = make_mesh(device, None, stage=2, data=dist.get_world_size() // 2)
        super().__init__(model, mesh["stage"], device, pieces=2)
        shard(self.model, mesh["data"])
        self.data = mesh["data"]

    def loss_and_gradients(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        rows = slice(self.data.get_local_rank(), None, self.data.size())
        mean = super().loss_and_gradients(inputs[rows], targets[rows]) / self.data.size()
        dist.all_reduce(mean, group=self.data.get_group())
        return mean


def losses_of(strategy, device: torch.device) -> list[float]:
    optimizer = torch.optim.AdamW(strategy.model.parameters(), lr=1e-3, foreach=False)
    text, losses = Text(), []
    for step in range(STEPS):
        inputs, targets = (t.to(device) for t in text.batch(step, 16, SIZE.context))
        optimizer.zero_grad()
        losses.append(strategy.loss_and_gradients(inputs, targets).item())
        optimizer.step()
    return losses


@pytest.mark.parametrize("kind, world_size", [(replicated_sharded_and_split, 8), (PipelineOfShards, 4)])
@pytest.mark.parametrize("device", first(["dev", "cpu"], 0, ci=1))
@pytest.mark.ranks(backend="occl")
def test_several_dimensions_have_the_losses_of_one_process(alone, kind, device, world_size):
    here = torch.device(device)
    strategy = kind(GPT(SIZE).to(here, torch.float64), here)
    torch.testing.assert_close(losses_of(strategy, here), alone, **CLOSE)


# ---- experts ---------------------------------------------------------------------------------------------


def expert(number: int, device: str) -> nn.Module:
    torch.manual_seed(number)
    return nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 6)).to(device, torch.float64)


def tokens_of(rank: int, device: str, experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """float64[9 + rank, 6] and the expert of each row. Rank 0 sends nothing to the last expert."""
    generator = torch.Generator().manual_seed(rank)
    rows = torch.randn(9 + rank, 6, generator=generator, dtype=torch.float64)
    choice = torch.randint(experts - (rank == 0), (9 + rank,), generator=generator)
    return rows.to(device).requires_grad_(), choice.to(device)


@pytest.mark.parametrize("device", first(["dev", "cpu"], 0, ci=1))
@pytest.mark.ranks([2, 4], backend="occl")
def test_tokens_travel_to_experts_and_gradients_travel_back(rank, world_size, device):
    """Each rank has one expert, and sends it tokens of all ranks in an all_to_all of uneven shares."""
    own = expert(rank, device)
    rows, choice = tokens_of(rank, device, world_size)
    order = choice.argsort(stable=True)
    sent = torch.bincount(choice, minlength=world_size)
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    sent, received = sent.tolist(), received.tolist()
    there = all_to_all_single_autograd(rows[order], received, sent, dist.group.WORLD)
    back = all_to_all_single_autograd(own(there), sent, received, dist.group.WORLD)
    out = torch.empty_like(back).index_copy(0, order, back)
    out.square().sum().backward()

    experts = [expert(number, device) for number in range(world_size)]
    for other in range(world_size):
        other_rows, other_choice = tokens_of(other, device, world_size)
        whole = torch.stack([experts[e](r) for r, e in zip(other_rows, other_choice.tolist(), strict=True)])
        whole.square().sum().backward()
        if other == rank:
            torch.testing.assert_close(out, whole)
            torch.testing.assert_close(rows.grad, other_rows.grad)
    for mine, expected in zip(own.parameters(), experts[rank].parameters(), strict=True):
        torch.testing.assert_close(mine.grad, expected.grad)


# ---- checkpoints -----------------------------------------------------------------------------------------


def trained_on_twelve_rows(rank: int, device: torch.device, folder: Path, steps: int) -> list[float]:
    """With FSDP2; the rows divide among 1 to 4 ranks."""
    return train("fsdp", device, rank, steps=steps, checkpoint=folder, save_every=10, batch_size=12)


@pytest.mark.parametrize("before, after", [(4, 2), (2, 4), (3, 1)])
@pytest.mark.parametrize("device", first(["dev", "cpu"], 0, ci=1))
def test_another_number_of_ranks_goes_on_from_a_checkpoint(run_ranks, device, before, after, tmp_path):
    alone = train("single", "cpu", batch_size=12)
    options = {"device": device, "backend": "occl"}
    for ranks, steps in ((before, 20), (after, STEPS)):
        params = {"folder": tmp_path, "steps": steps}
        results = run_ranks(trained_on_twelve_rows, world_size=ranks, params=params, **options)
    for losses in results:
        torch.testing.assert_close(losses, alone, **CLOSE)


@pytest.mark.full
@pytest.mark.parametrize("kind", AsyncCheckpointerType, ids=lambda kind: kind.name)
@pytest.mark.parametrize("device", ["cpu", "dev"])
@pytest.mark.ranks(2, backend="occl", limit=200)
def test_a_checkpoint_in_the_background_has_the_values_of_its_call(world_size, device, kind, tmp_path):
    """The thread that saves has a group of its own, because the ranks go on with the default group."""
    mesh = init_device_mesh(device, (world_size,))
    values = torch.arange(20.0, device=device).view(10, 2)
    state = {"values": distribute_tensor(values, mesh, [Shard(0)]), "step": 7}
    saving = dcp.async_save(
        state,
        checkpoint_id=tmp_path / "saved",
        process_group=dist.new_group(),
        async_checkpointer_type=kind,
    )
    all_saved = torch.zeros(1, device=device)
    while not all_saved.item():
        state["values"].to_local().add_(1)
        all_saved.fill_(saving.done())
        dist.all_reduce(all_saved, dist.ReduceOp.MIN)
    saving.result()
    restored = {"values": distribute_tensor(torch.zeros_like(values), mesh, [Shard(0)]), "step": None}
    dcp.load(restored, checkpoint_id=tmp_path / "saved")
    assert restored["step"] == 7
    torch.testing.assert_close(restored["values"].full_tensor(), values, rtol=0, atol=0)


# ---- RPC -------------------------------------------------------------------------------------------------


def add(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a + b


@pytest.mark.full
@pytest.mark.parametrize("device", ["cpu", "dev"])
@pytest.mark.ranks(3, backend="occl")
def test_rpc_works_beside_collectives(rank, world_size, device, tmp_path):
    """Gradients of a step of calls (distributed autograd), and collectives while calls are under way."""
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{tmp_path / 'rpc'}")
    rpc.init_rpc(f"rank:{rank}", rank=rank, world_size=world_size, rpc_backend_options=options)
    ones = torch.ones(4, requires_grad=True)
    total = torch.full((1000,), float(rank), device=device)
    with torch.distributed.autograd.context() as step:
        calls = [rpc.rpc_async(f"rank:{to}", add, (ones, torch.full((4,), to))) for to in range(world_size)]
        work = dist.all_reduce(total, async_op=True)
        results = torch.stack(torch.futures.wait_all(calls))
        work.wait()
        torch.distributed.autograd.backward(step, [results.sum()])
        gradient = torch.distributed.autograd.get_gradients(step)[ones]
    assert results.tolist() == [[1.0 + to] * 4 for to in range(world_size)]
    assert gradient.tolist() == [float(world_size)] * 4
    assert total.unique().tolist() == [sum(range(world_size))]
    assert_same_on_all_ranks(total)
    rpc.shutdown()


@pytest.mark.full
@pytest.mark.ranks(2, device="dev", backend="occl")
def test_shards_that_a_plan_places_on_the_device_make_one_tensor(rank, device):
    """As a ShardedTensor, which torchrec's tables are; their placement is a text such as "rank:1/dev:1"."""
    shard = sharded_tensor.Shard.from_tensor_and_offsets(
        torch.full((3, 4), rank, device=device), [3 * rank, 0], rank
    )
    assert str(shard.metadata.placement) == f"rank:{rank}/{device}"
    whole = sharded_tensor.init_from_local_shards([shard], 6, 4)
    assert [part.placement.device() for part in whole.metadata().shards_metadata] == [
        torch.device("dev:0"),
        torch.device("dev:1"),
    ]
    gathered = torch.empty(6, 4, dtype=torch.int64, device=device) if rank == 0 else None
    whole.gather(0, gathered)
    assert rank or gathered.sum(1).tolist() == [0, 0, 0, 4, 4, 4]
