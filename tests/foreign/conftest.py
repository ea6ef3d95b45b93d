"""Ranks whose PrivateUse1 device is another package's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.foreign import device
from tests.support.ranks import PRELOAD, Ranks, warm


@pytest.fixture(scope="session")
def library() -> None:
    """Compiles the device."""
    device.build()


@pytest.fixture(scope="session")
def pool(library: None) -> Iterator[Ranks]:
    with Ranks(warm(("tests.foreign.loaded", *PRELOAD))) as ranks:
        yield ranks
