"""Says what a program waits for that makes no progress, long before its timeout.

A main thread that has waited for a while reads what the ranks of this host publish, as `occl top` does, and
writes one notice to standard error: which ranks wait, for which rank, and what that one does. Ranks that wait
for the same would all say the same, so the first one claims the right to speak, for all on its host.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from occl import stacks, variables
from occl._C import _set_long_wait_notice

if TYPE_CHECKING:
    from occl.tools.top.groups import Rank
    from occl.tools.top.stuck import Wait

BETWEEN = 300.0
"""Seconds between two notices about a job on one host."""
MOST = 3
"""Waits in a notice."""
MOST_FRAMES = 4
"""Frames of a stack in it, the innermost ones."""


def watch(after: float, write: Callable[[str], object] | None = None) -> None:
    """From now on the main thread says what it waits for, once a wait has lasted for ``after`` seconds.

    Args:
        after: 0 switches it off.
        write: what gets the text, in place of standard error.
    """
    _set_long_wait_notice(after, Notices(after, write or _to_standard_error).look)


def watch_as_environment_says() -> None:
    """Watches, unless ``OCCL_STUCK_AFTER`` is 0. Raises ValueError if it is not a number of seconds."""
    watch(variables.stuck_after())


def show_stack() -> None:
    """From now on notices of other ranks can say what this process does, unless ``OCCL_STUCK_AFTER`` is 0."""
    if variables.stuck_after():
        stacks.answer()


def _to_standard_error(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Notices:
    """What this process has said, and seen others say."""

    def __init__(self, after: float, write: Callable[[str], object]) -> None:
        self.after, self.write = after, write
        self.seen = ""  # the latest picture that was described, here or by another rank

    def look(self) -> None:
        """Writes a notice if this process has waited for long, and there is something new to say."""
        ranks, waits = _own_waits(self.after)
        lines = [wait.text + _stack(wait.stack) for wait in waits[:MOST]]
        # Without times, and without what a rank does at the moment, which changes all the time.
        picture = re.sub(r"[0-9.]+ s\b|\. Rank .*", "", "\n".join(lines))
        if not lines or picture == self.seen:
            return
        self.seen = picture
        if _claim(min(rank.process.pid for rank in ranks)):
            self.write(
                f"torch_occl: no progress for {self.after:g} s (OCCL_STUCK_AFTER). {' '.join(lines)} "
                "`occl top` shows all ranks."
            )


def sentences() -> list[str]:
    """What this process and its peers on this host wait for in its groups, as `occl top` says it."""
    from occl.tools.top import stuck

    return [wait.text for wait in _own_waits(stuck.PATIENCE)[1]]


def _own_waits(after: float) -> tuple[list[Rank], list[Wait]]:
    """The ranks on this host of the groups of this process, and their waits.

    Args:
        after: seconds. Shorter waits are left out, and so are groups in which this process itself has not
            waited for as long.
    """
    # Importing these takes 10 ms, which only a program that waits long shall take.
    from occl.tools.top import groups, processes, stuck

    ranks: list[Rank] = []
    waits: list[Wait] = []
    found = processes.Processes(with_own=True).look()
    try:
        snapshot = groups.look(found)
        for group in snapshot.groups.values():
            own = {number for number, rank in group.ranks.items() if rank.process.pid == os.getpid()}
            if not own:
                continue
            ranks += group.ranks.values()
            long = [wait for wait in stuck.waits(snapshot, group) if wait.seconds >= after]
            if own & {number for wait in long for number in wait.waiting}:
                waits += long
    finally:  # an open region would outlive its process
        for process in found:
            process.close()
    return ranks, waits


def _stack(frames: list[str]) -> str:
    return f" Its Python stack: {', '.join(frames[:MOST_FRAMES])}." if frames else ""


def _claim(job: int) -> bool:
    """Whether this process may speak about a job. No other one of this host may for a while then.

    The claim is a name of a socket, which one process can have, and which its end frees.

    Args:
        job: the least pid of the ranks that this process has groups with.
    """
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0torch_occl notice about process {job} and its peers")
    except OSError:
        claim.close()
        return False
    free = threading.Timer(BETWEEN, claim.close)
    free.daemon = True
    free.start()
    return True
