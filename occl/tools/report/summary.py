"""The summary that the command prints."""

from __future__ import annotations

from collections.abc import Iterator

from occl.tools.report.analyse import Analysis
from occl.tools.report.merge import Job
from occl.tools.text import duration, table

MOST = 8
"""Lines of each table."""


def summary(job: Job, found: Analysis) -> Iterator[str]:
    ranks = len(job.rows)
    yield (
        f"{ranks} process{'es' * (ranks != 1)}, {len(job.operations)} operations in "
        f"{duration(job.duration)}: {job.command}"
    )
    yield ""
    yield from table(
        ["", "operations", "in flight", "blocked", "overlap", "waited", "others waited for it"],
        (
            [
                job.rows[rank.row].label,
                str(rank.operations),
                duration(rank.in_flight),
                duration(rank.blocked),
                f"{rank.overlap:.0%}",
                duration(rank.waiting),
                duration(rank.caused),
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
                [job.rows[a].label, job.rows[b].label, duration(t)]
                for t, a, b in sorted(pairs, reverse=True)[:MOST]
            ),
        )
    if found.slowest:
        yield ""
        yield from table(
            ["slowest operations", "took", "moving", "ranks waited", "last"],
            (
                [
                    job.describe(slow.first),
                    duration(slow.duration),
                    duration(slow.moving),
                    duration(slow.waiting),
                    "" if slow.last is None else job.rows[slow.last].label,
                ]
                for slow in found.slowest[:MOST]
            ),
        )
    for text in [*job.clocks, *job.problems]:
        yield ""
        yield f"Note: {text}."
