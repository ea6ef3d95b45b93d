"""``occl doctor``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator

from occl.tools.doctor import machine, nodes, report, selftest, settings, software, system
from occl.tools.doctor.report import Section


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print everything as one JSON document")
    parser.add_argument("--no-test", action="store_true", help="start no ranks")


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


def run(options: argparse.Namespace) -> int:
    return doctor(options.json, not options.no_test)
