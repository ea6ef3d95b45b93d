"""The benchmark of shared cores keeps other programs running meanwhile, and compares with Gloo."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from benchmarks import crowded, sweep


def test_the_table_compares_medians():
    own, gloo = [1e-6, 2e-6, 3e-6], [8e-3, 9e-3, 10e-3]
    cells = [crowded.cell(beside, size) for beside in ("compilers:4", "loops:1") for size in crowded.CALLS]
    rounds = {name: dict.fromkeys(cells, gloo if name == sweep.GLOO else own) for name in crowded.CONTENDERS}
    content = {"results": {"8": sweep.cells_of(rounds)}}
    lines = crowded.page(content).splitlines()
    assert lines[0] == "| ranks | beside | 4 B, CPU | 4 B, `dev` | 64 KiB, CPU | 64 KiB, `dev` | " + (
        "48 MiB, CPU | 48 MiB, `dev` |"
    )
    assert lines[2:] == [
        f"| 8 | {beside} |" + " 2 us, 4500.0 |" * 6 for beside in ("4 compilers", "1 busy loop")
    ]
    whole = crowded.in_full(content, "8")
    assert whole[0] == "8 ranks"
    assert " ".join(whole[3].split()) == (
        "compilers:4, 4 B 2 (1 to 3) 2 (1 to 3) 9000 (8000 to 1e+04) 4500.00 4500.00"
    )


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


def marked(mark: str) -> list[str]:
    """The command lines of the processes that have this in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            if mark in (folder / "environ").read_text(errors="replace"):
                found.append((folder / "cmdline").read_text())
    return found


@pytest.mark.full
def test_nothing_runs_on_after_sigterm():
    mark = f"MARK_OF_THIS_RUN={uuid.uuid4()}"
    environment = os.environ | dict([mark.split("=")])
    command = [sys.executable, "-m", "benchmarks.crowded", "--ranks", "2", "--beside", "loops:2"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as run:
        while not any("while True: pass" in line for line in marked(mark)):
            assert run.poll() is None
            time.sleep(0.01)
        run.terminate()
        assert run.wait(timeout=60) == 128 + signal.SIGTERM
    deadline = time.monotonic() + 60  # for the kernel, which removes processes that have been killed
    while running := marked(mark):
        assert time.monotonic() < deadline, running
        time.sleep(0.01)


@pytest.mark.full
def test_every_size_is_timed_beside_everything():
    found = sweep.measure("2", "occl-cpu", "benchmarks.crowded", ["nothing", "loops:1"])
    names = [f"{beside}, {size}" for beside in ("nothing", "loops:1") for size in ("4 B", "64 KiB", "48 MiB")]
    assert {name: len(rounds) for name, rounds in found.items()} == dict.fromkeys(names, 7)
