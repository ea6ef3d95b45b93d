"""The threads with which PyTorch computes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch


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
