"""Faults in the rank that they strike: counts its calls, and strikes at the one that was planned."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from occl.testing import intercept, serialize, tcp_cut
from occl.testing.child import announce
from occl.testing.fault_report import Rest
from occl.testing.faults import ANY, Fault, Faults

_LARGEST = 1 << 62
"""Bytes that no allocator has."""


@dataclass(eq=False)
class Plan:
    """A fault of which this rank has a part, and what the rank has called since it was planned."""

    fault: Fault
    made: Counter[str] = field(default_factory=Counter)
    came: bool = False
    reason: str = ""
    """Why it did not come to pass, if something other than the number of calls was in its way."""

    def due(self, name: str) -> bool:
        """Counts a call; returns whether the fault strikes at it."""
        fault = self.fault
        self.made[name] += 1
        if fault.operation not in (ANY, name):
            return False
        count = self.made.total() if fault.operation == ANY else self.made[name]
        return count == fault.number or fault.kind == "delay"


_plans: list[Plan] = []
_lock = threading.RLock()


def faults(seed: int, test: str) -> Faults:
    """What the fixture is in a rank, which begins to count its calls when it plans a fault."""
    return Faults(seed, test, plan, serialize.here["world_size"])


def plan(fault: Fault) -> None:
    """Plans a fault, and tells the pytest process."""
    serialize.tell("planned", fault)
    if fault.strikes(serialize.here["rank"]):
        with _lock:
            if not _plans:
                intercept.watch(_see)
            _plans.append(Plan(fault))


@contextmanager
def told() -> Iterator[None]:
    """After the ``with`` statement, tells the pytest process which faults have not come to pass here."""
    try:
        yield
    finally:
        for each in _plans:
            if not each.came:
                rest = Rest(each.fault, serialize.here["rank"], dict(each.made), each.reason)
                serialize.tell("rest", rest)


def _see(name: str, device: Any) -> None:
    with _lock:
        due = [each for each in _plans if each.due(name)]
    for each in due:
        _strike(each, device)


def _strike(each: Plan, device: Any) -> None:
    fault = each.fault
    if fault.kind == "cut":
        number = [p for p in _plans if p.fault.kind == "cut"].index(each)
        each.reason = tcp_cut.cut(fault, number, serialize.here["meeting"])
        if each.reason:
            return
    with _lock:
        if not each.came:
            serialize.tell("came", (fault, serialize.here["rank"]))
        each.came = True
    if fault.kind in ("late", "delay"):
        time.sleep(fault.seconds)  # which is what the fault is
    elif fault.kind == "oom":
        import torch

        torch.empty(_LARGEST, dtype=torch.uint8, device=device)
        raise AssertionError(f"an allocation of {_LARGEST} bytes has not failed on {device}")
    elif fault.kind in ("kill", "stop"):
        number = signal.SIGKILL if fault.kind == "kill" else signal.SIGSTOP
        announce(number.name, str(fault))
        os.kill(os.getpid(), number)
