"""The benchmark between hosts runs, checks its results, and counts bytes."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.support.cpp_build import ROOT


@pytest.mark.full
def test_the_benchmark_prints_times_and_bytes_at_each_rate(permitted):
    command = [sys.executable, "-m", "benchmarks.hosts", "--shapes", "2+1", "--rates", "1gbit", "none"]
    options = ["--sizes", "4", "1M", "--seconds", "1", "--contenders", "gloo"]
    done = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"2\+1 ranks, (.*)", done.stdout) == ["no limit", "1gbit"]
    rows = re.findall(r"(4 B|1 MiB) +\S+ ± *\d+%\??(?: +)([\d.]+)( B)?$", done.stdout, re.M)
    assert [size for size, *_ in rows] == ["4 B", "1 MiB"] * 2
    for size, sent, unit in rows:
        assert float(sent) > 0 and (unit == " B") == (size == "4 B")
