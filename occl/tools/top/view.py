"""What `top` shows, as short texts: one table for each group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from occl.tools.top.groups import Group, Row
from occl.tools.top.stuck import Wait, enumerate_ranks

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


def size(count: float) -> str:
    """At most four letters: "0", "512", "4K", "1.5M"."""
    value = float(count)
    for unit in ("", "K", "M", "G", "T", "P"):
        if value < 999.5 or unit == "P":
            text = f"{value:.1f}" if unit and value < 9.95 else f"{value:.0f}"
            return text.removesuffix(".0") + unit
        value /= 1024
    return "?"


def duration(seconds: float) -> str:
    """At most five letters, with a sign: "+12us", "-3ms"."""
    value = abs(seconds)
    sign = "-" if seconds < 0 else "+"
    if value < 0.5e-6:
        return "0"
    for scale, unit in ((1e-6, "us"), (1e-3, "ms"), (1.0, "s")):
        if value < 999.5 * scale or (unit == "s" and value < 9999.5):
            return f"{sign}{value / scale:.0f}{unit}"
    return f"{sign}{value / 3600:.0f}h"


def stage(row: Row) -> str:
    if row.stage == "waiting":
        ranks = [str(rank) for rank in row.waits_for]
        if not ranks:
            return "waits"
        return f"waits {','.join(ranks)}" if len(ranks) <= 2 else f"waits {ranks[0]} +{len(ranks) - 1}"
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
        Column("size", 4, lambda row: size(row.call.bytes) if row.call else ""),
        Column("stage", 10, stage, left=True),
        Column("B/s", 4, lambda row: size(row.bytes_per_second)),
        Column("wait", 4, lambda row: f"{row.waiting_share:.0%}"),
        Column("late", 6, lambda row: duration(row.lateness)),
        Column("mem", 4, lambda row: size(row.memory)),
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
        text += f", without {enumerate_ranks(missing)}"
    return text


def headline(view: View) -> str:
    pids = {row.pid for group in view.groups for row in group.rows}
    counts = [f"{len(view.groups)} group{'s' * (len(view.groups) != 1)}"]
    counts.append(f"{len(pids)} process{'es' * (len(pids) != 1)}")
    return f"torch_occl top: host {view.host}, {', '.join(counts)}, over {view.interval:.1f} s"
