"""Programs whose processes Open MPI's mpirun starts on this host."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
"""For the environment."""


def mpirun(ranks: int, options: list[str], *program: str, env: Mapping[str, str], limit: int) -> str:
    """What all ranks print. Each must end in good order, within `limit` seconds."""
    command = ["mpirun", "--oversubscribe", "-n", str(ranks), *options, "--timeout", str(limit), *program]
    done = subprocess.run(
        command,
        cwd=Path(__file__).parents[2],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=limit + 30,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout
