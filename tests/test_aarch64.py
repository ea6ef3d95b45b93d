"""The core on aarch64: cross-compiled, and run under qemu's emulation of one process (`make test-aarch64`).

What this shows: the code compiles, the tests of the core pass (but for those in NOT_UNDER_QEMU), and results
have the bits that they have on x86-64. What it cannot show: the memory order of a real processor, because
qemu runs on this machine's, which orders more; speed; and the extension, which needs PyTorch for aarch64.
"""

from __future__ import annotations

import platform
import re
import shutil

import pytest

from tests.support import cpp_build
from tests.test_cpp import run

QEMU = "qemu-aarch64"
TOOLS = (QEMU, cpp_build.COMPILERS["aarch64"])
MISSING = [tool for tool in TOOLS if not shutil.which(tool)]
pytestmark = [
    pytest.mark.full,
    pytest.mark.matrix,
    pytest.mark.skipif(
        bool(MISSING), reason=f"{MISSING} missing: apt install qemu-user g++-aarch64-linux-gnu"
    ),
]

NOT_UNDER_QEMU = {
    "test_endpoint": "qemu-user 7.2 stops with an assertion of its own in a child of a process with threads",
    "test_faults": "it counts the threads of a process, and qemu has one more",
    "test_hostile": "qemu-user 7.2 stops with an assertion of its own when threads flood a socket",
}
"""Programs that fail because of the emulator, and why."""

SOURCES = [
    source.stem
    for source in cpp_build.test_sources()
    if "plain" in cpp_build.modes_of((cpp_build.ROOT / source).read_text())
    and source.stem not in NOT_UNDER_QEMU
]
PROCESSORS = {"max": "baseline neon_bf16", "cortex-a57": "baseline"}
"""Of qemu: one with every feature, and one with those of the first aarch64."""


def run_there(name: str, processor: str = "max") -> str:
    program = cpp_build.ninja("aarch64", [name], cpp_build.ROOT)
    return run(program, timeout=500, emulator=[QEMU, "-cpu", processor])


@pytest.mark.parametrize("name", SOURCES)
def test_the_core_passes_its_tests_on_aarch64(name):
    run_there(name)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="compares with an x86-64")
@pytest.mark.parametrize(("processor", "sets"), PROCESSORS.items())
def test_kernels_compute_the_bits_of_x86_on_aarch64(processor, sets):
    there = run_there("test_digest", processor)
    here = run(cpp_build.ninja("plain", ["test_digest"], cpp_build.ROOT))
    digests = [re.findall("^digest .*$", text, re.MULTILINE) for text in (here, there)]
    assert len(digests[0]) > 100 and digests[0] == digests[1]
    assert f"instruction sets: {sets}\n" in there
