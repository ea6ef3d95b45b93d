"""Warns when a process trains alone although a launcher has started several.

Libraries that do not know this process's device or backend may fall back to one process each, and then every
process trains the whole model by itself, without an error. In processes whose environment has ``WORLD_SIZE``
above 1, a hook of all optimizers checks twice: before the first step, and before step `STEPS`. It costs the
operations of groups nothing, because it reads the counters of `stats`.
"""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.optim.optimizer import register_optimizer_step_pre_hook

from occl.distributed import program
from occl.distributed.gloo import uses_occl

STEPS = 100
"""A process whose groups carry nothing between the first step and this one trains alone. Training that
averages parameters less often mostly begins with a broadcast of them, which clears it of the suspicion."""

REMEDIES = {
    "transformers.trainer": "with transformers, pass use_cpu=True to TrainingArguments",
    "accelerate.optimizer": "with Accelerate, pass cpu=True to Accelerator",
    "ignite.engine.engine": "with Ignite, make a group named gloo and set OCCL_IN_PLACE_OF=gloo",
}
"""What to change, by the module that calls the optimizer, directly or not. The first that is found counts,
because the Trainer calls its optimizer through Accelerate."""

IGNITE_WRAPS = ("nccl", "gloo", "mpi")
"""The backends of groups for which Ignite's ``auto_model`` wraps a model (``ignite/distributed/auto.py``)."""

_watching = False
_steps = 0
_carried_before: dict[str, Any] = {}
"""What the groups had carried at the first step."""


def watch() -> None:
    """Checks steps of optimizers, if the environment has ``WORLD_SIZE`` above 1."""
    global _watching
    if not _watching and _started() > 1:
        _watching = True
        register_optimizer_step_pre_hook(_check)


def _started() -> int:
    """How many processes the launcher says that it has started; 1 if it says nothing."""
    size = os.environ.get("WORLD_SIZE", "")
    return int(size) if size.isdecimal() else 1


def _check(optimizer: torch.optim.Optimizer, arguments: Any, keywords: Any) -> None:
    """A hook of all optimizers. It stays registered: PyTorch iterates over the hooks while it calls them."""
    global _steps, _carried_before
    if _steps == STEPS or torch.compiler.is_compiling():
        return
    _steps += 1
    reason = ""
    if _steps == 1:
        counted = _all_is_counted(optimizer)
        reason = _why_alone(counted and not _have_exchanged(optimizer))
        if counted and not reason:
            _carried_before = _carried()
        else:
            _steps = STEPS  # a later check could say nothing more
    elif (
        _steps == STEPS
        and _all_is_counted(optimizer)
        and _carried() == _carried_before
        and not _have_exchanged(optimizer)
    ):
        reason = (
            f"its groups have carried nothing since the first of {STEPS} steps of its optimizers, and "
            "nothing as large as the parameters before"
        )
    if reason:
        remedy = _remedy(_callers(), reason)
        warnings.warn(
            f"WORLD_SIZE is {_started()}, but rank {os.environ.get('RANK', '?')} trains alone: {reason}. "
            f"Every process trains by itself, and no gradients are exchanged"
            f"{'; ' if remedy else ''}{remedy} (docs/integrations.md)",
            RuntimeWarning,
            stacklevel=program.stacklevel(),  # the line that calls the optimizer, through wrappers of PyTorch
        )


def _callers() -> list[str]:
    """The modules of the frames that lead to `_check`, the innermost first."""
    names = []
    frame = sys._getframe(1)
    while frame := frame.f_back:  # type: ignore[assignment]
        names.append(str(frame.f_globals.get("__name__")))
    return names


def _why_alone(nothing_exchanged: bool) -> str:
    """The reason that the first step shows; "" if this process seems to take part in a group of several.

    Args:
        nothing_exchanged: whether this process cannot have exchanged parameters or gradients with others.
    """
    # Not get_world_size: the default group may have one rank, and others more.
    if not any(group.size() > 1 for group in distributed_c10d._world.pg_map):
        size = "no process group" if not dist.is_initialized() else "no process group of more than one rank"
        return f"it has {size} at the first step of an optimizer"
    # Filled once an Accelerator has been made; the Trainer of transformers makes one. Without a kind of
    # training for the group, Accelerate counts one process, or the group's if it was told the backend.
    accelerator = getattr(sys.modules.get("accelerate.state"), "AcceleratorState", None)
    if str(getattr(accelerator, "_shared_state", {}).get("distributed_type")).endswith("NO"):
        return (
            "Accelerate has no kind of training for the process group (distributed_type is NO), so it does "
            "not wrap models in DistributedDataParallel"
        )
    # Set once the program has asked Ignite for a rank, a device or a model. It may wrap its model itself.
    ignite = getattr(sys.modules.get("ignite.distributed.utils"), "_model", None)
    if (
        nothing_exchanged
        and getattr(ignite, "name", "") == "native-dist"
        and dist.is_initialized()
        and (backend := dist.get_backend()) not in IGNITE_WRAPS
    ):
        return (
            f"Ignite does not know the backend {backend} of the process group, so its auto_model does "
            "not wrap models in DistributedDataParallel"
        )
    return ""


def _remedy(callers: list[str], reason: str) -> str:
    """What to change in the library that calls the optimizer; else in the one that the reason names."""
    for module, remedy in REMEDIES.items():
        if module in callers:
            return remedy
    for module, remedy in REMEDIES.items():
        if module.partition(".")[0] in reason.lower():
            return remedy
    return ""


def _all_is_counted(optimizer: torch.optim.Optimizer) -> bool:
    """Whether all that this process exchanges with others goes through groups of occl, as far as it shows.

    Otherwise it has groups of other backends, RPC, or parameters in memory that it shares with others.
    """
    groups = [group for group in distributed_c10d._world.pg_map if group.size() > 1]
    rpc: Any = sys.modules.get("torch.distributed.rpc.api")
    return bool(
        groups
        and all(uses_occl(group, device) for group in groups for device in group._device_types)
        and not (rpc and rpc._is_current_rpc_agent_set())
        and not any(p.device.type == "cpu" and p.is_shared() for p in _parameters(optimizer))
    )


def _have_exchanged(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the groups have carried as many bytes as the optimizer's parameters have.

    DistributedDataParallel does that when it wraps a model, and in each backward pass.
    """
    carried: int = sum(kind.bytes for kinds in _carried().values() for kind in kinds.values())
    return carried >= sum(p.numel() * p.element_size() for p in _parameters(optimizer))


def _carried() -> dict[str, Any]:
    """What the groups have carried, by group and kind of operation."""
    from occl.distributed.stats import stats  # loads the extension

    found: dict[str, Any] = stats()
    return found


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
