"""The program that calls PyTorch, among the frames of the stack."""

from __future__ import annotations

import sys


def stacklevel() -> int:
    """The ``stacklevel`` at which the caller of this function warns of a line of the program's."""
    frame, depth = sys._getframe(1), 1
    while frame.f_back and str(frame.f_globals.get("__name__", "")).partition(".")[0] in ("occl", "torch"):
        frame, depth = frame.f_back, depth + 1
    return depth
