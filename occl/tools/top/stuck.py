"""Sentences about groups that do not go on: the rank that is waited for, and what its process does."""

from __future__ import annotations

from dataclasses import dataclass, field

from occl import stacks
from occl.tools.text import ranks
from occl.tools.top.groups import GONE, STOPPED, Group, Rank, Snapshot

PATIENCE = 1.0
"""Seconds after which a rank that waits is worth a sentence."""
MOST_SILENT = 3
"""Processes of a group whose answer is waited for in vain. No other one is asked then: each takes
`stacks.PATIENCE`."""
DEBUGGERS = ("(pdb.py:", "(bdb.py:")
"""Frames of Python's debugger."""


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
    """The innermost Python frames of the rank that is waited for, where it shows them."""


def waits(snapshot: Snapshot, group: Group) -> list[Wait]:
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
            unknown.setdefault((operation, _elsewhere(group)), []).append(number)
    silent: list[int] = []
    made = [
        _wait(snapshot, group, waiting, other, "", operation, silent)
        for (other, operation), waiting in by.items()
    ]
    made += [
        _wait(snapshot, group, waiting, None, what, operation, silent)
        for (operation, what), waiting in unknown.items()
    ]
    return sorted(made, key=lambda wait: (-round(wait.seconds), wait.rank))


def _elsewhere(group: Group) -> str:
    """The ranks of which at least one is late, where all that are seen here have come."""
    others = [rank for rank in range(group.size) if rank not in group.ranks]
    if not others:
        return "messages of other nodes"
    if len(others) == 1:
        return f"{ranks(others)} on another node"
    return f"one or more of {ranks(others, most=8)} on other nodes"


def _operation(rank: Rank) -> str:
    return f"{rank.call.text} #{rank.call.number}" if rank.call else "an operation"


def _wait(
    snapshot: Snapshot,
    group: Group,
    waiting: list[int],
    missing: int | None,
    what: str,
    operation: str,
    silent: list[int],
) -> Wait:
    """``what``: what they wait for, if it is not the rank ``missing``. ``silent``: as in `_does`."""
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
        doing = _waits_elsewhere(snapshot, group, rank)
        if not doing:
            doing, stack = _does(rank, silent)
        text += f" Rank {missing} {doing}."
    return Wait(
        waiting,
        -1 if missing is None else missing,
        rank.process.pid if rank else None,
        round(seconds, 3),
        None if left is None else round(left, 3),
        text,
        stack,
    )


def _waits_elsewhere(snapshot: Snapshot, group: Group, rank: Rank) -> str:
    """What its process waits for in other operations; empty if it waits in none, or can make no progress."""
    waiting = [
        (other, number)
        for other, number in snapshot.waiting_elsewhere(rank)
        if other is not group or other.waits_for(number)
    ]
    if rank.state in STOPPED or rank.state == GONE:
        return ""
    texts = []
    for other, number in waiting[:3]:
        missing = other.waits_for(number)
        place = "" if other is group else f" of group {other.name}"
        texts.append(
            f"waits for {ranks(missing, most=8) if missing else 'other ranks'} in "
            f"{_operation(other.ranks[number])}{place}"
        )
    return "; it ".join(texts)


def _does(rank: Rank, silent: list[int]) -> tuple[str, list[str]]:
    """What the process of a rank does that waits for no other one, and its stack.

    ``silent``: the pids of processes that have not answered. This one is added if it does not.
    """
    doing, stack = rank.process.doing(), []
    if rank.state not in STOPPED and rank.state != GONE and len(silent) < MOST_SILENT:
        try:
            stack = rank.process.stack()
        except stacks.NoAnswer:
            silent.append(rank.process.pid)
            doing += " in a call outside Python that keeps the interpreter's lock"
    if any(debugger in frame for frame in stack for debugger in DEBUGGERS):
        doing = "is in Python's debugger"
    last = rank.call
    past = f"its last operation was {last.text} #{last.number}" if last else "it has called no operation"
    return f"{doing}; {past}", stack
