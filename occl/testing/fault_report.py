"""What became of the planned faults of one run, in the pytest process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from occl.testing.faults import Fault


@dataclass(frozen=True)
class Rest:
    """A fault that has not come to pass in a rank that has a part in it."""

    fault: Fault
    rank: int
    made: dict[str, int]
    """What the rank has called since the fault was planned."""
    reason: str


class Course:
    """What became of the faults of one run, as the ranks have told."""

    def __init__(self, planned: Sequence[Fault]) -> None:
        self.planned = list(planned)
        self.came: set[tuple[Fault, int]] = set()
        self.rests: dict[tuple[Fault, int], Rest] = {}

    def take(self, kind: str, content: Any) -> None:
        """Takes what a rank has told: ``"planned"``, ``"came"`` or ``"rest"``."""
        if kind == "planned" and content not in self.planned:
            self.planned.append(content)
        elif kind == "came":
            self.came.add(content)
        elif kind == "rest":
            self.rests[content.fault, content.rank] = content

    def described(self) -> str:
        """Each planned fault in a line, with how to plan a random one again."""
        again = "drawn from seed {0}; pytest --faults-seed={0} draws it again"
        return "\n".join(
            f"{fault}" + (f" ({again.format(fault.seed)})" if fault.seed is not None else "")
            for fault in self.planned
        )

    def missed(self, size: int) -> str:
        """Sentences on the faults that never came to pass, or ""."""
        lines = []
        for fault in self.planned:
            late = [r for r in range(size) if fault.strikes(r) and (fault, r) not in self.came]
            if late:
                lines.append(f"{fault} never came to pass: {self._why(fault, late[0])}.")
        return "\n".join(lines)

    def _why(self, fault: Fault, rank: int) -> str:
        rest = self.rests.get((fault, rank))
        if rest is None:
            return f"rank {rank} has not planned it, or has ended before that call. Plan it on every rank"
        if rest.reason:
            return rest.reason
        counts = ", ".join(f"{name} {count}" for name, count in sorted(rest.made.items())) or "none"
        return (
            f"rank {rank} did not get to that call. Its calls since the fault was planned: {counts}. Choose "
            "one of these, or let the rank make that call"
        )
