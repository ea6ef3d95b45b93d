"""Functions under their former names, which version 0.2 will not have."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING

from occl.distributed.gloo import replace_gloo, uses_occl
from occl.memory import shared_cpu_memory_stats

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist


def replace(name: str | None) -> replace_gloo:
    """`replace_gloo()` for "gloo", `replace_gloo(False)` for None.

    Raises:
        TypeError, ValueError: ``name`` is neither.
    """
    if not isinstance(name, str | None):
        raise TypeError(f"replace: the name of a backend must be a string or None, not {name!r}")
    if name is not None and name.lower() != "gloo":
        raise ValueError(f"replace: occl takes the place of 'gloo' only, not of {name!r}")
    _warn(f"replace({name!r})", f"replace_gloo({'False' * (name is None)})")
    return replace_gloo(name is not None)


def serves(group: dist.ProcessGroup | None = None, device: torch.device | str = "cpu") -> bool:
    """`uses_occl`."""
    _warn("serves", "uses_occl")
    return uses_occl(group, device)


def memory_stats(device: torch.device | str | int | None = None) -> Mapping[str, int]:
    """`shared_cpu_memory_stats` for the device "cpu", and otherwise `torch.dev.memory_stats`."""
    import torch

    if device is not None and not isinstance(device, int) and torch.device(device).type == "cpu":
        _warn('memory_stats("cpu")', "shared_cpu_memory_stats()")
        return shared_cpu_memory_stats()
    from torch_occl.dev import memory

    _warn("memory_stats", "torch.dev.memory_stats", "")
    return memory.memory_stats(device)


def _warn(old: str, new: str, package: str = "occl.") -> None:
    warnings.warn(
        f"occl.{old} is now {package}{new}, and version 0.2 will not have the former name",
        DeprecationWarning,
        stacklevel=3,
    )
