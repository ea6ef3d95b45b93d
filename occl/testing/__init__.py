"""Tests of distributed code with pytest: the mark ``ranks`` runs a test in several processes.

pytest has the plugin where torch_occl is installed (docs/testing.md). It tests code for any backend and any
device, and under pytest importing this package makes no device.
"""

from occl.testing.comparison import assert_same_on_all_ranks
from occl.testing.faults import Fault, Faults
from occl.testing.outcomes import Outcome, RanksFailed, WrongUse
from occl.testing.run_ranks import RunRanks

__all__ = ["Fault", "Faults", "Outcome", "RanksFailed", "RunRanks", "WrongUse", "assert_same_on_all_ranks"]
