"""Ranks for the tests of faults: a pool of their own for each module."""

from __future__ import annotations

import pytest

from tests.support.ranks import Ranks


@pytest.fixture(scope="module")
def pool(warm):
    with Ranks(warm.clone()) as pool:
        yield pool
