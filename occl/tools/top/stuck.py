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
DEBUGGER = ("(pdb.py:", "(bdb.py:", "(cmd.py:", "(debugger.py:")
"""Frames of Python's debugger, and of IPython's."""
PROMPT = "interaction (pdb.py:"
"""The frame that is there while the debugger asks for a command. Its others are also below a program that
`python -m pdb` has started and that runs."""
DEBUGGED, IN_A_CALL = "is in Python's debugger", "in a call outside Python that keeps the interpreter's lock"
MOST_NAMES, MOST_ELSEWHERE, MOST_FRAMES = 8, 3, 8
SEEN = "`occl top` shows all ranks."
UNSEEN = "`occl top` without a pid, on the host of that rank, shows what it does."
CIRCLE = "They wait for each other: make these calls in one order on all ranks."


@dataclass
class Wait:
    """Ranks that wait for the same one in the same operation."""

    waiting: list[int]
    rank: int
    pid: int | None
    seconds: float
    times_out: float | None
    who: str
    """Which ranks wait for which: the sentence without what the last one does."""
    text: str
    advice: str
    """What to do; "" where only a look at all ranks helps."""
    stack: list[str] = field(default_factory=list)
    """The innermost Python frames of the rank that is waited for, where it shows them."""
    circle: list[str] = field(default_factory=list)
    """The operations in which ranks wait for each other, if they do."""


def distinct(waits: list[Wait]) -> list[Wait]:
    """Of waits that end in the same circle only the first."""
    circles: list[list[str]] = []
    kept = []
    for wait in waits:
        if wait.circle not in circles:
            kept.append(wait)
        if wait.circle:
            circles.append(wait.circle)
    return kept


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
    if rank is None:
        story = Story(text, "", "" if missing is None else UNSEEN)
    else:
        story = _story(snapshot, group, waiting, rank, silent)
        story.who = text + story.who
    return Wait(
        waiting,
        -1 if missing is None else missing,
        rank.process.pid if rank else None,
        round(seconds, 3),
        None if left is None else round(left, 3),
        story.who,
        story.who + story.does,
        story.advice,
        story.stack,
        story.circle,
    )


@dataclass
class Story:
    """What happens behind a wait, as sentences that begin with a space."""

    who: str
    """Which ranks wait for which."""
    does: str
    """What the last of them does."""
    advice: str
    stack: list[str] = field(default_factory=list)
    circle: list[str] = field(default_factory=list)
    """As in `Wait`."""


def _story(snapshot: Snapshot, group: Group, waiting: list[int], missing: Rank, silent: list[int]) -> Story:
    """From the rank that is waited for to the one that it waits for, and so on, until one waits for none, or
    they wait in a circle."""
    told = [([group.ranks[number].process for number in waiting], _in_group(group, waiting[0]))]
    rank, in_group, who = missing, group, ""
    while True:
        name = _name(group, in_group, rank.record.rank)
        name = name[0].upper() + name[1:]
        elsewhere = _waits_elsewhere(snapshot, in_group, rank)
        if not elsewhere:
            doing, stack = _does(rank, silent)
            return Story(who, f" {name} {doing}.", _advice(rank, doing), stack)
        who += f" {name} {'; it '.join(_sentence(group, other, number) for other, number in elsewhere)}."
        other, number = elsewhere[0]
        told.append(([rank.process], _in_group(other, number)))
        nexts = other.waits_for(number)
        next_rank = other.ranks.get(nexts[0]) if nexts else None
        if next_rank is None:
            return Story(who, "", UNSEEN if nexts else "")
        for first, (processes, _) in enumerate(told):
            if next_rank.process in processes:
                return Story(who, "", CIRCLE, circle=sorted(operation for _, operation in told[first:]))
        rank, in_group = next_rank, other


def _in_group(group: Group, number: int) -> str:
    """The operation of a rank, and its group."""
    return f"{_operation(group.ranks[number])} of group {group.name}"


def _name(group: Group, of: Group, number: int) -> str:
    """A rank of the group ``of``, as the reader of a sentence about ``group`` knows it."""
    process = of.ranks[number].process if number in of.ranks else None
    known = [mine for mine, rank in group.ranks.items() if rank.process is process]
    return f"rank {known[0]}" if known else f"rank {number} of group {of.name}"


def _sentence(group: Group, of: Group, number: int) -> str:
    """What a rank of the group ``of`` waits for."""
    missing = of.waits_for(number)
    text = f"in {_operation(of.ranks[number])}"
    if of is not group:
        text += f" of group {of.name}"
    names = [_name(group, of, other) for other in missing[:MOST_NAMES]]
    more = " and others" if len(missing) > MOST_NAMES else ""
    own = [other for other, name in zip(missing, names, strict=False) if name != f"rank {other}"]
    if own and not any(" of group " in name for name in names):
        these = "these are" if len(missing) > 1 else "that is"
        text += f", where {these} {ranks(missing, most=MOST_NAMES)}"
    return f"waits for {' and '.join(names) or 'other ranks'}{more} {text}"


def _waits_elsewhere(snapshot: Snapshot, group: Group, rank: Rank) -> list[tuple[Group, int]]:
    """Where its process waits in other operations: groups, and its rank in each; nothing if it can make no
    progress."""
    if rank.state in STOPPED or rank.state == GONE:
        return []
    return [
        (other, number)
        for other, number in snapshot.waiting_elsewhere(rank)
        if other is not group or other.waits_for(number)
    ][:MOST_ELSEWHERE]


def _advice(rank: Rank, doing: str) -> str:
    """What to do about a process that does this; "" if only a look at it helps."""
    pid = rank.process.pid
    if rank.state in STOPPED and "debugger" not in doing:
        return f"`kill -CONT {pid}` continues it."
    if rank.state in STOPPED or DEBUGGED in doing:
        return "Continue it in its debugger."
    if IN_A_CALL in doing:
        return f"`py-spy dump --native --pid {pid}` shows that call."
    return ""


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
            doing += f" {IN_A_CALL}"
    debugged = _debugged(stack)
    if debugged is not None:
        doing, stack = DEBUGGED, debugged
    last = rank.call
    past = f"its last operation was {last.text} #{last.number}" if last else "it has called no operation"
    return f"{doing}; {past}", stack[:MOST_FRAMES]


def _debugged(stack: list[str]) -> list[str] | None:
    """The frames of the program that the debugger has interrupted; None if it has not."""
    prompts = [place for place, frame in enumerate(stack) if frame.startswith(PROMPT)]
    if not prompts:
        return None
    inside = stack[prompts[-1] + 1 :]
    while inside and any(file in inside[0] for file in DEBUGGER):
        inside.pop(0)
    return inside
