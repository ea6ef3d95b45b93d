"""Rules of what goes wrong: mismatches, deaths, aborts, timeouts. Each takes processes of its own."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from occl.conformance.catalog import BACKEND, WORK, Source, backend, over, python, rule
from occl.conformance.rank_api import Rank, exception_is_bound, finish

TIMEOUT = 1.5
"""Seconds, of groups whose ranks wait for a call that never comes."""

DEBUGGING = Source("distributed/distributed_c10d.py", "def _create_process_group_wrapper(")
"""PyTorch itself leaves mismatches to the backend; with TORCH_DISTRIBUTED_DEBUG=DETAIL it wraps every backend
in one that finds them."""


def _differs(rank: Rank, call: str) -> None:
    odd = rank.rank == rank.size - 1
    t = rank.tensor(1.0, 2.0, 3.0, 4.0)
    if call == "kind":
        dist.barrier() if odd else dist.all_reduce(t)
    elif call == "size":
        dist.all_reduce(t[:3].clone() if odd else t)
    elif call == "dtype":
        dist.all_reduce(t.int() if odd else t)
    elif call == "reduction":
        dist.all_reduce(t, dist.ReduceOp.MAX if odd else dist.ReduceOp.SUM)
    elif call == "root":
        dist.broadcast(t, src=1 if odd else 0)
    else:
        many = [torch.zeros(3 if odd else 4, device=rank.device) for _ in range(rank.size)]
        dist.all_gather(many, t[:3].clone() if odd else t)


@rule(
    "mismatch", "refused",
    "If ranks make different calls, every rank gets an error, and none a result.",
    DEBUGGING, own=True, refuses=True, timeout=TIMEOUT,
    cases=over(difference=("kind", "size", "dtype", "reduction", "root", "size_of_list")),
)  # fmt: skip
def mismatch(rank: Rank, *, difference: str) -> None:
    rank.refuses(lambda: _differs(rank, difference), f"a call that differs in its {difference}")


CALLS = ("all_reduce", "barrier", "broadcast", "all_gather", "send_recv")


def _one(rank: Rank, call: str) -> None:
    """A call that needs every rank, or for messages rank 0 and the last one."""
    if call == "send_recv":
        if rank.rank == 0:
            dist.recv(rank.tensor(0.0), rank.size - 1)
    elif call == "barrier":
        dist.barrier()
    else:
        setting = rank.setting(call, root=rank.size - 1)
        finish(rank.prepared(call, setting)(False))


@rule(
    "death", "noticed", "If a rank is killed, calls that need it raise on the others.",
    Source(BACKEND, "REMOTE_ERROR"), own=True, refuses=True, timeout=TIMEOUT, cases=over(call=CALLS),
)  # fmt: skip
def death(rank: Rank, *, call: str) -> None:
    rank.still_works()
    if rank.rank == rank.size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if call == "send_recv" and rank.rank:
        rank.refusals.append("needs nothing of the rank that died")
    else:
        rank.refuses(lambda: _one(rank, call), f"{call} with a rank that died")


@rule(
    "departure", "noticed", "If a rank destroys the group and exits, calls that need it raise on the others.",
    python("destroy_process_group"), own=True, refuses=True, timeout=TIMEOUT,
    cases=over(call=("all_reduce", "send_recv")),
)  # fmt: skip
def departure(rank: Rank, *, call: str) -> None:
    rank.still_works()
    if rank.rank == rank.size - 1:
        dist.destroy_process_group()
        rank.refusals.append("this rank has left")
    elif call == "send_recv" and rank.rank:
        rank.refusals.append("needs nothing of the rank that left")
    else:
        rank.refuses(lambda: _one(rank, call), f"{call} with a rank that left")


@rule(
    "timeouts", "operation", "A call that a rank does not make raises on the others at the timeout.",
    python("init_process_group"), own=True, refuses=True, timeout=TIMEOUT, cases=over(call=CALLS),
)  # fmt: skip
def timeout(rank: Rank, *, call: str) -> None:
    rank.still_works()
    if rank.rank == rank.size - 1 or (call == "send_recv" and rank.rank):
        _wait_for_rank_0(rank)
        rank.refusals.append("this rank makes no call")
    else:
        with _last_words(rank):
            rank.refuses(lambda: _one(rank, call), f"{call} without rank {rank.size - 1}")


def _wait_for_rank_0(rank: Rank) -> None:
    dist.distributed_c10d._get_default_store().wait(["conformance/done"], timedelta(seconds=60))


@contextlib.contextmanager
def _last_words(rank: Rank) -> Iterator[None]:
    """Tells the ranks that make no call when rank 0 has done what is in the ``with`` statement."""
    try:
        yield
    finally:
        if rank.rank == 0:
            dist.distributed_c10d._get_default_store().set("conformance/done", "1")


@rule(
    "timeouts", "wait", "Work.wait(timeout) raises when the time has passed.",
    Source(WORK, "wait(std::chrono::milliseconds"), own=True, refuses=True,
)  # fmt: skip
def wait(rank: Rank) -> None:
    rank.still_works()
    if rank.rank == 0:
        with _last_words(rank):
            work: Any = dist.irecv(rank.tensor(0.0), 1)
            timeout = timedelta(milliseconds=200)
            rank.refuses(lambda: work.wait(timeout), "a wait for a message that was not sent")
    else:
        _wait_for_rank_0(rank)
        rank.refusals.append("this rank sends nothing")


@rule(
    "timeouts", "set", "set_timeout holds for calls that come after it.",
    backend("setTimeout"), own=True, refuses=True, methods=("setTimeout",),
)  # fmt: skip
def set_timeout(rank: Rank) -> None:
    rank.still_works()
    rank.backend.set_timeout(timedelta(seconds=TIMEOUT))
    if rank.rank == rank.size - 1:
        _wait_for_rank_0(rank)
        rank.refusals.append("this rank makes no call")
    else:
        with _last_words(rank):
            rank.refuses(lambda: _one(rank, "all_reduce"), f"all_reduce without rank {rank.size - 1}")


@rule(
    "timeouts", "added", "A timeout that is added holds for later works until the first of them completes.",
    backend("addEphemeralTimeout"), own=True, methods=("addEphemeralTimeout",),
)  # fmt: skip
def added_timeout(rank: Rank) -> None:
    def launch() -> tuple[Any, timedelta]:
        work: Any = dist.all_reduce(rank.tensor(1.0), async_op=True)
        return work, work.timeout

    work, usual = launch()
    work.wait()
    rank.backend._add_ephemeral_timeout(timedelta(seconds=5))
    work, longer = launch()
    work.wait()
    if longer == usual:
        raise NotImplementedError("the timeout that was added is ignored")
    rank.equal(longer, usual + timedelta(seconds=5), "the timeout of the first work")
    work, after = launch()
    work.wait()
    rank.equal(after, usual, "the timeout of a work after the first has completed")


@rule(
    "abort", "hook", "abort() calls the hooks that are registered, and none that has been unregistered.",
    backend("registerAbortHook"), own=True,
    methods=("registerAbortHook", "unregisterAbortHook", "supportsAbortHooks"),
)  # fmt: skip
def abort_hook(rank: Rank) -> None:
    called: list[str] = []
    rank.group.register_abort_hook(1, lambda: called.append("kept"))
    rank.group.register_abort_hook(2, lambda: called.append("removed"))
    rank.group.unregister_abort_hook(2)
    rank.still_works()
    rank.backend.abort()
    rank.equal(called, ["kept"], "the hooks that were called")


@rule(
    "abort", "pending", "abort() ends what is pending on this rank with an error.",
    Source(BACKEND, "Aborts all pending operations"), own=True, refuses=True, methods=("abort",),
)  # fmt: skip
def abort_pending(rank: Rank) -> None:
    rank.still_works()
    work: Any = dist.irecv(rank.tensor(0.0), (rank.rank + 1) % rank.size)
    rank.expect_pending(work, "irecv returned a work that had ended")
    rank.backend.abort()
    rank.refuses(work.wait, "a wait for what was pending when the group was aborted")


@rule(
    "abort", "later", "After abort() calls raise.",
    Source(BACKEND, "Aborts all pending operations"), own=True, refuses=True, methods=("abort",),
    timeout=TIMEOUT,
)  # fmt: skip
def abort_later(rank: Rank) -> None:
    rank.still_works()
    rank.backend.abort()
    rank.refuses(lambda: dist.all_reduce(rank.tensor(1.0)), "all_reduce of a group that was aborted")


@rule(
    "works", "failure", "A work that has failed says so: is_success() is false, exception() is the error.",
    Source(WORK, "Returns exception if isSuccess() returned false."), own=True, timeout=TIMEOUT,
)  # fmt: skip
def failure(rank: Rank) -> None:
    work: Any = dist.irecv(rank.tensor(0.0), (rank.rank + 1) % rank.size)
    with contextlib.suppress(RuntimeError):
        work.wait()
    rank.check(work.is_completed(), "is_completed() is false after a wait that failed")
    rank.check(not work.is_success(), "is_success() is true")
    if exception_is_bound():
        rank.check(work.exception() is not None, "exception() is None")
