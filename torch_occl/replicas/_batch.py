"""Batches of any nesting, cut into shards."""

from __future__ import annotations

import sys
from numbers import Integral
from typing import Any, overload

import torch
from torch.utils._pytree import keystr as path_of
from torch.utils._pytree import tree_flatten_with_path, tree_map_only, tree_unflatten

from torch_occl.replicas._checks import check_kind
from torch_occl.replicas._forms import also_named


def _is_array(leaf: Any) -> bool:
    """Whether this is a NumPy array. NumPy is not imported for it: a process without NumPy has no arrays."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(leaf, numpy.ndarray)


def _is_sample(leaf: Any) -> bool:
    """Whether this is cut along dimension 0."""
    return isinstance(leaf, torch.Tensor) or _is_array(leaf)


def batch_size(call: str, batch: Any) -> int:
    """The common length of dimension 0 of all tensors and arrays of the batch.

    Raises:
        ValueError: there are none, one has no dimensions, or the lengths differ.
    """
    size, of = None, ""
    for path, leaf in tree_flatten_with_path(batch)[0]:
        if not _is_sample(leaf):
            continue
        name = f"batch{path_of(path)}"
        if leaf.ndim == 0:
            raise ValueError(f"{call}: {name} has no dimensions, so nothing to cut along")
        if size is None:
            size, of = len(leaf), name
        elif len(leaf) != size:
            raise ValueError(f"{call}: {name} has {len(leaf)} samples, and {of} {size}")
    if size is None:
        raise ValueError(f"{call}: the batch holds no tensor and no NumPy array")
    return size


def check_chunks(call: str, chunks: int, size: int, what: str) -> None:
    check_kind(call, "the number of chunks", chunks, Integral, "an integer")
    if chunks < 1:
        raise ValueError(f"{call}: the number of chunks must be at least 1, not {chunks}")
    if chunks > size:
        raise ValueError(f"{call}: {what} has {size} samples, which are too few for {chunks} chunks")


@overload
def shard_batch(batch: Any, n: int) -> list[Any]: ...
@overload
def shard_batch(x: Any, num_shards: int) -> list[Any]: ...
@also_named(x="batch", num_shards="n")
def shard_batch(batch: Any, n: int) -> list[Any]:
    """Cuts a batch into ``n`` shards along dimension 0, as `numpy.array_split` does.

    The first ``size % n`` shards have one sample more than the others. Shards are views of the batch.

    Args:
        batch: a tensor or NumPy array, or tuples, lists and dicts of them, nested in any way. All have the
            same number of samples, in dimension 0. Anything else goes into every shard as it is. May be given
            as ``x``.
        n: how many shards. May be given as ``num_shards``.

    Returns:
        ``n`` shards, nested as the batch is: tensors of tensors, arrays of arrays.

    Raises:
        TypeError: ``n`` is no integer, or an argument is given under both of its names.
        ValueError: ``n`` is below 1 or above the number of samples, or tensors differ in that number.
    """
    check_chunks("shard_batch", n, batch_size("shard_batch", batch), "the batch")
    leaves, spec = tree_flatten_with_path(batch)
    columns = [_cut(leaf, n) for _, leaf in leaves]
    return [tree_unflatten([column[i] for column in columns], spec) for i in range(n)]


def _cut(leaf: Any, n: int) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.tensor_split(int(n))
    return sys.modules["numpy"].array_split(leaf, n) if _is_array(leaf) else (leaf,) * n


def move_shard(shard: Any, device: torch.device) -> Any:
    """The shard with its tensors and arrays as tensors on the device, copied in the current stream.

    An array of a type that PyTorch has no tensors of (strings, dates, objects) stays as it is.
    """
    return tree_map_only(_is_sample, lambda leaf: _tensor_of(leaf, device), shard)


def _tensor_of(leaf: Any, device: torch.device) -> Any:
    if _is_array(leaf):
        numpy = sys.modules["numpy"]
        # PyTorch takes no negative strides and no foreign byte order, and warns of memory that is read only.
        array = numpy.require(leaf, leaf.dtype.newbyteorder("="), ["C", "W"])
        try:
            leaf = torch.from_numpy(array)
        except TypeError:
            return leaf
    return leaf.to(device, non_blocking=True)
