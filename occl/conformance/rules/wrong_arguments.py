"""Rules of wrong arguments: each is refused on the rank that passes it, and the group works on."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from occl.conformance import inputs
from occl.conformance.catalog import BACKEND, Source, over, python, rule
from occl.conformance.rank_api import Rank

INTERFACE = Source(BACKEND, "class TORCH_API Backend")


def _zeros(rank: Rank, count: int = 4, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(count, dtype=dtype, device=rank.device)


def _root(rank: Rank, number: int) -> object:
    opts = dist.BroadcastOptions()
    opts.rootRank = number
    return rank.group.broadcast([_zeros(rank)], opts)


def _scatter_sizes(rank: Rank) -> object:
    opts = dist.ScatterOptions()
    opts.rootRank = rank.rank
    return rank.group.scatter([_zeros(rank)], [[_zeros(rank, 5) for _ in range(rank.size)]], opts)


def _splits(rank: Rank, count: int) -> object:
    n = rank.size
    return rank.group.alltoall_base(
        _zeros(rank, n), _zeros(rank, n), [count] * n, [count] * n, dist.AllToAllOptions()
    )


def _reduced(rank: Rank, t: torch.Tensor) -> object:
    """By the backend itself: PyTorch's dispatcher has a kernel of its own for the device "meta"."""
    return rank.backend.allreduce([t], dist.AllreduceOptions())


def _lists(rank: Rank, number: int) -> object:
    return rank.group.allgather([[_zeros(rank) for _ in range(number)]], [_zeros(rank)])


WRONG: dict[str, Callable[[Rank], object]] = {
    "root_too_large": lambda r: _root(r, r.size),
    "root_negative": lambda r: _root(r, -1),
    "list_too_short": lambda r: _lists(r, r.size - 1),
    "list_too_long": lambda r: _lists(r, r.size + 1),
    "no_tensor": lambda r: r.group.allreduce([], dist.AllreduceOptions()),
    "size_of_output": lambda r: r.group._allgather_base(_zeros(r, 4 * r.size + 1), _zeros(r)),
    "size_of_input": lambda r: r.group._reduce_scatter_base(_zeros(r), _zeros(r, 4 * r.size + 1)),
    "size_of_inputs": _scatter_sizes,
    "dtype_of_output": lambda r: r.group._allgather_base(_zeros(r, 4 * r.size, torch.int32), _zeros(r)),
    "dtype_of_input": lambda r: r.group._reduce_scatter_base(_zeros(r), _zeros(r, 4 * r.size, torch.int32)),
    "splits_too_large": lambda r: _splits(r, 2),
    "splits_negative": lambda r: _splits(r, -1),
    "output_shares_memory": lambda r: _reduced(r, torch.zeros(1, device=r.device).expand(4)),
    "destination_too_large": lambda r: r.group.send([_zeros(r)], r.size, 0),
    "source_too_large": lambda r: r.group.recv([_zeros(r)], r.size, 0),
    "device_of_tensor": lambda r: r.backend.allreduce(
        [torch.zeros(4, device="meta")], dist.AllreduceOptions()
    ),
    "sparse_csr": lambda r: r.backend.allreduce([torch.eye(4).to_sparse_csr()], dist.AllreduceOptions()),
}


@rule(
    "bad_arguments", "refused",
    "A call with a wrong argument raises on the rank that makes it, and the group works on.",
    INTERFACE, refuses=True, cases=over(argument=WRONG),
)  # fmt: skip
def refused(rank: Rank, *, argument: str) -> None:
    rank.refuses(lambda: WRONG[argument](rank), f"a call with {argument.replace('_', ' ')}")
    rank.still_works()


@rule(
    "bad_arguments", "meaningless", "A reduction that has no meaning for a type is refused.",
    python("supports_complex"), refuses=True,
    cases=tuple({"dtype": dtype, "reduction": op} for dtype, op in inputs.meaningless_reductions()),
)  # fmt: skip
def meaningless(rank: Rank, *, dtype: str, reduction: str) -> None:
    t = torch.zeros(4, dtype=getattr(torch, dtype)).to(rank.device)
    rank.refuses(
        lambda: dist.all_reduce(t, inputs.reduce_op(reduction, rank.rank)), f"{reduction} of {dtype}"
    )
    rank.still_works()
