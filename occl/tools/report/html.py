"""A job as one HTML page that needs nothing else: page.html and page.js beside this file, and the data.

The operations lie in the page as columns of numbers, compressed, because there may be hundreds of thousands.
Above `most` the least of them are summed up in blocks; the tables always count all.
"""

from __future__ import annotations

import base64
import gzip
import json
from array import array
from collections import defaultdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from occl.tools.report import analyse
from occl.tools.report.analyse import Analysis, Share
from occl.tools.report.merge import Job, Operation
from occl.tools.text import duration

MOST = 300_000
"""Operations of single ranks that a page shows one by one."""

BLOCKS = 2000
"""Blocks that stand for the others, in all rows."""

TYPES = {
    "d": "Float64Array",
    "f": "Float32Array",
    "i": "Int32Array",
    "I": "Uint32Array",
    "h": "Int16Array",
    "B": "Uint8Array",
}


def write(job: Job, found: Analysis, path: Path, most: int = MOST) -> None:
    """Raises OSError."""
    path.write_text(page(job, found, most), encoding="utf-8")


def page(job: Job, found: Analysis, most: int = MOST) -> str:
    here = Path(__file__).parent
    shown, blocks = _choose(job, most)
    columns, packed = _columns(job, shown)
    meta = _meta(job, found, shown) | {"columns": columns, "blocks": blocks}
    if blocks:
        left = len(job.operations) - len(shown)
        meta["notes"].append(
            f"The time line shows {left} short operations as blocks, without details; the tables count them"
        )
    parts = {  # what comes from outside last
        "@SCRIPT@": (here / "page.js").read_text(encoding="utf-8"),
        "@COLUMNS@": base64.b64encode(gzip.compress(packed, 6)).decode(),
        "@META@": json.dumps(meta, separators=(",", ":")).replace("<", "\\u003c"),
    }
    text = (here / "page.html").read_text(encoding="utf-8")
    for place, part in parts.items():
        before, after = text.split(place)
        text = before + part + after
    return text


def _choose(job: Job, most: int) -> tuple[list[Operation], list[list[float]]]:
    """The operations that are shown one by one, and blocks for the others: row, begin, end, number, and the
    share of waiting."""
    if len(job.operations) <= most:
        return job.operations, []
    ordered = sorted(job.operations, key=lambda operation: operation.submitted - operation.stop)
    kept = {id(operation) for operation in ordered[:most]}
    width = job.duration / max(1, BLOCKS // max(1, len(job.rows))) or 1.0
    bins: dict[tuple[int, int], list[float]] = defaultdict(lambda: [float("inf"), 0.0, 0, 0.0, 0.0])
    for operation in ordered[most:]:
        entry = bins[operation.row, int(operation.submitted // width)]
        entry[0] = min(entry[0], operation.submitted)
        entry[1] = max(entry[1], operation.stop)
        entry[2] += 1
        entry[3] += operation.stop - operation.submitted
        if operation.arrived is not None and operation.met is not None:
            entry[4] += operation.met - operation.arrived
    blocks = [
        [row, _us(begin), _us(end), number, round(min(1.0, waiting / flight), 3) if flight else 0.0]
        for (row, _), (begin, end, number, flight, waiting) in sorted(bins.items())
    ]
    return [operation for operation in job.operations if id(operation) in kept], blocks


def _us(ns: float) -> float:
    return round(ns / 1000, 3)


def _after(operation: Operation, at: float | None) -> float:
    return -1.0 if at is None else (at - operation.submitted) / 1000


def _columns(job: Job, shown: list[Operation]) -> tuple[list[dict[str, Any]], bytes]:
    """What lies where, and the bytes: little-endian, as are those of browsers."""
    waits = {id(operation): (by, time) for operation, by, time in analyse.waits(job)}
    kinds, dtypes, reductions = (_index(job, name) for name in ("kind", "dtype", "reduction"))
    made: dict[str, array[Any]] = {
        "called": array("d", (operation.submitted / 1000 for operation in shown)),
        "number": array("d", (float(operation.number) for operation in shown)),
        "bytes": array("d", (float(operation.bytes) for operation in shown)),
        "took": array("f", (_after(operation, operation.stop) for operation in shown)),
        "arrived": array("f", (_after(operation, operation.arrived) for operation in shown)),
        "met": array("f", (_after(operation, operation.met) for operation in shown)),
        "ended": array("f", (_after(operation, operation.ended) for operation in shown)),
        "waited": array("f", (_after(operation, operation.waited) for operation in shown)),
        "wait": array("f", (waits.get(id(operation), (None, 0.0))[1] / 1000 for operation in shown)),
        "group": array("i", (operation.group for operation in shown)),
        "detail": array("I", (operation.tag or 0 for operation in shown)),
        "row": array("h", (operation.row for operation in shown)),
        "by": array("h", (_row(waits.get(id(operation), (None, 0.0))[0]) for operation in shown)),
        "kind": array("B", (kinds[operation.kind] for operation in shown)),
        "dtype": array("B", (dtypes[operation.dtype] for operation in shown)),
        "reduction": array("B", (reductions[operation.reduction] for operation in shown)),
        "progress": array("B", (operation.progress for operation in shown)),
    }
    columns, packed = [], b""
    for name, values in made.items():
        columns.append(
            {"name": name, "type": TYPES[values.typecode], "at": len(packed), "count": len(values)}
        )
        packed += values.tobytes()
    return columns, packed


def _row(row: int | None) -> int:
    return -1 if row is None else row


def _index(job: Job, name: str) -> dict[str, int]:
    """Numbers of the names that occur; of the kinds, messages come last."""
    names = {getattr(operation, name) for operation in job.operations}
    ordered = sorted(names, key=lambda value: (value in ("send", "recv"), value))
    return {value: number for number, value in enumerate(ordered)}


def _meta(job: Job, found: Analysis, shown: list[Operation]) -> dict[str, Any]:
    kinds = _index(job, "kind")
    place = {id(operation): n for n, operation in enumerate(shown)}
    return {
        "command": job.command,
        "began": datetime.fromtimestamp(job.began / 1e9, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC"),
        "duration": max(_us(job.duration), 0.001),
        "operations": len(job.operations),
        "rows": [{"label": row.label, "host": row.host, "pid": row.pid} for row in job.rows],
        "groups": [group.label for group in job.groups],
        "kinds": list(kinds),
        "messages_from": sum(name not in ("send", "recv") for name in kinds),
        "dtypes": list(_index(job, "dtype")),
        "reductions": list(_index(job, "reduction")),
        "findings": findings(job, found),
        "notes": [*job.problems, *job.clocks],
        "ranks": [
            {
                "operations": rank.operations,
                "in_flight": _us(rank.in_flight),
                "blocked": _us(rank.blocked),
                "overlap": round(rank.overlap, 4),
                "waiting": _us(rank.waiting),
                "caused": _us(rank.caused),
            }
            for rank in found.ranks
        ],
        "waits": [[_us(time) for time in line] for line in found.waits],
        "by_group": list(map(_share, found.by_group)),
        "by_kind": list(map(_share, found.by_kind)),
        "by_size": list(map(_share, found.by_size)),
        "slowest": [
            {
                "title": slow.first.title,
                "group": slow.first.group,
                "number": slow.first.number,
                "group_name": job.where(slow.first),
                "bytes": slow.first.bytes,
                "took": _us(slow.duration),
                "moving": _us(slow.moving),
                "waiting": _us(slow.waiting),
                "last": _row(slow.last),
                "ranks": slow.ranks,
                "state": "failed" if slow.failed else "has not ended" if slow.open else "",
                "index": place.get(id(slow.first), -1),
            }
            for slow in found.slowest
        ],
    }


def _share(share: Share) -> dict[str, Any]:
    return {
        "name": share.name,
        "operations": share.operations,
        "bytes": share.bytes,
        "in_flight": _us(share.in_flight),
        "waiting": _us(share.waiting),
        "moving": _us(share.moving),
        "blocked": _us(share.blocked),
    }


def findings(job: Job, found: Analysis) -> list[str]:
    """What to look at first, in sentences."""
    texts = []
    waited = sum(rank.waiting for rank in found.ranks)
    slowest = max(found.ranks, key=lambda rank: rank.caused)
    if waited and slowest.caused:
        texts.append(
            f"The ranks waited {duration(waited)} for each other, added up. "
            f"{slowest.caused / waited:.0%} of that was for {job.rows[slowest.row].label}."
        )
    flight, blocked = (sum(getattr(rank, name) for rank in found.ranks) for name in ("in_flight", "blocked"))
    if flight:
        of_time = flight / len(found.ranks) / job.duration if job.duration else 0.0
        texts.append(
            f"A rank had operations in flight {of_time:.0%} of the time. The program was blocked in "
            f"{blocked / flight:.0%} of that; the rest overlapped with it."
        )
    broken = [operation for operation in job.operations if operation.failed or operation.open]
    if broken:
        first = min(broken, key=lambda operation: operation.stop)
        texts.append(
            f"{len(broken)} operations failed or never ended; the first was {job.describe(first)}, on "
            f"{job.rows[first.row].label}."
        )
    return texts
