"""The clocks of all recordings, as one time in nanoseconds.

The processes of one host read one clock, so their times agree to some tens of nanoseconds. The clocks of two
hosts are compared by what the ranks did: no rank leaves a meeting before all have arrived, so

    called on a  <=  met on b  +  (a's clock - b's clock)

for every meeting of a rank of a and one of b, and the same with a and b exchanged. Together they leave a
small interval for the difference.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median

from occl.tools.report.read import Recording

PIECES = 32
"""Parts of the time in each of which two clocks keep their difference, at most."""


@dataclass
class Clock:
    """The time of one host. `shifts` are corrections towards the first host: pairs of a time and of
    nanoseconds."""

    host: str
    ticks: int
    monotonic: int
    rate: float
    to_realtime: int
    shifts: list[tuple[float, float]] = field(default_factory=lambda: [(0.0, 0.0)])
    uncertain: float | None = 0.0
    """How far the corrected time may be off, in nanoseconds; None where only the hosts' own clocks say it."""

    def time(self, ticks: int, base: int) -> float:
        """Nanoseconds after `base`, which is in nanoseconds since 1970."""
        whole = self.monotonic + self.to_realtime - base
        at = whole + (ticks - self.ticks) * self.rate
        return at + self.shift(at) if len(self.shifts) > 1 else at + self.shifts[0][1]

    def shift(self, at: float) -> float:
        before = self.shifts[0]
        for after in self.shifts[1:]:
            if at < after[0]:
                part = (at - before[0]) / (after[0] - before[0])
                return before[1] + max(0.0, part) * (after[1] - before[1])
            before = after
        return before[1]


def clocks(recordings: Iterable[Recording]) -> dict[str, Clock]:
    """The clock of each host, by `key`."""
    hosts: dict[str, list[Recording]] = defaultdict(list)
    for recording in recordings:
        hosts[key(recording)].append(recording)
    return {host: _clock(found) for host, found in hosts.items()}


def key(recording: Recording) -> str:
    return recording.boot or recording.host


def _clock(recordings: list[Recording]) -> Clock:
    readings = sorted((r for recording in recordings for r in recording.readings), key=lambda r: r.ticks)
    if not readings:
        return Clock(recordings[0].host, 0, 0, 1.0, 0, uncertain=None)
    first, last = readings[0], readings[-1]
    # Kilohertz to terahertz: anything else is damage.
    rate = (last.monotonic - first.monotonic) / max(1, last.ticks - first.ticks)
    if not 1e-3 < rate < 1e6:
        rate = 1.0
    to_realtime = round(median(r.realtime - r.monotonic for r in readings))
    return Clock(recordings[0].host, first.ticks, first.monotonic, rate, to_realtime)


@dataclass(slots=True)
class Bound:
    """At about this time, b's clock minus a's is at least (or at most) this many nanoseconds."""

    at: float
    least: bool
    value: float


def difference(bounds: list[Bound]) -> tuple[list[tuple[float, float]], float] | None:
    """What to add to b's times, as pairs of a time and nanoseconds, and how far that may be off. None if the
    bounds say nothing.

    Where one difference contradicts some of the bounds, the clocks drift: then the time is divided.
    """
    bounds = sorted(bounds, key=lambda bound: bound.at)
    pieces = 1
    while pieces <= min(PIECES, len(bounds)):
        size = -(-len(bounds) // pieces)
        found = [_middle(bounds[i : i + size]) for i in range(0, len(bounds), size)]
        good = [piece for piece in found if piece is not None and piece[2] >= 0]
        if good and all(piece is None or piece[2] >= 0 for piece in found):
            return [(at, -value) for at, value, _ in good], max(width for _, _, width in good) / 2
        pieces *= 2
    return None


def _middle(bounds: list[Bound]) -> tuple[float, float, float] | None:
    """When, which difference, and how wide the interval is; a negative width is a contradiction. None where
    the bounds leave one side open."""
    least = [bound.value for bound in bounds if bound.least]
    most = [bound.value for bound in bounds if not bound.least]
    if not least or not most:
        return None
    return bounds[len(bounds) // 2].at, (max(least) + min(most)) / 2, min(most) - max(least)
