"""Windows: memory of each rank that the other ranks read and write without its taking part.

PyTorch has them from 2.14 on (``group.new_window(tensor)``, ``group.supports_window``). The functions here
offer the same in every version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.distributed as dist

from occl import _C
from occl.distributed import gloo

if TYPE_CHECKING:
    import torch


def supports_window(group: dist.ProcessGroup | None = None) -> bool:
    """Whether `new_window` makes windows of this group: it has the backend ``occl``.

    Raises:
        ValueError: there is no default group.
    """
    return any(backend._supports_window() for backend in _backends("supports_window", group))


def new_window(group: dist.ProcessGroup | None = None, tensor: torch.Tensor | None = None) -> _C.Window:
    """A window of a group, with this rank's tensor. All ranks call it in the same order.

    The tensor must be contiguous, and in memory that peers can map: of `empty_shared`, of the device ``dev``,
    or made after `share_cpu_memory`. It lives as long as it is registered. Ranks may have
    tensors of other shapes and types.

    Args:
        group: the default group if not given.
        tensor: all ranks pass one, or none does and all call ``tensor_register`` later.

    Raises:
        ArgumentError: the tensor is not where peers can map it, or only some ranks passed one.
        DistBackendError: a rank died, left, or did not come within the timeout.
        ValueError: there is no default group, or the group has another backend.
    """
    for backend in _backends("new_window", group):
        return backend._new_window(tensor)
    raise ValueError("new_window: the group has no backend of torch_occl")


def _backends(call: str, group: dist.ProcessGroup | None) -> list[_C.ProcessGroupOCCL]:
    group = group or dist.group.WORLD
    if group is None:
        raise ValueError(f"{call}: there is no default group; call init_process_group first")
    backends = (gloo.backend_of(group, device) for device in group._device_types)
    return [backend for backend in backends if isinstance(backend, _C.ProcessGroupOCCL)]
