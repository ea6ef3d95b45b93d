"""Groups used where they cannot be: after destroy, in a child, with a member gone; Ctrl-C and abort."""

from __future__ import annotations

import os
import re
import signal
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from tests.support.checks import assert_works, backend
from tests.support.devices import DEVICES
from tests.support.processes import in_forked_child
from tests.support.worker import join, listen, tell


def used_after_destroy(rank, n, device, *, store):
    join(rank, n, device, store=store, timeout=60)
    assert_works(device)
    pg, t = backend(device), torch.ones(4, device=device)
    dist.destroy_process_group()
    for call in (
        lambda: pg.allreduce([t]).wait(),
        lambda: pg.send([t], 0, 0).wait(),
        lambda: pg.barrier().wait(),
    ):
        with pytest.raises(dist.DistBackendError, match="destroyed"):
            call()
    with pytest.raises(ValueError, match="init_process_group"):
        dist.all_reduce(t)
    pg.shutdown()  # idempotent


def in_a_child(rank, n, device, *, use):
    """What `use` gives in a forked child, as text; the parent's group works on.

    The child uses CPU tensors: it can have none on a device that its parent has used.
    """
    assert_works(device)
    text = in_forked_child(lambda: use("cpu"))
    assert_works(device)
    return text


def use_the_parents_group(device):
    """With CPU tensors: `dev` itself is not to be used in a forked child."""
    pg = backend(device)
    calls = {
        "all_reduce": lambda: dist.all_reduce(torch.ones(4)),
        "send": lambda: pg.send([torch.ones(4)], 0, 0),
        "abort": pg.abort,
    }
    texts = []
    for name, call in calls.items():
        try:
            call()
            texts.append(f"{name} did nothing")
        except dist.DistBackendError as error:
            texts.append(f"{name}: {error}")
    dist.destroy_process_group()  # leaves the parent's group alone
    return "\n".join(texts)


def make_a_group_of_its_own(device):
    dist.destroy_process_group()
    dist.init_process_group("occl", store=dist.HashStore(), rank=0, world_size=1)
    assert_works("cpu")
    dist.destroy_process_group()
    return "it works"


def use_the_parents_device(device):
    return str(torch.ones(4, device=DEVICES[-1]))


def only_end(device):
    return "it ended"


def work_in_a_child(rank, n, device):
    """A child that drove its parent's operation would do the parent's part a second time."""
    t = torch.ones(500_000, device=device)
    if rank == 1:
        listen()
    work = dist.all_reduce(t, async_op=True)
    if rank == 0:
        child = os.fork()
        if child == 0:
            status = 0
            for use in (work.is_completed, work.wait, lambda: work.wait(timedelta(seconds=1))):
                try:
                    use()
                    status = 1
                except dist.DistBackendError as error:
                    status |= "belongs to the parent" not in str(error)
            os._exit(status)
        tell(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    work.wait()
    assert (t == n).all()
    assert_works(device)


def fork_and_use(rank, n, device, *, use):
    """Then rank 0 waits for rank 1: long enough to look whether it is still there."""
    text = in_a_child(rank, n, device, use=globals()[use])
    tell("forked")
    if rank == 1:
        listen()
    assert_works(device)
    return text


def interrupted(rank, n, device, *, kind):
    """Rank 0 gets Ctrl-C while it waits for rank 1, which then finds that rank 0 has gone."""
    t = torch.ones(1000, device=device)
    if rank == 1:
        listen()
        with pytest.raises(dist.DistBackendError, match="rank 0"):
            while True:  # rank 0 may have done its part of the first
                dist.all_reduce(t)
        return
    work = dist.all_reduce(t, async_op=True) if kind == "wait" else None
    calls = {
        "all_reduce": lambda: dist.all_reduce(t),
        "barrier": dist.barrier,
        "recv": lambda: dist.recv(t, 1),
        "wait": lambda: work.wait(),
    }
    tell("calling")
    with pytest.raises(KeyboardInterrupt):
        calls[kind]()
    tell("interrupted")
    listen()
    backend(device).abort()


def aborted(rank, n, device):
    """One rank ends the group; what the others wait for ends, and what they call next."""
    t = torch.ones(1000, device=device)
    pg = backend(device)
    receiving = dist.irecv(t.clone(), (rank + 1) % n)
    if rank == 1:
        listen()
        pg.abort()
        with pytest.raises(dist.DistBackendError, match="rank 1 aborted group"):
            dist.all_reduce(t)
    else:
        tell("calling")
        with pytest.raises(dist.DistBackendError, match="rank 1 aborted group"):
            dist.all_reduce(t)
    for later in (receiving.wait, dist.barrier, lambda: dist.send(t, (rank + 1) % n)):
        with pytest.raises(dist.DistBackendError, match="rank 1 aborted group"):
            later()
    pg.abort()  # idempotent
    dist.destroy_process_group()


def left_early(rank, n, device):
    if rank == 1:
        dist.destroy_process_group()
        listen()
        return
    with pytest.raises(
        dist.DistBackendError, match=r"rank 1 \(pid \d+, host .*\) left the group during all_reduce"
    ):
        dist.all_reduce(torch.ones(1000, device=device))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_destroyed_group_says_so(fresh, world_size, device):
    with fresh(world_size) as team:
        team.run(used_after_destroy, device, store=team.source.new_file())


def results_of_children(fresh, device, use):
    with fresh(2) as team:
        team.join().start(fork_and_use, device, use=use)
        assert team.hear(0) == team.hear(1) == "forked"
        team.wait_until_asleep(0)
        team.say(1, "go on")
        outcomes = team.finish()
        assert not any(outcome.failed for outcome in outcomes), "\n".join(o.traceback for o in outcomes)
        return [outcome.result for outcome in outcomes]


@pytest.mark.parametrize("device", DEVICES)
def test_a_forked_child_cannot_use_the_parents_group(fresh, device):
    for rank, text in enumerate(results_of_children(fresh, device, "use_the_parents_group")):
        for line, name in zip(text.splitlines(), ("all_reduce", "send", "abort"), strict=True):
            assert re.match(
                rf"{name}: group .* of rank {rank} was created before this process was forked", line
            ), line


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("use", "text"), [("make_a_group_of_its_own", "it works"), ("only_end", "it ended")])
def test_a_forked_child_does_not_harm_the_parents_group(fresh, use, text, device):
    assert results_of_children(fresh, device, use) == [text] * 2


if "dev" in DEVICES:

    def test_a_forked_child_cannot_use_the_parents_device(fresh):
        for text in results_of_children(fresh, "dev", "use_the_parents_device"):
            assert "'spawn' start method" in text, text


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["all_reduce", "barrier", "recv", "wait"])
def test_ctrl_c_ends_a_blocked_call_with_keyboard_interrupt(fresh, kind, device):
    with fresh(2) as team:
        team.join().start(interrupted, device, kind=kind)
        assert team.hear(0) == "calling"
        team.wait_until_asleep(0)
        team.kill(0, signal.SIGINT)
        assert team.hear(0) == "interrupted"
        team.say(0, "go on")
        team.wait_for(0)
        team.say(1, "go on")
        assert not any(outcome.failed for outcome in team.finish()), team.running


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("world_size", [2, 3])
def test_abort_on_one_rank_ends_the_group_on_all(fresh, world_size, device):
    with fresh(world_size) as team:
        team.join().start(aborted, device)
        for rank in range(world_size):
            if rank != 1:
                assert team.hear(rank) == "calling"
        team.wait_until_asleep(0)
        team.say(1, "go on")
        for outcome in team.finish():
            assert not outcome.failed, outcome.traceback


@pytest.mark.parametrize("device", DEVICES)
def test_a_rank_that_has_left_is_named(fresh, device):
    with fresh(2) as team:
        team.join().start(left_early, device)
        team.wait_for(0)
        team.say(1, "go on")
        for outcome in team.finish():
            assert not outcome.failed, outcome.traceback


@pytest.mark.parametrize("device", DEVICES)
def test_a_forked_child_cannot_drive_its_parents_work(fresh, device):
    with fresh(2) as team:
        team.join().start(work_in_a_child, device)
        assert team.hear(0) == 0
        team.say(1, "go on")
        outcomes = team.finish()
        assert not any(outcome.failed for outcome in outcomes), outcomes


def interrupted_while_a_group_is_made(rank, n, device):
    if rank == 1:
        return listen()
    tell("begins")
    with pytest.raises(KeyboardInterrupt):
        dist.new_group([0, 1])
    return tell("was interrupted")


def test_ctrl_c_ends_the_wait_for_others_to_make_a_group(fresh):
    with fresh(2) as team:
        team.join().start(interrupted_while_a_group_is_made)
        assert team.hear(0) == "begins"
        team.wait_until_asleep(0)
        team.kill(0, signal.SIGINT)
        assert team.hear(0) == "was interrupted"
