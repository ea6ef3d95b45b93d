"""Tells peers that this process exits in good order, so that they do not report a death."""

from __future__ import annotations

import os
import sys
from multiprocessing import util

from occl import _C

_watched: int | None = None


def watch() -> None:
    """Registers `announce` for the end of this process. The extension calls it before a group is made.

    atexit would not do: processes that multiprocessing forks do not run its functions, nor the finalizers of
    their parent.
    """
    global _watched
    if _watched != os.getpid():
        _watched = os.getpid()
        util.Finalize(None, announce, exitpriority=0)


def announce() -> None:
    """Announces the exit, unless an exception ends the process: peers then report a death.

    ``torch.multiprocessing`` turns an exception into ``sys.exit(1)`` while it handles it, so a SystemExit
    with a context counts as an exception.
    """
    error = sys.exc_info()[1] or getattr(sys, "last_value", None)
    if error is None or (isinstance(error, SystemExit) and error.__context__ is None):
        _C._announce_end()
