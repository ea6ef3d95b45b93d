"""A job in the JSON of Chrome's trace events, which ui.perfetto.dev loads.

Each rank is a process. Each of its groups has a track for collectives, and as many for messages as are in
flight at a time. An operation is a slice, from the call to the end; in it lie `waits for rank 3` and `moves`.
An arrow goes from the rank that came last to those that waited for it.

The format is that of the document "Trace Event Format" by the authors of Chrome's tracing.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from occl.tools.report import analyse
from occl.tools.report.merge import Job, Operation

ARROWS_FROM = 1000.0
"""Shorter waits, in nanoseconds, get no arrow."""

Event = dict[str, Any]


def write(job: Job, path: Path) -> None:
    """Raises OSError."""
    with gzip.open(path, "wt", compresslevel=5, encoding="utf-8") as out:
        out.write('{"displayTimeUnit": "ns", "traceEvents": [\n')
        for n, event in enumerate(events(job)):
            out.write(("" if n == 0 else ",\n") + json.dumps(event, separators=(",", ":")))
        about = {"command": job.command, "problems": job.problems, "clocks": job.clocks}
        out.write('\n], "otherData": ' + json.dumps(about) + "}\n")


def events(job: Job) -> Iterator[Event]:
    for row in job.rows:
        name = f"{row.label} (pid {row.pid}, host {row.host})"
        yield {"ph": "M", "name": "process_name", "pid": row.number, "tid": 0, "args": {"name": name}}
        yield {
            "ph": "M",
            "name": "process_sort_index",
            "pid": row.number,
            "tid": 0,
            "args": {"sort_index": row.number},
        }
    waits = {id(operation): (by, time) for operation, by, time in analyse.waits(job)}
    tracks = _Tracks()
    for operation in job.operations:
        track, is_new = tracks.track(operation)
        if is_new:
            what = "messages of " if operation.is_message else ""
            name = what + job.where(operation)
            yield {
                "ph": "M",
                "name": "thread_name",
                "pid": operation.row,
                "tid": track,
                "args": {"name": name},
            }
            order = {"sort_index": track}
            yield {"ph": "M", "name": "thread_sort_index", "pid": operation.row, "tid": track, "args": order}
        yield from _slices(job, operation, track, waits.get(id(operation)))
    yield from _arrows(job, tracks, waits)


class _Tracks:
    """Which track an operation lies on: slices of one track must lie in each other or side by side."""

    def __init__(self) -> None:
        self._ends: dict[tuple[int, int, bool], list[float]] = {}
        self._numbers: dict[tuple[int, int, bool, int], int] = {}
        self.of: dict[int, int] = {}

    def track(self, operation: Operation) -> tuple[int, bool]:
        kind = (operation.row, operation.group, operation.is_message)
        ends = self._ends.setdefault(kind, [])
        lane = next((n for n, end in enumerate(ends) if end <= operation.submitted), len(ends))
        if lane == len(ends):
            ends.append(0.0)
        ends[lane] = max(operation.stop, operation.submitted)
        is_new = (*kind, lane) not in self._numbers
        number = self._numbers.setdefault((*kind, lane), len(self._numbers) + 1)
        self.of[id(operation)] = number
        return number, is_new


def _slice(operation: Operation, track: int, name: str, begin: float, end: float, **more: Any) -> Event:
    return {
        **{"ph": "X", "name": name, "pid": operation.row, "tid": track},
        **{"ts": round(begin / 1000, 3), "dur": round(max(0.0, end - begin) / 1000, 3)},
        **more,
    }


def _slices(
    job: Job, operation: Operation, track: int, wait: tuple[int | None, float] | None
) -> Iterator[Event]:
    args: dict[str, Any] = {
        "number": operation.number,
        "group": job.where(operation),
        "bytes": operation.bytes,
        "dtype": operation.dtype,
    }
    if operation.reduction:
        args["reduction"] = operation.reduction
    if operation.peer is not None:
        args["peer" if operation.is_message else "last seen to arrive"] = job.rows[operation.peer].label
    span = analyse.blocked(operation)
    args["blocked us"] = round((span[1] - span[0]) / 1000, 3) if span else 0.0
    if operation.open:
        args["state"] = "has not ended"
    elif operation.failed:
        args["state"] = "failed"
    category = "message" if operation.is_message else "collective"
    name = operation.title
    yield _slice(operation, track, name, operation.submitted, operation.stop, cat=category, args=args)
    if operation.arrived is None:
        return
    begin = operation.arrived
    if wait is not None:
        by = "another rank" if wait[0] is None else job.rows[wait[0]].label
        yield _slice(operation, track, f"waits for {by}", begin, begin + wait[1], cat="waiting")
    if operation.met is not None and operation.stop > operation.met:
        yield _slice(operation, track, "moves", operation.met, operation.stop, cat="moving")


def _arrows(job: Job, tracks: _Tracks, waits: dict[int, tuple[int | None, float]]) -> Iterator[Event]:
    number = 0
    for (group, _), operations in job.meetings().items():
        last = analyse.last_arrival(operations, job.groups[group].size)
        for operation in operations:
            wait = waits.get(id(operation))
            if last is None or last.arrived is None or wait is None or wait[1] < ARROWS_FROM:
                continue
            number += 1
            ends = (("s", last, last.arrived), ("f", operation, (operation.arrived or 0.0) + wait[1]))
            for phase, at, time in ends:
                yield {
                    **{"ph": phase, "bp": "e", "name": "came last", "cat": "waiting", "id": number},
                    **{"pid": at.row, "tid": tracks.of[id(at)], "ts": round(time / 1000, 3)},
                }
