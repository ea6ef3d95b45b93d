"""Checkpoints that any strategy on any number of ranks can load, whichever has written them.

``torch.distributed.checkpoint`` writes one folder for all ranks, in which each has stored its own shards, and
reads from it what a rank needs now. ``get_state_dict`` gives parameters and the optimizer's state the names
that they have in the plain model.
"""

import shutil
import warnings
from dataclasses import asdict
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from model import GPT, Size
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

BY_NAME = StateDictOptions(flatten_optimizer_state_dict=True)
"""The optimizer's state by the names of parameters, not by their numbers, which differ between the ranks of a
pipeline."""
KEPT = 2

warnings.filterwarnings("ignore", "torch.distributed is disabled")  # as is meant where one process is alone


def complete(folder: Path) -> list[Path]:
    """The checkpoints in a folder, the oldest first. ``.metadata`` is written last: a death leaves none."""
    return sorted(path.parent for path in folder.glob("step-*/.metadata"))


def save(
    folder: Path,
    size: Size,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    losses: list[float],
    rank: int,
) -> None:
    """Called by all ranks after the step ``len(losses)``. Removes all but the last checkpoints."""
    named, state = get_state_dict(model, optimizer, options=BY_NAME)
    whole = {"model": named, "optimizer": state, "losses": losses, "size": asdict(size)}
    dcp.save(whole, checkpoint_id=folder / f"step-{len(losses):06}")
    if rank == 0:
        for old in complete(folder)[:-KEPT]:
            shutil.rmtree(old)


def load(checkpoint: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
    """Called by all ranks; returns the losses of the steps before the checkpoint."""
    named, state = get_state_dict(model, optimizer, options=BY_NAME)
    whole = {"model": named, "optimizer": state, "losses": None}
    dcp.load(whole, checkpoint_id=checkpoint)
    set_state_dict(
        model, optimizer, model_state_dict=named, optim_state_dict=whole["optimizer"], options=BY_NAME
    )
    return whole["losses"]


def load_model(checkpoint: Path) -> GPT:
    """The plain model, float32 on the CPU, in this process alone."""
    size: dict = {"size": dict.fromkeys(asdict(Size()))}
    dcp.load(size, checkpoint_id=checkpoint, no_dist=True)
    model = GPT(Size(**size["size"]))
    dcp.load({"model": model.state_dict()}, checkpoint_id=checkpoint, no_dist=True)
    return model
