"""The tables in docs/ against the code that they are about."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
BACKEND = Path(torch.__file__).parent / "include/torch/csrc/distributed/c10d/Backend.hpp"
HEADERS = ("capabilities.h", "group_backend.h", "process_group.h")


def test_every_virtual_method_of_a_backend_is_in_the_table_with_what_we_do():
    virtuals = set(re.findall(r"\bvirtual\s+[^;{]*?(\w+)\s*\(", BACKEND.read_text())) - {"Backend"}
    ours = "".join((ROOT / "csrc/pg" / name).read_text() for name in HEADERS)
    overridden = {
        name for name in virtuals if re.search(rf"\b{name}\s*\([^;{{]*\)\s*(const\s*)?override", ours)
    }
    table = dict(re.findall(r"^\| `(\w+)` \| (yes|no) \|", (ROOT / "docs/backend.md").read_text(), re.M))
    assert len(virtuals) > 40
    assert set(table) == virtuals
    assert {name for name, offered in table.items() if offered == "yes"} == overridden


def test_what_is_not_overridden_has_a_reason():
    rows = re.findall(r"^\| `(\w+)` \| no \| (.*) \|$", (ROOT / "docs/backend.md").read_text(), re.M)
    assert rows and all(len(reason) > 10 for _, reason in rows), rows


def test_make_test_all_leaves_no_test_out():
    assert (
        "\ntest-all: setup\n\t@$(VENV_PYTHON) -m tests.everything $(ARGS)\n"
        in (ROOT / "Makefile").read_text()
    )
    part = r'\[sys\.executable, "-m", "pytest", (.*), \*sys\.argv\[1:\]\]'
    (listed_options,) = re.findall(part, (ROOT / "tests/everything.py").read_text())
    options = ast.literal_eval(f"[{listed_options}]")
    command = [sys.executable, "-m", "pytest", *options, "--collect-only", "-q"]
    paths = ["tests/distributed/test_reductions.py", "tests/test_mutations.py"]
    listed = subprocess.run([*command, *paths], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "tests collected" in listed and "deselected" not in listed, listed[-200:]
