"""The command ``occl report``."""

from __future__ import annotations

import argparse
import sys
from datetime import datetime
from pathlib import Path

from occl.tools.report import html, merge, perfetto, summary
from occl.tools.report.analyse import analyse
from occl.tools.report.read import Recording, Unreadable


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", type=Path, help="where the traces are; the report goes there, too")
    parser.add_argument("--output", type=Path, metavar="DIR", help="where the report goes instead")
    parser.add_argument(
        "--job", type=int, metavar="N", help="of several jobs in the directory: 1 is the oldest"
    )
    parser.add_argument(
        "--operations",
        type=int,
        default=html.MOST,
        metavar="N",
        help="operations that the page shows one by one; shorter ones are summed up (%(default)s)",
    )


def run(options: argparse.Namespace) -> int:
    """Prints the summary and returns the exit status."""
    try:
        loaded = merge.load(options.directory)
        recordings, problems = _choose(loaded, options.job)
    except (Unreadable, OSError) as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    job = merge.merge(recordings, problems)
    found = analyse(job)
    output = options.output or options.directory
    try:
        output.mkdir(parents=True, exist_ok=True)
        html.write(job, found, output / "report.html", max(0, options.operations))
        perfetto.write(job, output / "perfetto.json.gz")
    except OSError as error:
        print(f"report: cannot write into {output} (--output names another place): {error}", file=sys.stderr)
        return 2
    for line in summary.summary(job, found):
        print(line)
    print()
    print(f"{output / 'report.html'}: open it in a browser")
    print(f"{output / 'perfetto.json.gz'}: open it in ui.perfetto.dev")
    return 0


def _choose(loaded: merge.Loaded, number: int | None) -> tuple[list[Recording], list[str]]:
    """The recordings of one job: the latest, unless the user has named one."""
    jobs = merge.divide(loaded.recordings)
    if not jobs:
        names = ", ".join(recording.name() for recording in loaded.recordings[:8])
        raise Unreadable("; ".join([f"no operation has been recorded (by {names})", *loaded.problems]))
    if number is not None and not 1 <= number <= len(jobs):
        raise Unreadable(f"there is no job {number}: the directory holds {len(jobs)}")
    chosen = len(jobs) if number is None else number
    problems = list(loaded.problems)
    if len(jobs) > 1:
        began = ", ".join(f"{n}: {_began(job)}" for n, job in enumerate(jobs, 1))
        problems.insert(
            0,
            f"the directory holds {len(jobs)} jobs, and this is job {chosen}; --job N shows another "
            f"({began})",
        )
    return jobs[chosen - 1], problems


def _began(job: list[Recording]) -> str:
    first = min(r.readings[0].realtime for r in job if r.readings) if any(r.readings for r in job) else 0
    return datetime.fromtimestamp(first / 1e9).strftime("%Y-%m-%d %H:%M:%S")
