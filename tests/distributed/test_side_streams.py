"""Collectives on side streams of `dev`: they queue up with everything else there, and the host goes on."""

from __future__ import annotations

import os
import signal
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from .checks import assert_works, backend
from .devices import DEVICES
from .worker import listen, tell

pytestmark = pytest.mark.skipif("dev" not in DEVICES, reason="only the device has streams")


def ends_well(team):
    for outcome in team.finish():
        assert not outcome.failed, outcome.traceback


def the_host_goes_on(rank, n, device, *, sync):
    """Rank 0 issues everything before rank 1 comes to it."""
    stream, t = torch.Stream(device="dev"), torch.full((100_000,), rank + 1.0, device="dev")
    if rank == 1:
        tell("ready")
        listen()
    with stream:
        if sync:
            dist.all_reduce(t)
        else:
            dist.all_reduce(t, async_op=True).wait()
        if rank == 0:
            assert not stream.query()
            tell("the host goes on")
        total = t.sum().item()  # a computation on the stream waits for what is queued there
    assert total == 3 * 100_000


@pytest.mark.parametrize("sync", [False, True])
def test_a_wait_under_a_side_stream_makes_that_stream_wait(fresh, sync):
    with fresh(2) as team:
        team.join().start(the_host_goes_on, "dev", sync=sync)
        assert team.hear(1) == "ready"
        assert team.hear(0) == "the host goes on"
        team.say(1, "go on")
        ends_well(team)


def behind_other_work(rank, n, device, *, message):
    """A copy waits for a stream that waits for rank 1, and a second collective is behind the copy."""
    other = dist.new_group(backend="occl")
    first, second = torch.Stream(device="dev"), torch.Stream(device="dev")
    gate, source = torch.ones(1, device="dev"), torch.full((50_000,), 7.0, device="dev")
    target = torch.zeros(50_000, device="dev")
    if rank == 1:
        tell("ready")
        listen()
    with first:
        dist.all_reduce(gate, async_op=True).wait()
    second.wait_stream(first)
    with second:
        target.copy_(source, non_blocking=True)
        if message and rank == 0:
            work = dist.isend(target, 1, group=other)
        elif message:
            work = dist.irecv(target, 0, group=other)
        else:
            work = dist.all_reduce(target, async_op=True, group=other)
        if rank == 0:
            assert not work.is_completed()
            tell("issued")
        work.wait()
    second.synchronize()
    assert (target == (7 if message else 14)).all()
    assert work.is_completed() and work.is_success()


@pytest.mark.parametrize("message", [False, True])
def test_a_collective_begins_when_its_stream_comes_to_it(fresh, message):
    with fresh(2) as team:
        team.join().start(behind_other_work, "dev", message=message)
        assert team.hear(1) == "ready"
        assert team.hear(0) == "issued"
        team.say(1, "go on")
        ends_well(team)


def order_is_the_order_of_issue(rank, n, device):
    """One group, used from a busy side stream and from the default stream."""
    side = torch.Stream(device="dev")
    busy, a, b = (torch.ones(200_000, device="dev") for _ in range(3))
    for _ in range(20):
        with side:
            busy.copy_(a, non_blocking=True)
            dist.all_reduce(a, async_op=True).wait()
        dist.broadcast(b, src=0)
        side.synchronize()
    assert (a == float(n) ** 20).all() and (b == 1).all()


def test_operations_of_a_group_keep_their_order_across_streams(pool):
    pool.run(order_is_the_order_of_issue, 2)


def errors_come_with_the_synchronisation(rank, n, device):
    stream, t = torch.Stream(device="dev"), torch.ones(3 + rank, device="dev")
    with stream:
        dist.all_reduce(t, async_op=True).wait()
    with pytest.raises(dist.DistBackendError, match=r"all_reduce\(float32\[4\], SUM\)"):
        stream.synchronize()
    assert_works("dev")


def test_an_error_is_raised_by_the_next_synchronisation_with_the_stream(pool):
    pool.run(errors_come_with_the_synchronisation, 2)


def lists_of_columns(rank, n, device):
    """What is copied waits for the stream like everything else, and no stream waits for itself."""
    stream = torch.Stream(device="dev")
    for _ in range(20):
        out = list(torch.zeros(400, n, device="dev").unbind(1))
        a, b, u = (torch.full((400,), rank + 1.0, device="dev") for _ in range(3))
        with stream:
            dist.all_reduce(a, async_op=True).wait()
            dist.all_gather(out, a, async_op=True).wait()
            dist.all_reduce(u)
            backend("dev").allreduce([a, b]).wait()
            dist.all_reduce(u)
        stream.synchronize()
        assert all((t == 3).all() for t in out) and (a == 9).all() and a.equal(b) and (u == 6).all()


def test_tensors_that_are_copied_keep_the_order_of_the_stream(pool):
    pool.run(lists_of_columns, 2)


def interrupted(rank, n, device, *, wait):
    """Rank 1 does not come; Ctrl-C ends rank 0's wait for the device, and the stream goes on."""
    stream, t = torch.dev.Stream(), torch.ones(3, device="dev")
    if rank == 1:
        listen()
        return dist.all_reduce(t)
    event = torch.dev.Event()
    with stream:
        dist.all_reduce(t, async_op=True).wait()
        event.record()
        waits = {
            "stream": stream.synchronize,
            "device": torch.dev.synchronize,
            "event": event.synchronize,
            "item": lambda: t.sum().item(),
        }
        tell("ready")
        with pytest.raises(KeyboardInterrupt):
            waits[wait]()
    tell("interrupted")
    stream.synchronize()
    assert (t == 2).all()
    return None


@pytest.mark.parametrize("wait", ["stream", "device", "event", "item"])
def test_ctrl_c_ends_the_wait_for_a_stream(fresh, wait):
    with fresh(2) as team:
        team.join().start(interrupted, "dev", wait=wait)
        assert team.hear(0) == "ready"
        team.wait_until_asleep(0)
        os.kill(team.pids[0], signal.SIGINT)
        assert team.hear(0) == "interrupted"
        team.say(1, "go on")
        ends_well(team)


def a_timeout_is_for_the_host(rank, n, device):
    stream, t = torch.Stream(device="dev"), torch.ones(3, device="dev")
    with stream:
        if rank == 0:
            work = dist.all_reduce(t, async_op=True)
            with pytest.raises(dist.DistBackendError, match="Timed out waiting 50ms"):
                work.wait(timedelta(milliseconds=50))
            tell("timed out")
        else:
            listen()
            work = dist.all_reduce(t, async_op=True)
        work.wait()
    stream.synchronize()
    assert (t == 2).all()


def test_a_wait_with_a_timeout_holds_up_the_host(fresh):
    with fresh(2) as team:
        team.join().start(a_timeout_is_for_the_host, "dev")
        assert team.hear(0) == "timed out"
        team.say(1, "go on")
        ends_well(team)
