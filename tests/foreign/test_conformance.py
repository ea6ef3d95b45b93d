"""The suite for vendors passes on a device that is not the host's memory."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from tests.support.cpp_build import ROOT
from tests.support.interpreter import PACKAGE
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
    report = json.loads(path.read_text())
    found = report["cases"]
    assert found and {case["verdict"] for case in found} <= {"works", "refuses"}
    assert report["backend_class"].endswith(".ProcessGroupOCCL") and report["device_defects"] == []


DEFECTS = {
    "complex views": (r"view_as_real: .*has no complex views", {"works"}),
    "copies": (r"copy: .*has no copies", {"error"}),
    "mercy": (r"synchronize: .*killed by SIGABRT(.|\n)*in _synchronize", {"works"}),
}
"""What a device lacks, what is said of it, and the verdicts of cases that do not test it."""


@pytest.mark.full
@pytest.mark.parametrize("lacks", DEFECTS)
def test_defects_of_the_device_are_not_the_backends(library, tmp_path, lacks):
    said, verdicts = DEFECTS[lacks]
    path = tmp_path / "report.json"
    done = suite(
        *("--backend=occl", "--device=foreign", "--world-size=2", f"--report={path}"),
        f"--capabilities={Path(__file__).with_name('capabilities.toml')}",
        *("-k", "all_reduce and result and float32 and SUM and not coalesced"),
        folder=tmp_path,
        env={"MY_DEVICE_LACKS": lacks},
    )
    report = json.loads(path.read_text())
    assert any(re.match(said, defect) for defect in report["device_defects"]), report["device_defects"]
    assert {case["verdict"] for case in report["cases"]} == verdicts
    assert "The device has a defect, whatever the backend does: " in done.stdout
    assert ("says nothing of the backend" in done.stdout) == (verdicts == {"error"})


@pytest.mark.full
def test_ranks_may_have_the_device(library, pytester, monkeypatch):
    """Its module has no ``synchronize``, and its ``set_device`` takes only a number."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(PACKAGE), str(ROOT)]))
    pytester.makepyfile(
        """
        import pytest, torch, torch.distributed as dist
        from tests.foreign import loaded

        @pytest.mark.ranks(3, device="foreign", backend="cpu:occl,foreign:occl")
        def test_x(rank, device):
            assert device == torch.device("foreign", rank % 2)
            x = torch.ones(3, device=device)
            dist.all_reduce(x)
            assert x.tolist() == [3.0] * 3
        """
    )
    command = [sys.executable, "-m", "pytest", "-p", "pytest_torch_occl"]
    pytester.run(*command, timeout=100).assert_outcomes(passed=1)
