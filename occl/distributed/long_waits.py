"""Says what a program waits for that makes no progress, long before its timeout.

The thread that shows this process's stack (occl/stacks.py) looks now and then whether a rank of this process
has waited for long, whichever thread waits, while the main thread computes nothing. Then it reads what the
ranks of this host publish, as `occl top` does, and writes one notice to standard error: which ranks wait,
for which rank, what that one does, and what to do. Ranks that wait for the same would all say the same, so
the first one claims the right to speak, for all on its host. The same sentences stand in the error of an
operation that times out.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from occl import stacks, variables
from occl._C import _add_to_timeouts, _make_room_for_descriptors, _waiting

if TYPE_CHECKING:
    from occl.tools.top.groups import Rank
    from occl.tools.top.stuck import Wait

BETWEEN = 300.0
"""Seconds between two notices about a job on one host."""
MOST = 3
"""Waits in a notice."""
MOST_FRAMES = 4
"""Frames of a stack in it, the innermost ones."""
LONGEST_PAUSE = 2.0
"""Seconds between two looks."""
JUST_BEFORE = 2.0
"""Seconds before a timeout at which its error gets its sentences."""
WORTH_A_WORD = 1.0
"""Seconds of a wait from which on there are sentences about it."""
IDLE = 0.05
"""The share of a core up to which the main thread counts as computing nothing."""

_notices: Notices | None = None
_joins: list[Join] = []  # groups that this process is making


def watch(after: float, write: Callable[[str], object] | None = None) -> None:
    """From now on this process says what it waits for, once a wait has lasted for ``after`` seconds.

    Args:
        after: 0 switches it off.
        write: what gets the text, in place of standard error.
    """
    global _notices
    _notices = Notices(after, write or _to_standard_error) if after else None
    stacks.hurry()


def watch_as_environment_says() -> None:
    """Watches, unless ``OCCL_STUCK_AFTER`` is 0. Raises ValueError if it is not a number of seconds."""
    watch(variables.stuck_after())


def show_stack() -> None:
    """From now on this process watches itself, and notices of other ranks can say what it does, unless
    ``OCCL_STUCK_AFTER`` is 0."""
    if variables.stuck_after():
        _make_room_for_descriptors()  # before there is one thread more
        stacks.answer(_task)


class Join:
    """The wait of a rank for the others that make a group with it."""

    def __init__(self, rank: int, size: int, group: str, timeout: float) -> None:
        self.rank, self.size, self.group, self.timeout = rank, size, group, timeout
        self.begin = time.monotonic()
        self.told = False

    def text(self, now: float) -> str:
        waited = now - self.begin
        return (
            f"Rank {self.rank} has waited {waited:.1f} s for the other ranks of group {self.group}, which has"
            f" {self.size}, to make it; that times out in {max(0.0, self.timeout - waited):.1f} s, with an "
            "error that names those that have not come. See whether all have started and make this group."
        )


@contextmanager
def joining(rank: int, size: int, group: str, timeout: float) -> Iterator[None]:
    """While a rank makes a group with others: that wait is watched.

    Args:
        timeout: seconds.
    """
    show_stack()
    join = Join(rank, size, group, timeout)
    _joins.append(join)
    try:
        yield
    finally:
        _joins.remove(join)


def _task() -> float:
    return _notices.task() if _notices else LONGEST_PAUSE


def _to_standard_error(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Notices:
    """What this process has said, and seen others say."""

    def __init__(self, after: float, write: Callable[[str], object]) -> None:
        self.after, self.write = after, write
        self.seen = ""  # the latest picture that was described, here or by another rank
        self.pause = min(max(after / 6, 0.02), LONGEST_PAUSE)
        # Moments, and the main thread's time on a core by then.
        self.used: deque[tuple[float, float]] = deque()

    def task(self) -> float:
        """Looks at the waits of this process; returns the seconds until the next look."""
        longest, left = _waiting()
        now = time.monotonic()
        for join in list(_joins):
            self.tell_of(join, now)
        self.used.append((now, _seconds_of_main_thread()))
        while len(self.used) > 1 and now - self.used[1][0] >= self.after:
            self.used.popleft()
        if longest >= WORTH_A_WORD and left <= JUST_BEFORE:
            if said := sentences():  # without the time until the timeout
                _add_to_timeouts(re.sub(r", which times out in [0-9.]+ s", "", _with_end(said)))
            return LONGEST_PAUSE
        if longest >= self.after and self.idle():
            self.look()
        return min(self.pause, max(WORTH_A_WORD / 4, left - 0.8 * JUST_BEFORE))

    def idle(self) -> bool:
        """Whether the main thread has computed nothing for as long as a wait may last."""
        (then, before), (now, by_now) = self.used[0], self.used[-1]
        return now - then >= self.after / 2 and by_now - before <= IDLE * (now - then)

    def tell_of(self, join: Join, now: float) -> None:
        """Writes a notice of a group that is not made for long, once on a host."""
        if join.told or now - join.begin < self.after:
            return
        join.told = True
        if _claim(f"group {join.group} of the processes that {os.getppid()} has started"):
            self.say(join.text(now))

    def look(self) -> None:
        """Writes a notice if this process has waited for long, and there is something new to say."""
        ranks, waits = _own_waits(self.after)
        lines = [_with_advice(wait) for wait in waits[:MOST]]
        # Without times, and without what ranks do at the moment, which changes all the time.
        picture = re.sub(r"[0-9.]+ s\b", "", "\n".join(wait.who for wait in waits[:MOST]))
        if not lines or picture == self.seen:
            return
        claimed = _claim(f"process {min(rank.process.pid for rank in ranks)} and its peers")
        if claimed is None:  # this process has spoken not long ago: later
            return
        self.seen = picture
        if claimed:
            self.say(_with_end(lines))

    def say(self, what: str) -> None:
        self.write(f"torch_occl: no progress for {self.after:g} s (OCCL_STUCK_AFTER). {what}")


def sentences() -> list[str]:
    """What this process and its peers on this host wait for in its groups, as `occl top` says it."""
    from occl.tools.top import stuck

    return [_with_advice(wait) for wait in _own_waits(stuck.PATIENCE)[1]]


def _seconds_of_main_thread() -> float:
    """How long it has run on a core."""
    main = threading.main_thread().ident
    return time.clock_gettime(time.pthread_getcpuclockid(main)) if main else 0.0


def _own_waits(after: float) -> tuple[list[Rank], list[Wait]]:
    """The ranks on this host of the groups of this process, and their waits: of a circle the first one.

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
    return ranks, stuck.distinct(waits)


def _with_advice(wait: Wait) -> str:
    stack = f" Its Python stack: {', '.join(wait.stack[:MOST_FRAMES])}." if wait.stack else ""
    return f"{wait.text}{stack} {wait.advice}".rstrip()


def _with_end(said: list[str]) -> str:
    """The sentences, with where to see more."""
    from occl.tools.top import stuck

    return " ".join([*said, *([] if said[-1].endswith(stuck.UNSEEN) else [stuck.SEEN])])


_claims: set[str] = set()


def _claim(job: str) -> bool | None:
    """Whether this process may speak about a job. No other one of this host may for a while then. None: this
    process has spoken about it a moment ago.

    The claim is a name of a socket, which one process can have, and which its end frees.

    Args:
        job: what its processes call it.
    """
    if job in _claims:
        return None
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0torch_occl notice about {job}")
    except OSError:
        claim.close()
        return False

    def free() -> None:
        _claims.discard(job)
        claim.close()

    _claims.add(job)
    timer = threading.Timer(BETWEEN, free)
    timer.daemon = True
    timer.start()
    return True
