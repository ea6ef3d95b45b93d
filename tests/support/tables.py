"""A plugin of pytest: what the tests have counted and measured, and what was left out, at the end of the run.

Tests attach what they tell to their reports (`tell`), which reach this process wherever a test runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

LEFT_OUT = pytest.StashKey[Counter[str]]()
"""Tests marked ``full`` that were not asked for, by what runs them, and files of such tests."""
KINDS = ("passed", "excepted", "skipped", "failed")


def tell(item: pytest.Item, table: str, *row: object) -> None:
    """Adds a row of numbers, strings and lists of them to a table."""
    item.user_properties.append((table, list(row)))


def rows(reporter: pytest.TerminalReporter, table: str) -> Iterator[list[Any]]:
    for reports in reporter.stats.values():
        for report in reports:
            if getattr(report, "when", "") == "call":
                yield from (row for name, row in report.user_properties if name == table)


def left_out(config: pytest.Config) -> Counter[str]:
    return config.stash.setdefault(LEFT_OUT, Counter())


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("full"):
            left_out(item.config)["make test-all" if item.get_closest_marker("matrix") else "CI"] += 1


def pytest_sessionfinish(session: pytest.Session) -> None:
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["left_out"] = dict(left_out(session.config))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A process of pytest-xdist has ended. All of them have left out the same."""
    counts = left_out(node.config)
    counts.update(Counter(getattr(node, "workeroutput", {}).get("left_out", {})) - counts)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    write = terminalreporter.write_line
    endings = Counter[tuple[str, int, str]]()
    endings.update((device, size, kind) for device, size, kind in rows(terminalreporter, "upstream"))
    if endings:
        terminalreporter.section("PyTorch's own distributed tests")
        write("device  ranks " + "".join(f"{kind:>10}" for kind in ("run", *KINDS)))
        for device, size in sorted({(device, size) for device, size, _ in endings}):
            numbers = [endings[device, size, kind] for kind in KINDS]
            write(f"{device:6} {size:6} " + "".join(f"{number:10}" for number in (sum(numbers), *numbers)))
    combinations = Counter[str]()
    for name, number in rows(terminalreporter, "combinations"):
        combinations[name] += number
    if combinations:
        terminalreporter.section(
            "combinations of operation, type, reduction, size and layout, all ranks compared"
        )
        for name, number in sorted(combinations.items()):
            write(f"{number:8}  {name}")
        write(f"{combinations.total():8}  in all")
    if latencies := list(rows(terminalreporter, "latencies")):
        terminalreporter.section(
            "milliseconds from kill -9, or from the named fault, to the exception (not asserted)"
        )
        for name, values in latencies:
            write(f"{min(values):8.1f} .. {max(values):8.1f}  {name}")
    if counts := left_out(terminalreporter.config):
        files = f", and all of {counts['files']} files" if counts["files"] else ""
        write(
            f"left out: {counts['CI']} tests that CI runs, "
            f"{counts['make test-all']} of `make test-all`{files}"
        )
