"""What the groups of this process have done so far."""

from __future__ import annotations

from dataclasses import dataclass

from occl import _C
from occl.tools.top import layout, records


@dataclass(frozen=True)
class OperationStats:
    """All operations of one kind in one group, on this rank, since the group was made."""

    operations: int
    """That succeeded."""
    failed: int
    bytes: int
    """Of those that succeeded: of each the larger of what this rank gave and of what it got."""
    waiting_seconds: float
    """In which these operations could not go on before another rank did something."""
    moving_seconds: float
    """The rest of their time, from when this rank began them: copying and reducing."""


def stats() -> dict[str, dict[str, OperationStats]]:
    """Counts, bytes and times by group and kind of operation: ``stats()["0"]["all_reduce"].operations``.

    Kinds are those of the core: ``all_reduce``, ``send``, ``recv``, and so on. All calls of a kind count
    together, ``all_gather_into_tensor`` as ``all_gather``. Kinds without any operation are left out, and so
    are groups that have been destroyed. Groups of the same name count together.

    Times are seconds of operations, not of threads. An asynchronous operation can wait while this rank
    computes, and messages that are in flight together each have their own time. The waiting of a ``recv``
    ends when the message has begun to arrive, and that of a ``send`` when its receive is there; messages that
    fit into the ring wait for nothing. An operation of at most a kibibyte counts as moving no time.

    Reading costs the operations nothing, so an exporter may call it as often as it likes. Any thread may
    call it. The values of one kind belong together.
    """
    region = _C._control_region()
    if region is None:
        return {}

    def read(offset: int, count: int) -> bytes:
        return bytes(region[offset : offset + count])

    found: dict[str, dict[str, OperationStats]] = {}
    for record in records.all_records(read):
        if record.ended or record.flags & layout.PART_OF_ANOTHER:
            continue
        kinds = found.setdefault(record.name, {})
        for kind, counted in record.counted.items():
            if counted.operations or counted.failed:
                kinds[kind] = _sum(kinds.get(kind), counted)
    return found


def _sum(before: OperationStats | None, counted: records.Counted) -> OperationStats:
    b = before or OperationStats(0, 0, 0, 0.0, 0.0)
    return OperationStats(
        b.operations + counted.operations,
        b.failed + counted.failed,
        b.bytes + counted.bytes,
        b.waiting_seconds + counted.waiting / 1e9,
        b.moving_seconds + counted.moving / 1e9,
    )
