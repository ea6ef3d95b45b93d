"""What PyTorch's module of symmetric memory does for CUDA only: a group's workspace.

Allocations, handles and operators are the extension's (``csrc/pg/symmetric``).
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from occl.distributed import gloo

THEIRS = "torch.distributed._symmetric_memory"

_workspaces: dict[str, torch.Tensor] = {}  # by group


def serve_workspaces() -> None:
    """Lets ``get_symm_mem_workspace`` of PyTorch's module serve groups of occl, if that is imported."""
    theirs: Any = sys.modules.get(THEIRS)
    if theirs is None or hasattr(theirs.get_symm_mem_workspace, "__wrapped__"):
        return
    original = theirs.get_symm_mem_workspace

    @functools.wraps(original)
    def get_symm_mem_workspace(group_name: str, min_size: int) -> Any:
        device = _device_of(distributed_c10d._resolve_process_group(distributed_c10d.GroupName(group_name)))
        return workspace(group_name, min_size, device) if device else original(group_name, min_size)

    theirs.get_symm_mem_workspace = get_symm_mem_workspace


def workspace(group_name: str, min_size: int, device: torch.device) -> Any:
    """The handle of symmetric memory that all users of a group share. A collective call where it grows.

    Args:
        min_size: bytes, the same on all ranks.
    """
    from torch._C._distributed_c10d import _SymmetricMemory

    held = _workspaces.get(group_name)
    if held is None or held.numel() < min_size or held.device.type != device.type:
        held = _SymmetricMemory.empty_strided_p2p((min_size,), [1], torch.uint8, device, group_name)
        _workspaces[group_name] = held
    return _SymmetricMemory.rendezvous(held, group_name)


def _device_of(group: dist.ProcessGroup) -> torch.device | None:
    """Where the group's workspace lies: on ``dev`` if occl serves it there, or on the CPU; None: neither."""
    served = [
        device
        for device in group._device_types
        if device.type in ("cpu", "dev") and gloo.is_occl(group, device)
    ]
    return max(served, key=lambda device: device.type == "dev", default=None)
