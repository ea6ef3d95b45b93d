"""The same as `occl.testing`."""

from occl.testing import Fault, Faults, Outcome, RanksFailed, RunRanks, WrongUse, assert_same_on_all_ranks

__all__ = ["Fault", "Faults", "Outcome", "RanksFailed", "RunRanks", "WrongUse", "assert_same_on_all_ranks"]
