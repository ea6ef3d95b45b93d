"""Fixtures of the device's tests, which share one process because importing torch takes seconds."""

import textwrap
from collections.abc import Sequence

import pytest
import torch

import torch_occl  # noqa: F401


@pytest.fixture
def run_python(scripts):
    """Runs a script in a process of its own and returns what it printed; if it fails, so does the test."""

    def run(script: str, *, arguments: Sequence[str] = (), **environment: str) -> str:
        return scripts.run(textwrap.dedent(script), *arguments, **{"OCCL_DEVICE": "1"} | environment)

    return run


@pytest.fixture(autouse=True)
def device_zero():
    """Every test starts and ends on device 0 with its default stream."""
    torch.dev.set_device(0)
    yield
    assert torch.dev.current_device() == 0
    assert torch.dev.current_stream().stream_id == 0
