"""Tests of distributed code with pytest: the mark ``ranks`` runs a test in several processes.

pytest has the plugin where torch_occl is installed (docs/testing.md). It tests code for any backend and any
device, and under pytest importing this package makes no device. Its processes serve `occl.launch` too, which
works without pytest: names are imported when they are asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from occl.testing.comparison import assert_same_on_all_ranks
    from occl.testing.faults import Fault, Faults
    from occl.testing.outcomes import Outcome, RanksFailed, WrongUse
    from occl.testing.run_ranks import RunRanks

_FROM = {
    "Fault": "faults",
    "Faults": "faults",
    "Outcome": "outcomes",
    "RanksFailed": "outcomes",
    "RunRanks": "run_ranks",
    "WrongUse": "outcomes",
    "assert_same_on_all_ranks": "comparison",
}
"""The module of each name, below this package."""

__all__ = ["Fault", "Faults", "Outcome", "RanksFailed", "RunRanks", "WrongUse", "assert_same_on_all_ranks"]


def __getattr__(name: str) -> Any:
    if name in _FROM:
        return getattr(importlib.import_module(f"{__name__}.{_FROM[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
