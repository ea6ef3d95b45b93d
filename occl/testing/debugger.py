"""The terminal in one rank: ``--ranks-pdb=RANK``."""

from __future__ import annotations

import os
import pdb
import sys
import traceback
from typing import Any

from occl.testing.child import receive

TERMINAL = (0, 1)
"""The descriptors of the pytest process that the rank which is debugged gets."""


def take(debugged: int | None, rank: int) -> None:
    """Gives the terminal to the rank that is debugged, and says what ``breakpoint()`` does in the others."""
    if debugged is None:
        sys.breakpointhook = _refuse(rank)
    elif debugged != rank:
        sys.breakpointhook = _pass_by  # all ranks run the same lines, and one of them is debugged
    else:
        read, write = receive(len(TERMINAL))
        for given, fd in ((read, 0), (write, 1), (write, 2)):
            os.dup2(given, fd)
        sys.stdin = os.fdopen(0, closefd=False)
        sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        print(f"\n>>>> rank {rank} has the terminal: breakpoint() stops there, and so does a failure")


def post_mortem(error: BaseException) -> None:
    """Lets the user look at where the rank has failed."""
    traceback.print_exception(error)
    pdb.post_mortem(error.__traceback__)


def _refuse(rank: int) -> Any:
    def hook(*_: object, **__: object) -> None:
        __tracebackhide__ = True
        raise RuntimeError(
            f"breakpoint() in rank {rank}, which has no terminal: run pytest with --ranks-pdb={rank}"
        )

    return hook


def _pass_by(*_: object, **__: object) -> None:
    pass
