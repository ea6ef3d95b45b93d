"""Summarizes samples and prints them as one table."""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from torch_occl.bench.measure import Samples

NOISY = 1.5
"""Upper quartile over lower quartile above which a value does not tell much."""
RATIOS = [
    ("gloo", "occl-dev"),
    ("gloo", "occl-cpu"),
    ("occl-dev", "floor"),
    ("occl-cpu", "floor"),
]
"""Columns of the first divided by the second: how many times faster than Gloo, how far above the floor."""


@dataclass(frozen=True)
class Result:
    """Times per call in microseconds, of one contender for one operation of one size."""

    operation: str
    bytes: int
    contender: str
    calls: int
    rounds: int
    median_us: float
    lower_us: float
    """The lower quartile."""
    upper_us: float
    """The upper quartile."""
    least_us: float
    most_us: float

    @property
    def noisy(self) -> bool:
        return self.upper_us > NOISY * self.lower_us


def summarize(samples: Samples) -> Result:
    us = [seconds * 1e6 for seconds in samples.seconds]
    lower, median, upper = statistics.quantiles(us, n=4, method="inclusive")
    return Result(
        samples.operation,
        samples.bytes,
        samples.contender,
        samples.calls,
        len(us),
        round(median, 4),
        round(lower, 4),
        round(upper, 4),
        round(min(us), 4),
        round(max(us), 4),
    )


def size_name(size: int) -> str:
    """For people: 4 B, 64 KiB, 1 MiB."""
    for unit in ("B", "KiB"):
        if size < 1024 or size % 1024:
            return f"{size} {unit}"
        size //= 1024
    return f"{size} MiB"


def number(value: float) -> str:
    """Three digits that matter."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


class Table:
    """One line for each operation and size, printed as soon as it is known."""

    def __init__(self, contenders: list[str]) -> None:
        self._contenders = contenders
        self._ratios = [pair for pair in RATIOS if set(pair) <= set(contenders)]
        self._operation = ""

    def header(self) -> str:
        names = [f"{name} us" for name in self._contenders]
        ratios = [f"{first}/{second}".replace("occl-", "") for first, second in self._ratios]
        cells = ["".ljust(22), "size".rjust(8), *(name.rjust(16) for name in names)]
        line = "  ".join([*cells, *(ratio.rjust(9) for ratio in ratios)])
        return f"{line}\n{'-' * len(line)}"

    def line(self, results: list[Result]) -> str:
        """The line of one operation and size; the operation's name is in its first line only."""
        by_name = {result.contender: result for result in results}
        operation, size = results[0].operation, results[0].bytes
        shown = "" if operation == self._operation else operation
        self._operation = operation
        cells = [shown.ljust(22), (size_name(size) if size else "").rjust(8)]
        for name in self._contenders:
            result = by_name[name]
            spread = 50 * (result.upper_us - result.lower_us) / result.median_us
            cells.append(
                f"{number(result.median_us)} ±{spread:3.0f}%{'?' if result.noisy else ' '}".rjust(16)
            )
        for first, second in self._ratios:
            ratio = by_name[first].median_us / by_name[second].median_us
            cells.append(number(ratio).rjust(9))
        return "  ".join(cells)


def footnotes(results: list[Result]) -> Iterator[str]:
    """What a reader must know to read the table right."""
    yield "us: the median microseconds of a call, until the slowest rank has finished. ±: half the distance"
    yield "between the quartiles. size: of the largest tensor of the call. send_recv: half a round trip."
    if any(result.contender == "floor" for result in results):
        yield "floor: PyTorch's fake backend, which sends nothing: what a call from Python costs in itself."
    if noisy := sum(result.noisy for result in results):
        yield (
            f"?: too noisy to tell, {noisy} of {len(results)} values: the upper quartile is more than "
            f"{NOISY} times the lower."
        )
    if noisy > len(results) / 4:
        yield "The machine was too busy for this benchmark: use another moment."
