"""Ranks for the tests of faults: a pool of their own for each module."""

from __future__ import annotations

import pytest

from tests.support.harness import Pool


@pytest.fixture(scope="module")
def pool():
    with Pool() as pool:
        yield pool
