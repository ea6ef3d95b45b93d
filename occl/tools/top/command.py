"""``occl top``."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict

from occl.tools.top import groups, stuck
from occl.tools.top.groups import Snapshot
from occl.tools.top.processes import NotShown, Processes
from occl.tools.top.view import SORTS, GroupView, View

SHORTEST = 0.05
INSTALL = (
    "The screen of `top` needs the package rich: pip install 'rich>=13'. "
    "`top --once --json` works without it."
)


def _seconds(text: str) -> float:
    value = float(text)
    if not SHORTEST <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text} is not between {SHORTEST} and 3600 seconds")
    return value


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pid", nargs="*", type=int, help="show only groups of these processes")
    parser.add_argument("--once", action="store_true", help="print one picture, taken over one interval")
    parser.add_argument("--json", action="store_true", help="with --once: as one JSON document")
    parser.add_argument("--group", metavar="NAME", help="show only groups of this name")
    parser.add_argument("--sort", choices=sorted(SORTS), default="rank", help="order of the ranks")
    parser.add_argument(
        "--interval", type=_seconds, default=1.0, metavar="SECONDS", help="time between two looks (1)"
    )


def fail(sentence: str) -> int:
    print(sentence, file=sys.stderr)
    return 2


def run(options: argparse.Namespace) -> int:
    if options.json and not options.once:
        return fail("--json prints one document, and so it needs --once.")
    try:
        processes = Processes(options.pid)
    except NotShown as problem:
        return fail(str(problem))
    if not options.json:
        try:
            import rich  # noqa: F401  (here, because only the screen needs it)
        except ImportError:
            return fail(INSTALL)
    return once(options, processes) if options.once else live(options, processes)


def snapshot(processes: Processes) -> Snapshot:
    found = groups.look(processes.look(), processes.problems.values())
    used = {rank.process.pid for group in found.groups.values() for rank in group.ranks.values()}
    for process in list(processes.known.values()):
        if process.exited and process.pid not in used and process.pid not in processes.chosen:
            processes.forget(process.pid)
    return found


def view(options: argparse.Namespace, before: Snapshot, after: Snapshot) -> View:
    shown = [
        GroupView(group, groups.rows(before, after, key), stuck.waits(after, group))
        for key, group in after.groups.items()
        if options.group in (None, group.name)
    ]
    for group in shown:
        group.rows.sort(key=SORTS[options.sort])
    return View(os.uname().nodename, (after.now - before.now) / 1e9, shown, after.problems)


def once(options: argparse.Namespace, processes: Processes) -> int:
    before = snapshot(processes)
    time.sleep(options.interval)
    after = snapshot(processes)
    if not after.groups and after.problems:
        return fail(after.problems[0])
    if options.group is not None and all(options.group != group.name for group in after.groups.values()):
        names = ", ".join(sorted({group.name for group in after.groups.values()}))
        return fail(f"There is no group {options.group}; groups here: {names or 'none'}.")
    picture = view(options, before, after)
    if options.json:
        print(json.dumps(as_json(picture), indent=1))
    else:
        from occl.tools.top import screen

        screen.show(picture)
    return 0


def live(options: argparse.Namespace, processes: Processes) -> int:
    from occl.tools.top import screen

    before = snapshot(processes)
    with screen.Screen() as shown:
        try:
            time.sleep(min(options.interval, 0.2))
            while True:
                after = snapshot(processes)
                shown.update(view(options, before, after))
                before = after
                if not shown.wait(options.interval):
                    return 0
        except KeyboardInterrupt:
            return 0


def as_json(picture: View) -> dict[str, object]:
    """Times in seconds, sizes in bytes; what is not known is null."""
    return {
        "host": picture.host,
        "interval": round(picture.interval, 6),
        "problems": picture.problems,
        "groups": [
            {
                "name": shown.group.name,
                "size": shown.group.size,
                "spans_nodes": shown.group.spans_nodes,
                "ranks": [
                    {
                        "rank": row.rank,
                        "pid": row.pid,
                        "host": row.host,
                        "operation": row.call.kind if row.call else None,
                        "call": row.call.text if row.call else None,
                        "number": row.call.number if row.call else None,
                        "dtype": row.call.dtype if row.call else None,
                        "bytes": row.call.bytes if row.call else None,
                        "stage": row.stage,
                        "waits_for": row.waits_for,
                        "busy_in": row.busy_in,
                        "waited": round(row.waited, 6),
                        "bytes_per_second": round(row.bytes_per_second),
                        "waiting_share": round(row.waiting_share, 4),
                        "lateness": round(row.lateness, 9),
                        "memory": row.memory,
                    }
                    for row in shown.rows
                ],
                "stuck": [asdict(wait) for wait in shown.waits],
            }
            for shown in picture.groups
        ],
    }
