"""The terminal in one rank: ``--ranks-pdb=RANK``."""

from __future__ import annotations

import os
import pdb
import sys
import traceback
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Terminal:
    """Where the rank that is debugged reads and writes: the pytest process's own stdin and stdout."""

    rank: int
    input: str
    output: str

    @classmethod
    def of_this_process(cls, rank: int) -> Terminal:
        return cls(rank, f"/proc/{os.getpid()}/fd/0", f"/proc/{os.getpid()}/fd/1")


def take(terminal: Terminal | None, rank: int) -> None:
    """Gives the terminal to the rank that is debugged, and says what ``breakpoint()`` does in the others."""
    if terminal is None:
        sys.breakpointhook = _refuse(rank)
    elif terminal.rank != rank:
        sys.breakpointhook = _pass_by  # all ranks run the same lines, and one of them is debugged
    else:
        for path, flags, fds in ((terminal.input, os.O_RDONLY, (0,)), (terminal.output, os.O_WRONLY, (1, 2))):
            opened = os.open(path, flags | os.O_NOCTTY)
            for fd in fds:
                os.dup2(opened, fd)
            os.close(opened)
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
        raise RuntimeError(
            f"breakpoint() in rank {rank}, which has no terminal: run pytest with --ranks-pdb={rank}"
        )

    return hook


def _pass_by(*_: object, **__: object) -> None:
    pass
