"""Warns when a process trains alone although a launcher has started several.

Libraries that do not know this process's device or backend may fall back to one process each, and then every
process trains the whole model by itself, without an error. The check runs once, before the first step of an
optimizer, in processes whose environment has ``WORLD_SIZE`` above 1.
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

_watching = False
_checked = False

REMEDIES = {
    "transformers": "with transformers, pass use_cpu=True to TrainingArguments",
    "accelerate": "with Accelerate, pass cpu=True to Accelerator",
}
"""What to change, by the module that the process has imported. The first one counts."""


def watch() -> None:
    """Checks before the first step of an optimizer, if the environment has ``WORLD_SIZE`` above 1."""
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
    global _checked
    if _checked or torch.compiler.is_compiling():
        return
    _checked = True
    if reason := _why_alone():
        remedy = next((text for name, text in REMEDIES.items() if name in sys.modules), "")
        warnings.warn(
            f"WORLD_SIZE is {_started()}, but rank {os.environ.get('RANK', '?')} trains alone: {reason}. "
            f"Every process trains by itself, and no gradients are exchanged"
            f"{'; ' if remedy else ''}{remedy} (docs/integrations.md)",
            RuntimeWarning,
            stacklevel=4,
        )


def _why_alone() -> str:
    """The reason, or "" if this process takes part in a group of several."""
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
    return ""
