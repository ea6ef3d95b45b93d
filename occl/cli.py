"""The command ``occl``. It runs where PyTorch or the extension cannot be loaded."""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import sys
from io import TextIOWrapper
from typing import NamedTuple

from occl import versions


class Command(NamedTuple):
    module: str
    """Imported when the command is asked for: it has ``arguments(parser)`` and ``run(options)``."""
    short: str
    long: str


COMMANDS = {
    "doctor": Command(
        "occl.tools.doctor.command",
        "says what this machine offers, what occl makes of it, and whether it works",
        "Says what this machine, container and environment offer, what occl makes of it, and whether two "
        "ranks work here. The exit status is 1 if something does not work.",
    ),
    "top": Command(
        "occl.tools.top.command",
        "shows what the ranks of running groups do, and who waits for whom",
        "Shows the groups of this user's processes on this host: what each rank does, how long it waits and "
        "for whom. It only reads what the processes publish, and does not slow them. Ctrl-C ends it. The "
        "exit status is 2 if a process cannot be shown.",
    ),
    "report": Command(
        "occl.tools.report.command",
        "shows what the ranks of a job did, from the traces that they wrote",
        "Merges the traces that the processes of a job wrote in a directory (OCCL_TRACE, torch_occl.trace) "
        "into one HTML page, and into a trace for ui.perfetto.dev. Prints a summary. The exit status is 2 if "
        "there is nothing to show.",
    ),
    "bench": Command(
        "occl.bench.command",
        "measures collectives of occl, beside Gloo",
        "Times collectives of occl, beside Gloo and beside a backend that does nothing, in one run.",
    ),
    "conformance": Command(
        "occl.conformance.command",
        "makes tables of what the suite for backends has found",
        "Prints tables in Markdown of the reports of pytest --pyargs occl.conformance, or the words that "
        "declarations can use.",
    ),
}


def parser(asked: str | None = None) -> argparse.ArgumentParser:
    """The parser of all commands, with the arguments of the one that is asked for.

    Raises:
        ImportError, OSError: that one needs what cannot be imported.
    """
    made = argparse.ArgumentParser(prog="occl", description="Commands of torch_occl.")
    made.add_argument(
        "--version",
        action="version",
        version=f"torch_occl {versions.VERSION}, built from {versions.commits()}",
        help="print the version, and the commit that it was built from",
    )
    commands = made.add_subparsers(dest="command", metavar="COMMAND")
    for name, command in COMMANDS.items():
        added = commands.add_parser(name, help=command.short, description=command.long)
        if name == asked:
            if name != "conformance":
                versions.check_backend(f"occl {name}")
            module = importlib.import_module(command.module)
            module.arguments(added)
            added.set_defaults(run=module.run)
    return made


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    asked = next((argument for argument in arguments if not argument.startswith("-")), None)
    try:
        made = parser(asked)
    except (ImportError, OSError) as error:
        advised = "occl doctor" in str(error) or versions.PACKAGES[1] in str(error)
        advice = "" if advised else ". Run occl doctor, which needs no PyTorch."
        print(f"occl {asked} cannot run: {error}{advice}", file=sys.stderr)
        return 1
    if asked is not None and asked not in COMMANDS:
        close = difflib.get_close_matches(asked, COMMANDS, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(COMMANDS)}"
        made.error(f"there is no command {asked!r}; {hint}")
    options = made.parse_args(arguments)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names and errors may have any letters
    if options.command is None:
        made.print_help()
        return 0
    try:
        status: int = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of a pipe, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at the end
        return 1
    return status
