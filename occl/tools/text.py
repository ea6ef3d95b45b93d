"""Sizes, durations, lists of ranks and tables as text, for every command and report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
DURATIONS = (("s", 1e9), ("ms", 1e6), ("us", 1e3), ("ns", 1.0))


def size(count: float) -> str:
    """Bytes, with the largest unit that leaves at least 1, in three digits: "1.5 KiB", "1000 B"."""
    unit = 0
    while count >= 1024 and unit < len(SIZES) - 1:
        count, unit = count / 1024, unit + 1
    return f"{three_digits(count)} {SIZES[unit]}"


def narrow_size(count: float) -> str:
    """At most four letters: "0", "512", "4K", "1.5M"."""
    unit = 0
    while count >= 999.5 and unit < len(SIZES) - 1:
        count, unit = count / 1024, unit + 1
    text = f"{count:.1f}" if unit and count < 9.95 else f"{count:.0f}"
    return text.removesuffix(".0") + SIZES[unit][0] * (unit > 0)


def duration(ns: float) -> str:
    """Nanoseconds, with the largest unit that leaves at least 1, in three digits: "1.5 ms", "12 us"."""
    unit, length = next((it for it in DURATIONS if ns >= it[1]), DURATIONS[-1])
    return f"{three_digits(ns / length)} {unit}" if length > 1 else f"{ns:.0f} ns"


def narrow_duration(ns: float) -> str:
    """At most five letters, with a sign: "+12us", "-3ms"; "0" below half a microsecond."""
    value, sign = abs(ns), "-" if ns < 0 else "+"
    if value < 500:
        return "0"
    for unit, length in reversed(DURATIONS[:-1]):
        if value < 999.5 * length:
            return f"{sign}{value / length:.0f}{unit}"
    return f"{sign}{value / 1e9:.0f}s" if value < 9999.5e9 else f"{sign}{value / 3600e9:.0f}h"


def three_digits(value: float) -> str:
    """Up to three digits, and all of those before the point: "0.123", "12.3", "1234"."""
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"


def ranges(numbers: Iterable[int], least: int = 2) -> list[tuple[int, str]]:
    """Numbers in order, of which runs of at least ``least`` are one: ``[(4, "0-3"), (1, "8")]``, with how
    many each stands for."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    found: list[tuple[int, str]] = []
    for run in runs:
        if len(run) >= least:
            found.append((len(run), f"{run[0]}-{run[-1]}"))
        else:
            found += ((1, str(number)) for number in run)
    return found


def ranks(numbers: Iterable[int], most: int | None = None) -> str:
    """ "rank 1", "ranks 0, 2-5 and 8"; after ``most`` entries "and 3 more"."""
    found = ranges(numbers, least=3)
    shown = [text for _, text in found[:most]]
    if left := sum(count for count, _ in found[len(shown) :]):
        shown.append(f"{left} more")
    several = sum(count for count, _ in found) > 1
    return f"rank{'s' * several} " + " and ".join(filter(None, [", ".join(shown[:-1]), shown[-1]]))


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> Iterator[str]:
    """The first column to the left, the others to the right."""
    rows = [head, *lines]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        cells = [first.ljust(widths[0]), *map(str.rjust, others, widths[1:])]
        yield "  ".join(cells).rstrip()


def markdown_table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in lines:
        yield f"| {' | '.join(row)} |"
