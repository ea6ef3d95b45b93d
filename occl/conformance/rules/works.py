"""Rules of works, coalescing, barriers, sequence numbers, timing and hooks."""

from __future__ import annotations

import pickle
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from occl.conformance.catalog import BACKEND, GROUP, WORK, Source, backend, over, python, rule
from occl.conformance.rank_api import Rank, exception_is_bound, finish

MANAGED = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor")


@rule(
    "coalescing", "manager",
    "Collectives under the coalescing manager take effect when it ends, or with the work that it returns.",
    python("_coalescing_manager"),
    cases=over(operation=MANAGED, how=("synchronous", "asynchronous")),
    methods=("allreduce_coalesced", "allgather_into_tensor_coalesced", "reduce_scatter_tensor_coalesced"),
)  # fmt: skip
def manager(rank: Rank, *, operation: str, how: str) -> None:
    settings = [rank.setting(operation, salt=salt, count=100 + salt) for salt in range(3)]
    calls = [rank.prepared(operation, setting) for setting in settings]
    with dist.distributed_c10d._coalescing_manager(async_ops=how == "asynchronous") as manager:
        for call in calls:
            call(False)
    if how == "asynchronous":
        manager.wait()
    for setting in settings:
        rank.verify(setting)


@rule(
    "coalescing", "brackets",
    "Calls between startCoalescing and endCoalescing become one work.",
    backend("startCoalescing"),
    cases=over(operation=("all_reduce", "broadcast", "all_to_all_single", "send_recv")),
    methods=("supportsCoalescing", "startCoalescing", "endCoalescing"),
)  # fmt: skip
def brackets(rank: Rank, *, operation: str) -> None:
    if not rank.backend.supports_coalescing:
        raise NotImplementedError("supports_coalescing is false")
    settings = [rank.setting(operation, salt=salt) for salt in range(3)]
    calls = [rank.prepared(operation, setting) for setting in settings]
    with dist.distributed_c10d._coalescing_manager(device=rank.device, async_ops=True) as manager:
        for call in calls:
            call(True)
    manager.wait()
    for setting in settings:
        rank.verify(setting)


@rule(
    "barrier", "waits", "No rank leaves a barrier before every rank has entered it.",
    python("barrier"), cases=over(how=("synchronous", "asynchronous")), methods=("barrier",),
)  # fmt: skip
def barrier(rank: Rank, *, how: str) -> None:
    store = dist.distributed_c10d._get_default_store()
    for last in range(rank.size):
        key = f"conformance/barrier/{how}/{last}"
        others = [other for other in range(rank.size) if other != last]
        if rank.rank == last:  # it enters when all others have said that they are about to
            store.wait([f"{key}/{other}" for other in others])
            store.set(f"{key}/enters", "1")
        else:
            store.set(f"{key}/{rank.rank}", "1")
        finish(dist.barrier(async_op=how == "asynchronous"))
        rank.check(store.check([f"{key}/enters"]), f"rank {rank.rank} left before rank {last} came")
        finish(dist.barrier())


@rule(
    "monitored_barrier", "passes", "A monitored barrier that all ranks enter lets all pass.",
    python("monitored_barrier"), methods=("monitoredBarrier",),
)  # fmt: skip
def monitored(rank: Rank) -> None:
    for wait_all in (False, True):
        rank.group.monitored_barrier(timedelta(seconds=rank.timeout), wait_all)
    rank.still_works()


@rule(
    "monitored_barrier", "names",
    "Where a rank stays away, rank 0's error of a monitored barrier names it.",
    python("monitored_barrier"), own=True, refuses=True, methods=("monitoredBarrier",),
)  # fmt: skip
def monitored_absent(rank: Rank) -> None:
    absent = rank.size - 1
    if rank.rank == absent:
        rank.refusals.append("this rank stays away")
    else:
        timeout = timedelta(milliseconds=300) if rank.rank == 0 else timedelta(seconds=5)
        rank.refuses(lambda: rank.group.monitored_barrier(timeout, True), f"a barrier without rank {absent}")
        if rank.rank == 0 and rank.refusals:
            rank.check(
                str(absent) in rank.refusals[0], f"the text does not name the rank: {rank.refusals[0]}"
            )


@rule(
    "sequence_numbers", "agree",
    "The sequence number of a group is the same on all ranks, and each collective raises it.",
    Source(GROUP, "Retrieves the current sequence number for the whole group"),
    methods=("getSequenceNumberForGroup", "setSequenceNumberForGroup"), own=True,
)  # fmt: skip
def sequence(rank: Rank) -> None:
    before = rank.backend._get_sequence_number_for_group()
    t = rank.tensor(1.0)
    for _ in range(3):
        dist.all_reduce(t)
    dist.broadcast(t, src=0)
    after = rank.backend._get_sequence_number_for_group()
    rank.equal(after - before, 4, "the difference over four collectives")
    rank.equal(rank.of_all(after), [str(after)] * rank.size, "the number on each rank")


@rule(
    "works", "result", "Work.result() is the list of the outputs.",
    Source(WORK, "Returns result tensors, if applicable."),
)  # fmt: skip
def result(rank: Rank) -> None:
    t = rank.tensor(1.0, 2.0)
    work = dist.all_reduce(t, async_op=True)
    work.wait()
    got = work.result()
    rank.equal(len(got), 1, "the number of results")
    rank.same(got[0], torch.tensor([1.0, 2.0]) * rank.size, "the result")


@rule(
    "works", "success", "A work that has completed is successful and has no exception.",
    Source(WORK, "Returns if the work completed successfully."),
)  # fmt: skip
def success(rank: Rank) -> None:
    work = dist.all_reduce(rank.tensor(1.0), async_op=True)
    work.wait()
    rank.check(work.is_success(), "is_success() is false")
    if exception_is_bound():
        rank.check(work.exception() is None, f"exception() is {work.exception()!r}")


@rule(
    "works", "future_result", "The future of a work's outcome says that it succeeded.",
    Source(WORK, "Get a Future object that would be marked as either success or failure"),
)  # fmt: skip
def future_result(rank: Rank) -> None:
    work = dist.all_reduce(rank.tensor(1.0), async_op=True)
    rank.equal(work.get_future_result().wait(), 0, "the value of the future (0 is SUCCESS)")


@rule(
    "works", "keep_tensors", "A work keeps its tensors alive until it has ended.",
    Source(WORK, "getFuture()"),
)  # fmt: skip
def keep(rank: Rank) -> None:
    works = []
    for _ in range(20):
        t = torch.full((50_000,), 1.0, device=rank.device)
        works.append((dist.all_reduce(t, async_op=True), t[:1].detach()))
        del t
        torch.full((50_000,), -1.0, device=rank.device)
    for work, first in works:
        work.wait()
        rank.same(first, torch.tensor([float(rank.size)]), "the first element")


@rule(
    "timing", "duration", "With timing enabled, a completed work says how long it took.",
    backend("enableCollectivesTiming"), own=True, methods=("enableCollectivesTiming",),
)  # fmt: skip
def duration(rank: Rank) -> None:
    rank.group._enable_collectives_timing()
    work = dist.all_reduce(torch.ones(1000, device=rank.device), async_op=True)
    work.wait()
    if rank.device.type != "cpu":
        torch.accelerator.synchronize(rank.device)
    rank.check(work._get_duration() >= 0.0, "the duration is negative")


@rule(
    "hooks", "completion", "A completion hook hears of each work, and waitForPendingWorks of the last.",
    Source(BACKEND, " registerOnCompletionHook("), own=True,
    methods=("registerOnCompletionHook", "waitForPendingWorks"),
)  # fmt: skip
def hook(rank: Rank) -> None:
    seen: list[str] = []
    rank.group._register_on_completion_hook(lambda info: seen.append(str(info.op_type)))
    t = rank.tensor(1.0)
    for _ in range(3):
        dist.all_reduce(t)
    rank.group._wait_for_pending_works()
    rank.equal(len(seen), 3, "the number of works that the hook has heard of")


@rule(
    "hooks", "recorder", "PyTorch's flight recorder hears from a completion hook that a work has ended.",
    backend("registerCompletionHook"), own=True,
    methods=("supportsCompletionHooks", "registerCompletionHook", "unregisterCompletionHook"),
)  # fmt: skip
def recorder(rank: Rank) -> None:
    if not rank.group.supports_completion_hooks:
        raise NotImplementedError("supports_completion_hooks is false")
    recorders: Any = torch._C._distributed_c10d
    hook = recorders.FlightRecorderHook.attach(rank.group, list(range(rank.size)))
    rank.still_works()
    entries = pickle.loads(recorders._dump_fr_trace(backend=rank.backend.name()))["entries"]
    rank.equal([entry["state"] for entry in entries], ["completed"], "the states of the recorder's entries")
    hook.remove()
    rank.still_works()
    again = pickle.loads(recorders._dump_fr_trace(backend=rank.backend.name()))["entries"]
    rank.equal(len(again), len(entries), "the number of entries after the hook has been removed")


@rule(
    "time_estimates", "estimate", "An estimated collective does not run, and has a time above 0.",
    python("_time_estimator"), methods=("supportsTimeEstimation", "startTimeEstimate", "endTimeEstimate"),
)  # fmt: skip
def estimate(rank: Rank) -> None:
    t = rank.tensor(1.0)
    with dist.distributed_c10d._time_estimator(device=rank.device) as estimator:
        dist.all_reduce(t)
    rank.check((estimator.estimated_time or 0) > 0, f"the estimate is {estimator.estimated_time!r}")
    rank.same(t, torch.tensor([1.0]), "the tensor")
