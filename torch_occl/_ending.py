"""Tells peers that this process ends in good order, so that they do not take its end for a death."""

from __future__ import annotations

import os
import sys
from multiprocessing import util

from torch_occl import _C

_watched: int | None = None


def watch() -> None:
    """For every process that makes groups.

    Not atexit: processes that multiprocessing forks do not run its functions, nor finalizers of the parent.
    """
    global _watched
    if _watched != os.getpid():
        _watched = os.getpid()
        util.Finalize(None, announce, exitpriority=0)


def announce() -> None:
    """Peers may wait for what a process would have done that an exception ends: that is a death, too.

    ``torch.multiprocessing`` makes ``sys.exit(1)`` of exceptions while it handles them.
    """
    error = sys.exc_info()[1] or getattr(sys, "last_value", None)
    if error is None or (isinstance(error, SystemExit) and error.__context__ is None):
        _C._announce_end()
