"""The command ``occl conformance``: tables in Markdown of reports, or the words of declarations."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from occl.conformance import (
    badge,
    rules,  # noqa: F401  (enters the rules)
)
from occl.conformance.capabilities import vocabulary
from occl.conformance.report import markdown, provenance


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("reports", nargs="*", type=Path, metavar="REPORT", help="written by pytest --report")
    parser.add_argument("--words", action="store_true", help="list the words that capabilities can name")
    parser.add_argument("--badge", type=Path, metavar="FILE", help="write a badge of them all, in JSON")
    parser.set_defaults(error=parser.error)


def run(options: argparse.Namespace) -> int:
    if options.words:
        print("\n".join(sorted(vocabulary())))
        return 0
    if not options.reports:
        options.error("name the reports, or ask for --words")
    try:
        reports = [json.loads(path.read_text()) for path in options.reports]
    except (OSError, json.JSONDecodeError) as error:
        print(f"A report cannot be read: {error}", file=sys.stderr)
        return 1
    if options.badge:
        badge.write(options.badge, reports)
    print(markdown(reports))
    print()
    for report in reports:
        print(f"- {provenance(report)}")
    return 0
