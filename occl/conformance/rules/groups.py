"""Rules of groups: subgroups, splitting, shrinking, objects, ends."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from occl.conformance.catalog import BACKEND, GROUP, Source, backend, over, python, rule
from occl.conformance.rank_api import Rank, finish

OBJECTS = {"small": 3, "large": 100_000}


def _thing(rank: int, size: int) -> dict[str, object]:
    return {"rank": rank, "payload": bytes([rank]) * size, "text": "é" * rank}


def _sum_of(rank: Rank, group: dist.ProcessGroup, ranks: list[int]) -> None:
    t = rank.tensor(float(rank.rank))
    dist.all_reduce(t, group=group)
    rank.same(t, torch.tensor([float(sum(ranks))]), f"the sum in the group of ranks {ranks}")


@rule("subgroups", "overlap", "Groups of overlapping ranks work side by side.", python("new_group"), ranks=3)
def overlapping(rank: Rank) -> None:
    lists = [[0, 1], [1, 2], list(range(rank.size)), [rank.size - 1]]
    made = [rank.subgroup(ranks) for ranks in lists]
    works = []
    for ranks, group in zip(lists, made, strict=True):
        if rank.rank in ranks:
            t = rank.tensor(float(rank.rank))
            works.append((dist.all_reduce(t, group=group, async_op=True), t, ranks))
    for work, t, ranks in reversed(works):
        finish(work)
        rank.same(t, torch.tensor([float(sum(ranks))]), f"the sum in the group of ranks {ranks}")


@rule(
    "subgroups", "destroy", "A group that is destroyed leaves the others as they are.",
    python("destroy_process_group"),
)  # fmt: skip
def destroyed(rank: Rank) -> None:
    for _ in range(3):
        group = dist.new_group([0, 1], timeout=timedelta(seconds=rank.timeout))
        if rank.rank < 2:
            _sum_of(rank, group, [0, 1])
            dist.destroy_process_group(group)
    rank.still_works()


@rule(
    "objects", "exchange", "Object collectives carry objects of different sizes.",
    python("all_gather_object"),
    cases=over(call=("all_gather", "gather", "broadcast", "scatter", "send"), size=OBJECTS),
)  # fmt: skip
def objects(rank: Rank, *, call: str, size: str) -> None:
    n, me, length = rank.size, rank.rank, OBJECTS[size]
    things = [_thing(r, length * r) for r in range(n)]
    got: list[object] = [None] * n
    if call == "all_gather":
        dist.all_gather_object(got, things[me])
        rank.check(got == things, "the gathered objects differ")
    elif call == "gather":
        for root in (0, n - 1):
            dist.gather_object(things[me], got if me == root else None, dst=root)
            rank.check(me != root or got == things, "the gathered objects differ")
    elif call == "broadcast":
        got = list(things) if me == n - 1 else got
        dist.broadcast_object_list(got, src=n - 1, device=rank.device)
        rank.check(got == things, "the broadcast objects differ")
    elif call == "scatter":
        mine: list[object] = [None]
        dist.scatter_object_list(mine, things if me == 0 else None, src=0)
        rank.check(mine == [things[me]], "the scattered object differs")
    elif me == 0:
        dist.send_object_list(things, dst=1, device=rank.device)
    elif me == 1:
        dist.recv_object_list(got, src=0, device=rank.device)
        rank.check(got == things, "the received objects differ")


@rule(
    "splitting", "split", "A backend that supports splitting makes groups of its ranks out of itself.",
    backend("split"), own=True, cases=over(part=("all", "some")), methods=("supportsSplitting", "split"),
)  # fmt: skip
def split(rank: Rank, *, part: str) -> None:
    if not rank.backend.supports_splitting:
        raise NotImplementedError("supports_splitting is false")
    rank.still_works()
    half = rank.size // 2
    parts = [list(range(half)), list(range(half, rank.size))]
    mine = parts[rank.rank >= half]
    if part == "some" and rank.rank >= half:
        mine = parts[0]  # as split_group does for ranks that are in none of the lists
    made = rank.group.split_group(mine, timedelta(seconds=rank.timeout), None, f"part {min(mine)}", "a part")
    rank.check((made is not None) == (rank.rank in mine), f"split_group of {mine} returned {made!r}")
    if made is not None:
        t = rank.tensor(float(rank.rank))
        finish(made.allreduce([t]))
        rank.same(t, torch.tensor([float(sum(mine))]), f"the sum in the part {mine}")
    rank.still_works()


@rule(
    "merging", "merge", "merge makes one group of the ranks of several.",
    backend("merge"), own=True, ranks=4, methods=("merge",),
)  # fmt: skip
def merge(rank: Rank) -> None:
    half = rank.size // 2
    parts = [list(range(half)), list(range(half, rank.size))]
    halves = [rank.subgroup(part) for part in parts]
    store = dist.PrefixStore("conformance/merge", dist.distributed_c10d._get_default_store())
    ours: Any = halves[rank.rank >= half]
    made = ours.merge_remote_group(store, rank.size, timedelta(seconds=rank.timeout), "merged", "merged")
    t = rank.tensor(float(rank.rank))
    finish(made.allreduce([t]))
    rank.same(t, torch.tensor([float(sum(range(rank.size)))]), "the sum in the merged group")


@rule(
    "shrinking", "shrink", "The ranks that are not excluded get a smaller group.",
    Source(BACKEND, "supportsShrinking"), own=True, ranks=3, methods=("supportsShrinking", "shrink"),
)  # fmt: skip
def shrink(rank: Rank) -> None:
    if not rank.backend.supports_shrinking:
        raise NotImplementedError("supports_shrinking is false")
    if rank.rank == 0:
        return
    smaller = rank.backend.shrink([0], 0, None)
    rank.equal((smaller.rank(), smaller.size()), (rank.rank - 1, rank.size - 1), "rank and size in the group")
    t = rank.tensor(float(rank.rank))
    finish(smaller.allreduce([t]))
    rank.same(t, torch.tensor([float(sum(range(1, rank.size)))]), "the sum of those that are left")


@rule(
    "ends", "destroy", "After destroy_process_group the ranks can make the default group again.",
    python("destroy_process_group"), own=True, methods=("shutdown",),
)  # fmt: skip
def again(rank: Rank) -> None:
    for turn in range(2):
        rank.still_works()
        rank.make_again(f"conformance/again/{turn}")
    rank.still_works()


@rule(
    "ends", "shutdown", "shutdown() of a group that is idle returns on every rank.",
    Source(BACKEND, "void shutdown()"), own=True, methods=("shutdown",),
)  # fmt: skip
def shutdown(rank: Rank) -> None:
    rank.still_works()
    rank.backend.shutdown()


@rule(
    "ends", "pending", "destroy_process_group with works that no thread waits for neither hangs nor crashes.",
    Source(GROUP, "The ProcessGroup assumes a fixed set of processes."), own=True,
)  # fmt: skip
def pending(rank: Rank) -> None:
    rank.launched(
        rank.size - 1,
        lambda: [dist.all_reduce(torch.ones(1000, device=rank.device), async_op=True) for _ in range(5)],
    )
    with contextlib.suppress(RuntimeError):  # it may say that it has ended them
        dist.destroy_process_group()
