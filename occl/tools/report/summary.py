"""The summary that the command prints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from occl.tools.report import units
from occl.tools.report.analyse import Analysis
from occl.tools.report.merge import Job

MOST = 8
"""Lines of each table."""


def summary(job: Job, found: Analysis) -> Iterator[str]:
    ranks = len(job.rows)
    yield (
        f"{ranks} process{'es' * (ranks != 1)}, {len(job.operations)} operations in "
        f"{units.duration(job.duration)}: {job.command}"
    )
    yield ""
    yield from table(
        ["", "operations", "in flight", "blocked", "overlap", "waited", "others waited for it"],
        (
            [
                job.rows[rank.row].label,
                str(rank.operations),
                units.duration(rank.in_flight),
                units.duration(rank.blocked),
                f"{rank.overlap:.0%}",
                units.duration(rank.waiting),
                units.duration(rank.caused),
            ]
            for rank in sorted(found.ranks, key=lambda rank: -rank.caused)[:MOST]
        ),
    )
    if ranks > MOST:
        yield f"... and {ranks - MOST} more, for which others waited less"
    pairs = [(t, a, b) for a, line in enumerate(found.waits) for b, t in enumerate(line) if t > 0]
    if pairs:
        yield ""
        yield from table(
            ["waited longest", "for", "together"],
            (
                [job.rows[a].label, job.rows[b].label, units.duration(t)]
                for t, a, b in sorted(pairs, reverse=True)[:MOST]
            ),
        )
    if found.slowest:
        yield ""
        yield from table(
            ["slowest operations", "took", "moving", "ranks waited", "last"],
            (
                [
                    units.describe(job, slow.first),
                    units.duration(slow.duration),
                    units.duration(slow.moving),
                    units.duration(slow.waiting),
                    "" if slow.last is None else job.rows[slow.last].label,
                ]
                for slow in found.slowest[:MOST]
            ),
        )
    for text in [*job.clocks, *job.problems]:
        yield ""
        yield f"Note: {text}."


def table(head: list[str], lines: Iterable[list[str]]) -> Iterator[str]:
    """The first column to the left, the others to the right."""
    rows = [head, *lines]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    for row in rows:
        cells = [
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
