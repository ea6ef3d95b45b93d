"""How a function ended on a rank, and the exceptions of this package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass
class Outcome:
    """How a function ended on one rank."""

    rank: int
    result: Any = None
    """What it returned."""
    raised: str = ""
    """``"ValueError: no such root"``, or "" if it raised nothing."""
    traceback: str = ""
    died: str = ""
    """``"killed by SIGKILL"`` or ``"exited with status 3"``, or "" if the process lives."""
    intended: str = ""
    """The fault by which it died or was stopped, if the test planned one; see the fixture ``faults``."""
    skipped: str | None = None
    """The reason, if it called ``pytest.skip`` (which also counts as raised)."""
    xfailed: str | None = None
    """The reason, if it called ``pytest.xfail`` (which also counts as raised)."""

    @property
    def failed(self) -> bool:
        """Whether it did not return, although no fault of the test ended it."""
        return bool(self.raised or self.died) and not self.intended


class RanksFailed(AssertionError):
    """Some ranks raised, died or did not finish.

    Attributes:
        report: what happened, without what the ranks have printed.
        outputs: what each failed rank has printed, by rank.
    """

    def __init__(self, report: str, outputs: Mapping[int, str] | None = None) -> None:
        self.report = report
        self.outputs = dict(outputs or {})
        printed = [f"---- output of rank {rank}\n{text}" for rank, text in self.outputs.items() if text]
        super().__init__("\n".join([report, *printed]))


class WrongUse(ValueError):
    """The mark or the fixture was used in a way that cannot work; the text says what to do."""


def too_many_processes(error: OSError) -> str:
    """What to do where the system has refused to start one."""
    return (
        f"The system refuses another process ({error.strerror}). Use fewer ranks, or allow more processes "
        "(ulimit -u, the container's limit of processes), open files (ulimit -n) or memory."
    )
