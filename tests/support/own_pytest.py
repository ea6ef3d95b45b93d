"""A pytest in a process of its own, for tests of plugins, and how its tests end."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from tests.support.interpreter import PACKAGE


@dataclass
class Ending:
    kind: str  # "passed", "failure", "error", "skipped"
    text: str


def endings(path: Path) -> dict[str, Ending]:
    """How each test has ended, by name, as pytest writes it for other programs."""
    found = {}
    for case in ElementTree.parse(path).iter("testcase"):
        ends = [child for child in case if child.tag in ("failure", "error", "skipped")]
        text = "\n".join(child.text or child.get("message") or "" for child in ends)
        found[case.get("name")] = Ending(ends[0].tag if ends else "passed", text)
    return found


@dataclass
class Results:
    endings: dict[str, Ending]
    output: str


def run(
    folder: Path,
    *arguments: str,
    plugin: str = "pytest_torch_occl",
    settings: str = "ranks_preload =\n",
    statuses: tuple[int, ...] = (0, 1),
) -> Results:
    """Runs the tests in a folder, which gets the file ``pytest.ini`` with these settings."""
    (folder / "pytest.ini").write_text(f"[pytest]\n{settings}")
    command = [sys.executable, "-m", "pytest", "-p", plugin, "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "--junitxml=results.xml", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(PACKAGE)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode in statuses, done.stdout + done.stderr
    return Results(endings(folder / "results.xml"), done.stdout)
