"""The commands of ``python -m torch_occl``. They run where PyTorch or the extension cannot be loaded."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from io import TextIOWrapper

import occl.tools.doctor.command
import occl.tools.report.command
import occl.tools.top.command


@dataclass(frozen=True)
class Command:
    name: str
    help: str
    description: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    """Returns the exit status."""


COMMANDS = [
    Command(
        "doctor",
        "says what this machine offers, what occl makes of it, and whether it works",
        "Says what this machine, container and environment offer, what occl makes of it, and whether two "
        "ranks work here. The exit status is 1 if something does not work.",
        occl.tools.doctor.command.arguments,
        occl.tools.doctor.command.run,
    ),
    Command(
        "top",
        "shows what the ranks of running groups do, and who waits for whom",
        "Shows the groups of this user's processes on this host: what each rank does, how long it waits and "
        "for whom. It only reads what the processes publish, and does not slow them. Ctrl-C ends it. The "
        "exit status is 2 if a process cannot be shown.",
        occl.tools.top.command.arguments,
        occl.tools.top.command.run,
    ),
    Command(
        "report",
        "shows what the ranks of a job did, from the traces that they wrote",
        "Merges the traces that the processes of a job wrote in a directory (OCCL_TRACE, torch_occl.trace) "
        "into one HTML page, and into a trace for ui.perfetto.dev. Prints a summary. The exit status is 2 if "
        "there is nothing to show.",
        occl.tools.report.command.arguments,
        occl.tools.report.command.run,
    ),
]


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m torch_occl",
        description="Commands of torch_occl.",
        epilog="python -m occl.bench measures collectives.",
    )
    commands = made.add_subparsers(dest="command", metavar="COMMAND")
    for command in COMMANDS:
        added = commands.add_parser(command.name, help=command.help, description=command.description)
        command.arguments(added)
        added.set_defaults(run=command.run)
    return made


def main(arguments: list[str] | None = None) -> int:
    made = parser()
    options = made.parse_args(arguments)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names and errors may have any letters
    if options.command is None:
        made.print_help()
        return 0
    status: int = options.run(options)
    return status
