"""The stand-in for another package's device does what the other tests rely on: the host cannot touch its
memory, and a copy that does not wait for its stream gets old data."""

from __future__ import annotations

import signal

import pytest
import torch

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


def streams_run_later(rank: int, n: int, device: str) -> None:
    busy, other = torch.Stream(device), torch.Stream(device)
    x = torch.zeros(4, device=device)
    torch.accelerator.synchronize()
    with busy:
        torch.ops.foreign.hold(x)
        x.fill_(1)
        event = busy.record_event()
    with other:
        assert x.tolist() == [0] * 4
        assert not event.query()
        torch.ops.foreign.release()
        other.wait_event(event)
        assert x.tolist() == [1] * 4


def test_its_streams_run_later_than_the_calls(pool):
    pool.run(streams_run_later, 1, "foreign:0")


def computes(rank: int, n: int, device: str) -> None:
    x = torch.arange(12.0, device=device).view(3, 4).t()
    assert torch.equal((x @ x.t()).cpu(), x.cpu() @ x.cpu().t())
    assert x.to("foreign:1").device == torch.device("foreign:1")
    assert torch.equal(x.to("foreign:1").cpu(), x.cpu())
    model = torch.nn.Linear(3, 2).to(device)
    model(x).sum().backward()
    assert torch.equal(model.weight.grad.cpu(), x.cpu().sum(0).expand(2, 3))


def test_it_computes(pool):
    pool.run(computes, 1, "foreign:0")
