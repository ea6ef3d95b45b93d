"""Summarizes samples and prints them as one table."""

import math
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from occl.bench.measure import Samples
from occl.tools import text

NOISY = 1.5
"""Upper quartile over lower quartile above which a value is marked as noisy."""
PEERS = ["openmpi", "mpich", "intelmpi", "oneccl"]
"""Libraries that a program calls without Python, as core-cpu is called."""
ROOFLINES = ["roofline-cached", "roofline-streaming"]
BEST_PEER = "best-peer"
RATIOS = [
    ("gloo", "occl-dev"),
    ("gloo", "occl-cpu-shared"),
    ("gloo", "occl-cpu"),
    ("occl-dev", "floor"),
    ("occl-cpu", "floor"),
    (BEST_PEER, "core-cpu"),
    ("roofline", "occl-dev"),
]
"""Columns of the first divided by the second: how many times faster than Gloo, how far above the floor, how
many times faster than the best peer, what share of the roofline."""


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
    dtype: str = "float32"

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
        round(median, 6),
        round(lower, 6),
        round(upper, 6),
        round(min(us), 6),
        round(max(us), 6),
        samples.dtype,
    )


def fastest(results: Iterable[Result], names: list[str], called: str) -> list[Result]:
    """The result with the least median among these contenders, under a new name; none if there is none."""
    found = [result for result in results if result.contender in names]
    return [replace(min(found, key=lambda result: result.median_us), contender=called)] if found else []


def with_roofline(results: list[Result]) -> list[Result]:
    """One operation at one size: adds the better one of cached and streaming stores, as ``roofline``."""
    return results + fastest(results, ROOFLINES, "roofline")


class Table:
    """One line for each operation and size, printed as soon as it is known."""

    def __init__(self, contenders: list[str]) -> None:
        rooflines = ["roofline"] if set(ROOFLINES) & set(contenders) else []
        self._contenders = [name for name in contenders if name not in ROOFLINES] + rooflines
        known = {*self._contenders, *([BEST_PEER] if set(PEERS) & set(contenders) else [])}
        self._ratios = [pair for pair in RATIOS if set(pair) <= known]
        least = 16 if len(self._contenders) < 6 else 13
        self._columns = [max(least, len(f"{name} us")) for name in self._contenders]
        self._operation = ""

    def header(self) -> str:
        names = [f"{name} us" for name in self._contenders]
        ratios = [
            f"{first}/{second}".replace("occl-", "").replace("best-", "") for first, second in self._ratios
        ]
        self._widths = [max(9, len(ratio)) for ratio in ratios]
        cells = ["".ljust(22), "size".rjust(8)]
        cells += [name.rjust(width) for name, width in zip(names, self._columns, strict=True)]
        cells += [ratio.rjust(width) for ratio, width in zip(ratios, self._widths, strict=True)]
        line = "  ".join(cells)
        return f"{line}\n{'-' * len(line)}"

    def line(self, results: list[Result]) -> str:
        """The line of one operation and size; the operation's name is in its first line only.

        "-" where a contender has no such operation.
        """
        by_name = {result.contender: result for result in results + fastest(results, PEERS, BEST_PEER)}
        operation, size = results[0].operation, results[0].bytes
        shown = "" if operation == self._operation else operation
        self._operation = operation
        cells = [shown.ljust(22), (text.size(size) if size else "").rjust(8)]
        for name, width in zip(self._contenders, self._columns, strict=True):
            cells.append(self._cell(by_name.get(name)).rjust(width))
        for (first, second), width in zip(self._ratios, self._widths, strict=True):
            both = first in by_name and second in by_name
            ratio = text.three_digits(by_name[first].median_us / by_name[second].median_us) if both else "-"
            cells.append(ratio.rjust(width))
        return "  ".join(cells)

    @staticmethod
    def _cell(result: Result | None) -> str:
        if result is None:
            return "- "
        spread = 50 * (result.upper_us - result.lower_us) / result.median_us
        return f"{text.three_digits(result.median_us)} ±{spread:3.0f}%{'?' if result.noisy else ' '}"


def cells_of(results: list[Result]) -> dict[tuple[str, int], dict[str, float]]:
    """For each operation and size the medians in microseconds by contender, the best peer among them."""
    cells: dict[tuple[str, int], list[Result]] = {}
    for result in results:
        cells.setdefault((result.operation, result.bytes), []).append(result)
    return {
        key: {r.contender: r.median_us for r in row + fastest(row, PEERS, BEST_PEER)}
        for key, row in cells.items()
    }


def summary(results: list[Result]) -> Iterator[str]:
    """For each operation, over ranges of sizes, the ratios that decide: least, geometric mean, greatest."""
    ranges = [
        ("gloo", "occl-cpu", 0, 1 << 20, "times faster than Gloo, CPU tensors, to 1 MiB"),
        ("gloo", "occl-cpu", (1 << 20) + 1, 1 << 40, "times faster than Gloo, CPU tensors, above 1 MiB"),
        (BEST_PEER, "core-cpu", 16 << 10, 64 << 20, "times faster than the best peer, 16 KiB to 64 MiB"),
        ("roofline", "occl-dev", 16 << 10, (256 << 10) - 1, "of the roofline on dev, from 16 KiB"),
        ("roofline", "occl-dev", 256 << 10, 1 << 40, "of the roofline on dev, from 256 KiB"),
        ("occl-cpu", "floor", 0, 1024, "times the floor, CPU tensors, to 1 KiB"),
    ]
    cells = cells_of(results)
    for first, second, low, high, words in ranges:
        lines = []
        for operation in dict.fromkeys(operation for operation, _ in cells):
            ratios = [
                row[first] / row[second]
                for (name, size), row in cells.items()
                if name == operation and low <= size <= high and {first, second} <= set(row)
            ]
            if ratios:
                mean = math.exp(statistics.fmean(map(math.log, ratios)))
                found = (text.three_digits(value) for value in (min(ratios), mean, max(ratios)))
                lines.append("  {:<22}{:>9}{:>9}{:>9}".format(operation, *found))
        if lines:
            yield f"{words}: least, geometric mean, greatest"
            yield from lines


def footnotes(results: list[Result]) -> Iterator[str]:
    """What a reader must know to read the table right."""
    yield "us: the median microseconds of a call, until the slowest rank has finished. ±: half the distance"
    yield "between the quartiles. size: of the largest tensor of the call. send_recv: half a round trip."
    if any(result.contender == "floor" for result in results):
        yield "floor: PyTorch's fake backend, which sends nothing: what a call from Python costs in itself."
    if any(result.contender == "roofline" for result in results):
        yield "roofline: the bytes that must move, moved without communication; roofline/dev cannot exceed 1."
    if noisy := sum(result.noisy for result in results):
        yield (
            f"?: too noisy to tell, {noisy} of {len(results)} values: the upper quartile is more than "
            f"{NOISY} times the lower."
        )
