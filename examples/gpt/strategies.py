"""Ways to train one model on several ranks. A strategy has ``model``, this rank's module, and
``loss_and_gradients(inputs, targets)``. All ranks call that with the whole batch. It adds gradients to the
parameters of ``model`` and returns the mean loss of the whole batch on every rank.

| strategy | a rank has                         | its rows | what travels                               |
|----------|------------------------------------|----------|--------------------------------------------|
| single   | everything                         | all      | nothing, without torch.distributed         |
| ddp      | everything                         | a share  | gradients                                  |
| fsdp     | a shard of every parameter         | a share  | parameters twice, gradients                |
| hsdp     | the same; the node has every shard | a share  | the same in the node; shards of gradients  |
| tp       | some heads, some of each network   | all      | activations, four times a block            |
| fsdp-tp  | shards of what tp gives it         | a share  | as fsdp, and as tp                         |
| pp       | some of the blocks                 | all      | activations from one block to the next one |
"""

import os
from collections.abc import Sequence
from typing import Protocol

import torch
import torch.distributed as dist
from model import GPT, loss_of
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel


class Strategy(Protocol):
    model: nn.Module

    def loss_and_gradients(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor: ...


class WholeModel:
    """Every rank calls the whole model on a share of the rows: 1/n for the n ranks of all ``meshes``.

    The model itself averages the gradients (DDP, FSDP2). Ranks that differ only in other dimensions, such as
    those of tensor parallelism, take the same share. Without ``meshes`` the share is the whole batch.
    """

    def __init__(self, model: nn.Module, meshes: Sequence[DeviceMesh] = ()) -> None:
        self.model = model
        self.meshes = meshes
        self.share, self.shares = 0, 1
        for mesh in meshes:
            self.share = self.share * mesh.size() + mesh.get_local_rank()
            self.shares *= mesh.size()

    def loss_and_gradients(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if len(inputs) % self.shares:
            raise ValueError(f"a batch of {len(inputs)} rows does not divide into {self.shares} equal shares")
        mine = slice(self.share, None, self.shares)
        loss = loss_of(self.model(inputs[mine]), targets[mine])
        loss.backward()
        mean = loss.detach() / self.shares
        for mesh in self.meshes:
            dist.all_reduce(mean, group=mesh.get_group())
        return mean


class Pipeline:
    """Each rank has a stage, which is some of the blocks. The batch passes through them in pieces."""

    def __init__(self, model: GPT, mesh: DeviceMesh, device: torch.device, pieces: int) -> None:
        rank, ranks, layers = mesh.get_local_rank(), mesh.size(), model.size.layers
        if ranks > layers:
            raise ValueError(f"{layers} blocks are too few for a pipeline of {ranks} ranks")
        self.model = model.keep(range(rank * layers // ranks, (rank + 1) * layers // ranks))
        self.group, self.device, self.pieces = mesh.get_group(), device, pieces
        stage = PipelineStage(self.model, rank, ranks, device, group=self.group)
        self.is_first, self.is_last = stage.is_first, stage.is_last
        self.schedule = Schedule1F1B(stage, pieces, loss_fn=loss_of)

    def loss_and_gradients(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if len(inputs) % self.pieces:
            raise ValueError(f"a batch of {len(inputs)} rows does not divide into {self.pieces} equal pieces")
        losses: list[torch.Tensor] = []
        self.schedule.step(
            *((inputs,) if self.is_first else ()),
            **({"target": targets, "losses": losses} if self.is_last else {}),
        )
        dtype = next(self.model.parameters()).dtype
        mean = (
            torch.stack(losses).mean() if self.is_last else torch.empty((), dtype=dtype, device=self.device)
        )
        dist.broadcast(mean, group=self.group, group_src=self.group.size() - 1)
        return mean


def make_mesh(device: torch.device, backend: str | None, **sizes: int) -> DeviceMesh:
    """Ranks in as many dimensions as there are sizes, with groups of this backend (None: the default one)."""
    override = dict.fromkeys(sizes, backend) if backend else None
    return init_device_mesh(
        device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes), backend_override=override
    )


def divide(ranks: int, inner: int) -> int:
    if ranks % inner:
        raise ValueError(f"{ranks} ranks do not divide into groups of {inner} (--inner)")
    return ranks // inner


def shard(model: GPT, mesh: DeviceMesh) -> GPT:
    """FSDP2: a block's parameters exist as a whole only while the block computes."""
    for block in model.blocks.values():
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def split(model: GPT, mesh: DeviceMesh) -> GPT:
    """Tensor parallelism: a rank computes some outputs of ``qkv`` and ``up``. These are inputs of ``project``
    and ``down``, whose results are sums over the ranks."""
    if model.size.heads % mesh.size():
        raise ValueError(f"{model.size.heads} heads do not divide among {mesh.size()} ranks")
    for block in model.blocks.values():
        columns = {"qkv": ColwiseParallel(), "up": ColwiseParallel()}
        parallelize_module(block, mesh, {**columns, "project": RowwiseParallel(), "down": RowwiseParallel()})
    return model


STRATEGIES = ["single", "ddp", "fsdp", "hsdp", "tp", "fsdp-tp", "pp"]


def make_strategy(
    name: str,
    model: GPT,
    device: torch.device,
    inner: int | None = None,
    pieces: int = 4,
    backend: str | None = None,
) -> Strategy:
    """The model on this rank. It must be on ``device`` and have the same parameters on all ranks.

    ``inner``: for hsdp the ranks of a node (default: those that torchrun has started on this host), for
    fsdp-tp the ranks that share a block (default: 2). ``pieces``: of a batch, for pp. ``backend``: of the
    groups (default: that of the default group). Raises ValueError if ranks or heads do not divide.
    """
    if name == "single":
        return WholeModel(model)
    ranks = dist.get_world_size()
    if name == "ddp":
        mesh = make_mesh(device, backend, data=ranks)
        return WholeModel(DistributedDataParallel(model, process_group=mesh.get_group()), [mesh])
    if name == "fsdp":
        mesh = make_mesh(device, backend, data=ranks)
        return WholeModel(shard(model, mesh), [mesh])
    if name == "hsdp":
        inner = inner or int(os.environ["LOCAL_WORLD_SIZE"])
        mesh = make_mesh(device, backend, nodes=divide(ranks, inner), node=inner)
        return WholeModel(shard(model, mesh), [mesh["nodes"], mesh["node"]])
    if name == "tp":
        return WholeModel(split(model, make_mesh(device, backend, tensor=ranks)))
    if name == "fsdp-tp":
        mesh = make_mesh(device, backend, data=divide(ranks, inner or 2), tensor=inner or 2)
        return WholeModel(shard(split(model, mesh["tensor"]), mesh["data"]), [mesh["data"]])
    if name == "pp":
        return Pipeline(model, make_mesh(device, backend, stage=ranks), device, pieces)
    raise ValueError(f"strategy {name!r}: choose one of {', '.join(STRATEGIES)}")
