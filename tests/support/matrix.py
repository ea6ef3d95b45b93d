"""Which combinations of type, reduction, size and layout the tests go through."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tests.support.references import MOVABLE, REDUCIBLE, ops_for

WORLD_SIZES = [1, 2, 3, 4, 8]

# As csrc/coll/plan/tuning.h and csrc/coll/mesh/layout.h say.
INLINE_BYTES = 40
ONE_SHOT_BYTES = 16 << 10
SLOT_BYTES = 256 << 10
STREAMING_BYTES = 36 << 20  # Tuning::streaming_bytes
EAGER_BYTES = 8 << 10
RING_BYTES = 128 << 10

PER_RANK = {"reduce_scatter", "reduce_scatter_tensor", "scatter", "all_to_all", "all_to_all_single"}
"""Operations whose input is one block for each rank: a rank shows all but its own to the others."""


@dataclass(frozen=True)
class Case:
    dtype: str
    op: str
    count: int  # elements of one block
    offset: int  # of each tensor in its storage, in elements
    root: int = 0


def around(byte_limit: int, kind: str, world_size: int, itemsize: int) -> list[int]:
    """Elements of a block such that the bytes a rank shows are just below, at and above a limit."""
    shown = max(world_size - 1, 1) if kind in PER_RANK else 1
    at = byte_limit // shown // itemsize
    return [max(at - 1, 0), at, at + 1]


def small_counts(kind: str, world_size: int, itemsize: int) -> list[int]:
    return sorted({0, 1, 257, *around(INLINE_BYTES, kind, world_size, itemsize)})


def large_counts(kind: str, world_size: int, itemsize: int) -> list[int]:
    """Around every threshold, and several windows with an odd end."""
    slot = around(SLOT_BYTES, kind, world_size, itemsize)
    return [*around(ONE_SHOT_BYTES, kind, world_size, itemsize), *slot, slot[1] * 5 // 2 + 3]


def reductions(kind: str, world_size: int, full: bool = False) -> list[Case]:
    """All types with all reductions in small sizes; large sizes with types and reductions in turn, or all."""
    cases = []
    for d, dtype in enumerate(REDUCIBLE):
        itemsize = getattr(torch, dtype).itemsize
        ops = ops_for(dtype)
        small, large = (f(kind, world_size, itemsize) for f in (small_counts, large_counts))
        for o, op in enumerate(ops):
            for i, count in enumerate(small if not full else small + large):
                offsets = (0, 3) if full else (3 * ((i + o) % 2),)
                cases += [Case(dtype, op, count, offset, (i + d) % world_size) for offset in offsets]
        if not full:
            pairs = [(d, d), (d + 3, d + 1)]  # sizes and reductions in turn: 40 pairs over 7 sizes
            cases += [
                Case(dtype, ops[o % len(ops)], large[i % len(large)], 3 * (i % 2), (i + o) % world_size)
                for i, o in pairs
            ]
    return cases


def movements(kind: str, world_size: int, full: bool = False) -> list[Case]:
    cases = []
    for d, dtype in enumerate(MOVABLE):
        itemsize = getattr(torch, dtype).itemsize
        small, large = (f(kind, world_size, itemsize) for f in (small_counts, large_counts))
        counts = small + (large if full else [large[d % 7], large[(d + 3) % 7]])
        for i, count in enumerate(counts):
            offsets = (0, 3) if full else (3 * ((i + d) % 2),)
            cases += [Case(dtype, "", count, offset, (i + d) % world_size) for offset in offsets]
    return cases
