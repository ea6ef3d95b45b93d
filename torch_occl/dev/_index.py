"""How a device may be named in `torch.dev`."""

from __future__ import annotations

from typing import Union

import torch

from occl import _C

Device = Union[torch.device, str, int, None]  # noqa: UP007
"""``torch.device("dev:1")``, ``"dev:1"``, ``1``; None is the current device."""


def current_index() -> int:
    """The number of this thread's current device. Counts as a use of the device."""
    if torch.compiler.is_dynamo_compiling():
        index = torch.accelerator.current_device_index()  # dynamo guards on its result
        # Wrong in the context of a stream of another device: dynamo does not change the device with it.
        if torch.accelerator.current_stream() == torch.accelerator.current_stream(torch.device("dev", index)):
            return index
    return _C._device_get()


def unused_index(device: Device) -> int:
    """As `device_index`, without using the device: for functions that do not initialize CUDA either."""
    if device is None:
        return _C._device_resolve(-1)
    if isinstance(device, int):
        return _C._device_resolve(device)
    device = torch.device(device)
    if device.type != "dev":
        raise ValueError(f"expected a dev device, got {device}")
    return _C._device_resolve(-1 if device.index is None else device.index)


def device_index(device: Device) -> int:
    """The number of a device that the caller is about to use. None and -1 are the current device.

    Raises:
        ValueError: the device is of another type.
        RuntimeError: there is no such device, or this process was forked from one that had used a device.
    """
    if device is None:
        return current_index()
    index = unused_index(device)
    _C._device_mark_used()
    return index
