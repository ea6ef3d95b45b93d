"""The harness of the distributed tests, for comparing with real ranks."""

import pytest
import torch

from tests.distributed.conftest import _pool, pool  # noqa: F401


@pytest.fixture(autouse=True)
def one_thread():
    """One thread computes for each replica: on a busy machine, more of them wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
