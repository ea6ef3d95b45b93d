"""CPU memory that the other ranks can map."""

from __future__ import annotations

import torch

from torch_occl import _C


def empty_shared(*size: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """An uninitialised CPU tensor whose memory the other ranks of this host can map.

    Collectives move its bytes directly from tensor to tensor; those of other CPU tensors go through shared
    slots. The memory belongs to the device ``dev:0``, whose statistics include it, and is freed with the
    tensor's storage.

    Args:
        size: the shape, as integers or as one sequence of integers.
        dtype: the default dtype if not given.

    Raises:
        NotImplementedError: this process has no device ``dev`` (OCCL_DEVICE=0, or PrivateUse1 is taken).
        torch.OutOfMemoryError: there is not enough memory; the text has the figures.
    """
    shape = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
    return _C._empty_shared(list(shape), dtype or torch.get_default_dtype())
