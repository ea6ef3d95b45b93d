"""Runs code with ordinary memory and with shared memory, and compares every bit of what it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.testing._internal.common_utils import set_rng_seed

import torch_occl
from tests.support.maps import Maps
from tests.support.nested import tensors

VALUES = (bool, int, float, complex, str, torch.dtype, torch.Size)
"""What is compared beside tensors."""


def parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The dense tensors that a tensor consists of."""
    if tensor.layout == torch.sparse_coo:
        yield from (tensor._indices(), tensor._values())
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        yield from (tensor.crow_indices(), tensor.col_indices(), tensor.values())
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        yield from (tensor.ccol_indices(), tensor.row_indices(), tensor.values())
    elif tensor.device.type == "cpu" and not tensor._is_zerotensor():
        yield tensor


def with_memory(value: Any) -> list[torch.Tensor]:
    """The dense tensors that a value consists of and that have memory."""
    dense = [part for tensor in tensors(value) for part in parts(tensor)]
    return [part for part in dense if part.untyped_storage().nbytes() > 0]


def aliases(value: Any) -> list[int]:
    """For each dense tensor the place of the first one that has the same storage."""
    first: dict[int, int] = {}
    return [
        first.setdefault(part.untyped_storage().data_ptr(), at) for at, part in enumerate(with_memory(value))
    ]


def bits(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.detach().resolve_conj().resolve_neg()
    return plain.clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8)


def compare_bits(expected: torch.Tensor, got: torch.Tensor) -> None:
    assert expected.numel() == 0 or torch.equal(bits(expected), bits(got)), (
        f"other bits: {got}, not {expected}"
    )


def compare_shapes(expected: torch.Tensor, got: torch.Tensor) -> None:
    """What `compare` sees in any case is all that can be equal."""


def compare(expected: Any, got: Any, compare_values: Callable[[torch.Tensor, torch.Tensor], None]) -> None:
    """Fails unless both have the same views and values, and tensors of the same form."""
    leaves, others = pytree.tree_leaves(expected), pytree.tree_leaves(got)
    assert len(leaves) == len(others), "another number of results"
    for e, g in zip(leaves, others, strict=True):
        assert type(e) is type(g)
        if isinstance(e, torch.Tensor):
            assert (e.shape, e.dtype, e.layout) == (g.shape, g.dtype, g.layout)
            for a, b in zip(parts(e), parts(g), strict=True):
                assert (a.shape, a.stride(), a.storage_offset()) == (b.shape, b.stride(), b.storage_offset())
                compare_values(a, b)
        elif isinstance(e, VALUES):
            assert e == g or (e != e and g != g), f"{g} and not {e}"
    assert aliases(expected) == aliases(got), "other tensors share their memory"


def same_in_shared_memory(
    run: Callable[[], Any],
    compare_values: Callable[[torch.Tensor, torch.Tensor], None] = compare_bits,
) -> None:
    """Fails unless `run` returns the same with ordinary memory and with shared memory.

    It is called once with each, with the same random numbers. It returns all tensors to look at: each must
    lie where it should, and at least one must have memory at all.
    """
    set_rng_seed(0)
    with torch_occl.share_cpu_memory(None):
        expected = run()
    set_rng_seed(0)
    with torch_occl.share_cpu_memory(1):
        got = run()
    maps = Maps()
    ordinary, shared = (
        [maps.lies_shared(tensor.untyped_storage().data_ptr()) for tensor in with_memory(value)]
        for value in (expected, got)
    )
    assert not any(ordinary)
    assert shared and all(shared), "a tensor does not lie in shared memory"
    compare(expected, got, compare_values)
