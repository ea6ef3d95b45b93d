"""The recordings of a directory, as jobs: the processes that had groups in common, side by side."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from occl.tools.report import align
from occl.tools.report.read import (
    ENDED,
    FAILED,
    MET,
    RECEIVE,
    SEND,
    SUFFIX,
    Record,
    Recording,
    Unreadable,
    read,
)
from occl.tools.text import ranks, size


@dataclass
class Row:
    """A process of the job."""

    number: int
    host: str
    pid: int
    rank: int | None
    recordings: list[Recording]

    @property
    def label(self) -> str:
        return f"pid {self.pid}" if self.rank is None else f"rank {self.rank}"


@dataclass
class Group:
    number: int
    name: str
    size: int
    rows: dict[int, int] = field(default_factory=dict)
    """By rank: the row, for the ranks that have left a trace."""

    @property
    def label(self) -> str:
        return f"group {self.name} ({self.size} rank{'s' * (self.size != 1)})"


@dataclass(slots=True)
class Operation:
    """What one rank did in one operation. Times are nanoseconds from the beginning of the job."""

    row: int
    group: int
    """-1: not known."""
    rank: int
    kind: str
    number: int
    bytes: int
    dtype: str
    reduction: str
    root: int | None
    tag: int | None
    peer: int | None
    """The row that a message goes to or comes from, or whose arrival this rank saw last."""
    progress: int
    has_future: bool
    submitted: float
    arrived: float | None
    met: float | None
    moved: float | None
    ended: float | None
    waited: float | None

    @property
    def title(self) -> str:
        return f"{self.kind} #{self.number}"

    @property
    def is_message(self) -> bool:
        return self.kind in ("send", "recv")

    @property
    def stop(self) -> float:
        """When it ended, or the last that is known of it."""
        return max(
            t for t in (self.submitted, self.arrived, self.met, self.moved, self.ended) if t is not None
        )

    @property
    def failed(self) -> bool:
        return self.progress == FAILED

    @property
    def open(self) -> bool:
        return self.progress < ENDED


@dataclass
class Job:
    rows: list[Row]
    groups: list[Group]
    operations: list[Operation]
    """In the order of `submitted`."""
    command: str
    began: int
    """Nanoseconds since 1970."""
    problems: list[str]
    clocks: list[str]
    """How well the times of several hosts agree, in sentences."""

    @cached_property
    def duration(self) -> float:
        return max((operation.stop for operation in self.operations), default=0.0)

    def where(self, operation: Operation) -> str:
        return self.groups[operation.group].label if operation.group >= 0 else "a group that is not known"

    def describe(self, operation: Operation) -> str:
        """ "all_reduce #12 of group 0 (4 ranks), 4 KiB of float32, SUM" """
        text = f"{operation.title} of {self.where(operation)}"
        if operation.bytes:
            text += f", {size(operation.bytes)} of {operation.dtype}"
        return text + (f", {operation.reduction}" if operation.reduction else "")

    def meetings(self) -> dict[tuple[int, int], list[Operation]]:
        """The collectives: by group and number, what each rank did."""
        found: dict[tuple[int, int], list[Operation]] = defaultdict(list)
        for operation in self.operations:
            if not operation.is_message and operation.group >= 0:
                found[operation.group, operation.number].append(operation)
        return found


@dataclass
class Loaded:
    recordings: list[Recording]
    problems: list[str]


def load(directory: Path) -> Loaded:
    """Reads what can be read. Raises Unreadable if there is no directory or no trace in it."""
    if not directory.exists():
        raise Unreadable(f"{directory} does not exist")
    if not directory.is_dir():
        raise Unreadable(
            f"{directory} is no directory: give the one that OCCL_TRACE or torch_occl.trace named"
        )
    paths = sorted(directory.glob("*" + SUFFIX))
    if not paths:
        raise Unreadable(f"{directory} holds no traces (files named *{SUFFIX})")
    loaded = Loaded([], [])
    for path in paths:
        try:
            loaded.recordings.append(read(path))
        except Unreadable as error:
            loaded.problems.append(str(error))
        except OSError as error:
            loaded.problems.append(f"{path.name} cannot be read: {error.strerror or error}")
    if not loaded.recordings:
        raise Unreadable("; ".join(loaded.problems))
    return loaded


# ---- processes and groups


def instances(recordings: list[Recording]) -> dict[tuple[int, int], int]:
    """By recording and the number of a group in it: a number of the group that all its ranks have.

    A group of one host has a random key. A group over several hosts has a name, which a later group may have
    too: a rank that is taken belongs to the later one.
    """
    found: dict[tuple[int, int], int] = {}
    taken: dict[int, dict[int, tuple[str, str, int]]] = {}
    by_key: dict[tuple[str, str, int], list[int]] = defaultdict(list)
    for i, recording in enumerate(recordings):
        process = (recording.boot, recording.host, recording.pid)
        for group in recording.groups.values():
            name = ("", group.name, group.size) if group.spans else (group.key, "", 0)
            for candidate in by_key[name]:
                if taken[candidate].get(group.rank, process) == process:
                    break
            else:
                candidate = len(taken)
                taken[candidate] = {}
                by_key[name].append(candidate)
            taken[candidate][group.rank] = process
            found[i, group.number] = candidate
    return found


def divide(recordings: list[Recording]) -> list[list[Recording]]:
    """The recordings of each job, from the oldest job to the latest. A directory may hold several."""
    recordings = sorted(recordings, key=_began)
    parents = list(range(len(recordings)))

    def top(i: int) -> int:
        while parents[i] != i:
            i = parents[i]
        return i

    owners: dict[int, int] = {}
    for (i, _), group in instances(recordings).items():
        parents[top(i)] = top(owners.setdefault(group, i))
    jobs: dict[int, list[Recording]] = defaultdict(list)
    for i, recording in enumerate(recordings):
        jobs[top(i)].append(recording)
    made = [job for job in jobs.values() if any(recording.records for recording in job)]
    return sorted(made, key=lambda job: max(_began(recording) for recording in job))


def _began(recording: Recording) -> int:
    return recording.readings[0].realtime if recording.readings else 0


def merge(recordings: list[Recording], problems: Iterable[str] = ()) -> Job:
    """Makes one job of recordings that belong together."""
    recordings = sorted(recordings, key=_began)
    numbers = instances(recordings)
    processes: dict[tuple[str, str, int], list[int]] = defaultdict(list)
    for i, recording in enumerate(recordings):
        processes[recording.boot, recording.host, recording.pid].append(i)

    sizes: Counter[int] = Counter()
    for (i, group), number in numbers.items():
        sizes[number] = max(sizes[number], recordings[i].groups[group].size)

    def rank_of(own: list[int]) -> int | None:
        """In the largest group of the process, and of these in the first."""
        seen = [
            (-sizes[numbers[i, g.number]], i, g.number, g.rank)
            for i in own
            for g in recordings[i].groups.values()
        ]
        environment = recordings[own[0]].rank
        return min(seen)[3] if seen else environment if environment >= 0 else None

    ranked = [(rank_of(own), own) for own in processes.values()]
    ranked.sort(key=lambda pair: (pair[0] is None, pair[0] or 0, pair[1]))
    rows = [
        Row(n, recordings[own[0]].host, recordings[own[0]].pid, rank, [recordings[i] for i in own])
        for n, (rank, own) in enumerate(ranked)
    ]
    row_of = {i: n for n, (_, own) in enumerate(ranked) for i in own}

    groups: list[Group] = []
    renumbered: dict[int, int] = {}
    for (i, number_there), number in sorted(numbers.items(), key=lambda item: (-sizes[item[1]], item[0])):
        seen = recordings[i].groups[number_there]
        if number not in renumbered:
            renumbered[number] = len(groups)
            groups.append(Group(len(groups), seen.name, seen.size))
        groups[renumbered[number]].rows[seen.rank] = row_of[i]

    job = Job(rows, groups, [], _command(recordings), 0, list(problems), [])
    for recording in recordings:
        job.problems += recording.problems
    job.problems += _missing(job)
    of_recording = {
        i: {g: renumbered[numbers[i, g]] for g in recording.groups} for i, recording in enumerate(recordings)
    }
    _add_operations(job, recordings, row_of, of_recording)
    return job


def _command(recordings: list[Recording]) -> str:
    return Counter(recording.command for recording in recordings).most_common(1)[0][0]


def _missing(job: Job) -> list[str]:
    """Ranks that belong to the largest groups and have left no trace, or else to others."""
    texts: list[str] = []
    for group in job.groups:  # the largest come first
        if texts and group.size < job.groups[0].size:
            break
        if missing := set(range(group.size)) - set(group.rows):
            texts.append(f"{ranks(missing, most=8)} of {group.label} left no trace that can be read")
    return texts


# ---- operations


def _add_operations(
    job: Job, recordings: list[Recording], row_of: dict[int, int], groups: dict[int, dict[int, int]]
) -> None:
    clocks = align.clocks(recordings)
    base = min(_began(recording) for recording in recordings)
    if len(clocks) > 1:
        job.clocks = _compare(clocks, recordings, groups, base)
    for i, recording in enumerate(recordings):
        clock = clocks[align.key(recording)]
        for record in recording.records:
            job.operations.append(_operation(job, recording, record, row_of[i], groups[i], clock, base))
    job.operations.sort(key=lambda operation: operation.submitted)
    first = job.operations[0].submitted if job.operations else 0.0
    job.began = base + round(first)
    for operation in job.operations:
        operation.submitted -= first
        for name in ("arrived", "met", "moved", "ended", "waited"):
            if (at := getattr(operation, name)) is not None:
                setattr(operation, name, at - first)
    _find_waits_for_futures(job)


def _find_waits_for_futures(job: Job) -> None:
    """A program that waits for a future waits unseen. Until its last call before the operation ended it was
    not blocked, because it made that call; after it, it may have been, and is taken to be."""
    calls: dict[int, list[float]] = defaultdict(list)
    for operation in job.operations:
        calls[operation.row].append(operation.submitted)
    for operation in job.operations:
        if operation.has_future and operation.waited is None and operation.ended is not None:
            own = calls[operation.row]
            operation.waited = own[bisect_left(own, operation.ended) - 1]


def _operation(
    job: Job,
    recording: Recording,
    record: Record,
    row: int,
    groups: dict[int, int],
    clock: align.Clock,
    base: int,
) -> Operation:
    at = clock.time(record.submitted, base)
    number = groups.get(record.group, -1)
    group = job.groups[number] if number >= 0 else None
    seen = recording.groups.get(record.group)
    message = record.kind in (SEND, RECEIVE)
    kind = {SEND: "send", RECEIVE: "recv"}.get(record.kind) or _named(recording.kinds, record.kind)
    reduction = "" if message else _named(recording.reductions, record.detail & 0xFF)

    def after(ticks: float | None) -> float | None:
        return None if ticks is None else at + ticks * clock.rate

    return Operation(
        row,
        number,
        seen.rank if seen else -1,
        kind,
        record.number,
        record.bytes,
        _named(recording.dtypes, record.dtype),
        "" if reduction == "NONE" else reduction,
        None if message else record.detail >> 8,
        record.detail if message else None,
        group.rows.get(record.peer) if group else None,
        record.progress,
        record.has_future,
        at,
        after(record.arrived),
        after(record.met),
        after(record.moved),
        after(record.ended),
        after(record.waited),
    )


def _named(names: list[str], number: int) -> str:
    return names[number] if number < len(names) else "?"


def _compare(
    clocks: dict[str, align.Clock],
    recordings: list[Recording],
    groups: dict[int, dict[int, int]],
    base: int,
) -> list[str]:
    """Corrects the clocks of all hosts towards that of the first recording, and says how exact that is."""
    # By meeting and host: the latest call and the first departure. Not the arrival, because a rank notes its
    # time after it has shown it, and the system may have stopped the thread in between.
    ends: dict[tuple[int, int], dict[str, tuple[float, float]]] = defaultdict(dict)
    for i, recording in enumerate(recordings):
        host = align.key(recording)
        clock = clocks[host]
        for record in recording.records:
            if record.kind in (SEND, RECEIVE) or record.progress < MET or record.group not in groups[i]:
                continue
            if record.met is None or record.progress == FAILED:
                continue
            at = clock.time(record.submitted, base)
            meeting = ends[groups[i][record.group], record.number]
            called, met = meeting.get(host, (float("-inf"), float("inf")))
            meeting[host] = max(called, at), min(met, at + record.met * clock.rate)
    bounds: dict[tuple[str, str], list[align.Bound]] = defaultdict(list)
    for meeting in ends.values():
        for a, (called_a, met_a) in meeting.items():
            for b, (called_b, met_b) in meeting.items():
                if a != b:
                    bounds[a, b].append(align.Bound(met_b, False, met_b - called_a))
                    bounds[a, b].append(align.Bound(met_b, True, called_b - met_a))

    placed = [align.key(recordings[0])]
    texts = []
    for a in placed:  # grows
        for b in clocks:
            found = None if b in placed else align.difference(bounds.get((a, b), []))
            if found is None:
                continue
            shifts, uncertain = found
            before = clocks[a]
            clocks[b].shifts = [(at, shift + before.shift(at)) for at, shift in shifts]
            clocks[b].uncertain = known = uncertain + (before.uncertain or 0.0)
            placed.append(b)
            texts.append(
                f"times of host {clocks[b].host} agree with those of host {clocks[placed[0]].host} to "
                f"{known / 1000:.1f} us, as their meetings say"
            )
    for b, clock in clocks.items():
        if b not in placed:
            clock.uncertain = None
            texts.append(
                f"the ranks of host {clock.host} met none of the others in these traces: their times are as "
                "that host's own clock says"
            )
    return texts
