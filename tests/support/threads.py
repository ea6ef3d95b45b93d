"""The threads of this process, and those with which PyTorch computes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch


def thread_names() -> set[str]:
    """As the kernel knows them: "pt_autograd_0" is autograd's for device 0."""
    return {task.read_text().strip() for task in Path("/proc/self/task").glob("*/comm")}


@contextlib.contextmanager
def number_restored() -> Iterator[None]:
    """Afterwards, as many threads compute as before."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """One thread computes in every test of a folder whose conftest imports this."""
    with number_restored():
        torch.set_num_threads(1)
        yield
