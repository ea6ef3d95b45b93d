"""The barrier at which all ranks start a timed section."""

import multiprocessing as mp
import os
import time
from ctypes import c_int64
from typing import Any

TIMEOUT = 120.0
"""Seconds after which a rank stops waiting for the others."""
NAP = 2e-4
"""Seconds between the looks of a rank that waits asleep."""


def make_counters(ranks: int) -> Any:
    """Memory that the gates of all ranks share; it is handed to each process when it starts."""
    return mp.get_context("spawn").RawArray(c_int64, ranks)


class Gate:
    """A barrier that spins. Ranks leave it within about a microsecond of each other, given a core for each.

    It uses none of the backends that are timed, and passes no data.
    """

    def __init__(self, counters: Any, rank: int) -> None:
        self._counters = counters
        self._rank = rank
        self._round = counters[rank]  # an earlier gate of this rank may have used them
        self._crowded = len(counters) > len(os.sched_getaffinity(0))

    def wait(self, *, asleep: bool = False) -> None:
        """Returns when all ranks have called it as often as this one. Raises TimeoutError after TIMEOUT s.

        With ``asleep``, ranks that share cores sleep between looks, and take no core from those still timed.
        """
        self._round += 1
        self._counters[self._rank] = self._round
        deadline = time.monotonic() + TIMEOUT
        for counter in range(len(self._counters)):
            while self._counters[counter] < self._round:
                if self._crowded:
                    time.sleep(NAP) if asleep else os.sched_yield()
                if time.monotonic() > deadline:
                    raise TimeoutError(f"rank {counter} did not come within {TIMEOUT:.0f} s")
