"""The records of all ranks, by group: which rank waits for which, since when, and how late each one is."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from occl.tools.top import layout, records
from occl.tools.top.layout import Unreadable
from occl.tools.top.processes import Process
from occl.tools.top.records import Call, Record

GONE = "X"
STOPPED = "Tt"
BARRIER = "monitored_barrier"


@dataclass(frozen=True)
class Rank:
    process: Process
    record: Record
    state: str  # of the process, a letter

    @property
    def computes(self) -> bool:
        return self.record.stage == "idle" and not self.receives and not self.in_barrier

    @property
    def receives(self) -> bool:
        """It computes no collective, and a message that it posted has not ended."""
        return self.record.stage == "idle" and self.record.messages_open > 0

    @property
    def in_barrier(self) -> bool:
        """Its program is in a monitored barrier."""
        return self.record.barrier_since is not None

    @property
    def call(self) -> Call | None:
        """The operation that it is in, or was in last."""
        if since := self.record.barrier_since:
            return Call(BARRIER, self.record.barriers, "", 0, f"{BARRIER}()", since)
        call, message = self.record.call, self.record.message
        if call is None or message is None:
            return call or message
        newer = message.posted > call.posted
        return message if self.receives or (self.record.stage == "idle" and newer) else call

    def waits_since(self) -> int | None:
        if self.in_barrier:
            return self.record.barrier_since
        if self.record.stage == "meeting" or self.receives:
            return (self.call.posted or None) if self.call else None  # 0: a message that just begins
        return self.record.since if self.record.stage == "syncing" else None

    def waited(self, now: int) -> float:
        """Nanoseconds that it has waited for others so far."""
        since = self.waits_since()
        return sum(c.waiting for c in self.record.counted.values()) + (max(0, now - since) if since else 0)


@dataclass
class Group:
    number: int
    name: str
    size: int
    spans_nodes: bool
    ranks: dict[int, Rank] = field(default_factory=dict)

    def waits_for(self, rank: int) -> list[int]:
        """The ranks that this one waits for, of those that share memory with it."""
        me = self.ranks[rank]
        if me.in_barrier:
            return self._behind(rank, lambda r: r.barriers)
        if me.record.stage == "meeting":
            return self._behind(rank, lambda r: r.collectives)
        if me.record.stage == "syncing":
            mine = me.record.collectives
            return self._behind(rank, lambda r: r.tick if r.collectives == mine else -1)
        if not me.receives:
            return []
        message = me.record.message
        if message is None or message.peer is None:  # any rank
            return []
        return [peer for peer in me.record.wanted if peer != rank] or [message.peer]

    def _behind(self, rank: int, position: Callable[[Record], int]) -> list[int]:
        mine = position(self.ranks[rank].record)
        others = (r for r in range(self.size) if r != rank)
        if self.spans_nodes:
            others = (r for r in others if r in self.ranks)
        return [r for r in others if r not in self.ranks or position(self.ranks[r].record) < mine]


@dataclass
class Snapshot:
    now: int  # ns of CLOCK_MONOTONIC
    groups: dict[tuple[int, bool], Group]
    problems: list[str]

    def busy_in(self, rank: Rank) -> list[str]:
        """The other groups in which its process has an operation."""
        return [
            group.name
            for group in self.groups.values()
            for other in group.ranks.values()
            if other.process is rank.process and other is not rank and not other.computes
        ]

    def waiting_elsewhere(self, rank: Rank) -> list[tuple[Group, int]]:
        """What the process of ``rank`` waits for: groups, and its rank in each."""
        return [
            (group, number)
            for group in self.groups.values()
            for number, other in group.ranks.items()
            if other.process is rank.process and other.waits_since() is not None and not other.record.ended
        ]


def look(processes: Iterable[Process], problems: Iterable[str] = ()) -> Snapshot:
    """Reads all records once. What cannot be read is a sentence in ``problems``."""
    snapshot = Snapshot(time.monotonic_ns(), {}, list(problems))
    for process in processes:
        state = process.state()
        try:
            found = list(records.all_records(process.read))
        except Unreadable as error:
            snapshot.problems.append(f"Process {process.pid} cannot be shown: {error}.")
            continue
        for record in found:
            if record.ended or record.flags & layout.PART_OF_ANOTHER:
                continue
            spans = bool(record.flags & layout.SPANS_NODES)
            group = snapshot.groups.setdefault(
                (record.group, spans), Group(record.group, record.name, record.size, spans)
            )
            if record.rank < group.size:
                group.ranks[record.rank] = Rank(process, record, state)
    live = [
        (_first_pid(group), group.name, key)
        for key, group in snapshot.groups.items()
        if any(rank.state != GONE for rank in group.ranks.values())
    ]
    snapshot.groups = {key: snapshot.groups[key] for _, _, key in sorted(live)}
    return snapshot


def _first_pid(group: Group) -> int:
    """Groups of one job have the same."""
    return min((rank.process.pid for rank in group.ranks.values()), default=0)


@dataclass(frozen=True)
class Row:
    """One rank of one group, over the time between two looks."""

    rank: int
    pid: int
    host: str
    call: Call | None
    stage: str
    """computing, waiting, moving, held, elsewhere (busy in another group), stopped or exited"""
    busy_in: list[str]
    """Other groups in which the process has an operation."""
    waits_for: list[int]
    waited: float
    """Seconds that it has waited now."""
    bytes_per_second: float
    waiting_share: float
    lateness: float
    """Seconds after the median rank, on average; of a rank that others wait for, now."""
    memory: int


def rows(before: Snapshot, after: Snapshot, key: tuple[int, bool]) -> list[Row]:
    group = after.groups[key]
    earlier = before.groups[key].ranks if key in before.groups else {}
    span = after.now - before.now
    late = _lateness(group, earlier, after.now, span)
    made = []
    for number in sorted(group.ranks):
        rank = group.ranks[number]
        old = earlier.get(number, rank)
        moved = sum(c.bytes for c in rank.record.counted.values())
        moved -= sum(c.bytes for c in old.record.counted.values())
        share = (rank.waited(after.now) - old.waited(before.now)) / span if span else 0.0
        since = rank.waits_since()
        elsewhere = after.busy_in(rank)
        made.append(
            Row(
                rank=number,
                pid=rank.process.pid,
                host=rank.process.host,
                call=rank.call,
                stage=_stage(rank, elsewhere),
                busy_in=elsewhere,
                waits_for=group.waits_for(number) if since else [],
                waited=max(0, after.now - since) / 1e9 if since else 0.0,
                bytes_per_second=max(0, moved) * 1e9 / span if span else 0.0,
                waiting_share=min(1.0, max(0.0, share)),
                lateness=late.get(number, 0.0) / 1e9,
                memory=rank.record.memory,
            )
        )
    return made


def _stage(rank: Rank, elsewhere: list[str]) -> str:
    if rank.state == GONE:
        return "exited"
    if rank.state in STOPPED:
        return "stopped"
    if rank.waits_since() is not None:
        return "waiting"
    if rank.record.stage != "idle":
        return rank.record.stage
    return "elsewhere" if elsewhere else "computing"


def _lateness(group: Group, earlier: dict[int, Rank], now: int, span: int) -> dict[int, float]:
    """By rank, nanoseconds. All ranks meet at one moment, so a rank that waited less came later."""
    newest = max((r.record.collectives for r in group.ranks.values()), default=0)
    arrived = [
        rank.record.call.posted
        for rank in group.ranks.values()
        if rank.record.collectives == newest and rank.record.call
    ]
    if not arrived:
        return {}
    median = statistics.median(arrived)
    behind = any(rank.record.collectives < newest for rank in group.ranks.values())
    operations = {}
    for number, rank in group.ranks.items():
        if old := earlier.get(number):
            done, waited = _met(rank.record), _met(old.record)
            if done[0] > waited[0]:
                operations[number] = (done[1] - waited[1]) / (done[0] - waited[0])
    if (behind and now - median > span / 2) or len(operations) < len(group.ranks):
        return {
            number: (
                now if rank.record.collectives < newest or not rank.record.call else rank.record.call.posted
            )
            - median
            for number, rank in group.ranks.items()
        }
    usual = statistics.median(operations.values())
    return {number: usual - waited for number, waited in operations.items()}


def _met(record: Record) -> tuple[int, float]:
    """Collectives so far, and the nanoseconds that this rank waited until all had come to them."""
    counted = [c for kind, c in record.counted.items() if kind not in ("send", "recv")]
    return sum(c.operations for c in counted), sum(c.meeting for c in counted)
