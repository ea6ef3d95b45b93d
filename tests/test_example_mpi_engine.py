"""The example of an engine over MPI: four ranks that mpirun starts, on two nodes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.interpreter import PACKAGE
from tests.support.mpi import AS_ROOT, mpirun
from tests.support.thinning import first

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "tests" / "hosts" / "scripts" / "under_mpirun.py"
LIMIT = 240
"""Seconds after which mpirun ends a job."""

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        not (shutil.which("mpicxx") and shutil.which("mpirun")),
        reason="Open MPI is not installed (Debian: openmpi-bin and libopenmpi-dev)",
    ),
]
TRANSPORTS = {"shared memory": "vader,self", "TCP": "tcp,self"}
"""Of Open MPI's own: how it moves bytes between processes of one host."""


@pytest.fixture(scope="module")
def settings(pytorch_compiles) -> dict[str, str]:
    """Of the environment. The engine has been compiled."""
    found = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(PACKAGE), str(ROOT)]),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",  # of ninja
        "TORCH_EXTENSIONS_DIR": str(ROOT / "build" / "extensions"),
        "OMP_NUM_THREADS": "1",
        **AS_ROOT,
    }
    build = [sys.executable, str(ROOT / "examples" / "mpi_engine" / "mpi_engine.py")]
    done = subprocess.run(build, env=found, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr
    return found


def run(settings: dict[str, str], folder: Path, body: str, transport: str, *options: str) -> dict[int, str]:
    """What each rank returned that ended in good order."""
    over = ["--mca", "btl", TRANSPORTS[transport], *options]
    mpirun(4, over, sys.executable, str(SCRIPT), str(folder), body, env=settings, limit=LIMIT)
    return {int(file.stem): json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))}


@pytest.mark.parametrize("transport", first(TRANSPORTS, 0, ci=1))
def test_operations_over_mpi_give_the_references_and_the_bits_of_gloo(settings, tmp_path, transport):
    assert run(settings, tmp_path, "same_over_gloo", transport) == dict.fromkeys(range(4), "the same bits")


def test_a_mismatch_is_an_error_on_every_rank_over_mpi(settings, tmp_path):
    found = run(settings, tmp_path, "mismatch", "TCP")
    assert sorted(found) == [0, 1, 2, 3]
    for raised in found.values():
        assert "100000" in raised and "100001" in raised and "rank 3" in raised, raised


@pytest.mark.parametrize("transport", first(TRANSPORTS, 0, ci=1))
def test_a_rank_that_is_killed_is_named_on_both_nodes_over_mpi(settings, tmp_path, transport):
    """mpirun is told to let the others live."""
    found = run(settings, tmp_path, "death", transport, "--enable-recovery")
    assert sorted(found) == [0, 1, 2]
    for raised in found.values():
        assert "rank 3 (pid " in raised, raised


@pytest.mark.parametrize("transport", first(TRANSPORTS, 0, ci=1))
def test_messages_that_are_given_up_over_mpi_hang_nothing(settings, tmp_path, transport):
    """Rank 3 is stopped, until the others have an error and have ended their engines."""
    found = run(settings, tmp_path, "stop", transport, "--enable-recovery")
    assert sorted(found) == [0, 1, 2]
    for raised in found.values():
        assert "Timed out waiting" in raised and "rank 3 (pid " in raised, raised
