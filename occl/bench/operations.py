"""What is timed: each operation is one entry of OPERATIONS.

Sizes are those of the largest tensor of a call: what all_gather puts out, what reduce_scatter takes in.
all_gather_single and reduce_scatter_single were called all_gather_into_tensor and reduce_scatter_tensor
before PyTorch 2.13; later the old names work, but spend microseconds on a warning.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from occl import compat
from occl.distributed.windows import new_window

STALE = -1.0
"""What outputs hold before a call; no right result contains it."""

Call = Callable[[], object]
Inputs = Callable[[int], Tensor]
"""Gives the input of a rank, made anew: dtype[calls, elements]."""


@dataclass(frozen=True)
class Operation:
    """One kind of call, how it is made, and what it must give."""

    name: str
    bind: Callable[[Tensor, Tensor, dist.ProcessGroup], Call]
    """(input, output, group) to a call without arguments, so that the timed loop does nothing else."""
    expected: Callable[[Inputs, int, int], Tensor | None]
    """(inputs of every rank, this rank, number of ranks) to the output, dtype[calls, elements]; None where
    this rank's output may be anything."""
    input_is_part: bool = False
    """The input is one rank's part of the whole size."""
    output_is_part: bool = False
    """The output is one rank's part of the whole size."""
    in_place: bool = False
    """The result is in the input; there is no output."""
    has_data: bool = True
    steps: int = 1
    """By how much the time of a call is divided: 2 for a round trip."""
    dtype: torch.dtype = torch.float32
    mapped: bool = False
    """Whether only contenders have it whose tensors peers can map. A run without ``--ops`` leaves it out."""
    symmetric: bool = False
    """Whether the input must lie in PyTorch's symmetric memory."""

    @property
    def kind(self) -> str:
        """The name without the data type."""
        return self.name.removesuffix(f"_{str(self.dtype).removeprefix('torch.')}")


def total(inputs: Inputs, ranks: int) -> Tensor:
    result = inputs(0)
    for rank in range(1, ranks):
        result += inputs(rank)
    return result


def joined(inputs: Inputs, ranks: int) -> Tensor:
    return torch.cat([inputs(rank) for rank in range(ranks)], dim=1)


def part(whole: Tensor, rank: int, ranks: int) -> Tensor:
    return whole.chunk(ranks, dim=1)[rank]


def parts(whole: Tensor, group: dist.ProcessGroup) -> list[Tensor]:
    return list(whole.chunk(group.size()))


def round_trip(x: Tensor, y: Tensor, group: dist.ProcessGroup) -> Call:
    """Even ranks send to the next rank and then receive from it; a last rank without a partner rests."""
    peer = group.rank() ^ 1
    if peer >= group.size():
        return lambda: None
    send = functools.partial(dist.send, x, group=group, group_dst=peer)
    receive = functools.partial(dist.recv, y, group=group, group_src=peer)
    first, second = (send, receive) if group.rank() < peer else (receive, send)

    def call() -> None:
        first()
        second()

    return call


def put_and_signal(x: Tensor, y: Tensor, group: dist.ProcessGroup) -> Call:
    """The same by one-sided access: a rank writes into the other's memory and signals; the other waits."""
    window, peer = new_window(group, y), group.rank() ^ 1
    if peer >= group.size():
        return lambda: window
    first = group.rank() < peer

    def call() -> None:
        if not first:
            window.wait_signal(peer, False)
        window.put(x, peer, 0, False)
        window.signal(peer, False)
        if first:
            window.wait_signal(peer, False)

    return call


def rendezvous(x: Tensor, _: Tensor, group: dist.ProcessGroup) -> Call:
    import torch.distributed._symmetric_memory as symm_mem

    return lambda: symm_mem.rendezvous(symm_mem.empty(1024, device=x.device), group)


def one_shot(x: Tensor, y: Tensor, group: dist.ProcessGroup) -> Call:
    return functools.partial(
        torch.ops.symm_mem.one_shot_all_reduce_out.default, x, "sum", group.group_name, y
    )


def of_partner(inputs: Inputs, rank: int, ranks: int) -> Tensor:
    return inputs(rank ^ 1) if rank ^ 1 < ranks else torch.full_like(inputs(rank), STALE)


def transposed(inputs: Inputs, rank: int, ranks: int) -> Tensor:
    return torch.cat([part(inputs(source), rank, ranks) for source in range(ranks)], dim=1)


def gather(x: Tensor, y: Tensor, group: dist.ProcessGroup) -> Call:
    to = parts(y, group) if group.rank() == 0 else None
    return functools.partial(dist.gather, x, to, group=group, group_dst=0)


def scatter(x: Tensor, y: Tensor, group: dist.ProcessGroup) -> Call:
    source = parts(x, group) if group.rank() == 0 else None
    return functools.partial(dist.scatter, y, source, group=group, group_src=0)


def all_reduce(name: str, dtype: torch.dtype) -> Operation:
    return Operation(
        name,
        lambda x, _, group: functools.partial(dist.all_reduce, x, group=group),
        lambda inputs, _, ranks: total(inputs, ranks),
        in_place=True,
        dtype=dtype,
    )


OPERATIONS = [
    all_reduce("all_reduce", torch.float32),
    all_reduce("all_reduce_bfloat16", torch.bfloat16),
    all_reduce("all_reduce_float16", torch.float16),
    Operation(
        "broadcast",
        lambda x, _, group: functools.partial(dist.broadcast, x, group=group, group_src=0),
        lambda inputs, *_: inputs(0),
        in_place=True,
    ),
    Operation(
        "all_gather_single",
        lambda x, y, group: functools.partial(compat.all_gather_single(), y, x, group=group),
        lambda inputs, _, ranks: joined(inputs, ranks),
        input_is_part=True,
    ),
    Operation(
        "reduce_scatter_single",
        lambda x, y, group: functools.partial(compat.reduce_scatter_single(), y, x, group=group),
        lambda inputs, rank, ranks: part(total(inputs, ranks), rank, ranks),
        output_is_part=True,
    ),
    Operation(
        "all_to_all_single",
        lambda x, y, group: functools.partial(dist.all_to_all_single, y, x, group=group),
        transposed,
    ),
    Operation(
        "reduce",
        lambda x, _, group: functools.partial(dist.reduce, x, group=group, group_dst=0),
        lambda inputs, rank, ranks: total(inputs, ranks) if rank == 0 else None,
        in_place=True,
    ),
    Operation(
        "gather",
        gather,
        lambda inputs, rank, ranks: joined(inputs, ranks) if rank == 0 else None,
        input_is_part=True,
    ),
    Operation(
        "scatter",
        scatter,
        lambda inputs, rank, ranks: part(inputs(0), rank, ranks),
        output_is_part=True,
    ),
    Operation(
        "all_gather",
        lambda x, y, group: functools.partial(dist.all_gather, parts(y, group), x, group=group),
        lambda inputs, _, ranks: joined(inputs, ranks),
        input_is_part=True,
    ),
    Operation(
        "reduce_scatter",
        lambda x, y, group: functools.partial(dist.reduce_scatter, y, parts(x, group), group=group),
        lambda inputs, rank, ranks: part(total(inputs, ranks), rank, ranks),
        output_is_part=True,
    ),
    Operation("send_recv", round_trip, of_partner, steps=2),
    Operation(
        "barrier",
        lambda *arguments: functools.partial(dist.barrier, group=arguments[-1]),
        lambda inputs, rank, _: inputs(rank),
        in_place=True,
        has_data=False,
    ),
    Operation("put", put_and_signal, of_partner, steps=2, mapped=True),
    Operation(
        "one_shot_all_reduce",
        one_shot,
        lambda inputs, _, ranks: total(inputs, ranks),
        mapped=True,
        symmetric=True,
    ),
    Operation(
        "rendezvous",
        rendezvous,
        lambda inputs, rank, _: inputs(rank),
        in_place=True,
        has_data=False,
        mapped=True,
    ),
]
