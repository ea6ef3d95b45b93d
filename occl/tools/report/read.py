"""Reads the file that one process wrote, whose layout is that of csrc/coll/observe/trace_file.h and .cpp."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SUFFIX = ".occl-trace"
MAGIC = b"OCCLTRCE"
VERSION = 1
SEND, RECEIVE = 100, 101
ARRIVED, MET, ENDED, FAILED = 2, 3, 4, 5
"""How far an operation came; 1: it was only called."""

HEADER = struct.Struct("<8sIIQQQQQ")
READING = struct.Struct("<QQQ")
LATER = struct.Struct("<QQQQ")
RECORD = struct.Struct("<QQQQHBBBBhI5f")


class Unreadable(Exception):
    """A sentence: what is wrong with a file from which nothing can be shown."""


@dataclass
class Reading:
    """One moment on the clocks of a process."""

    ticks: int
    monotonic: int
    realtime: int


@dataclass
class GroupSeen:
    """A group as one process saw it."""

    number: int
    name: str
    key: str
    rank: int
    size: int
    spans: bool = False


@dataclass(slots=True)
class Record:
    """One operation. `submitted` is in ticks, and the other times are ticks after that: None where the
    operation did not come so far."""

    index: int
    group: int
    kind: int
    progress: int
    dtype: int
    has_future: bool
    peer: int
    detail: int
    number: int
    bytes: int
    submitted: int
    arrived: float | None
    met: float | None
    moved: float | None
    ended: float | None
    waited: float | None


@dataclass
class Recording:
    """What one process wrote."""

    path: Path
    host: str
    boot: str
    pid: int
    rank: int
    world: int
    command: str
    kinds: list[str]
    dtypes: list[str]
    reductions: list[str]
    readings: list[Reading]
    groups: dict[int, GroupSeen] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    overwritten: int = 0
    problems: list[str] = field(default_factory=list)

    def name(self) -> str:
        return f"pid {self.pid} on host {self.host}"


def read(path: Path) -> Recording:
    """Raises Unreadable, OSError."""
    content = path.read_bytes()
    if content[: len(MAGIC)] != MAGIC or len(content) < HEADER.size:
        if not content.strip(b"\0"):
            raise Unreadable(f"{path.name} is empty: its process ended before it wrote anything")
        raise Unreadable(f"{path.name} is no trace of torch_occl, or its beginning is damaged")
    # sync: trace-state
    _, version, record_bytes, text_at, text_bytes, records_at, capacity, state = HEADER.unpack_from(content)
    if version != VERSION:
        raise Unreadable(
            f"{path.name} has version {version} of the format, and this torch_occl reads version {VERSION}: "
            "use the torch_occl that wrote it"
        )
    if record_bytes != RECORD.size or capacity < 1 or not HEADER.size <= text_at <= records_at:
        raise Unreadable(f"{path.name} has a damaged header")
    lines = list(_lines(content[text_at : text_at + text_bytes]))
    if not lines or "pid" not in lines[0]:
        raise Unreadable(f"{path.name} does not say which process wrote it: its beginning is damaged")
    made = _recording(path, lines, list(_readings(content)))
    _add_records(made, content, records_at, capacity)
    if state == 3:
        made.problems.append(f"{made.name()} ended its trace early: its file could not become longer")
    elif state != 2:
        made.problems.append(f"{made.name()} did not end its trace: it was killed, or it is still running")
    return made


def _lines(text: bytes) -> Iterator[dict[str, Any]]:
    """The lines of JSON, up to the first that was not written to its end."""
    for line in text.split(b"\0", 1)[0].split(b"\n"):
        try:
            value = json.loads(line)
        except ValueError:
            return
        if not isinstance(value, dict):
            return
        yield value


def _readings(content: bytes) -> Iterator[Reading]:
    if len(content) < HEADER.size + READING.size + 2 * LATER.size:
        return
    yield Reading(*READING.unpack_from(content, HEADER.size))
    for i in range(2):
        # sync: trace-reading
        stamp, *reading = LATER.unpack_from(content, HEADER.size + READING.size + i * LATER.size)
        if stamp:
            yield Reading(*reading)


def _recording(path: Path, lines: list[dict[str, Any]], readings: list[Reading]) -> Recording:
    about = lines[0]
    try:
        made = Recording(
            path,
            str(about["host"]),
            str(about["boot"]),
            int(about["pid"]),
            int(about["rank"]),
            int(about["world"]),
            str(about["command"]),
            [str(name) for name in about["kinds"]],
            [str(name) for name in about["dtypes"]],
            [str(name) for name in about["reductions"]],
            readings,
        )
        for line in lines[1:]:
            group = GroupSeen(
                int(line["group"]),
                str(line["name"]),
                str(line["key"]),
                int(line["rank"]),
                int(line["size"]),
                bool(line.get("spans", 0)),
            )
            made.groups[group.number] = group
    except (KeyError, OverflowError, TypeError, ValueError) as error:
        raise Unreadable(f"{path.name} has a damaged description of its process: {error!r}") from error
    return made


def _add_records(made: Recording, content: bytes, at: int, capacity: int) -> None:
    damaged, last = 0, 0
    end = at + (max(0, len(content) - at) // RECORD.size) * RECORD.size
    view = memoryview(content)[at:end] if end > at else memoryview(b"")
    for place, values in enumerate(RECORD.iter_unpack(view)):  # sync: trace-record, trace-progress
        stamp = values[0]
        if stamp == 0:  # never begun, or being replaced when the process ended
            continue
        record = _record(values)
        if (stamp - 1) % capacity != place or record is None:
            damaged += 1
            continue
        last = max(last, stamp)
        made.records.append(record)
    made.records.sort(key=lambda record: record.index)
    made.overwritten = max(0, last - capacity)
    if made.overwritten:
        made.problems.append(
            f"{made.name()} recorded more than its file holds: its first {made.overwritten} operations "
            "are not there any more"
        )
    if damaged:
        made.problems.append(f"{made.path.name} has {damaged} damaged records, which are left out")


def _record(values: tuple[Any, ...]) -> Record | None:
    stamp, submitted, number, size, group, progress, kind, dtype, future, peer, detail, *times = values
    arrived, met, moved, ended, waited = times
    if not 1 <= progress <= FAILED or not all(map(math.isfinite, times)):
        return None
    return Record(
        stamp - 1,
        group,
        kind,
        progress,
        dtype,
        future == 1,
        peer,
        detail,
        number,
        size,
        submitted,
        arrived if arrived >= 0 and progress >= ARRIVED else None,
        met if met >= 0 and progress >= ARRIVED else None,
        moved if moved >= 0 and progress >= MET else None,
        ended if ended >= 0 and progress >= ENDED else None,
        waited if waited >= 0 else None,
    )
