"""The commands of ``python -m torch_occl``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from io import TextIOWrapper

from torch_occl.doctor import machine, nodes, report, selftest, settings, software, system
from torch_occl.doctor.report import Section


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m torch_occl",
        description="Commands of torch_occl.",
        epilog="python -m torch_occl.bench measures collectives.",
    )
    commands = made.add_subparsers(dest="command", metavar="COMMAND")
    doctor = commands.add_parser(
        "doctor",
        help="says what this machine offers, what occl makes of it, and whether it works",
        description="Says what this machine, container and environment offer, what occl makes of it, and "
        "whether two ranks work here. The exit status is 1 if something does not work.",
    )
    doctor.add_argument("--json", action="store_true", help="print everything as one JSON document")
    doctor.add_argument("--no-test", action="store_true", help="start no ranks")
    return made


def sections(test: bool) -> Iterator[Section]:
    """Everything that is found, in order, as soon as it is found."""
    of_machine = machine.section()
    yield of_machine
    yield system.section()
    yield settings.section()
    yield nodes.section()
    huge_pages = next(line.value for line in of_machine.lines if line.name == "huge pages")
    try:
        ended = software.probe()
    except OSError as error:
        yield Section("software", [software.not_started("PyTorch", error)])
        return
    yield from software.sections(ended, huge_pages)
    if test and ended.said.get("distributed") and "package" in ended.said:
        yield selftest.section()


def doctor(as_json: bool, test: bool) -> int:
    """Prints the report and returns the exit status."""
    found = []
    for section in sections(test):
        found.append(section)
        if not as_json:
            print(section.text(), flush=True)
    print(json.dumps(report.as_json(found), indent=1) if as_json else report.summary(found))
    return 0 if report.works(found) else 1


def main(arguments: list[str] | None = None) -> int:
    made = parser()
    options = made.parse_args(arguments)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names and errors may have any letters
    if options.command is None:
        made.print_help()
        return 0
    return doctor(options.json, not options.no_test)
