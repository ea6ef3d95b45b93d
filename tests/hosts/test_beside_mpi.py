"""MPI over UCX keeps working in processes whose groups are over UCX, and they beside it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.hosts.launch import NO_UCX
from tests.support.interpreter import PACKAGE
from tests.support.mpi import AS_ROOT, mpirun
from tests.support.thinning import first

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


@pytest.mark.parametrize("order", first(["mpi, occl", "occl, mpi", "mpi, mpi", "occl, occl"], 0, ci=2))
def test_mpi_and_a_group_share_a_process(tmp_path, order):
    """In any order of their beginnings and ends."""
    settings = os.environ | {"PYTHONPATH": str(PACKAGE), "OMP_NUM_THREADS": "1", **AS_ROOT}
    # Open MPI takes UCX by itself only with fast devices. Here it gets TCP, as messages between hosts do.
    over_ucx = ["--mca", "pml", "ucx", "--mca", "pml_ucx_tls", "any", "--mca", "pml_ucx_devices", "any"]
    over_ucx += ["-x", "UCX_TLS=tcp,self"]
    program = (sys.executable, str(SCRIPT), str(tmp_path / "store"), order)
    said = mpirun(3, over_ucx, *program, env=settings, limit=LIMIT)
    assert said.count("both have worked") == 3, said
