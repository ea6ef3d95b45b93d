"""How a device may be named in :mod:`torch.dev`."""

from __future__ import annotations

from typing import Union

import torch

from torch_occl import _C

Device = Union[torch.device, str, int, None]  # noqa: UP007
"""``torch.device("dev:1")``, ``"dev:1"``, ``1``; None is the current device."""


def device_index(device: Device) -> int:
    """The number of the device; that of the current one for None and -1.

    Raises:
        ValueError: the device is of another type.
        RuntimeError: there is no such device.
    """
    if device is None:
        return _C._device_get()
    if isinstance(device, int):
        return _C._device_resolve(device)
    device = torch.device(device)
    if device.type != "dev":
        raise ValueError(f"expected a dev device, got {device}")
    return _C._device_get() if device.index is None else _C._device_resolve(device.index)
