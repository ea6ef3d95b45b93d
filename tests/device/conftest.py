"""Fixtures of the device's tests, which share one process because importing torch takes seconds."""

import textwrap
from collections.abc import Sequence

import pytest
import torch

import torch_occl  # noqa: F401
from tests.support.interpreter import run_python


@pytest.fixture(name="run_python")
def run_python_with_device():
    """Runs a script in a fresh interpreter and returns what it printed; the test fails if the script does."""

    def run(script: str, *, arguments: Sequence[str] = (), **environment: str) -> str:
        settings = {"OCCL_DEVICE": "1"} | environment
        return run_python("-c", textwrap.dedent(script), *arguments, stderr=False, **settings)

    return run


@pytest.fixture(autouse=True)
def device_zero():
    """Every test starts and ends on device 0 with its default stream."""
    torch.dev.set_device(0)
    yield
    assert torch.dev.current_device() == 0
    assert torch.dev.current_stream().stream_id == 0
