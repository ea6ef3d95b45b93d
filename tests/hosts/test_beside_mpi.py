"""MPI over UCX keeps working in processes whose groups are over UCX, and they beside it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hosts.launch import NO_UCX
from tests.support.interpreter import PACKAGE

SCRIPT = Path(__file__).parent / "scripts" / "beside_mpi.py"
LIMIT = 120
"""Seconds after which mpirun ends a job."""


def why_not() -> str:
    if not shutil.which("mpirun"):
        return "Open MPI is not installed (Debian: openmpi-bin)."
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed."
    return NO_UCX


pytestmark = [pytest.mark.full, pytest.mark.skipif(bool(why_not()), reason=why_not())]


@pytest.mark.parametrize("order", ["mpi, mpi", "mpi, occl", "occl, mpi", "occl, occl"])
def test_mpi_and_a_group_share_a_process(tmp_path, order):
    """In any order of their beginnings and ends."""
    settings = os.environ | {
        "PYTHONPATH": str(PACKAGE),
        "OMP_NUM_THREADS": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    # Open MPI takes UCX by itself only with fast devices. Here it gets TCP, as messages between hosts do.
    over_ucx = ["--mca", "pml", "ucx", "--mca", "pml_ucx_tls", "any", "--mca", "pml_ucx_devices", "any"]
    over_ucx += ["-x", "UCX_TLS=tcp,self"]
    command = ["mpirun", "--oversubscribe", "-n", "3", *over_ucx, "--timeout", str(LIMIT)]
    done = subprocess.run(
        [*command, sys.executable, str(SCRIPT), str(tmp_path / "store"), order],
        env=settings,
        capture_output=True,
        text=True,
        timeout=LIMIT + 30,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("both have worked") == 3, done.stdout + done.stderr
