"""Runs a function in every rank of a group, cheaply and without ever hanging.

    def everyone_knows_the_sum(rank, world_size, device):
        ...collectives of the default group; a failed assertion here fails the test

    def test_sum(pool):
        pool.run(everyone_knows_the_sum, world_size=3, device="cpu")

The ranks are processes forked from one warm zygote (worker.py): 10 ms each, where a spawned one imports torch
for seconds. ``pool`` keeps a `Team` for each world size, with its default group, from test to test. A test
that kills ranks, or wants no group, takes a team of its own: ``with fresh(3) as team``.

A body must be a function of a module. What it returns comes back pickled, in rank order. If any rank raises,
dies, or does not finish in time, the test fails with its traceback and output, and the team is thrown away.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path

from tests.support import worker
from tests.support.processes import Member, Outcome, ZygoteClient

LIMIT = float(os.environ.get("OCCL_TEST_LIMIT", "60"))
"""Seconds that a body may take on an overloaded machine before the test fails."""

PATIENCE = 5.0
"""Seconds that the other ranks get to notice, once a rank has failed."""


class RanksFailed(AssertionError):
    """Some ranks raised, died or did not finish."""


class Team:
    """Processes that are ranks 0 to size - 1. Used with ``with``, or closed by the pool."""

    def __init__(self, zygote: ZygoteClient, size: int) -> None:
        self.zygote = zygote
        self.size = size
        pairs = [socket.socketpair() for _ in range(size)]
        self.members = [Member(i, ours) for i, (ours, _) in enumerate(pairs)]
        fds = []
        for member, (_, theirs) in zip(self.members, pairs, strict=True):
            fds += [theirs.fileno(), member.log]
        for member, pid in zip(self.members, zygote.ask("fork", fds=tuple(fds)), strict=True):
            member.pid = pid
            member.pidfd = os.pidfd_open(pid)
        for _, theirs in pairs:
            theirs.close()
        self.running: dict[int, Outcome | None] = {}
        self.heard: dict[int, list] = {}
        self.deadline = 0.0

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        return [member.pid for member in self.members]

    def join(self, timeout: float = 300.0) -> Team:
        """Makes the default group, with this timeout in seconds."""
        self.run(worker.join, store=self.zygote.new_file(), timeout=timeout)
        return self

    def start(self, body: Callable, device: str = "cpu", *, limit: float = LIMIT, **params) -> None:
        """Begins the body in every rank that lives."""
        self.running = {}
        self.heard = {member.rank: [] for member in self.members}
        self.deadline = time.monotonic() + limit
        for member in self.members:
            if member.status is not None:
                continue
            args = (member.rank, self.size, device)
            where = {"module": body.__module__, "name": body.__qualname__, "path": sys.path}
            member.pipe.send(where | {"args": args, "params": params})
            self.running[member.rank] = None

    def say(self, rank: int, message: object) -> None:
        """To ``worker.listen`` in that rank's body."""
        self.members[rank].pipe.send(message)

    def hear(self, rank: int) -> object:
        """The next message that this rank's body has told."""
        while not self.heard[rank]:
            if self.running[rank] is not None or not self._receive(self.deadline):
                self._fail(f"rank {rank} did not tell what the test waits for")
        return self.heard[rank].pop(0)

    def wait_until_asleep(self, rank: int) -> None:
        """Until the kernel says that the rank's main thread sleeps (in whatever its body calls next)."""
        stat = Path(f"/proc/{self.members[rank].pid}/stat")
        while stat.read_text().rpartition(")")[2].split()[0] != "S":
            if time.monotonic() > self.deadline:
                self._fail(f"rank {rank} does not sleep")

    def kill(self, rank: int, number: int = signal.SIGKILL) -> int:
        """Sends the signal; returns when, by the clock that all processes share (nanoseconds)."""
        when = time.monotonic_ns()
        self.members[rank].kill(number)
        return when

    def wait_for(self, *ranks: int) -> None:
        """Until these ranks' bodies have ended, one way or another."""
        while late := [rank for rank in ranks if self.running[rank] is None]:
            if not self._receive(self.deadline):
                self._fail(f"ranks {late} did not finish")

    def finish(self) -> list[Outcome]:
        """Waits until every rank's body has ended somehow; fails the test if one does not."""
        deadline = self.deadline
        while None in self.running.values():
            if any(outcome and outcome.failed for outcome in self.running.values()):
                deadline = min(deadline, time.monotonic() + PATIENCE)
            if not self._receive(deadline):
                late = [
                    f"rank {rank} did not finish" for rank, outcome in self.running.items() if outcome is None
                ]
                self._fail(", ".join(late))
        return list(self.running.values())

    def run(self, body: Callable, device: str = "cpu", *, limit: float = LIMIT, **params) -> list:
        """Results in rank order; fails the test unless all ranks have one."""
        self.start(body, device, limit=limit, **params)
        outcomes = self.finish()
        if any(outcome.failed for outcome in outcomes):
            self._fail("failed in " + ", ".join(f"rank {o.rank}" for o in outcomes if o.failed))
        return [outcome.result for outcome in outcomes]

    def _receive(self, deadline: float) -> bool:
        """Takes at least one message or death; False when the deadline has passed."""
        waited_for = {}
        for member in self.members:
            if member.status is None:
                waited_for[member.pipe] = waited_for[member.pidfd] = member
        ready = wait(list(waited_for), timeout=max(deadline - time.monotonic(), 0.0))
        for source in sorted(ready, key=lambda s: isinstance(s, int)):  # last words before deaths
            member = waited_for[source]
            if source == member.pidfd:
                while member.pipe.poll():
                    if not self._take_message(member):
                        break
                self._take_death(member)
            elif member.status is None:
                self._take_message(member)
        return bool(ready)

    def _take_message(self, member: Member) -> bool:
        try:
            kind, *content = member.pipe.recv()
        except (EOFError, ConnectionResetError):
            wait([member.pidfd], timeout=PATIENCE)  # it closed its end: the descriptor reports how it ended
            return False
        if kind == "told":
            self.heard[member.rank].append(content[0])
        elif kind == "returned":
            self.running[member.rank] = Outcome(member.rank, result=content[0])
        else:
            self.running[member.rank] = Outcome(member.rank, raised=content[0], traceback=content[1])
        return True

    def _take_death(self, member: Member) -> None:
        member.status = self.zygote.ask("reap", member.pid)
        code = os.waitstatus_to_exitcode(member.status)
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"
        if self.running.get(member.rank, "idle") is None:
            self.running[member.rank] = Outcome(member.rank, died=how)

    def _fail(self, what: str) -> None:
        lines = [f"{what} (of {self.size} ranks)"]
        for member in self.members:
            if member.status is None and member.rank in self.running and self.running[member.rank] is None:
                member.kill(signal.SIGUSR1)  # it writes where it is
                wait([member.pidfd], timeout=0.2)
        for member in self.members:
            outcome = self.running.get(member.rank)
            unfinished = member.rank in self.running and outcome is None
            if outcome and outcome.raised:
                lines.append(f"---- {member.name} raised\n{outcome.traceback}")
            if outcome and outcome.died:
                lines.append(f"---- {member.name} (pid {member.pid}) was {outcome.died}")
            if (unfinished or (outcome and outcome.failed)) and (output := member.output()):
                lines.append(f"---- output of {member.name}\n{output}")
        self.close()
        raise RanksFailed("\n".join(lines))

    @property
    def alive(self) -> bool:
        return all(member.status is None for member in self.members)

    def close(self) -> None:
        """Ends all processes. Idempotent."""
        for member in self.members:
            member.kill()
        for member in self.members:
            if member.status is None:
                member.status = self.zygote.ask("reap", member.pid)
            if member.pidfd >= 0:
                os.close(member.pidfd)
                os.close(member.log)
                member.pipe.close()
                member.pidfd = -1


class Pool:
    """The zygote, and a team for each world size that tests have asked for. Used with ``with``, or closed."""

    def __init__(self) -> None:
        self.zygote = ZygoteClient()
        self.teams: dict[int, Team] = {}

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_) -> None:
        strays = self.strays()
        self.close()
        assert not strays, f"tests left processes behind: {strays}"

    def run(
        self, body: Callable, world_size: int, device: str = "cpu", *, limit: float = LIMIT, **params
    ) -> list:
        """Runs ``body(rank, world_size, device, **params)`` in the default group of this size."""
        team = self.teams.get(world_size)
        if team is None or not team.alive:
            team = self.teams[world_size] = Team(self.zygote, world_size).join()
        return team.run(body, device, limit=limit, **params)

    def fresh(self, size: int) -> Team:
        """Processes for one test, without any group yet."""
        return Team(self.zygote, size)

    def strays(self) -> list[tuple[int, str]]:
        return self.zygote.ask("strays")

    def close(self) -> None:
        for team in self.teams.values():
            team.close()
        self.zygote.close()
