"""Memory of ``dev``: statistics, limits and snapshots, in bytes. Part of `torch.dev`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from occl import _C
from occl.tools.text import size
from torch_occl.dev._index import Device, device_index, unused_index

__all__ = [
    "OutOfMemoryError",
    "empty_cache",
    "get_per_process_memory_fraction",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
]

OutOfMemoryError = torch.OutOfMemoryError


def empty_cache() -> None:
    """Gives cached memory of all devices back to the system; tensors are not affected."""
    torch.accelerator.empty_cache()


def memory_stats(device: Device = None) -> dict[str, Any]:
    """All counters, flat, named as `torch.accelerator.memory_stats` names them.

    Names with ``bytes`` count bytes; the others count allocations, blocks and runs of memory. There are none
    before the first use of ``dev``.
    """
    return torch.accelerator.memory_stats(unused_index(device))


def memory_stats_as_nested_dict(device: Device = None) -> dict[str, Any]:
    """The same counters, nested: ``["allocated_bytes"]["all"]["current"]``."""
    index = unused_index(device)
    return torch._C._accelerator_getDeviceStats(index) if _C._device_used() else {}


def _counter(device: Device, name: str) -> int:
    return int(memory_stats(device).get(name, 0))


def memory_allocated(device: Device = None) -> int:
    """Bytes that tensors hold now."""
    return _counter(device, "allocated_bytes.all.current")


def max_memory_allocated(device: Device = None) -> int:
    """The most bytes that tensors have held since the start or `reset_peak_memory_stats`."""
    return _counter(device, "allocated_bytes.all.peak")


def memory_reserved(device: Device = None) -> int:
    """Bytes taken from the system: held by tensors, or cached."""
    return _counter(device, "reserved_bytes.all.current")


def max_memory_reserved(device: Device = None) -> int:
    """The most bytes taken from the system since the start or `reset_peak_memory_stats`."""
    return _counter(device, "reserved_bytes.all.peak")


def reset_peak_memory_stats(device: Device = None) -> None:
    """Sets the peaks to what is in use now."""
    torch.accelerator.reset_peak_memory_stats(device_index(device))


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """Sets the totals of allocated and freed memory to 0."""
    torch.accelerator.reset_accumulated_memory_stats(device_index(device))


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """(free, total) bytes of the host, or of the container this process runs in: all devices share it."""
    return torch.accelerator.get_memory_info(device_index(device))


def set_per_process_memory_fraction(fraction: float, device: Device = None) -> None:
    """Limits what all devices of this process together may reserve to a share of the host's memory.

    Args:
        fraction: above 0 and at most 1.
        device: only checked: the limit holds for all devices.

    Raises:
        ValueError: ``fraction`` is not above 0 and at most 1, or the device is of another type.
        RuntimeError: there is no such device.
    """
    device_index(device)
    if not 0 < fraction <= 1:
        raise ValueError(f"the memory fraction must be above 0 and at most 1, not {fraction}")
    _C._device_set_memory_fraction(fraction)


def get_per_process_memory_fraction(device: Device = None) -> float:
    """The share of the host's memory that this process may reserve; from ``OCCL_MEMORY_FRACTION``."""
    return _C._device_memory_limit() / mem_get_info(device)[1]


def memory_snapshot(device: Device = None) -> list[dict[str, Any]]:
    """The runs of reserved memory of ``device`` and the blocks in each: address, size in bytes, and state."""
    index = unused_index(device)
    segments = []
    for blocks in _C._device_memory_snapshot(index):
        segments.append(
            {
                "device": index,
                "address": blocks[0]["address"],
                "total_size": sum(block["size"] for block in blocks),
                "allocated_size": sum(b["size"] for b in blocks if b["state"] == "active_allocated"),
                "active_size": sum(b["size"] for b in blocks if b["state"] != "inactive"),
                "blocks": blocks,
            }
        )
    return segments


def memory_summary(device: Device = None, abbreviated: bool = False) -> str:
    """The counters as a table for people.

    Args:
        abbreviated: only the first lines.
    """
    index = device_index(device)
    stats = memory_stats(index)

    rows: list[tuple[str, str, Callable[[int], str]]] = [
        ("Allocated memory", "allocated_bytes", size),
        ("Active memory", "active_bytes", size),
        ("Reserved memory", "reserved_bytes", size),
    ]
    if not abbreviated:
        rows += [
            ("Requested memory", "requested_bytes", size),
            ("Cached memory", "inactive_split_bytes", size),
            ("Allocations", "allocation", str),
            ("Active blocks", "active", str),
            ("Reserved runs", "segment", str),
            ("Cached blocks", "inactive_split", str),
        ]
    width = 80
    lines = [
        "=" * width,
        f"torch.dev memory summary, device dev:{index}: "
        f"{stats.get('num_ooms', 0)} out of memory, {stats.get('num_alloc_retries', 0)} retries",
        "-" * width,
        f"{'':<20}{'current':>15}{'peak':>15}{'total':>15}{'freed':>15}",
        "-" * width,
    ]
    for title, name, form in rows:
        values = [
            form(stats.get(f"{name}.all.{kind}", 0)) for kind in ("current", "peak", "allocated", "freed")
        ]
        lines.append(f"{title:<20}" + "".join(f"{value:>15}" for value in values))
    lines.append("=" * width)
    return "\n".join(lines)
