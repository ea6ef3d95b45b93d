"""What the doctor has found, as text for people and as JSON for programs."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

FINE, HINT, WARNING, PROBLEM = "fine", "hint", "warning", "problem"
"""How bad a finding is. Only a problem, something that does not work, changes the exit status."""

WIDTH, NAME_WIDTH = 80, 24


@dataclass(frozen=True)
class Line:
    """One finding."""

    name: str
    text: str
    value: Any = None
    """The same for programs, as JSON has it; None if the text says it all."""
    level: str = FINE
    remedy: str = ""
    """One sentence: what to do. Every finding that is not fine has one."""


@dataclass(frozen=True)
class Section:
    name: str
    lines: list[Line] = field(default_factory=list)

    def text(self) -> str:
        """At most 80 columns wide, except for words that are longer than that."""
        rows = [self.name]
        for line in self.lines:
            name = line.name if len(line.name) < NAME_WIDTH - 2 else f"{line.name} "
            rows += _wrapped(f"  {name:<{NAME_WIDTH - 2}}{line.text}", NAME_WIDTH)
            if line.level != FINE:
                rows += _wrapped(f"    {line.level.upper()}: {line.remedy}", 6)
        return "\n".join(rows) + "\n"


def _wrapped(text: str, indent: int) -> list[str]:
    """Lines of one paragraph, of which all but the first are indented."""
    return textwrap.wrap(
        text, WIDTH, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )


def named(sections: Sequence[Section], level: str) -> list[str]:
    """Which findings are of this level, as "section: name"."""
    return [f"{part.name}: {line.name}" for part in sections for line in part.lines if line.level == level]


def works(sections: Sequence[Section]) -> bool:
    return not named(sections, PROBLEM)


def summary(sections: Sequence[Section]) -> str:
    """The last lines of the text."""
    rows = []
    if problems := named(sections, PROBLEM):
        rows += _wrapped(f"Does not work: {'; '.join(problems)}.", 2)
    else:
        rows.append("Everything that was tried works.")
    if warnings := named(sections, WARNING):
        rows += _wrapped(f"Warnings: {'; '.join(warnings)}.", 2)
    return "\n".join(rows)


def as_json(sections: Sequence[Section]) -> dict[str, Any]:
    """The document of ``--json``."""
    return {
        "works": works(sections),
        "problems": named(sections, PROBLEM),
        "warnings": named(sections, WARNING),
        "sections": {
            part.name: {
                line.name: {
                    "text": line.text,
                    "value": line.text if line.value is None else line.value,
                    "level": line.level,
                    "remedy": line.remedy,
                }
                for line in part.lines
            }
            for part in sections
        },
    }
