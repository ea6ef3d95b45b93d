"""What tests that `gpu_rewriting` has rewritten find in the place of ``torch.cuda`` and its like."""

from __future__ import annotations

import functools
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from occl._C import ProcessGroupOCCL


def _place(device: str, value: Any) -> Any:
    """Where a test means a device by its number: on the CPU there are no numbers."""
    return torch.device("cpu") if device == "cpu" and type(value) is int else value


def names(device: str, count: int) -> dict[str, object]:
    """Globals for a rewritten module.

    Args:
        device: "cpu" or "dev".
        count: how many devices the tests see.
    """
    place = functools.partial(_place, device)

    def cuda(thing: Any, index: Any = None, **keywords: Any) -> Any:
        index = keywords.pop("device", index)
        if device == "cpu":
            return thing
        if index is None:
            index = torch.dev.current_device()  # type: ignore[attr-defined]
        return thing.to(torch.device(device, index) if isinstance(index, int) else index, **keywords)

    def to(thing: Any, *args: Any, **keywords: Any) -> Any:
        return thing.to(*map(place, args), **{name: place(value) for name, value in keywords.items()})

    return {
        "_occl_monitored_barrier": monitored_barrier,
        "_occl_accelerator": cpu(count) if device == "cpu" else dev(count),
        "_occl_cuda": cuda,
        "_occl_to": to,
        "_occl_device": place,
        "_occl_device_ids": lambda ids: None if device == "cpu" else ids,
        "_occl_output_device": lambda output: None if device == "cpu" else output,
        "_occl_is_on_device": lambda tensor: tensor.device.type == device,
        "_occl_is_available": lambda: True,
        "_occl_ProcessGroup": ProcessGroup,
    }


class ProcessGroup(ProcessGroupOCCL):
    """Ours for ``ProcessGroupNCCL``, whose option of high priority has no effect."""

    class Options(ProcessGroupOCCL.Options):
        is_high_priority_stream = True


def monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
    """``dist.monitored_barrier`` but for its question whether the backend is gloo."""
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        return
    if isinstance(timeout, float):
        timeout = timedelta(seconds=timeout)
    group = group or dist.group.WORLD
    group.monitored_barrier(
        timeout or dist.distributed_c10d.default_pg_timeout, wait_all_ranks=wait_all_ranks
    )


def dev(count: int) -> SimpleNamespace:
    """``torch.dev`` with a given number of devices, and what only ``torch.cuda`` has."""
    more = {
        "device_count": lambda: count,
        "get_device_capability": lambda device=None: (0, 0),  # of no generation of GPUs
    }
    return SimpleNamespace(**vars(torch.dev) | more)  # type: ignore[attr-defined]


def cpu(count: int) -> SimpleNamespace:
    """``torch.cpu`` with what it lacks."""
    more = {
        "device_count": lambda: count,
        "current_device": lambda: torch.device("cpu"),
        "manual_seed": torch.manual_seed,
        "Stream": lambda device=None: torch.cpu.Stream(),
    }
    return SimpleNamespace(**vars(torch.cpu) | more)
