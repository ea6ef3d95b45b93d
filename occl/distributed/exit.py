"""Tells peers that this process exits in good order, so that they do not report a death."""

from __future__ import annotations

import os
import sys
import threading
from multiprocessing import process, util
from typing import TYPE_CHECKING

from occl import _C

if TYPE_CHECKING:
    from types import FrameType

_watched: int | None = None
_target: FrameType | None = None


def watch() -> None:
    """Registers `announce` for the end of this process. The extension calls it before a group is made.

    atexit would not do: processes that multiprocessing forks do not run its functions, nor the finalizers of
    their parent.
    """
    global _watched, _target
    if _watched != os.getpid():
        _watched, _target = os.getpid(), _runs_target()
        util.Finalize(None, announce, exitpriority=0)


def announce() -> None:
    """Announces the exit, unless an exception ends the process: peers then report a death.

    ``torch.multiprocessing`` turns an exception into ``sys.exit(1)`` while it handles it, so a SystemExit
    with a context counts as an exception. From Python 3.13 on, multiprocessing has handled either when this
    is called. What is left is the exit code, which is 1 in both cases, and so ``sys.exit(1)`` counts too.
    """
    if sys.version_info >= (3, 13) and _target is not None and _target.f_locals.get("exitcode") == 1:
        return
    error = sys.exc_info()[1] or getattr(sys, "last_value", None)
    if error is None or (isinstance(error, SystemExit) and error.__context__ is None):
        _C._announce_end()


def _runs_target() -> FrameType | None:
    """The frame in which multiprocessing runs this process's target, and keeps its exit code; or None."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_code is not process.BaseProcess._bootstrap.__code__:  # type: ignore[attr-defined]
        frame = frame.f_back
    return frame
