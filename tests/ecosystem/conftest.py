"""For tests with other projects' packages: what is collected, and the table of what passed.

They need the packages of requirements.txt, which `make test-ecosystem` installs into an environment
of its own. Where these are missing, nothing is collected.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import importlib.util
from pathlib import Path

import pytest

from benchmarks.pages import write_between

PAGE = Path(__file__).parents[2] / "docs" / "integrations.md"
BEGIN, END = "<!-- table: make test-ecosystem writes it -->", "<!-- end of the table -->"
SETTINGS = ("Gloo", "occl on CPU tensors", "occl on dev")
DISTRIBUTIONS = {"Fabric": "lightning", "Trainer": "transformers", "torchft": "torchft-nightly"}
"""The distribution of a package in the table, where its name is another one."""

collect_ignore_glob = [] if importlib.util.find_spec("accelerate") else ["test_*.py"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-table", action="store_true", help=f"write what passed into docs/{PAGE.name}")


@pytest.fixture
def tell(request):
    """Enters a cell into the table at the end."""

    def enter(package: str, setting: str) -> None:
        request.node.user_properties.append(("ecosystem", [package, setting]))

    return enter


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Prints the table of packages and settings, and writes it into the page if asked to."""
    cells: dict[str, dict[str, set[str]]] = {}
    for ending in ("passed", "failed"):
        for report in terminalreporter.stats.get(ending, []):
            for name, value in getattr(report, "user_properties", []):
                if name == "ecosystem":
                    package, setting = value
                    cells.setdefault(package, {}).setdefault(setting, set()).add(ending)
    if not cells:
        return
    lines = [f"| package | version | {' | '.join(SETTINGS)} |", "|---|---|---|---|---|"]
    for package, row in sorted(cells.items(), key=lambda item: item[0].lower()):
        distribution = DISTRIBUTIONS.get(package.split(",")[0], package.split(",")[0]).lower()
        texts = [
            "-" if setting not in row else "fails" if "failed" in row[setting] else "passes"
            for setting in SETTINGS
        ]
        lines.append(f"| {package} | {importlib.metadata.version(distribution)} | {' | '.join(texts)} |")
    day = datetime.datetime.now(datetime.timezone.utc).date()
    table = "\n".join([f"{day}, PyTorch {importlib.metadata.version('torch')}, two ranks:", "", *lines, ""])
    terminalreporter.section("packages")
    terminalreporter.write_line(table)
    if config.getoption("--write-table"):
        write_between(PAGE, BEGIN, END, table)
