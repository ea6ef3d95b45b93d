"""The callers of this package, among the frames of the stack."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import torch.distributed as dist

if TYPE_CHECKING:
    from types import FrameType


def stacklevel() -> int:
    """The ``stacklevel`` at which the caller of this function warns of a line of the program's."""
    frame, depth = sys._getframe(1), 1
    while frame.f_back and str(frame.f_globals.get("__name__", "")).partition(".")[0] in ("occl", "torch"):
        frame, depth = frame.f_back, depth + 1
    return depth


def backends_of_caller() -> dict[str, str]:
    """The backend by device type of the group that PyTorch makes now, of which it tells factories nothing.

    Empty if PyTorch is not making a group by its usual function.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame:
        config = frame.f_locals.get("backend_config")
        if isinstance(config, dist.BackendConfig):
            return dict(config.get_device_backend_map())
        frame = frame.f_back
    return {}
