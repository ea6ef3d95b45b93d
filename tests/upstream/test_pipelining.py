"""Pipelines of every schedule that PyTorch has, with layers of its own tests, against the whole model.

The layers are ``torch.testing._internal.distributed._tensor.common_dtensor``'s.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch.distributed import pipelining
from torch.distributed.pipelining import schedules
from torch.distributed.pipelining.schedules import PipelineScheduleSingle, get_schedule_class
from torch.testing._internal.distributed._tensor.common_dtensor import MLPStacked

ONE_STAGE = ["GPipe", "1F1B"]
TWO_STAGES = ["Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble"]
AS_A_V = ["ZBVZeroBubble", "DualPipeV"]
ROWS, PIECES = 16, 8


def own_stages(rank, world_size, schedule):
    """The numbers of this rank's stages."""
    if schedule in ONE_STAGE:
        return [rank]
    return [rank, 2 * world_size - 1 - rank if schedule in AS_A_V else rank + world_size]


def error(output, target):
    return torch.nn.functional.mse_loss(output, target, reduction="sum")


def whole_model(device, layers):
    torch.manual_seed(5)
    model = MLPStacked(device, layers)
    for number, p in enumerate(model.parameters()):  # PyTorch's layers are all alike
        p.data.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(number)).to(device) / 8)
    return model


def check(model, reference, own, x, target, losses):
    """This rank's gradients, and the loss on the rank that has the last stage."""
    loss = error(reference(x), target)
    loss.backward()
    for layer in own:
        for p, q in zip(model.layers[layer].parameters(), reference.layers[layer].parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad)
    if losses is not None:
        torch.testing.assert_close(torch.stack(losses).sum(), loss.detach())


def trains_like_the_whole(rank, world_size, device, *, schedule):
    if device == "dev":
        torch.dev.set_device(rank)
    here = torch.device(device, rank) if device == "dev" else torch.device(device)
    own = own_stages(rank, world_size, schedule)
    count = len(own) * world_size
    model = whole_model(here, count)
    reference = copy.deepcopy(model)
    stages = [pipelining.PipelineStage(model.layers[i], i, count, here) for i in own]
    kind = get_schedule_class(schedule)
    single = issubclass(kind, PipelineScheduleSingle)
    pipe = kind(stages[0] if single else stages, PIECES, loss_fn=error, scale_grads=False)
    torch.manual_seed(9)
    x, target = torch.randn(ROWS, 10).to(here), torch.randn(ROWS, 10).to(here)
    for _ in range(2):  # the second has the shapes from the first
        model.zero_grad()
        reference.zero_grad()
        losses = [] if count - 1 in own else None
        keywords = {"target": target, "losses": losses} if losses is not None else {}
        pipe.step(*([x] if 0 in own else []), **keywords)
        check(model, reference, own, x, target, losses)


def traced(rank, world_size, device):
    """Split by ``torch.distributed.pipelining.pipeline``, which exports the model."""
    if device == "dev":
        torch.dev.set_device(rank)
    here = torch.device(device, rank) if device == "dev" else torch.device(device)
    model = whole_model(here, 2 * world_size)
    torch.manual_seed(9)
    x, target = torch.randn(ROWS, 10).to(here), torch.randn(ROWS, 10).to(here)
    begin = pipelining.SplitPoint.BEGINNING
    split = {f"layers.{2 * i}": begin for i in range(1, world_size)}
    pipe = pipelining.pipeline(model, (x[: ROWS // PIECES],), split_spec=split)
    assert pipe.num_stages == world_size
    stage = pipe.build_stage(rank, here)
    losses = [] if rank == world_size - 1 else None
    schedule = schedules.ScheduleGPipe(stage, PIECES, loss_fn=error, scale_grads=False)
    keywords = {"target": target, "losses": losses} if losses is not None else {}
    schedule.step(*([x] if rank == 0 else []), **keywords)
    loss = error(model(x), target)
    loss.backward()
    whole = dict(model.named_parameters())
    own = dict(stage.submod.named_parameters())
    assert len(own) == 8
    for name, p in own.items():
        torch.testing.assert_close(p.grad, whole[name].grad)


@pytest.mark.parametrize("schedule", ONE_STAGE + TWO_STAGES + AS_A_V)
@pytest.mark.parametrize("device", ["cpu", "dev"])
def test_a_pipeline_trains_like_the_whole_model(ranks, device, schedule):
    ranks.run(trains_like_the_whole, 4, device, schedule=schedule)


@pytest.mark.parametrize("device", ["cpu", "dev"])
def test_a_model_is_split_by_tracing_it(ranks, device):
    ranks.run(traced, 2, device)
