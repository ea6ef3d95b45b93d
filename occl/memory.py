"""CPU memory that the other ranks can map."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from occl import _C, variables

if TYPE_CHECKING:
    from types import TracebackType

MIN_BYTES = 16 << 10
"""Smaller tensors gain nothing: their bytes travel beside the sequence number or through one slot."""


def empty_shared(*size: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """An uninitialised CPU tensor whose memory the other ranks of this host can map.

    Collectives move its bytes directly from tensor to tensor; those of other CPU tensors go through shared
    slots. The memory is freed with the tensor's storage, and `shared_cpu_memory_stats` includes it.
    `share_cpu_memory` makes all large CPU tensors such tensors.

    Args:
        size: the shape, as integers or as one sequence of integers.
        dtype: the default dtype if not given.

    Returns:
        A contiguous CPU tensor of this shape and dtype.

    Raises:
        torch.OutOfMemoryError: there is not enough memory; the text has the figures.
        RuntimeError: this process is a forked child of one that has such memory.
    """
    shape = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
    return _C._empty_shared(list(shape), dtype or torch.get_default_dtype())


class share_cpu_memory:
    """Makes this process allocate large CPU tensors where the other ranks of this host can map them.

    It holds from the call on, for all threads. Every operation of ``occl`` moves the bytes of such tensors
    directly from tensor to tensor, so that scripts that train on CPU tensors need no other change. Tensors
    that exist stay where they are; an operation may have tensors of both kinds. Where there is no shared
    memory left, tensors get ordinary memory, with one warning.

    In a ``with`` statement, the previous setting holds again at the end; such statements can be nested.
    ``share_cpu_memory(None)`` switches it off. The environment variable ``OCCL_SHARE_CPU=1`` switches it on
    when PyTorch is imported.

    A forked child, such as a worker of a DataLoader, has the parent's tensors as private memory: the parent
    does not see what the child writes. What the parent writes later into such a tensor the child may see,
    unlike with ordinary memory, until it has written to the same page. A child allocates ordinary memory.

    Args:
        min_bytes: from this size on; None for no size at all.

    Raises:
        TypeError, ValueError: ``min_bytes`` is not a whole number, or less than 1.
    """

    def __init__(self, min_bytes: int | None = MIN_BYTES) -> None:
        if isinstance(min_bytes, bool) or not isinstance(min_bytes, int | None):
            raise TypeError(f"min_bytes must be an integer or None, not {min_bytes!r}")
        if min_bytes is not None and min_bytes < 1:
            raise ValueError(f"min_bytes must be at least 1, not {min_bytes}")
        self._before = _C._share_cpu_memory(min_bytes)

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _C._share_cpu_memory(self._before)


def share_as_environment_says() -> None:
    """Switches it on if ``OCCL_SHARE_CPU`` is 1, or a number of bytes."""
    if least := variables.least_shared():
        share_cpu_memory(MIN_BYTES if least == 1 else least)


def shared_cpu_memory_stats() -> Mapping[str, int]:
    """Counters of the CPU tensors of `share_cpu_memory` and `empty_shared` in this process, with the names of
    `torch.accelerator.memory_stats`. Those of a device ``dev`` are `torch.dev.memory_stats`.

    Returns:
        Numbers by name, sorted. Names with ``bytes`` count bytes, such as ``"allocated_bytes.all.current"``;
        the others count allocations, blocks and runs of memory.
    """
    return dict(sorted(_C._cpu_memory_stats().items()))
