"""What became slower since an earlier run, whose results ``--json`` has written into a file."""

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from occl.bench.report import Result
from occl.tools import text

CLOSE = 1.1
"""The ratio of two medians from which one counts as slower. Two quiet runs of one build differ by less."""
SAME = ("cpu", "cores")
"""What must be the same in the descriptions of two machines for their times to be compared."""


@dataclass(frozen=True)
class Earlier:
    """The results of an earlier run."""

    path: Path
    machine: dict[str, str]
    ranks: int
    results: list[Result]

    def misfit(self, machine: dict[str, str], ranks: int) -> str:
        """Why these times cannot be compared with times of that machine and number of ranks; else ""."""
        if self.ranks != ranks:
            return f"{self.path} has {self.ranks} ranks, and this run has {ranks}: give --ranks {self.ranks}"
        before, now = ([about[name] for name in SAME] for about in (self.machine, machine))
        if before != now:
            return (
                f"{self.path} was measured on {before[0]}, {before[1]} cores, and this is {now[0]}, {now[1]} "
                "cores: compare runs of one machine"
            )
        return ""


def load(path: Path) -> Earlier:
    """Reads what ``--json`` has written.

    Raises:
        ValueError: the file cannot be read, or is none of these; the text says which.
    """
    names = {field.name for field in dataclasses.fields(Result)}

    def result(row: dict[str, Any]) -> Result:
        return Result(**{name: value for name, value in row.items() if name in names})

    try:
        content = json.loads(path.read_text())
        machine = {name: content["machine"][name] for name in SAME}
        return Earlier(path, machine, content["ranks"], [result(row) for row in content["results"]])
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not what --json writes ({type(error).__name__}: {error})") from error


def in_both(before: list[Result], now: list[Result]) -> Iterator[tuple[Result, Result]]:
    """What both runs have measured: the value before, and now."""
    known = {(result.operation, result.bytes, result.contender): result for result in before}
    for result in now:
        if old := known.get((result.operation, result.bytes, result.contender)):
            yield old, result


def slower(before: list[Result], now: list[Result]) -> Iterator[str]:
    """A line for each value that is slower by more than the noise: by `CLOSE`, with no quartile in common."""
    for old, new in in_both(before, now):
        if new.lower_us > old.upper_us and new.median_us >= CLOSE * old.median_us:
            size = f" {text.size(new.bytes)}" if new.bytes else ""
            times = (text.three_digits(us) for us in (new.median_us, old.median_us))
            ratio = text.three_digits(new.median_us / old.median_us)
            yield "  {}{}, {}: {} us, before {} us, {} times".format(
                new.operation, size, new.contender, *times, ratio
            )


def compared(earlier: Earlier, now: list[Result]) -> tuple[list[str], bool]:
    """The lines that say what became slower, and whether anything did."""
    both = sum(1 for _ in in_both(earlier.results, now))
    lines = list(slower(earlier.results, now))
    head = f"against {earlier.path}: {len(lines)} of {both} values are slower by more than the noise"
    return [head + (":" if lines else ""), *lines], bool(lines)
