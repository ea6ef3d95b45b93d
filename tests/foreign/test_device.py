"""The stand-in for another package's device does what the other tests rely on: the host cannot touch its
memory. That its streams run later than the calls, the tests of examples/backend_template show."""

from __future__ import annotations

import signal

import pytest

from tests.support.cpp_build import ROOT
from tests.support.interpreter import run_python
from tests.support.thinning import first

FAULTS = """
import ctypes, torch
from tests.foreign import device
device.load()
x = torch.ones(3, device="foreign")
print(x.tolist(), flush=True)
ctypes.{access}
"""


@pytest.mark.parametrize("access", first(["string_at(x.data_ptr(), 1)", "memset(x.data_ptr(), 0, 1)"]))
def test_the_host_cannot_touch_its_memory(library, access):
    said = run_python("-c", FAULTS.format(access=access), path=ROOT, status=-signal.SIGSEGV)
    assert "[1.0, 1.0, 1.0]" in said.splitlines()
