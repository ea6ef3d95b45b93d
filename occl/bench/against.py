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
FLOOR = "floor"
"""The contender that sends nothing."""
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


def beyond_noise(old: Result, new: Result, factor: float = 1.0) -> bool:
    """Whether it takes `CLOSE` times ``factor`` times as long as before, with no quartile in common."""
    return new.lower_us > factor * old.upper_us and new.median_us >= CLOSE * factor * old.median_us


def slower_floors(before: list[Result], now: list[Result]) -> dict[tuple[str, int], float]:
    """By operation and size, how much longer the floor takes, where it takes longer.

    The floor sends nothing, so it is the machine that is slower there.
    """
    return {
        (new.operation, new.bytes): new.median_us / old.median_us
        for old, new in in_both(before, now)
        if new.contender == FLOOR and beyond_noise(old, new)
    }


def slower(before: list[Result], now: list[Result]) -> Iterator[str]:
    """A line for each value that is slower by more than the noise, and by more than the floor is."""
    floors = slower_floors(before, now)
    for old, new in in_both(before, now):
        factor = floors.get((new.operation, new.bytes), 1.0)
        if new.contender != FLOOR and beyond_noise(old, new, factor):
            size = f" {text.size(new.bytes)}" if new.bytes else ""
            times = (text.three_digits(us) for us in (new.median_us, old.median_us))
            ratio = text.three_digits(new.median_us / old.median_us)
            line = "  {}{}, {}: {} us, before {} us, {} times".format(
                new.operation, size, new.contender, *times, ratio
            )
            yield line + (f" (the floor {text.three_digits(factor)} times)" if factor > 1 else "")


def compared(earlier: Earlier, now: list[Result]) -> tuple[list[str], bool]:
    """The lines that say what became slower, and whether anything did."""
    both = sum(1 for old, _ in in_both(earlier.results, now) if old.contender != FLOOR)
    lines = list(slower(earlier.results, now))
    head = f"against {earlier.path}: {len(lines)} of {both} values are slower by more than the noise"
    if floors := slower_floors(earlier.results, now):
        head += f" and by more than the floor, which is slower in {len(floors)} of its places"
    return [head + (":" if lines else ""), *lines], bool(lines)
