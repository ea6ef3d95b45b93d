"""Writes the compatibility tables of the docs from results of tests.

    pytest tests/upstream -m "" -n 2 --junitxml=upstream.xml
    python tools/compatibility.py --upstream upstream.xml       # docs/pytorch.md: the numbers ran and passed

    pytest --pyargs occl.conformance --backend gloo --report gloo.json    # and so for each backend
    python tools/compatibility.py --conformance occl-cpu.json occl-dev.json gloo.json    # docs/conformance.md

A row of docs/pytorch.md whose tests are not among the results keeps its numbers.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTORCH = ROOT / "docs/pytorch.md"
CONFORMANCE = ROOT / "docs/conformance.md"

# The row of the table, by how it begins, and the tests that it counts: "test_fsdp::test_fully_shard...[...]".
ROWS = {
    "| `DistributedTest`, `dev`, 4 ranks |": r"test_distributed::test_of_pytorch\[dev-4-",
    "| `DistributedTest`, CPU, 4 ranks |": r"test_distributed::test_of_pytorch\[cpu-4-",
    "| what Gloo passes of it, ": r"test_distributed::test_what_gloo_passes_",
    "| FSDP |": r"test_fsdp::test_fsdp_",
    "| FSDP2, ": r"test_fsdp::test_fully_shard_",
    "| DTensor, tensor, ": r"test_dtensor::",
    "| checkpoints of ": r"test_checkpoint::",
    "| pipelines: ": r"test_pipelining::",
    "| base classes ": r"test_bases::",
}
NUMBERS = re.compile(r"(\.py`|the same) \| (\d+) \| (\d+) \|")


def results(junit: Path) -> dict[str, bool]:
    """Whether each test passed; those that are skipped or fail as expected have not."""
    found = {}
    for case in ElementTree.parse(junit).iter("testcase"):
        name = f"{case.attrib['classname'].rpartition('.')[2]}::{case.attrib['name']}"
        found[name] = all(case.find(kind) is None for kind in ("skipped", "failure", "error"))
    return found


def with_numbers(page: str, passed: dict[str, bool]) -> str:
    lines = page.split("\n")
    for beginning, tests in ROWS.items():
        counted = [ok for name, ok in passed.items() if re.match(tests, name)]
        (row,) = [i for i, line in enumerate(lines) if line.startswith(beginning) and NUMBERS.search(line)]
        if counted:
            numbers = f"| {len(counted)} | {sum(counted)} |"
            lines[row] = NUMBERS.sub(lambda match, n=numbers: f"{match[1]} {n}", lines[row], count=1)
    return "\n".join(lines)


def between_marks(page: str, name: str, text: str) -> str:
    """The page with `text` between the marks `<!-- NAME begins: ... -->` and `<!-- NAME ends: ... -->`."""
    marks = re.compile(rf"(<!-- {name} begins: [^>]* -->\n).*?(<!-- {name} ends: [^>]* -->)", re.S)
    changed, times = marks.subn(lambda match: f"{match[1]}{text.strip()}\n{match[2]}", page)
    if times != 1:
        raise SystemExit(f"{name}: the page must have its marks once, and has them {times} times")
    return changed


def tables_of(reports: list[Path]) -> str:
    command = [sys.executable, "-m", "occl.conformance", *map(str, reports)]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--upstream", type=Path, metavar="XML", help="results of tests/upstream, by --junitxml"
    )
    parser.add_argument("--conformance", type=Path, nargs="+", metavar="JSON", help="written by --report")
    given = parser.parse_args()
    if given.upstream:
        PYTORCH.write_text(with_numbers(PYTORCH.read_text(), results(given.upstream)))
    if given.conformance:
        tables = tables_of([path.resolve() for path in given.conformance])
        CONFORMANCE.write_text(between_marks(CONFORMANCE.read_text(), "backends", tables))


if __name__ == "__main__":
    main()
