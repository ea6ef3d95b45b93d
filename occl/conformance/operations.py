"""The collectives and messages of ``torch.distributed``: how each is called, and what it must give.

Each operation is a function that takes a `Setting`, makes its tensors there, and returns the call. Rules then
run the call in different ways.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from occl.conformance import inputs
from occl.conformance.tensors import place, room

Call = Callable[[bool], Any]
"""Issues the operation, asynchronously if the argument says so; returns what PyTorch returns."""

COLUMNS = 43
"""The length of a row of the tensors with the layout "transposed"."""


@dataclass
class Setting:
    """One call on one rank: its arguments, and what must come of them. Ranks are those of the group."""

    rank: int
    size: int
    device: torch.device
    group: dist.ProcessGroup
    dtype: str = "float32"
    reduction: str = ""
    count: int = 257
    """Elements of one block."""
    root: int = 0
    offset: int = 0
    layout: str = "plain"
    """"plain"; "strided": every second element of a buffer; "transposed": columns come first in memory;
    "repeated": inputs that are only read are one element, which is expanded."""
    salt: int = 0
    expected: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    unchanged: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)

    def value(self, rank: int, block: int = 0, count: int | None = None) -> torch.Tensor:
        """Block number ``block`` of what a rank contributes, on the CPU."""
        count = self.count if count is None else count
        if self.layout == "repeated":
            return inputs.contribution(self.dtype, self.reduction, 1, rank, self.size).repeat(count)
        block += 100 * self.salt
        return inputs.contribution(self.dtype, self.reduction, count, rank, self.size, block)

    def total(self, block: int = 0) -> torch.Tensor:
        """What all ranks' blocks of this number are reduced to."""
        parts = [self.value(rank, block) for rank in range(self.size)]
        return inputs.reduced(parts, self.dtype, self.reduction)

    def lay(self, content: torch.Tensor) -> torch.Tensor:
        """A tensor that the operation may write."""
        if self.layout == "transposed":
            rows = content.numel() // COLUMNS
            made = torch.empty(COLUMNS, rows, dtype=content.dtype, device=self.device).t()
            return made.copy_(content.view(rows, COLUMNS))
        return place(content, self.device, self.offset, 2 if self.layout == "strided" else 1)

    def read(self, content: torch.Tensor) -> torch.Tensor:
        """An input that the operation must leave as it is."""
        if self.layout == "repeated" and content.numel():
            made = content[:1].to(self.device).expand(content.numel())
        else:
            made = self.lay(content)
        self.unchanged.append((made, content))
        return made

    def write(self, becomes: torch.Tensor) -> torch.Tensor:
        """An output, with what it must become."""
        made = self.lay(room(self.dtype, becomes.numel(), "cpu"))
        self.expected.append((made, becomes))
        return made

    def change(self, content: torch.Tensor, becomes: torch.Tensor) -> torch.Tensor:
        """A tensor that is input and output."""
        made = self.lay(content)
        self.expected.append((made, becomes))
        return made

    @property
    def op(self) -> dist.ReduceOp:
        return inputs.reduce_op(self.reduction or "SUM", self.rank)

    @property
    def ranks(self) -> range:
        return range(self.size)

    def blocks(self, rank: int) -> torch.Tensor:
        """What a rank contributes that has a block for each rank, as one tensor."""
        return torch.cat([self.value(rank, block) for block in self.ranks])


def all_reduce(s: Setting) -> Call:
    t = s.change(s.value(s.rank), s.total())
    return lambda a: dist.all_reduce(t, s.op, s.group, async_op=a)


def all_reduce_coalesced(s: Setting) -> Call:
    ts = [s.change(s.value(s.rank, block), s.total(block)) for block in range(3)]
    return lambda a: dist.all_reduce_coalesced(ts, s.op, s.group, async_op=a)


def broadcast(s: Setting) -> Call:
    t = s.change(s.value(s.rank), s.value(s.root))
    return lambda a: dist.broadcast(t, group_src=s.root, group=s.group, async_op=a)


def reduce(s: Setting) -> Call:
    t = s.change(s.value(s.rank), s.total()) if s.rank == s.root else s.lay(s.value(s.rank))
    return lambda a: dist.reduce(t, op=s.op, group_dst=s.root, group=s.group, async_op=a)


def all_gather(s: Setting) -> Call:
    t = s.read(s.value(s.rank))
    outs = [s.write(s.value(rank)) for rank in s.ranks]
    return lambda a: dist.all_gather(outs, t, s.group, async_op=a)


def all_gather_into_tensor(s: Setting) -> Call:
    t = s.read(s.value(s.rank))
    out = s.write(torch.cat([s.value(rank) for rank in s.ranks]))
    return lambda a: dist.all_gather_into_tensor(out, t, s.group, async_op=a)


def all_gather_coalesced(s: Setting) -> Call:
    ts = [s.read(s.value(s.rank, block)) for block in range(2)]
    outs = [[s.write(s.value(rank, block)) for block in range(2)] for rank in s.ranks]
    return lambda a: dist.all_gather_coalesced(outs, ts, s.group, async_op=a)


def all_gather_into_tensor_coalesced(s: Setting) -> Call:
    ts = [s.read(s.value(s.rank, block)) for block in range(3)]
    outs = [s.write(torch.cat([s.value(rank, block) for rank in s.ranks])) for block in range(3)]
    return lambda _: s.group.allgather_into_tensor_coalesced(outs, ts)


def gather(s: Setting) -> Call:
    t = s.read(s.value(s.rank))
    outs = [s.write(s.value(rank)) for rank in s.ranks] if s.rank == s.root else None
    return lambda a: dist.gather(t, outs, group_dst=s.root, group=s.group, async_op=a)


def gather_single(s: Setting) -> Call:
    t = s.read(s.value(s.rank))
    out = s.write(torch.cat([s.value(rank) for rank in s.ranks])) if s.rank == s.root else None
    gather: Any = dist.gather_single  # type: ignore[attr-defined]  # from PyTorch 2.14 on
    return lambda a: gather(t, out, group_dst=s.root, group=s.group, async_op=a)


def scatter(s: Setting) -> Call:
    ts = [s.read(s.value(s.root, block)) for block in s.ranks] if s.rank == s.root else None
    out = s.write(s.value(s.root, s.rank))
    return lambda a: dist.scatter(out, ts, group_src=s.root, group=s.group, async_op=a)


def reduce_scatter(s: Setting) -> Call:
    ts = [s.read(s.value(s.rank, block)) for block in s.ranks]
    out = s.write(s.total(s.rank))
    return lambda a: dist.reduce_scatter(out, ts, s.op, s.group, async_op=a)


def reduce_scatter_tensor(s: Setting) -> Call:
    t = s.read(s.blocks(s.rank))
    out = s.write(s.total(s.rank))
    return lambda a: dist.reduce_scatter_tensor(out, t, s.op, s.group, async_op=a)


def reduce_scatter_tensor_coalesced(s: Setting) -> Call:
    first, second = s.blocks(s.rank), s.blocks(s.rank).roll(s.count)
    ts = [s.read(first), s.read(second)]
    outs = [s.write(s.total(s.rank)), s.write(s.total((s.rank - 1) % s.size))]
    opts = dist.ReduceScatterOptions()
    opts.reduceOp = s.op
    return lambda _: s.group.reduce_scatter_tensor_coalesced(outs, ts, opts)


def all_to_all(s: Setting) -> Call:
    ts = [s.read(s.value(s.rank, block)) for block in s.ranks]
    outs = [s.write(s.value(rank, s.rank)) for rank in s.ranks]
    return lambda a: dist.all_to_all(outs, ts, s.group, async_op=a)


def all_to_all_single(s: Setting) -> Call:
    t = s.read(s.blocks(s.rank))
    out = s.write(torch.cat([s.value(rank, s.rank) for rank in s.ranks]))
    return lambda a: dist.all_to_all_single(out, t, group=s.group, async_op=a)


def send_and_recv(s: Setting) -> Call:
    t = s.read(s.value(s.rank))
    to, source = (s.rank + 1) % s.size, (s.rank - 1) % s.size
    out = s.write(s.value(source))

    def call(asynchronous: bool) -> Any:
        sent = dist.isend(t, group=s.group, group_dst=to)
        if asynchronous:
            return [sent, dist.irecv(out, group=s.group, group_src=source)]
        dist.recv(out, group=s.group, group_src=source)
        return [sent]

    return call


@dataclass(frozen=True)
class Operation:
    """An operation, with the word that names it in cases and declarations."""

    name: str
    make: Callable[[Setting], Call]
    methods: tuple[str, ...]
    """The methods of ``c10d::Backend`` that it reaches, of which some versions of PyTorch have some only."""
    reduces: bool = False
    rooted: bool = False
    copied: bool = True
    """Whether it has inputs that it only reads."""
    python: str = ""
    """The function of ``torch.distributed``, if its name is another."""


OPERATIONS: Sequence[Operation] = (
    Operation("all_reduce", all_reduce, ("allreduce",), reduces=True, copied=False),
    Operation("all_reduce_coalesced", all_reduce_coalesced, ("allreduce_coalesced",), True, copied=False),
    Operation("broadcast", broadcast, ("broadcast",), rooted=True, copied=False),
    Operation("reduce", reduce, ("reduce",), reduces=True, rooted=True, copied=False),
    Operation("all_gather", all_gather, ("allgather",)),
    Operation("all_gather_into_tensor", all_gather_into_tensor, ("_allgather_base", "all_gather_single")),
    Operation("all_gather_coalesced", all_gather_coalesced, ("allgather_coalesced",)),
    Operation(
        "all_gather_into_tensor_coalesced",
        all_gather_into_tensor_coalesced,
        ("allgather_into_tensor_coalesced", "all_gather_single_coalesced"),
        python="_coalescing_manager",
    ),
    Operation("gather", gather, ("gather",), rooted=True),
    Operation("gather_single", gather_single, ("gather_single", "gather_into_tensor"), rooted=True),
    Operation("scatter", scatter, ("scatter",), rooted=True),
    Operation("reduce_scatter", reduce_scatter, ("reduce_scatter",), reduces=True),
    Operation(
        "reduce_scatter_tensor",
        reduce_scatter_tensor,
        ("_reduce_scatter_base", "reduce_scatter_single"),
        reduces=True,
    ),
    Operation(
        "reduce_scatter_tensor_coalesced",
        reduce_scatter_tensor_coalesced,
        ("reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced"),
        reduces=True,
        python="_coalescing_manager",
    ),
    Operation("all_to_all", all_to_all, ("alltoall",)),
    Operation("all_to_all_single", all_to_all_single, ("alltoall_base", "all_to_all_single")),
    Operation("send_recv", send_and_recv, ("send", "recv"), python="isend"),
)
BY_NAME = {operation.name: operation for operation in OPERATIONS}
