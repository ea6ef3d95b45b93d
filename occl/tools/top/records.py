"""One record: what a rank says of itself in a group, checked and in nanoseconds."""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from occl.tools.top import layout
from occl.tools.top.layout import Names, Read, Unreadable

ATTEMPTS = 50
"""A rank writes for a few nanoseconds; one that is stopped or killed meanwhile never ends."""
NEVER = (1 << 63) - 1


@dataclass(frozen=True)
class Counted:
    """All operations of one kind so far. Times are nanoseconds."""

    operations: int = 0
    bytes: int = 0
    meeting: float = 0.0
    syncing: float = 0.0
    moving: float = 0.0
    failed: int = 0

    @property
    def waiting(self) -> float:
        return self.meeting + self.syncing


@dataclass(frozen=True)
class Call:
    """An operation: ``all_reduce(float32[4], SUM)`` number 12."""

    kind: str
    number: int
    dtype: str
    bytes: int
    text: str
    posted: int  # ns of CLOCK_MONOTONIC, as are all moments
    deadline: int | None = None


@dataclass(frozen=True)
class Message(Call):
    peer: int | None = None  # None: any rank
    tag: int = 0


@dataclass(frozen=True)
class Record:
    group: int
    name: str
    rank: int
    size: int
    flags: int
    ended: bool
    stage: str
    call: Call | None
    collectives: int
    submitted: int
    tick: int
    since: int
    last: int | None
    message: Message | None
    messages_open: int
    barriers: int
    barrier_since: int | None
    memory: int
    counted: dict[str, Counted]
    wanted: dict[int, int] = field(default_factory=dict)
    """By rank: the tag of a receive that waits for it."""
    steady: bool = True
    """False: the rank was in the middle of writing at every attempt, so numbers may not belong together."""


def header(read: Read) -> tuple[int, int, int, str, bool]:
    """Of a control region: the process's pid as it sees it, where its records and names are, its host, and
    whether it is about to exit. Raises `Unreadable`."""
    # sync: process-ending, record-list, record-names
    _, magic, version, ending, pid, _, records, names, host = layout.HEADER.unpack(
        layout.take(read, 0, layout.HEADER.size)
    )
    if magic != layout.MAGIC:
        raise Unreadable("its memory does not begin as that of torch_occl does")
    if version != layout.PROTOCOL:
        raise layout.OtherVersion(version)
    return pid, records, names, layout.text(host), bool(ending)


@functools.lru_cache(maxsize=8)
def _names(said: str) -> Names:
    return Names(said)


def all_records(read: Read) -> Iterator[Record]:
    """Of a process, those that show a group. Raises `Unreadable`."""
    _, first, names_at, _, _ = header(read)
    if first == 0 or names_at == 0:
        return
    names = _names(layout.text(read(names_at, layout.LONGEST_NAMES)))
    for offset in layout.offsets(read, first):
        if (record := one(read, offset, names)) is not None:
            yield record


def one(read: Read, offset: int, names: Names) -> Record | None:
    """The record at ``offset``; None if it shows no group."""
    version_at = offset + layout.VERSION_AT
    for _ in range(ATTEMPTS):
        before = layout.word(read, version_at)
        data = layout.take(read, offset, layout.RECORD_BYTES)  # sync: record-word
        steady = before % 2 == 0 and layout.word(read, version_at) == before
        if steady:
            break
    magic, count, _, state, group, rank, size, block, wanted, flags, name = layout.IDENTITY.unpack_from(data)
    if magic != layout.RECORD_MAGIC or count != layout.RECORD_BYTES:
        raise Unreadable(f"what it publishes at {offset} is no record of a group")
    if state not in (layout.OPEN, layout.ENDED) or not 0 <= rank < size:
        return None
    words = layout.WORDS.unpack_from(data, layout.IDENTITY.size)
    record = _record(dict(zip(layout.FIELDS, words, strict=False)), words[len(layout.FIELDS) :], names)
    return replace(
        record,
        group=group,
        name=layout.text(name),
        rank=rank,
        size=size,
        flags=flags,
        ended=state == layout.ENDED,
        tick=layout.word(read, block) if block else 0,
        wanted=_wanted(read, wanted, size) if wanted and size <= layout.MAX_RANKS else {},
        steady=steady,
    )


def _wanted(read: Read, offset: int, size: int) -> dict[int, int]:
    lines = layout.take(read, offset, size * layout.RECV_LINE)
    tags = (
        struct.unpack_from("<Q", lines, i * layout.RECV_LINE + layout.WANTED_IN_LINE)[0] for i in range(size)
    )
    return {rank: tag - 1 for rank, tag in enumerate(tags) if tag}


def _record(w: dict[str, int], counters: tuple[int, ...], names: Names) -> Record:
    ticks = w["recent_ticks"] - w["first_ticks"]
    ratio = (w["recent_ns"] - w["first_ns"]) / ticks if ticks > 0 else 1.0

    def moment(at: int) -> int:
        return w["recent_ns"] + int((at - w["recent_ticks"]) * ratio) if at else 0

    counted = {}
    for i, kind in enumerate(names.kinds):
        operations, count, meeting, syncing, moving, failed = counters[8 * i : 8 * i + 6]
        counted[kind] = Counted(operations, count, meeting * ratio, syncing * ratio, moving * ratio, failed)
    stage = layout.STAGES[w["stage"]] if w["stage"] < len(layout.STAGES) else "idle"
    call = message = None
    if w["number"]:
        kind, dtype, text = describe(w["signature"], names)
        deadline = w["deadline"] if w["deadline"] < NEVER else None
        call = Call(kind, w["number"], dtype, w["volume"], text, moment(w["posted"]), deadline)
    if w["message"]:
        message = _message(w, names, moment(w["message_posted"]))
    return Record(
        group=0,
        name="",
        rank=0,
        size=0,
        flags=0,
        ended=False,
        stage=stage,
        call=call,
        collectives=w["collectives"],
        submitted=w["submitted"],
        tick=0,
        since=moment(w["since"]),
        last=w["last"] - 1 if 0 < w["last"] <= layout.MAX_RANKS else None,
        message=message,
        messages_open=w["messages_open"],
        barriers=w["barriers"],
        barrier_since=w["barrier_since"] or None,
        memory=w["memory"],
        counted=counted,
    )


def _message(w: dict[str, int], names: Names, posted: int) -> Message:
    envelope = w["envelope"]
    peer = (envelope & 0xFFFF) - 1
    send = bool(envelope >> 16 & 1)
    type_number = envelope >> 17 & 0x3FFF
    dtype = Names.at(names.dtypes, type_number)
    size = names.sizes[type_number] if type_number < len(names.sizes) else 1
    tag = envelope >> 32
    kind, side = ("send", "dst") if send else ("recv", "src")
    number, count = w["message"], w["message_volume"]
    text = f"{kind}({dtype}[{count // size}], {side}={'any' if peer < 0 else peer}, tag={tag})"
    if envelope >> 31 & 1:
        kind, tag = Names.at(layout.ACCESSES, tag), 0
        what = f"{dtype}[{count // size}], " if kind == "put" else ""
        text = f"{kind}({what}{side}={peer})"
    deadline = w["message_deadline"] if w["message_deadline"] < NEVER else None
    return Message(kind, number, dtype, count, text, posted, deadline, None if peer < 0 else peer, tag)


def describe(signature: int, names: Names) -> tuple[str, str, str]:
    """Kind, dtype and text of a collective: as coll::Signature::describe."""
    kind = Names.at(names.kinds[:-2], signature & 0xF)
    call = Names.at(layout.COMPOSITES, signature >> 15 & 0x1FF) if signature >> 4 & 1 else ""
    if call and call != layout.IN_PIECES:
        return call, "", f"{call}(...)"
    if kind in ("barrier", "?"):
        return kind, "", f"{kind}()"
    dtype = Names.at(names.dtypes, signature >> 5 & 0x3F)
    volume = signature >> 24
    count = "uneven" if volume >> 39 & 1 else str(volume)
    root = signature >> 15 & 0x1FF
    text = f"{kind}({dtype}[{count}]"
    if "reduce" in kind:
        text += f", {Names.at(names.ops, signature >> 11 & 0xF)}"
    if kind in ("broadcast", "scatter"):
        text += f", src={root}"
    if kind in ("reduce", "gather"):
        text += f", dst={root}"
    return kind, dtype, f"{text}) {call}".rstrip()
