"""The benchmark of shared cores keeps other programs running meanwhile, and compares with Gloo."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import crowded, sweep


def test_the_table_compares_medians():
    rounds = {"occl-cpu": {"4 B": [1e-6, 2e-6, 3e-6]}, sweep.GLOO: {"4 B": [8e-3, 9e-3, 10e-3]}}
    lines = crowded.page({"results": {"8": {"compilers:4": rounds, "loops:1": rounds}}}).splitlines()
    assert lines[2:] == [
        "| 8 | 4 compilers | 4 B | 2 us (1 us to 3 us) | 9 ms (8 ms to 10 ms) | 4500.0 |",
        "| 8 | 1 busy loop | 4 B | 2 us (1 us to 3 us) | 9 ms (8 ms to 10 ms) | 4500.0 |",
    ]


def children() -> set[str]:
    """The processes of the sessions that this process has started."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = stat.read_text().rpartition(")")[2].split()[1]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(parent) == int(Path("/proc/self").resolve().name):
            found.add(stat.parent.name)
    return found


@pytest.mark.parametrize("beside", crowded.PROGRAMS)
def test_other_programs_run_as_long_as_the_ranks_do(beside):
    before = children()
    with crowded.programs(f"{beside}:2"):
        started = children() - before
        assert len(started) == 2
    assert children() == before


def test_a_program_that_has_ended_ends_the_run(monkeypatch):
    monkeypatch.setitem(crowded.PROGRAMS, "loops", ["true"])

    before = children()

    def until_it_has_ended() -> None:
        with crowded.programs("loops:1"):
            (child,) = children() - before
            while Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                time.sleep(0.01)

    with pytest.raises(RuntimeError, match="one of the loops has ended"):
        until_it_has_ended()


@pytest.mark.parametrize("beside", ["loops", "loops:0", "loops:many", "editors:4"])
def test_what_it_cannot_run_beside_is_refused(beside):
    command = [sys.executable, "-m", "benchmarks.crowded", "--beside", beside]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert f'--beside {beside}: give "nothing", or loops:4 or compilers:4' in done.stderr


@pytest.mark.full
def test_every_size_is_timed():
    found = sweep.measure("2", "occl-cpu", "benchmarks.crowded")
    assert {size: len(rounds) for size, rounds in found.items()} == {"4 B": 7, "64 KiB": 7, "48 MiB": 7}
