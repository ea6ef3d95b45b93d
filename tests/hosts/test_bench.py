"""The benchmark between hosts runs, checks its results, and counts bytes."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from benchmarks.peers.programs import lacks_objects
from tests.support.cpp_build import ROOT


@pytest.mark.full
def test_the_benchmark_prints_times_and_bytes_at_each_rate(permitted):
    command = [sys.executable, "-m", "benchmarks.hosts", "--shapes", "2+1", "--rates", "1gbit", "none"]
    contenders = ["gloo", *([] if lacks_objects() else ["c++-tcp"])]
    options = ["--sizes", "4", "1M", "--seconds", "1", "--contenders", *contenders]
    done = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"2\+1 ranks, (.*)", done.stdout) == ["no limit", "1gbit"]
    assert re.findall(r"(\S+) us(?= )", done.stdout) == contenders * 2
    times, sent = r"(?: +\S+ ± *\d+%\??)" * len(contenders), r" +([\d.]+)(?: B)?" * len(contenders)
    rows = re.findall(rf"(4 B|1 MiB){times}{sent}$", done.stdout, re.M)
    assert [size for size, *_ in rows] == ["4 B", "1 MiB"] * 2
    for size, *sent in rows:
        assert all(float(number) > 0 and (float(number) > 100) == (size == "4 B") for number in sent)
