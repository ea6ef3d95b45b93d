"""Ranks for the tests of faults: a pool of their own for each module."""

from __future__ import annotations

import pytest
from distributed.harness import Pool


@pytest.fixture(scope="module")
def pool():
    pool = Pool()
    yield pool
    strays = pool.strays()
    pool.close()
    assert not strays, f"tests left processes behind: {strays}"
