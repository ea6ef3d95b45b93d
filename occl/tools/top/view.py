"""What `top` shows, as short texts: one table for each group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from occl.tools.text import narrow_duration, narrow_size, ranks
from occl.tools.top.groups import Group, Row
from occl.tools.top.stuck import Wait

SORTS: dict[str, Callable[[Row], tuple[float, int]]] = {
    "rank": lambda row: (row.rank, 0),
    "pid": lambda row: (row.pid, row.rank),
    "wait": lambda row: (-row.waiting_share, row.rank),
    "late": lambda row: (-row.lateness, row.rank),
    "rate": lambda row: (-row.bytes_per_second, row.rank),
    "memory": lambda row: (-row.memory, row.rank),
}

SHORT = {
    "float": "f",
    "bfloat": "bf",
    "int": "i",
    "uint": "u",
    "complex": "c",
    "bool": "bool",
    "bytes": "",
}


@dataclass
class GroupView:
    group: Group
    rows: list[Row]
    waits: list[Wait]


@dataclass
class View:
    host: str
    interval: float
    groups: list[GroupView]
    problems: list[str]


@dataclass(frozen=True)
class Column:
    title: str
    width: int
    text: Callable[[Row], str]
    left: bool = False


def dtype(name: str) -> str:
    """ "f32" for "float32"; names without a short form stay."""
    letters = name.rstrip("0123456789")
    return SHORT[letters] + name[len(letters) :] if letters in SHORT else name


def stage(row: Row) -> str:
    if row.stage == "waiting":
        others = [str(rank) for rank in row.waits_for]
        if not others:
            return "waits"
        return f"waits {','.join(others)}" if len(others) <= 2 else f"waits {others[0]} +{len(others) - 1}"
    if row.stage == "elsewhere":
        return f"in group {row.busy_in[0]}"
    return "on hold" if row.stage == "held" else row.stage


def columns(width: int) -> list[Column]:
    """What fits into so many columns: 79 with the gaps at least."""
    wide = width >= 110
    made = [
        Column("rank", 4, lambda row: str(row.rank)),
        Column("pid", 7, lambda row: str(row.pid)),
        Column("operation", 14, lambda row: row.call.kind if row.call else "-", left=True),
        Column("#", 7, lambda row: str(row.call.number) if row.call else ""),
        Column("type", 4, lambda row: dtype(row.call.dtype) if row.call else "", left=True),
        Column("size", 4, lambda row: narrow_size(row.call.bytes) if row.call else ""),
        Column("stage", 10, stage, left=True),
        Column("B/s", 4, lambda row: narrow_size(row.bytes_per_second)),
        Column("wait", 4, lambda row: f"{row.waiting_share:.0%}"),
        Column("late", 6, lambda row: narrow_duration(1e9 * row.lateness)),
        Column("mem", 4, lambda row: narrow_size(row.memory)),
    ]
    if wide:
        made[4] = Column("type", 13, lambda row: row.call.dtype if row.call else "", left=True)
        made[6] = Column("stage", 14, stage, left=True)
        made.insert(2, Column("host", 16, lambda row: row.host, left=True))
    return made


def title(view: GroupView) -> str:
    group, here = view.group, len(view.group.ranks)
    text = f"group {group.name}: {group.size} rank{'s' * (group.size != 1)}"
    if here < group.size:
        missing = [rank for rank in range(group.size) if rank not in group.ranks]
        text += ", over several nodes" if group.spans_nodes else ""
        text += f", without {ranks(missing, most=8)}"
    return text


def headline(view: View) -> str:
    pids = {row.pid for group in view.groups for row in group.rows}
    counts = [f"{len(view.groups)} group{'s' * (len(view.groups) != 1)}"]
    counts.append(f"{len(pids)} process{'es' * (len(pids) != 1)}")
    return f"torch_occl top: host {view.host}, {', '.join(counts)}, over {view.interval:.1f} s"
