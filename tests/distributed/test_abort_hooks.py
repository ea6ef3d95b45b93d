"""Abort hooks: a program is told before calls fail, once for each failure, and of nothing else."""

from __future__ import annotations

import os
import signal
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from tests.support.checks import assert_works, backend
from tests.support.devices import DEVICES
from tests.support.worker import listen, tell

KEPT, REMOVED = 1, 2


def register(device, hook):
    """Returns a list that stays empty, unless a hook is called that was unregistered."""
    ours, wrong = backend(device), []
    ours._register_abort_hook(KEPT, hook)
    ours._register_abort_hook(REMOVED, lambda: wrong.append(REMOVED))
    ours._unregister_abort_hook(REMOVED)
    ours._unregister_abort_hook(REMOVED + 1)  # there is none
    return wrong


def pending_calls(device):
    """Two collectives and a receive that rank 1 has no part in yet."""
    works = [dist.all_reduce(torch.ones(n, device=device), async_op=True) for n in (1, 100_000)]
    return [*works, dist.irecv(torch.ones(1, device=device), 1)]


def told_before_they_fail(rank, n, device, *, end):
    """Rank 1 has a part in nothing, and ends as the test says."""
    assert_works(device)
    if rank == 1:
        listen()
        if end == "death":
            os.kill(os.getpid(), signal.SIGKILL)
        if end == "departure":
            dist.destroy_process_group()
        listen()
        return
    seen = []
    wrong = register(device, lambda: seen.append([work.is_completed() for work in works]))
    works = pending_calls(device)
    tell("pending")
    if end == "abort":
        backend(device).abort()
        assert seen == [[False] * 3]
    for work in works:
        with pytest.raises(dist.DistBackendError):
            work.wait()
    with pytest.raises(dist.DistBackendError):
        dist.all_reduce(torch.ones(1, device=device))
    assert (seen, wrong) == ([[False] * 3], [])
    tell("failed")


@pytest.mark.parametrize("end", ["timeout", "death", "departure", "abort"])
@pytest.mark.parametrize("device", DEVICES)
def test_hooks_are_called_once_before_all_calls_of_a_group_fail(fresh, device, end):
    with fresh(2) as team:
        team.join(1.0 if end == "timeout" else 60.0).start(told_before_they_fail, device, end=end)
        team.hear(0)
        team.say(1, "rank 0 waits")
        team.hear(0)
        if end != "death":
            team.say(1, "rank 0 is done")
        outcomes = team.finish()
        assert not outcomes[0].failed, outcomes[0].traceback


def not_told(rank, n, device):
    """Neither of wrong calls, which the group survives, nor of its end in good order."""
    told = []
    register(device, lambda: told.append("of what"))
    with pytest.raises(dist.DistBackendError, match="where rank"):
        dist.all_reduce(torch.ones(4 + rank, device=device))
    with pytest.raises(ValueError):
        dist.send(torch.ones(1, device=device), n)
    assert_works(device)
    dist.barrier()
    if rank == 1:
        listen()  # a rank that left before would be a failure of the other's call
        dist.destroy_process_group()
    else:
        work = dist.irecv(torch.ones(1, device=device), 1)
        dist.destroy_process_group()
        with pytest.raises(dist.DistBackendError, match="has been destroyed"):
            work.wait()
        tell("destroyed")
    assert not told


@pytest.mark.parametrize("device", DEVICES)
def test_hooks_are_not_told_of_mistakes_nor_of_a_destroyed_group(fresh, device):
    with fresh(2) as team:
        team.join().start(not_told, device)
        team.hear(0)
        team.say(1, "rank 0 has left")
        assert not any(outcome.failed for outcome in team.finish())


def may_communicate(rank, n, device):
    """In another group, while calls of the first fail."""
    other = dist.new_group(timeout=timedelta(seconds=60))
    ranks = torch.full((n,), -1)

    def exchange():
        dist.all_gather_into_tensor(ranks, torch.tensor([rank]), group=other)

    register(device, exchange)
    work = dist.irecv(torch.ones(1, device=device), 1 - rank)
    with pytest.raises(dist.DistBackendError, match="Timed out"):
        work.wait()
    assert ranks.tolist() == list(range(n))
    assert_works(device, other)


@pytest.mark.parametrize("device", DEVICES)
def test_a_hook_may_communicate_in_another_group(fresh, device):
    with fresh(2) as team:
        team.join(1.0).run(may_communicate, device)


def raises(rank, n, device):
    calls = []

    def fail():
        calls.append(rank)
        raise LookupError("no disk")

    register(device, fail)
    work = dist.irecv(torch.ones(1, device=device), 1 - rank)
    dist.barrier()
    if rank == 0:
        backend(device).abort()
    with pytest.raises(dist.DistBackendError, match=r"rank 0 .*aborted"):
        work.wait()
    assert calls == [rank]


@pytest.mark.parametrize("device", DEVICES)
def test_an_exception_of_a_hook_is_shown_and_changes_nothing(fresh, device):
    with fresh(2) as team:
        team.join().run(raises, device)
        assert "a hook for failures failed: LookupError: no disk" in "".join(team.printed().values())
