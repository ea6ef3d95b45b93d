"""The sweep measures every operation, and says where occl is ahead of Gloo and where it is not."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from benchmarks import sweep
from tests.hosts.namespaces import why_not
from tests.support import cpp_build


def cells(**medians: float) -> sweep.Cells:
    return {
        name.replace("_", " "): {"lower_us": us / 2, "median_us": us, "upper_us": 2 * us}
        for name, us in medians.items()
    }


MEASURED = {
    sweep.GLOO: cells(fast=80, slow=10, step_of_training=30),
    "occl-cpu": cells(fast=10, slow=20, step_of_training=10),
}


def test_a_contender_is_compared_over_operations_alone():
    assert sweep.summarize(MEASURED, "occl-cpu") == (2, pytest.approx(2), 0.5, "slow", 1)
    assert "2.0 times as fast as Gloo in the geometric mean of 2 cells, at least 0.50 times (slow)" in (
        sweep.sentence(MEASURED, "occl-cpu")
    )


def test_the_page_has_operations_and_steps_of_training():
    content = {"results": {"2": MEASURED}}
    content["results"]["2"] = {
        name: {cell.replace(sweep.STEP, f"{sweep.STEP}, 1 MiB"): us for cell, us in found.items()}
        for name, found in MEASURED.items()
    }
    lines = sweep.page(content).splitlines()
    assert "| 2 | CPU | 2.0 | 0.50 (slow) | 1 of 2 |" in lines
    assert lines[-3:] == ["| ranks | tensors | 1 MiB |", "|---|---|---|", "| 2 | CPU | 3.00 |"]


def run(*arguments: str) -> str:
    command = [sys.executable, "-m", "benchmarks.sweep", *arguments]
    done = subprocess.run(
        command, cwd=cpp_build.ROOT, env=os.environ, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.full
@pytest.mark.parametrize(
    "shape", ["2", pytest.param("1+1", marks=pytest.mark.skipif(bool(why_not()), reason=why_not()))]
)
def test_every_operation_is_measured(shape):
    shown = run("--shapes", shape, "--contenders", "occl-cpu", "--turns", "1")
    for cell in ("barrier, 4 B", "scatter, 4 MiB", "all_reduce, 1 MiB, after a break", "all_reduce of int32"):
        assert cell in shown
    assert "times as fast" not in shown, "there is no Gloo to compare with"


@pytest.mark.full
def test_a_rank_that_fails_ends_it_with_what_it_said(monkeypatch):
    monkeypatch.setenv("OCCL_NODE", "ä")
    with pytest.raises(RuntimeError, match="occl-cpu, 2: rank 0 failed"):
        sweep.measure("2", "occl-cpu")
