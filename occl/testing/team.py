"""The ranks of one group of processes, driven from the test's process, without ever hanging.

A function that ranks run must be found by its module and qualified name. If any rank raises, dies, or does
not finish in time, the test fails with its traceback and output, and the processes are ended.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from occl.testing import report
from occl.testing.launch import Member, Source
from occl.testing.options import DEFAULT_LIMIT
from occl.testing.outcomes import Outcome, RanksFailed, WrongUse
from occl.tools import text

PATIENCE = 5.0
"""Seconds that the other ranks get to notice, once a rank has failed."""

GLANCE = 0.05
"""Seconds between two looks at what ranks have printed, where it is shown live."""


def _members(size: int) -> list[Member]:
    members: list[Member] = []
    try:
        for rank in range(size):
            members.append(Member(rank))
    except OSError as error:
        for member in members:
            member.let_go()
            member.close()
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        raise WrongUse(
            f"{size} ranks need more open files than this process may have ({error.strerror}). Use fewer "
            f"ranks, or raise the limit: ulimit -n {8 * size + 256}."
        ) from error
    return members


class Team:
    """Processes that are ranks 0 to size - 1. To be used with ``with``, or closed.

    Args:
        source: where the processes come from.
        limit: seconds that a function may take, unless its call says otherwise.
        live: whether what the ranks print is shown at once, with their numbers.
        once: whether the process of a rank whose function raises ends, so that the others notice at once.

    Raises:
        WrongUse: the system or the warm process refuses; the text says why.
    """

    def __init__(
        self,
        source: Source,
        size: int,
        *,
        limit: float = DEFAULT_LIMIT,
        live: bool = False,
        once: bool = False,
    ) -> None:
        self.source = source
        self.size = size
        self.live = live
        self.once = once
        self.members = _members(size)
        try:
            pids = source.make([member.given for member in self.members])
        except BaseException:
            for member in self.members:
                member.let_go()
                member.close()
            raise
        for member, pid in zip(self.members, pids, strict=True):
            member.begin(pid)
        self.running: dict[int, Outcome | None] = {}
        self.heard: dict[int, list[Any]] = {}
        self.announced: dict[int, tuple[str, str]] = {}
        self.usual_limit = self.limit = limit
        self.deadline = 0.0
        self.late = ""

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        return [member.pid for member in self.members]

    def start(
        self, body: Callable[..., Any], device: str = "cpu", *, limit: float | None = None, **params: object
    ) -> None:
        """Begins ``body(rank, size, device, **params)`` in every rank that lives."""
        limit = self.usual_limit if limit is None else limit
        self.running = {}
        self.heard = {member.rank: [] for member in self.members}
        self.announced = {}
        self.limit, self.deadline = limit, time.monotonic() + limit
        job = {"module": body.__module__, "name": body.__qualname__, "path": sys.path, "once": self.once}
        for member in self.members:
            if member.exitcode is None:
                member.pipe.send(job | {"args": (member.rank, self.size, device), "params": params})
                self.running[member.rank] = None

    def say(self, rank: int, message: object) -> None:
        """To ``rank.listen`` in that rank's body."""
        self.members[rank].pipe.send(message)

    def give(self, rank: int, descriptors: Sequence[int]) -> None:
        """To ``rank.receive`` in that rank's body, which must take them before anything else."""
        with socket.socket(fileno=os.dup(self.members[rank].pipe.fileno())) as pipe:
            socket.send_fds(pipe, [b"!"], descriptors)

    def hear(self, rank: int) -> Any:
        """The next message that this rank's body has told."""
        while not self.heard[rank]:
            if self.running[rank] is not None or not self._receive(self.deadline):
                self.fail(f"rank {rank} did not tell what the test waits for")
        return self.heard[rank].pop(0)

    def wait_until_asleep(self, rank: int) -> None:
        """Until the kernel says that the rank's main thread sleeps (in whatever its body calls next)."""
        while self.members[rank].state() != "S":
            if time.monotonic() > self.deadline:
                self.fail(f"rank {rank} does not sleep")

    def kill(self, rank: int, number: int = signal.SIGKILL) -> int:
        """Sends the signal; returns when, by the clock that all processes share (nanoseconds)."""
        when = time.monotonic_ns()
        self.members[rank].kill(number)
        return when

    def wait_for(self, *ranks: int) -> None:
        """Until these ranks' bodies have ended, one way or another."""
        while late := [rank for rank in ranks if self.running[rank] is None]:
            if not self._receive(self.deadline):
                self.fail("the test waits for " + text.ranks(late))

    def finish(self) -> list[Outcome]:
        """Waits until every rank's body has ended somehow, or has stopped as it announced.

        Raises:
            RanksFailed: one does not end in time.
        """
        deadline = self.deadline
        while self._awaited():
            if any(outcome and outcome.failed for outcome in self.running.values()):
                deadline = min(deadline, time.monotonic() + PATIENCE)
            if not self._receive(deadline):
                self.late = f"in {self.limit:g} s" if deadline == self.deadline else "soon after that"
                self.fail()
        self._take_stopped()
        return sorted((o for o in self.running.values() if o is not None), key=lambda o: o.rank)

    def run(
        self, body: Callable[..., Any], device: str = "cpu", *, limit: float | None = None, **params: object
    ) -> list[Any]:
        """Results in rank order.

        Raises:
            RanksFailed: not all ranks have one.
        """
        self.start(body, device, limit=limit, **params)
        outcomes = self.finish()
        if any(outcome.failed for outcome in outcomes):
            self.fail()
        return [outcome.result for outcome in outcomes]

    def fail(self, what: str = "") -> None:
        """Ends all processes.

        Raises:
            RanksFailed: always, with how each rank has ended, and what those do that have not.
        """
        text = self.report()
        printed = self.printed()
        self.close()
        unwell = [m.rank for m in self.members if m.rank in self.running and not self._returned(m.rank)]
        raise RanksFailed(f"{what}: {text}" if what else text, {rank: printed[rank] for rank in unwell})

    def report(self) -> str:
        """How ranks have failed, and what those do that have not ended."""
        self._take_stopped()
        late = [m for m in self.members if m.exitcode is None and self.running.get(m.rank, m) is None]
        for member in late:
            member.ask_for_stacks()
        stacks = {member.rank: member.stacks_written(PATIENCE) for member in late}
        return report.failures(self.size, self.running, stacks, dict(enumerate(self.pids)), self.late)

    def forget_printed(self) -> None:
        """What the ranks have printed so far is no output of the next function."""
        for member in self.members:
            member.mark_output()

    def printed(self) -> dict[int, str]:
        """What each rank has printed, unless that was shown or is forgotten."""
        return {member.rank: "" if self.live else member.output() for member in self.members}

    def _stopped(self) -> set[int]:
        """The ranks that have stopped as they announced. They do not end before the test does."""
        return {rank for rank, (name, _) in self.announced.items() if name == signal.SIGSTOP.name}

    def _awaited(self) -> bool:
        stopped = self._stopped()
        return any(outcome is None and rank not in stopped for rank, outcome in self.running.items())

    def _take_stopped(self) -> None:
        for rank in self._stopped():
            if self.running[rank] is None:
                name, why = self.announced[rank]
                self._ended(Outcome(rank, died=f"stopped by {name}", intended=why))

    def _returned(self, rank: int) -> bool:
        outcome = self.running[rank]
        return outcome is not None and not outcome.failed

    def _receive(self, deadline: float) -> bool:
        """Takes at least one message or death; False when the deadline has passed."""
        waited_for: dict[Connection | int, Member] = {}
        for member in self.members:
            if member.exitcode is None:
                waited_for[member.pipe] = waited_for[member.pidfd] = member
        ready: list[Any] = []
        while not ready and (left := deadline - time.monotonic()) > 0:
            ready = wait(list(waited_for), timeout=min(left, GLANCE) if self.live else left)
            self.show()
        for source in sorted(ready, key=lambda s: isinstance(s, int)):  # last words before deaths
            member = waited_for[source]
            if source == member.pidfd:
                while member.pipe.poll():
                    if not self._take_message(member):
                        break
                self._take_death(member)
            elif member.exitcode is None:
                self._take_message(member)
        return bool(ready)

    def _take_message(self, member: Member) -> bool:
        try:
            kind, content = member.pipe.recv()
        except (EOFError, ConnectionResetError):
            wait([member.pidfd], timeout=PATIENCE)  # it closed its end: the descriptor reports how it ended
            return False
        if kind == "told":
            self.heard[member.rank].append(content)
        elif kind == "announced":
            self.announced[member.rank] = content
        elif kind == "returned":
            self._ended(Outcome(member.rank, result=content))
        else:
            self._ended(Outcome(member.rank, **content))
        return True

    def _take_death(self, member: Member) -> None:
        code = member.exitcode = self.source.reap(member.pid)
        name = signal.Signals(-code).name if code < 0 else ""
        how = f"killed by {name}" if name else f"exited with status {code}"
        announced, why = self.announced.get(member.rank, ("", ""))
        if self.running.get(member.rank, "idle") is None:
            self._ended(Outcome(member.rank, died=how, intended=why if announced == name else ""))

    def _ended(self, outcome: Outcome) -> None:
        self.running.pop(outcome.rank, None)  # the order of this dictionary is that of the ends
        self.running[outcome.rank] = outcome

    def show(self, *, last: bool = False) -> None:
        """Prints what ranks have written since the last call, where that is wanted."""
        for member in self.members if self.live else ():
            for line in member.new_lines(last=last):
                print(f"[rank {member.rank}] {line}", flush=True)

    @property
    def well(self) -> bool:
        """Whether the last body has returned on every rank."""
        ended = [self.running.get(member.rank) for member in self.members]
        return self.alive and all(each and not (each.raised or each.died) for each in ended)

    @property
    def alive(self) -> bool:
        return all(member.exitcode is None for member in self.members)

    def close(self) -> None:
        """Ends all processes. Idempotent."""
        for member in self.members:
            member.kill()
        for member in self.members:
            if member.exitcode is None:
                member.exitcode = self.source.reap(member.pid)
        if any(member.pidfd >= 0 for member in self.members):
            self.show(last=True)
        for member in self.members:
            if member.pidfd >= 0:
                member.close()
