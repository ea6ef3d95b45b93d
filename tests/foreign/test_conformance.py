"""The suite for vendors passes on a device that is not the host's memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.test_conformance import suite


@pytest.mark.full
def test_occl_conforms_on_the_device(library, tmp_path):
    path = tmp_path / "report.json"
    done = suite(
        *("--backend=occl", "--device=foreign", "--world-size=3", "--quick", f"--report={path}"),
        f"--capabilities={Path(__file__).with_name('capabilities.toml')}",
        folder=tmp_path,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    found = json.loads(path.read_text())["cases"]
    assert found and {case["verdict"] for case in found} <= {"works", "refuses"}
