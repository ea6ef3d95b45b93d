"""What the times of a job say. docs/tracing.md defines the words.

in flight   from the call to the end of an operation
waiting     of a collective: from this rank's arrival to the last rank's; of a message: until its other side
            is there
moving      from then on, to its end
blocked     the part of the time in flight in which a thread of the rank waited for the operation. Where it
            may have waited for a future: the part after the rank's last call before the end (merge.py)
overlap     of the time in which a rank had operations in flight: the share in which it was not blocked
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from occl.tools.report.merge import Job, Operation

SIZES = [("up to 64 B", 64), ("up to 1 KiB", 1 << 10), ("up to 16 KiB", 1 << 14), ("up to 256 KiB", 1 << 18)]
SIZES += [("up to 4 MiB", 1 << 22), ("up to 64 MiB", 1 << 26), ("more than 64 MiB", 1 << 62)]


@dataclass
class Share:
    """Of all operations of one group, kind or size, over all ranks; times in nanoseconds."""

    name: str
    operations: int = 0
    bytes: int = 0
    in_flight: float = 0.0
    waiting: float = 0.0
    moving: float = 0.0
    blocked: float = 0.0

    def add(self, operation: Operation, waited: float) -> None:
        self.operations += 1
        self.bytes += operation.bytes
        self.in_flight += operation.stop - operation.submitted
        self.waiting += waited
        if operation.met is not None:
            self.moving += max(0.0, operation.stop - operation.met)
        if (span := blocked(operation)) is not None:
            self.blocked += span[1] - span[0]


@dataclass
class Rank:
    """The time of one row: unions of intervals, so that time with two operations in flight counts once."""

    row: int
    operations: int = 0
    in_flight: float = 0.0
    blocked: float = 0.0
    waiting: float = 0.0
    caused: float = 0.0
    """Waiting of all other ranks for this one."""

    @property
    def overlap(self) -> float:
        return 1 - self.blocked / self.in_flight if self.in_flight else 0.0


@dataclass
class Slow:
    """One collective on all ranks, or one message on one of its two."""

    first: Operation
    began: float
    duration: float
    waiting: float
    """Of all its ranks together."""
    moving: float
    """From the last arrival to the last end."""
    last: int | None
    ranks: int
    failed: bool
    open: bool


@dataclass
class Analysis:
    ranks: list[Rank]
    waits: list[list[float]]
    """Row i: how long row i waited for each other row."""
    by_group: list[Share] = field(default_factory=list)
    by_kind: list[Share] = field(default_factory=list)
    by_size: list[Share] = field(default_factory=list)
    slowest: list[Slow] = field(default_factory=list)


def blocked(operation: Operation) -> tuple[float, float] | None:
    if operation.waited is None or operation.waited >= operation.stop:
        return None
    return max(operation.waited, operation.submitted), operation.stop


def last_arrival(operations: list[Operation], size: int) -> Operation | None:
    """Of a collective: the operation of the rank that came last, if that can be known."""
    arrived = [operation for operation in operations if operation.arrived is not None]
    if len(arrived) < size:
        return None
    return max(arrived, key=lambda operation: operation.arrived or 0.0)


def waits(job: Job) -> Iterable[tuple[Operation, int | None, float]]:
    """Each wait: the operation of the rank that waited, the row that it waited for, and how long."""
    for (group, _), operations in job.meetings().items():
        last = last_arrival(operations, job.groups[group].size)
        for operation in operations:
            if operation.arrived is None:
                continue
            if last is None:  # a rank left no trace, or has not arrived
                came, by = operation.met or operation.ended, operation.peer
            else:
                came, by = last.arrived, last.row
            until = min(t for t in (came, operation.met, operation.ended, job.duration) if t is not None)
            if until > operation.arrived and by != operation.row:
                yield operation, by, until - operation.arrived
    for operation in job.operations:
        if operation.is_message and operation.arrived is not None:
            until = operation.met or operation.ended or operation.stop
            if until > operation.arrived:
                yield operation, operation.peer, until - operation.arrived


def union(spans: list[tuple[float, float]]) -> float:
    total, end = 0.0, float("-inf")
    for begin, stop in sorted(spans):
        if stop > end:
            total += stop - max(begin, end)
            end = stop
    return total


def size_name(size: int) -> str:
    return next((name for name, most in SIZES if size <= most), SIZES[-1][0])


def analyse(job: Job, slowest: int = 100) -> Analysis:
    n = len(job.rows)
    found = Analysis([Rank(row) for row in range(n)], [[0.0] * n for _ in range(n)])
    waited: dict[int, float] = defaultdict(float)
    for operation, by, time in waits(job):
        waited[id(operation)] += time
        found.ranks[operation.row].waiting += time
        if by is not None:
            found.waits[operation.row][by] += time
            found.ranks[by].caused += time
    flights: list[list[tuple[float, float]]] = [[] for _ in range(n)]
    blocks: list[list[tuple[float, float]]] = [[] for _ in range(n)]
    for operation in job.operations:
        found.ranks[operation.row].operations += 1
        flights[operation.row].append((operation.submitted, operation.stop))
        if (span := blocked(operation)) is not None:
            blocks[operation.row].append(span)
    for rank in found.ranks:
        rank.in_flight = union(flights[rank.row])
        rank.blocked = union(blocks[rank.row])

    def shares(name_of: Callable[[Operation], str]) -> list[Share]:
        made: dict[str, Share] = {}
        for operation in job.operations:
            name = name_of(operation)
            made.setdefault(name, Share(name)).add(operation, waited[id(operation)])
        return sorted(made.values(), key=lambda share: -share.in_flight)

    found.by_group = shares(lambda op: job.groups[op.group].label if op.group >= 0 else "group not known")
    found.by_kind = shares(lambda op: op.kind)
    found.by_size = shares(lambda op: size_name(op.bytes))
    order = [name for name, _ in SIZES]
    found.by_size.sort(key=lambda share: order.index(share.name))
    found.slowest = _slowest(job, waited, slowest)
    return found


def _slowest(job: Job, waited: dict[int, float], most: int) -> list[Slow]:
    """Those that took longest, and those in which ranks waited longest."""
    units = list(job.meetings().values())
    units += [[operation] for operation in job.operations if operation.is_message or operation.group < 0]
    made = []
    for operations in units:
        began = min(operation.submitted for operation in operations)
        stop = max(operation.stop for operation in operations)
        message = operations[0].is_message
        group = -1 if message else operations[0].group
        last = last_arrival(operations, job.groups[group].size) if group >= 0 else None
        met = [operation.met for operation in operations if operation.met is not None]
        came = last.arrived if last and last.arrived is not None else min(met, default=stop)
        made.append(
            Slow(
                operations[0],
                began,
                stop - began,
                sum(waited[id(operation)] for operation in operations),
                max(0.0, stop - came),
                operations[0].peer if message else last.row if last else None,
                len(operations),
                any(operation.failed for operation in operations),
                any(operation.open for operation in operations),
            )
        )
    made.sort(key=lambda slow: -slow.duration)
    chosen = made[:most]
    longest = sorted(made, key=lambda slow: -slow.waiting)[:most]
    return chosen + [slow for slow in longest if not any(slow is known for known in chosen)]
