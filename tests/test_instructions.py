"""Counts the instructions of small calls of the core, which repeat to the digit, with Callgrind.

Time cannot be asserted on a busy machine. A call that has grown by more than a tenth fails here.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support import cpp_build

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not shutil.which("valgrind"), reason="valgrind is not installed"),
]

SOURCE = Path("tests", "cpp", "test_instructions.cpp")
CALLS = 1000
"""Of test_instructions.cpp: the calls of each rank that are measured."""
SLACK = 1.1
"""Compilers differ by less."""


def instructions_of(name: str) -> float:
    """Of one rank's call."""
    program = cpp_build.build("plain", SOURCE)
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    command += ["--toggle-collect=measured", str(program), f"{name} of"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "1 passed, 0 failed" in done.stdout, done.stdout + done.stderr
    counted = re.search(r"Collected : (\d+)", done.stderr)
    assert counted, done.stderr
    return int(counted[1]) / CALLS / 2


@pytest.mark.parametrize(("name", "instructions"), [("all_reduce", 1660), ("message", 1362)])
def test_a_call_takes_no_more_instructions(name, instructions):
    counted = instructions_of(name)
    assert counted <= SLACK * instructions
    assert counted >= instructions / SLACK, "it takes fewer: put the new number into the test"
