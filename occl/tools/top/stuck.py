"""Sentences about groups that do not go on: the rank that is waited for, and what its process does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from occl.tools.text import ranks
from occl.tools.top.groups import GONE, Group, Rank, Snapshot

PATIENCE = 1.0
"""Seconds after which a rank that waits is worth a sentence."""
PY_SPY = "py-spy"
STACK_SECONDS = 5.0
STACK_LINES = 8


@dataclass
class Wait:
    """Ranks that wait for the same one in the same operation."""

    waiting: list[int]
    rank: int
    pid: int | None
    seconds: float
    times_out: float | None
    text: str
    stack: list[str] = field(default_factory=list)


def waits(snapshot: Snapshot, group: Group, stacks: Stacks) -> list[Wait]:
    """One for each rank that others wait for, the longest first."""
    by: dict[tuple[int, str], list[int]] = {}
    unknown: dict[tuple[str, str], list[int]] = {}
    for number, rank in sorted(group.ranks.items()):
        since = rank.waits_since()
        if since is None or rank.state == GONE or snapshot.now - since < PATIENCE * 1e9:
            continue
        operation = _operation(rank)
        missing = group.waits_for(number)
        for other in missing:
            by.setdefault((other, operation), []).append(number)
        if not missing and rank.receives:
            unknown.setdefault((operation, "a message of any rank"), []).append(number)
        elif not missing and group.spans_nodes:
            unknown.setdefault((operation, "ranks of other nodes"), []).append(number)
    made = [
        _wait(snapshot, group, waiting, other, "", operation, stacks)
        for (other, operation), waiting in by.items()
    ]
    made += [
        _wait(snapshot, group, waiting, None, what, operation, stacks)
        for (operation, what), waiting in unknown.items()
    ]
    return sorted(made, key=lambda wait: (-round(wait.seconds), wait.rank))


def _operation(rank: Rank) -> str:
    return f"{rank.call.text} #{rank.call.number}" if rank.call else "an operation"


def _wait(
    snapshot: Snapshot,
    group: Group,
    waiting: list[int],
    missing: int | None,
    what: str,
    operation: str,
    stacks: Stacks,
) -> Wait:
    """``what``: what they wait for, if it is not the rank ``missing``."""
    oldest = min(group.ranks[r].waits_since() or snapshot.now for r in waiting)
    seconds = (snapshot.now - oldest) / 1e9
    deadlines = [call.deadline for r in waiting if (call := group.ranks[r].call) and call.deadline]
    left = (min(deadlines) - snapshot.now) / 1e9 if deadlines else None
    subject = ranks(waiting, most=8)
    text = f"{subject[0].upper()}{subject[1:]} of group {group.name} {'has' if len(waiting) == 1 else 'have'}"
    text += f" waited {seconds:.1f} s for "
    rank = group.ranks.get(missing) if missing is not None else None
    if missing is None:
        text += what
    elif rank is None:
        text += f"rank {missing}, whose process is not seen here,"
    else:
        text += f"rank {missing} (pid {rank.process.pid}, host {rank.process.host})"
    text += f" in {operation}"
    if left is not None and left < 24 * 3600:
        text += f", which times out in {max(0.0, left):.1f} s"
    text += "."
    stack: list[str] = []
    if rank is not None:
        text += f" Rank {missing} {_does(snapshot, group, rank)}."
        stack = stacks.of(rank.process.pid) if rank.state != GONE else []
    return Wait(
        waiting,
        -1 if missing is None else missing,
        rank.process.pid if rank else None,
        round(seconds, 3),
        None if left is None else round(left, 3),
        text,
        stack,
    )


def _does(snapshot: Snapshot, group: Group, rank: Rank) -> str:
    doing = rank.process.doing()
    last = rank.call
    past = f"its last operation was {last.text} #{last.number}" if last else "it has called no operation"
    waiting = [
        (other, number)
        for other, number in snapshot.waiting_elsewhere(rank)
        if other is not group or other.waits_for(number)
    ]
    if rank.state in "Tt" or rank.state == GONE or not waiting:
        return f"{doing}; {past}"
    texts = []
    for other, number in waiting[:3]:
        missing = other.waits_for(number)
        place = "" if other is group else f" of group {other.name}"
        texts.append(
            f"waits for {ranks(missing, most=8) if missing else 'other ranks'} in "
            f"{_operation(other.ranks[number])}{place}"
        )
    return "; it ".join(texts)


class Stacks:
    """Python stacks of processes, through py-spy where it is installed."""

    def __init__(self, background: bool) -> None:
        here = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        self.command = shutil.which(PY_SPY, path=here)
        self.background = background
        self.known: dict[int, tuple[float, list[str]]] = {}
        self.asking: set[int] = set()

    @staticmethod
    def none() -> Stacks:
        """No stacks: py-spy is not run."""
        stacks = Stacks(background=True)
        stacks.command = None
        return stacks

    def of(self, pid: int) -> list[str]:
        """The innermost frames of the main thread; empty if they are not known (yet)."""
        if not self.command:
            return []
        at, lines = self.known.get(pid, (0.0, []))
        if time.monotonic() - at > STACK_SECONDS and pid not in self.asking:
            self.asking.add(pid)
            if self.background:
                threading.Thread(target=self._ask, args=(pid,), daemon=True).start()
            else:
                self._ask(pid)
                lines = self.known[pid][1]
        return lines

    def _ask(self, pid: int) -> None:
        assert self.command
        lines: list[str] = []
        try:
            dump = subprocess.run(
                [self.command, "dump", "--nonblocking", "--pid", str(pid)],
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=STACK_SECONDS,
                check=False,
            )
            lines = main_thread(dump.stdout)
        except (OSError, subprocess.TimeoutExpired):
            pass
        self.known[pid] = (time.monotonic(), lines)
        self.asking.discard(pid)


def main_thread(dump: str) -> list[str]:
    """The frames of the main thread in what py-spy prints."""
    frames: list[str] = []
    inside = False
    for line in dump.splitlines():
        if line.startswith("Thread "):
            inside = '"MainThread"' in line
        elif inside and line.startswith("    ") and len(frames) < STACK_LINES:
            frames.append(line.strip())
    return frames
