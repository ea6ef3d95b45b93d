"""Runs the command `occl doctor`."""

import json
from pathlib import Path

from tests.support.interpreter import PACKAGE, run_python

CLEAN = dict.fromkeys(("OCCL_TUNING", "OCCL_ISA", "GLOO_SOCKET_IFNAME"), "")
"""Empty is as good as not set."""

PRELUDE = """
import os, resource, sys
from tests.faults import limits
{lower}
os.execv(sys.executable, [sys.executable, "-m", "occl", "doctor", *sys.argv[1:]])
"""


def doctor(*options: str, lower: str = "", status: int = 0, path: Path = PACKAGE, **environment: str) -> str:
    """What the command prints, after the statements ``lower`` have taken something from its process."""
    command = ["-c", PRELUDE.format(lower=lower)] if lower else ["-m", "occl", "doctor"]
    return run_python(*command, *options, path=path, status=status, stderr=False, **CLEAN | environment)


def document(*options: str, **how) -> dict:
    return json.loads(doctor("--json", *options, **how))
