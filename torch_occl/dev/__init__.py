"""``torch.dev``: the device ``dev``, as `torch.cuda` is for CUDA.

``dev`` is host memory that other processes can map, with the CPU's kernels.

| module | what it holds |
|---|---|
| ``streams`` | streams, events, and which stream is current |
| ``memory`` | statistics, limits and snapshots of the allocator |
| ``random`` | seeds and states of the generators |
| ``interchange`` | the same memory as CPU tensors, through DLPack, in other processes |
| ``dynamo`` | the entries of ``dev`` in torch.compile's tables |
| ``inductor`` | what torch.compile's default compiler does with graphs on ``dev`` |

PyTorch knows this package as ``torch.dev`` once ``import torch_occl`` has registered the device.
"""

from __future__ import annotations

import atexit
import os
import platform
from types import TracebackType
from typing import Any, NamedTuple

import torch

from occl import _C
from torch_occl.dev import _registration, interchange, memory, random, streams
from torch_occl.dev._index import Device, current_index, device_index
from torch_occl.dev.interchange import *  # noqa: F403
from torch_occl.dev.memory import *  # noqa: F403
from torch_occl.dev.random import *  # noqa: F403
from torch_occl.dev.streams import *  # noqa: F403
from torch_occl.dev.streams import _set_stream_by_id  # noqa: F401

__all__ = [
    "DeviceProperties",
    "can_device_access_peer",
    "current_device",
    "default_generators",  # noqa: F405
    "device",
    "device_count",
    "device_of",
    "get_amp_supported_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "init",
    "is_available",
    "is_bf16_supported",
    "is_current_stream_capturing",
    "is_initialized",
    "is_tf32_supported",
    "set_device",
    *interchange.__all__,
    *memory.__all__,
    *random.__all__,
    *streams.__all__,
]


def is_available() -> bool:
    """Whether ``dev`` is this process's PrivateUse1 device."""
    return _registration.registered()


def device_count() -> int:
    """The number of devices: ``OCCL_DEVICE_COUNT``, 8 by default. All are the memory of this host."""
    return _C._device_count()


def is_initialized() -> bool:
    """Whether this process has used a device. A process that is forked after that may not use one.

    Making a device current is a use. Whatever does not initialize CUDA in `torch.cuda` is none: counting
    devices, seeding, setting the state of a generator, statistics of memory, new events.
    """
    return _C._device_used() and not _is_in_bad_fork()


def init() -> None:
    """Initializes the devices, as the first use of one does.

    Raises:
        RuntimeError: this process was forked from one that had used a device.
    """
    _C._device_mark_used()


def _lazy_init() -> None:
    init()


def _is_in_bad_fork() -> bool:
    return _C._device_in_bad_fork()


def current_device() -> int:
    """The number of the device that is current in this thread."""
    return current_index()


def set_device(device: Device) -> None:
    """Makes ``device`` current in this thread. A negative number changes nothing.

    Raises:
        RuntimeError: there is no such device.
    """
    index = device_index(device) if not isinstance(device, int) else device
    if index >= 0:
        _C._device_set(index)


class device:
    """``with torch.dev.device(1):`` makes a device current and restores the previous one.

    Args:
        device: the device; None, or a negative number, changes nothing.
    """

    def __init__(self, device: Device) -> None:
        self.idx = -1 if device is None else device if isinstance(device, int) else device_index(device)
        self._before: list[int] = []  # one entry for each time it was entered

    def __enter__(self) -> None:
        self._before.append(_exchange_device(self.idx))

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        _exchange_device(self._before.pop())


class device_of(device):
    """Makes the device of a tensor or storage current; one on another device type changes nothing."""

    def __init__(self, obj: Any) -> None:
        super().__init__(obj.device.index if obj.device.type == "dev" else None)


def _exchange_device(index: int) -> int:
    return _C._device_exchange(index) if index >= 0 else -1


def _maybe_exchange_device(index: int) -> int:
    return _exchange_device(index) if index < device_count() else current_device()


class DeviceProperties(NamedTuple):
    """The result of `get_device_properties`."""

    name: str
    total_memory: int
    """Bytes of memory of the host or container; all devices share it."""
    multi_processor_count: int
    """CPU cores that this process may use; all devices share them."""
    major: int
    minor: int


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as info:
            for line in info:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


def get_device_properties(device: Device = None) -> DeviceProperties:
    """Name, memory and cores. Raises RuntimeError for a device that does not exist."""
    total = memory.mem_get_info(device)[1]
    return DeviceProperties(
        f"dev ({_processor()})", total, len(os.sched_getaffinity(0)), *get_device_capability()
    )


def get_device_name(device: Device = None) -> str:
    """``"dev (<the processor's name>)"``."""
    return get_device_properties(device).name


def get_device_capability(device: Device = None) -> tuple[int, int]:
    """(major, minor) of the programming interface. Raises RuntimeError for a device that does not exist."""
    device_index(device)
    return (1, 0)


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Always true; as fast as on the CPU."""
    current_device()
    return True


def is_tf32_supported() -> bool:
    """Always false: float32 is computed with all its bits."""
    current_device()
    return False


def is_current_stream_capturing() -> bool:
    """Always false: ``dev`` has no graphs of device work."""
    return False


def can_device_access_peer(device: Device, peer_device: Device) -> bool:
    """Always true: the devices are one memory. Raises RuntimeError for a device that does not exist."""
    device_index(device), device_index(peer_device)
    return True


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes that ``torch.autocast("dev")`` takes."""
    return [torch.bfloat16, torch.float16]


def __getattr__(name: str) -> Any:
    if name == "default_generators":
        return tuple(_C._device_generator(index) for index in range(device_count()))
    if name == "_initialized":  # torch.utils.checkpoint reads it before it saves the state of the generators
        return is_initialized()
    raise AttributeError(f"module 'torch.dev' has no attribute {name!r}")


# Queued work must not outlive the interpreter. Waits for it for at most 0.3 seconds.
atexit.register(_C._device_drain, 0.3)
