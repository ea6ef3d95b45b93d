"""Rules of every collective and of messages: results, edges, asynchronous calls, subgroups, streams."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from occl.conformance import inputs
from occl.conformance.catalog import API, WORK, Body, Rule, Source, add, over, python, rule
from occl.conformance.operations import COLUMNS, OPERATIONS, Operation
from occl.conformance.rank_api import Rank, finish
from occl.conformance.tensors import MOVABLE, REDUCIBLE

EDGES: dict[str, dict[str, Any]] = {
    "empty": {"count": 0},
    "one": {"count": 1},
    "large": {"count": 300_001},
    "unaligned": {"offset": 1},
    "unaligned_byte": {"offset": 1, "dtype": "uint8"},
    "strided": {"layout": "strided"},
    "transposed": {"layout": "transposed", "count": 6 * COLUMNS},
    "repeated": {"layout": "repeated"},
}
"""Sizes and layouts. "repeated": all elements of an input are one (``expand``), so it overlaps itself."""


FROM_THE_ROOT = ("broadcast", "scatter")
"""Operations in which the root, rank 0, may end before the others have called."""


def result(rank: Rank, *, operation: str, dtype: str, reduction: str = "") -> None:
    rank.run(operation, dtype=dtype, reduction=reduction)


def edge(rank: Rank, *, operation: str, edge: str) -> None:
    rank.run(operation, **EDGES[edge])


def roots(rank: Rank, *, operation: str) -> None:
    for root in range(rank.size):
        rank.run(operation, root=root)


def asynchronous(rank: Rank, *, operation: str) -> None:
    setting = rank.setting(operation)
    returned = rank.prepared(operation, setting)(True)
    rank.check(returned is not None, "async_op=True returned no work")
    for work in returned if isinstance(returned, list) else [returned]:
        if isinstance(work, torch._C.Future):  # of the coalesced operations
            work.wait()
            rank.check(work.done(), "after wait() the future is not done")
        else:
            rank.check(work.wait(), "Work.wait() did not return True")
            rank.check(work.is_completed(), "after wait() the work is not completed")
    rank.verify(setting)


def in_flight(rank: Rank, *, operation: str) -> None:
    settings = [rank.setting(operation, salt=salt, count=100 * salt + 1) for salt in range(8)]
    calls = [rank.prepared(operation, setting) for setting in settings]
    last = 0 if operation in FROM_THE_ROOT else rank.size - 1
    for work in reversed(rank.launched(last, lambda: [call(True) for call in calls])):
        finish(work)
    for at, setting in enumerate(settings):
        rank.verify(setting, f"of call {at} of 8")


def future(rank: Rank, *, operation: str) -> None:
    setting = rank.setting(operation)
    returned = rank.prepared(operation, setting)(True)
    for work in returned if isinstance(returned, list) else [returned]:
        done = work if isinstance(work, torch._C.Future) else work.get_future()
        chained = done.then(lambda _: 7)
        done.wait()
        rank.check(done.done(), "after wait() the future is not done")
        rank.equal(chained.wait(), 7, "what a callback of the future returned")
    rank.verify(setting)


def subgroup(rank: Rank, *, operation: str) -> None:
    group = rank.subgroup(range(1, rank.size))
    if rank.rank > 0:
        setting = rank.setting(operation, group, root=rank.size - 2)
        finish(rank.prepared(operation, setting)(False))
        rank.verify(setting)


def on_a_stream(rank: Rank, *, operation: str) -> None:
    stream = torch.Stream(device=rank.device)
    setting = rank.setting(operation, count=10_000)
    call = rank.prepared(operation, setting)
    made = [tensor.clone() for tensor, _ in (*setting.expected, *setting.unchanged)]
    torch.accelerator.synchronize(rank.device)
    with stream:
        # The inputs are wrong until the stream has come to here, and the outputs are taken afterwards.
        for tensor, content in zip(
            (t for t, _ in (*setting.expected, *setting.unchanged)), made, strict=True
        ):
            tensor.zero_()
            tensor.copy_(content)
        finish(call(True))
        taken = [tensor.clone() for tensor, _ in setting.expected]
    stream.synchronize()
    for at, (tensor, (_, content)) in enumerate(zip(taken, setting.expected, strict=True)):
        rank.same(tensor, content, f"output {at}, read on the stream after wait()")


def _enter(operation: Operation) -> None:
    name = operation.name
    source = python(operation.python or name)
    types = over(dtype=MOVABLE)
    if operation.reduces:
        types = tuple(
            {"dtype": dtype, "reduction": op} for dtype in REDUCIBLE for op in inputs.reductions_of(dtype)
        )
    edges = [
        edge
        for edge in EDGES
        if not (edge == "repeated" and not operation.copied)
        and not (edge == "transposed" and name.startswith("all_to_all_single"))
    ]
    what = "the reduction of all ranks' inputs" if operation.reduces else "the bits that the operation sends"
    rules: list[tuple[str, str, Body]] = [
        ("result", f"Outputs are {what}; inputs stay, and nothing beside the outputs is written.", result),
        ("edge", "The same for sizes 0 and 1, long and unaligned tensors, and strides of every kind.", edge),
        ("asynchronous", "async_op=True returns a work; after wait() it is completed and outputs hold.",
         asynchronous),
        ("in_flight", "Several calls may be in flight, and may be waited for in any order.", in_flight),
        ("future", "The future of a work ends when the work does, and runs callbacks.", future),
        ("subgroup", "In a group of some of the ranks, ranks and roots are those of the group.", subgroup),
        ("stream", "A call takes its place in the current stream: after what is queued, before what follows.",
         on_a_stream),
    ]  # fmt: skip
    sources = {"future": Source(WORK, "getFuture()"), "subgroup": python("new_group")}
    sources |= {
        "asynchronous": Source(WORK, "wait(std::chrono::milliseconds"),
        "stream": Source(WORK, "synchronize()"),
    }
    if operation.rooted:
        rules.append(("root", "Every rank can be the root.", roots))
    for rule_name, statement, body in rules:
        add(
            Rule(
                name,
                rule_name,
                statement,
                sources.get(rule_name, source),
                partial(body, operation=name),
                cases={"result": types, "edge": over(edge=edges)}.get(rule_name, ({},)),
                methods=operation.methods,
                accelerator=rule_name == "stream",
                synchronous=rule_name in ("result", "edge", "root") and name != "send_recv",
                ranks=3 if rule_name == "subgroup" else 2,
            )
        )


for _operation in OPERATIONS:
    _enter(_operation)


@rule(
    "all_gather", "uneven",
    "Tensors of the list may have other sizes than this rank's input, as long as each fits its rank's.",
    Source(API, "Complex and uneven sized tensors are supported."), methods=("allgather",),
)  # fmt: skip
def uneven_gather(rank: Rank) -> None:
    setting = rank.setting("all_gather")
    t = setting.read(setting.value(rank.rank, count=10 * rank.rank + 1))
    outs = [setting.write(setting.value(r, count=10 * r + 1)) for r in range(rank.size)]
    dist.all_gather(outs, t)
    rank.verify(setting)


@rule(
    "all_to_all_single", "uneven",
    "Splits say how many rows go to and come from each rank, none among them.",
    python("all_to_all_single"), methods=("alltoall_base",),
)  # fmt: skip
def uneven_all_to_all(rank: Rank) -> None:
    setting = rank.setting("all_to_all_single")
    n, r = rank.size, rank.rank
    whole = [torch.arange(3 * n, dtype=torch.float32) + 100 * source for source in range(n)]

    def sent(source: int, to: int) -> torch.Tensor:
        """The ranks after the source get as many elements as their distance, the source none."""
        begin = sum((k - source) % n for k in range(to))
        return whole[source][begin : begin + (to - source) % n]

    t = setting.read(torch.cat([sent(r, k) for k in range(n)]))
    out = setting.write(torch.cat([sent(k, r) for k in range(n)]))
    dist.all_to_all_single(out, t, [(r - k) % n for k in range(n)], [(k - r) % n for k in range(n)])
    rank.verify(setting)


@rule(
    "all_reduce_sparse", "result",
    "all_reduce of sparse COO tensors adds them up, duplicates and empty ones too.",
    python("all_reduce"),
    cases=over(dtype=["float32", "float64", "int64"]), methods=("allreduce_sparse",),
)  # fmt: skip
def sparse(rank: Rank, *, dtype: str) -> None:
    def part(r: int) -> torch.Tensor:
        indices = torch.tensor([[0, r, r], [1, 2, 2]]) if r else torch.empty(2, 0, dtype=torch.int64)
        numbers = torch.arange(indices.shape[1] * 3).view(-1, 3).to(getattr(torch, dtype)) + r
        return torch.sparse_coo_tensor(indices, numbers, (rank.size, 4, 3))

    t = part(rank.rank).to(rank.device)
    dist.all_reduce(t)
    expected = sum((part(r).to_dense() for r in range(1, rank.size)), part(0).to_dense())
    rank.same(t.cpu().to_dense(), expected, "the sum")
