"""Checkpoints of sharded models, with the checks and models of PyTorch's own tests of them.

From ``torch.testing._internal.distributed``: ``common_state_dict.VerifyStateDictMixin`` compares the state
dicts of a model and its optimizer with those of the whole ones, ``checkpoint_utils`` has a directory that all
ranks share and an extension that changes each byte that is written. By default most run on ``dev`` only.
"""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.common_dist_composable import CompositeParamModel
from torch.testing._internal.common_utils import TestCase
from torch.testing._internal.distributed.checkpoint_utils import (
    Rot13Example,
    get_test_extension_registry,
    with_temp_dir,
)
from torch.testing._internal.distributed.common_state_dict import (
    FusionEmbedding,
    FusionEmbeddingWithHook,
    FusionEmbeddingWithModifier,
    VerifyStateDictMixin,
)


def replicated(model, device):
    return DistributedDataParallel(model)


def flat(model, device):
    """FSDP: flat parameters, in shards."""
    return FullyShardedDataParallel(model, device_id=torch.device(device), use_orig_params=True)


def sharded(model, device):
    """FSDP2, over all ranks."""
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    for layer in (model.u1, model.u2):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def hybrid(model, device):
    """FSDP2: shards in pairs of ranks, replicas of the pairs."""
    mesh = init_device_mesh(device, (dist.get_world_size() // 2, 2), mesh_dim_names=("replicas", "shards"))
    fully_shard(model.u1, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def two_dimensional(model, device):
    """Tensor parallelism in pairs of ranks, FSDP2 over the pairs."""
    mesh = init_device_mesh(device, (dist.get_world_size() // 2, 2), mesh_dim_names=("shards", "tensors"))
    plan = {"u1.l1": ColwiseParallel(), "u1.seq.1": RowwiseParallel(), "u2.l1": ColwiseParallel()}
    plan["u2.seq.1"] = RowwiseParallel()
    parallelize_module(model, mesh["tensors"], plan)
    return fully_shard(model, mesh=mesh["shards"])


WAYS = {f.__name__: f for f in (replicated, flat, sharded, hybrid, two_dimensional)}


class Verify(VerifyStateDictMixin, TestCase):
    __test__ = False

    def runTest(self):
        raise NotImplementedError


def trained(model):
    """Its optimizer, after a step with the same input on all ranks."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(11)
    model(torch.randn(8, 100, generator=generator).to(device)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


def made(device, way=None):
    """The whole model, or as this way distributes it."""
    torch.manual_seed(5)
    model = CompositeParamModel(torch.device(device))
    return WAYS[way](model, device) if way else model


def states_are_those_of_the_whole(rank, world_size, device, *, way, full):
    if device == "dev":
        torch.dev.set_device(rank)
    whole, model = made(device), made(device, way)
    whole_optimizer, optimizer = trained(whole), trained(model)
    options = StateDictOptions(full_state_dict=full)
    weights, moments = get_state_dict(model, optimizer, options=options)
    verify = Verify()
    verify._verify_msd(whole.state_dict(), weights, options)
    verify._verify_osd(whole, whole_optimizer, whole_optimizer.state_dict(), moments)
    verify._verify_osd_by_load(whole, whole_optimizer, torch.optim.Adam(whole.parameters(), lr=1e-3), moments)
    if full:
        on_rank_0 = get_model_state_dict(
            model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
        )
        assert bool(on_rank_0) == (rank == 0)
        verify._verify_msd(whole.state_dict() if rank == 0 else {}, on_rank_0, offload_to_cpu=True)
        other = made(device, way)
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        set_model_state_dict(other, on_rank_0, options=options)
        verify._verify_msd(whole.state_dict(), get_model_state_dict(other))


class Directory:
    """What ``with_temp_dir`` wants, and what is done there."""

    @with_temp_dir
    def write_and_read(self, device, before, after, how):
        whole, model = made(device), made(device, before)
        optimizers = trained(whole), trained(model)
        names = ("model", "optimizer")
        state = dict(zip(names, get_state_dict(model, optimizers[1]), strict=True))
        extensions = [Rot13Example()] if how == "extension" else []
        writer = checkpoint.FileSystemWriter(self.temp_dir, _extensions=extensions)
        if how == "async":
            checkpoint.async_save(state, storage_writer=writer).result()
        else:
            checkpoint.save(state, storage_writer=writer)
        other = made(device, after)
        with torch.no_grad():
            for p in other.parameters():
                p.zero_()
        optimizer = torch.optim.Adam(other.parameters(), lr=0.5)
        state = dict(zip(names, get_state_dict(other, optimizer), strict=True))
        reader = checkpoint.FileSystemReader(self.temp_dir, get_test_extension_registry())
        checkpoint.load(state, storage_reader=reader)
        set_state_dict(other, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        weights, moments = get_state_dict(other, optimizer)
        verify = Verify()
        verify._verify_msd(whole.state_dict(), weights)
        verify._verify_osd(whole, optimizers[0], optimizers[0].state_dict(), moments)
        dist.barrier()


def read_where_it_was_not_written(rank, world_size, device, *, before, after, how):
    if device == "dev":
        torch.dev.set_device(rank)
    Directory().write_and_read(device, before, after, how)


def renamed(rank, world_size, device):
    """Embeddings whose names in a state dict are not those of their modules."""
    if device == "dev":
        torch.dev.set_device(rank)
    for kind in (FusionEmbedding, FusionEmbeddingWithHook, FusionEmbeddingWithModifier):
        torch.manual_seed(7)
        whole = kind(700, 200, 8).to(device)
        model = fully_shard(copy.deepcopy(whole), mesh=init_device_mesh(device, (world_size,)))
        Verify()._verify_msd(get_model_state_dict(whole), get_model_state_dict(model))


@pytest.mark.parametrize("full", [False, True], ids=["in shards", "full"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("device", [pytest.param("cpu", marks=pytest.mark.full), "dev"])
def test_states_are_those_of_the_whole(ranks, device, way, full):
    if (device, way, full) == ("cpu", "flat", True):
        pytest.skip(
            "FSDP frees the weights of a model on the CPU before it copies them, with Gloo too: SIGSEGV"
        )
    ranks.run(states_are_those_of_the_whole, 4, device, way=way, full=full)


READ = [
    ("sharded", "hybrid", "plain"),
    ("sharded", "two_dimensional", "async"),
    ("two_dimensional", "replicated", "extension"),
    ("replicated", "flat", "plain"),
    ("hybrid", "sharded", "extension"),
]


@pytest.mark.parametrize(("before", "after", "how"), READ, ids=map("-".join, READ))
@pytest.mark.parametrize("device", [pytest.param("cpu", marks=pytest.mark.full), "dev"])
def test_a_checkpoint_is_read_in_another_layout(ranks, device, before, after, how):
    ranks.run(read_where_it_was_not_written, 4, device, before=before, after=after, how=how)


@pytest.mark.parametrize("device", ["cpu", "dev"])
def test_names_in_a_state_dict_may_differ(ranks, device):
    ranks.run(renamed, 2, device)
