"""Batches of any nesting, cut into shards."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import keystr as path_of
from torch.utils._pytree import tree_flatten_with_path, tree_unflatten


def batch_size(call: str, batch: Any) -> int:
    """The common length of dimension 0 of all tensors of the batch.

    Raises:
        ValueError: there are no tensors, one has no dimensions, or the lengths differ.
    """
    size, of = None, ""
    for path, leaf in tree_flatten_with_path(batch)[0]:
        if not isinstance(leaf, torch.Tensor):
            continue
        name = f"batch{path_of(path)}"
        if leaf.dim() == 0:
            raise ValueError(f"{call}: {name} has no dimensions, so nothing to cut along")
        if size is None:
            size, of = len(leaf), name
        elif len(leaf) != size:
            raise ValueError(f"{call}: {name} has {len(leaf)} samples, and {of} {size}")
    if size is None:
        raise ValueError(f"{call}: the batch holds no tensor")
    return size


def check_chunks(call: str, chunks: int, size: int, what: str) -> None:
    if chunks < 1:
        raise ValueError(f"{call}: the number of chunks must be at least 1, not {chunks}")
    if chunks > size:
        raise ValueError(f"{call}: {what} has {size} samples, which are too few for {chunks} chunks")


def shard_batch(batch: Any, n: int) -> list[Any]:
    """Cuts a batch into ``n`` shards along dimension 0, as :func:`numpy.array_split` does.

    The first ``size % n`` shards have one sample more than the others. Shards are views of the batch.

    Args:
        batch: a tensor, or tuples, lists and dicts of them, nested in any way. All have the same number of
            samples, in dimension 0. What is not a tensor goes into every shard as it is.
        n: how many shards.

    Returns:
        ``n`` shards, nested as the batch is.

    Raises:
        ValueError: ``n`` is below 1 or above the number of samples, or tensors differ in that number.
    """
    check_chunks("shard_batch", n, batch_size("shard_batch", batch), "the batch")
    leaves, spec = tree_flatten_with_path(batch)
    columns = [leaf.tensor_split(n) if isinstance(leaf, torch.Tensor) else (leaf,) * n for _, leaf in leaves]
    return [tree_unflatten([column[i] for column in columns], spec) for i in range(n)]
