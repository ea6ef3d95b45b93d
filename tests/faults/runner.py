"""Random faults: a rank is struck at a random moment of a random script, and the others must live well.

Each fault follows from its seed, which is shown where it fails: ``python -m tests.faults --seed S --faults
1`` makes it again (the moment is the machine's).
"""

from __future__ import annotations

import os
import random
import re
import select
import signal
import statistics
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from tests.support.ranks import Ranks, Team

from . import body

DEADLY = {
    "kill": signal.SIGKILL,
    "segfault": signal.SIGSEGV,
    "terminate": signal.SIGTERM,
    "orphan": signal.SIGKILL,
    "joining": signal.SIGKILL,
}
"""The signal that ends the victim; an orphan is a forked child of it that lives on."""

KINDS = (*DEADLY, "stop", "pause", "slow", "abort")
INDIRECT = ("has not arrived", "left the group", "left group", "it waits for rank", "ended group")
"""Errors of ranks that wait for a rank which itself waits for a stopped one contain one of these."""

STOPPED = 1.0
"""Seconds that the others wait for a rank that has stopped."""


@dataclass(frozen=True)
class Fault:
    seed: int
    size: int
    victim: int
    kind: str
    delay: float  # seconds after all ranks have begun
    device: str

    @classmethod
    def of(cls, seed: int) -> Fault:
        draw = random.Random(seed)
        size = draw.randrange(2, 9)
        # Most operations are short, most scripts are not: many moments are early.
        delay = draw.expovariate(1 / 0.01)
        return cls(seed, size, draw.randrange(size), draw.choice(KINDS), delay, draw.choice(["cpu", "dev"]))


@dataclass
class Tally:
    """What was tried, and how long survivors waited."""

    tried: Counter[str] = field(default_factory=Counter)
    milliseconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def lines(self) -> list[str]:
        lines = [f"{count:8}  {kind}" for kind, count in sorted(self.tried.items())]
        lines.append(f"{self.tried.total():8}  faults in all, each survived by all others")
        for kind, values in sorted(self.milliseconds.items()):
            values = sorted(values)
            most = f"{values[int(0.95 * (len(values) - 1))]:.1f} of 95 %, {values[-1]:.1f} most"
            median = f"{statistics.median(values):.1f} median"
            lines.append(f"          ms from {kind} to the error: {median}, {most}, {len(values)} values")
        return lines


class Trial:
    """One fault. Raises RanksFailed or AssertionError, with the fault in it, unless all is well."""

    def __init__(self, pool: Ranks, fault: Fault, tally: Tally) -> None:
        self.pool, self.fault, self.tally = pool, fault, tally

    def run(self) -> None:
        try:
            with self.pool.fresh(self.fault.size) as team:
                self._run(team)
        except AssertionError as error:
            raise type(error)(f"{self.fault}: {error}") from None
        self.tally.tried[self.fault.kind] += 1

    def _run(self, team: Team) -> None:
        fault, everybody = self.fault, set(range(self.fault.size))
        lasting = fault.kind in DEADLY or fault.kind in ("stop", "abort")
        team.start(
            body.live,
            fault.device,
            store=self.pool.source.new_file(),
            victim=fault.victim,
            kind=fault.kind,
            seed=fault.seed,
            timeout=STOPPED if fault.kind in ("stop", "joining") else 60.0,
            steps=1_000_000 if lasting else 20,
        )
        orphan = team.hear(fault.victim) if fault.kind == "orphan" else None
        for rank in everybody:
            assert team.hear(rank) == "ready"
        time.sleep(fault.delay)  # the moment of the fault: any is right
        struck = self._strike(team)
        survivors = everybody - {fault.victim} if fault.kind in DEADLY else everybody
        told = {rank: team.hear(rank) for rank in survivors - {fault.victim}}
        if fault.kind == "stop":
            team.kill(fault.victim, signal.SIGCONT)
        if fault.victim in survivors:
            told[fault.victim] = team.hear(fault.victim)
        else:
            team.wait_for(fault.victim)
        if orphan:
            os.kill(orphan, 0)  # it lives, and has hidden nothing
            os.kill(orphan, signal.SIGKILL)
        again = (self.pool.source.new_file(), sorted(survivors))
        for rank in survivors:
            team.say(rank, again)
        failed = [o for o in team.finish() if o.failed and o.rank in survivors]
        assert not failed, "\n".join(f"rank {o.rank}: {o.died or o.traceback}" for o in failed)
        self._judge(team.pids[fault.victim], {rank: told[rank] for rank in survivors}, struck)

    def _strike(self, team: Team) -> int:
        fault, when = self.fault, time.monotonic_ns()
        if fault.kind in DEADLY:
            team.kill(fault.victim, DEADLY[fault.kind])
            # The kernel takes its time to take such a process apart; it has died when its parent is told so.
            select.select([team.members[fault.victim].pidfd], [], [])
            when = time.monotonic_ns()
        elif fault.kind == "stop":
            team.kill(fault.victim, signal.SIGSTOP)
        elif fault.kind in ("pause", "slow"):
            for _ in range(1 if fault.kind == "pause" else 8):
                team.kill(fault.victim, signal.SIGSTOP)
                time.sleep(0.01)  # what a pause is
                team.kill(fault.victim, signal.SIGCONT)
        return when

    def _judge(self, pid: int, told: dict[int, tuple[str, int, int]], struck: int) -> None:
        fault = self.fault
        texts = {rank: text for rank, (text, _, _) in told.items()}
        if fault.kind in ("pause", "slow"):
            assert not any(texts.values()), texts
            return
        others = {rank: text for rank, text in texts.items() if rank != fault.victim}
        assert all(others.values()), texts
        if fault.kind == "abort":
            # A rank that learns it in one group leaves the other, and does not come to a third.
            words = ("aborted group", "left the group", "left group", "waiting for rank")
            assert all(any(word in text for word in words) for text in others.values()), texts
            assert any("aborted group" in text for text in texts.values()), texts
            return
        if fault.kind == "stop":  # the others wait for one another, and one of them for the victim
            direct = re.compile(rf"\(pid {pid}, host |rank {fault.victim}\b")
            assert any(direct.search(text) for text in others.values()), texts
        for rank, text in others.items():
            named = f"(pid {pid}, host " in text
            # Of a rank that did not join the new group only the number is known; and a rank that is late may
            # itself wait for the victim, or have given up because of it.
            missed = "waiting for rank" in text
            indirectly = fault.kind == "stop" and any(words in text for words in INDIRECT)
            assert named or missed or indirectly, texts
            if fault.kind in DEADLY and named and "exited" in text:
                _, began, ended = told[rank]
                self.tally.milliseconds[fault.kind].append((ended - max(struck, began)) / 1e6)


def run(pool: Ranks, faults: int, seed: int, minutes: float = float("inf")) -> Tally:
    """So many faults, with the seeds ``seed``, ``seed + 1``, ..., or as many as fit into the time."""
    tally, end = Tally(), time.monotonic() + 60 * minutes
    for number in range(faults):
        if time.monotonic() > end:
            break
        Trial(pool, Fault.of(seed + number), tally).run()
    return tally
