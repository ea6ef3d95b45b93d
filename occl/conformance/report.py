"""The report: a table for the terminal, JSON for programs, Markdown for documentation."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from occl import versions
from occl.conformance.capabilities import VERDICTS
from occl.conformance.catalog import Case
from occl.conformance.runner import Asked, Ended
from occl.tools import text

Entry = dict[str, Any]
"""A case in a report: name, operation, rule, statement, source, values, demanded (the verdict of a backend
that lacks nothing), expected (after the declarations), verdict, text, seconds, known (the reason, or "")."""


@dataclass(frozen=True)
class About:
    """What the ranks have told of what is tested."""

    backend_class: str
    """With its module."""
    device_defects: list[str]


def entry(case: Case, expected: str, known: str, ended: Ended) -> Entry:
    """A case that has run."""
    return {
        "name": case.name,
        "operation": case.rule.operation,
        "rule": case.rule.name,
        "statement": case.rule.statement,
        "source": str(case.rule.source),
        "values": dict(case.values),
        "demanded": "refuses" if case.rule.refuses else "works",
        "expected": expected,
        "verdict": ended.verdict,
        "known": known,
        "text": ended.text,
        "seconds": round(ended.seconds, 4),
    }


def write(path: Path, asked: Asked, about: About, entries: Sequence[Entry]) -> None:
    """Writes a report in JSON."""
    import torch

    content = {
        "format": 2,
        "backend": asked.backend,
        "backend_class": about.backend_class,
        "device": asked.device,
        "device_defects": about.device_defects,
        "world_size": asked.size,
        "date": time.strftime("%Y-%m-%d"),
        "torch": torch.__version__,
        "torch_occl": versions.VERSION,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cases": list(entries),
    }
    path.write_text(json.dumps(content, indent=1) + "\n")


def table(entries: Iterable[Entry]) -> list[str]:
    """For each operation and feature, how many cases have each verdict.

    The last column counts those that are refused, and would work in a backend that lacks nothing.
    """
    columns = [*VERDICTS, "(missing)"]
    counts: dict[str, dict[str, int]] = {}
    for each in entries:
        row = counts.setdefault(each["operation"], dict.fromkeys(columns, 0))
        row[each["verdict"]] += 1
        row["(missing)"] += (each["demanded"], each["verdict"]) == ("works", "refuses")
    lines = [
        [operation, *(str(row[column] or "-") for column in columns)] for operation, row in counts.items()
    ]
    total = (sum(row[column] for row in counts.values()) for column in columns)
    return [*text.table(["", *columns], [*lines, ["all", *map(str, total)]])]


def markdown(reports: Sequence[dict[str, Any]]) -> str:
    """Tables of several reports: verdicts by operation, side by side; cases that do not end as they should
    (up to `SHOWN` of each rule); and the rules."""
    titles = [f"{report['backend']}, {report['device']}" for report in reports]
    found: dict[str, list[dict[str, int]]] = {}
    for at, report in enumerate(reports):
        for each in report["cases"]:
            cells = found.setdefault(each["operation"], [{} for _ in reports])
            cells[at][each["verdict"]] = cells[at].get(each["verdict"], 0) + 1
    rows = [[f"`{name}`", *map(_cell, cells)] for name, cells in found.items()]
    lines = [*text.markdown_table(["operation or feature", *titles], rows), ""]
    rows = [
        [title, *row]
        for title, report in zip(titles, reports, strict=True)
        for row in _failed(report["cases"])
    ]
    lines += text.markdown_table(["backend", "not as it should be", "verdict", "known reason"], rows)
    rules: dict[tuple[str, str], tuple[Entry, dict[str, None]]] = {}
    for each in (each for report in reports for each in report["cases"]):
        rules.setdefault((each["rule"], each["statement"]), (each, {}))[1][each["operation"]] = None
    rows = []
    for (rule, statement), (first, operations) in rules.items():
        names = ", ".join(f"`{name}`" for name in operations)
        source = f"`{first['source']}`" + " and others" * (len(operations) > 1)
        rows.append([f"`{rule}`", names, statement, source])
    lines += ["", *text.markdown_table(["rule", "of", "what it says", "PyTorch's source"], rows)]
    return "\n".join(lines)


SHOWN = 6


def _failed(cases: Sequence[Entry]) -> list[list[str]]:
    """A row for each rule and verdict that is not the expected one and is known, and one for all others."""
    rows: dict[tuple[str, str, str, str], list[str]] = {}
    others: dict[str, int] = {}
    for each in cases:
        if each["verdict"] != each["expected"] and not each["known"]:
            others[each["verdict"]] = others.get(each["verdict"], 0) + 1
        elif each["verdict"] != each["expected"]:
            key = (each["operation"], each["rule"], each["verdict"], each["known"])
            rows.setdefault(key, []).append("-".join(each["values"].values()))
    lines = []
    for (operation, rule, verdict, known), values in rows.items():
        shown = ", ".join(values[:SHOWN]) + f" and {len(values) - SHOWN} more" * (len(values) > SHOWN)
        lines.append([f"`{operation}:{rule}` {shown}".strip(), verdict, known])
    return [*lines, ["everything else", _cell(others), "not declared"]] if others else lines


def _cell(counts: dict[str, int]) -> str:
    return ", ".join(f"{verdict} {counts[verdict]}" for verdict in VERDICTS if verdict in counts) or "-"


def provenance(report: dict[str, Any]) -> str:
    """With what a report was made."""
    seconds = sum(each["seconds"] for each in report["cases"])
    named = f" ({report['backend_class']})" if report.get("backend_class") else ""
    defects = "".join(f"; defect of the device: {each}" for each in report.get("device_defects", []))
    return (
        f"{report['backend']}{named} on {report['device']}: {len(report['cases'])} cases with "
        f"{report['world_size']} ranks in {seconds:.0f} s, {report['date']}, torch {report['torch']}, "
        f"torch_occl {report['torch_occl']}, Python {report['python']}, {report['machine']}{defects}"
    )
