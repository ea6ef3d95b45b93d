"""Collectives on side streams of `dev`: they queue up with everything else there, and the host goes on."""

from __future__ import annotations

import os
import signal
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from tests.support.checks import assert_works, backend
from tests.support.devices import DEVICES
from tests.support.gates import gate, open_when_the_caller_sleeps
from tests.support.worker import listen, tell

pytestmark = pytest.mark.skipif("dev" not in DEVICES, reason="only the device has streams")


def ends_well(team):
    for outcome in team.finish():
        assert not outcome.failed, outcome.traceback


def the_host_goes_on(rank, n, device, *, how):
    """Rank 0 issues everything before rank 1 comes to it."""
    stream, t = torch.Stream(device="dev"), torch.full((100_000,), rank + 1.0, device="dev")
    if rank == 1:
        tell("ready")
        listen()
    with stream:
        if how == "wait":
            dist.all_reduce(t, async_op=True).wait()
        elif how == "synchronous":
            dist.all_reduce(t)
        else:  # what PyTorch's calls in C++ rely on
            opts = dist.AllreduceOptions()
            opts.asyncOp = False
            backend("dev").allreduce([t], opts)
        if rank == 0:
            assert not stream.query()
            tell("the host goes on")
        total = t.sum().item()  # a computation on the stream waits for what is queued there
    assert total == 3 * 100_000


@pytest.mark.parametrize("how", ["wait", "synchronous", "backend"])
def test_a_wait_under_a_side_stream_makes_that_stream_wait(fresh, how):
    with fresh(2) as team:
        team.join().start(the_host_goes_on, "dev", how=how)
        assert team.hear(1) == "ready"
        assert team.hear(0) == "the host goes on"
        team.say(1, "go on")
        ends_well(team)


def gather_into_columns(a, b, peer):
    out = list(b.view(-1, 2).unbind(1))  # copied when the operation has ended
    return [dist.all_gather(out, a[: out[0].numel()], async_op=True)]


def mixed_block(a, b, peer):
    ours = backend("dev")
    ours._start_coalescing()
    ours.allreduce([a])
    ours.broadcast(b, root=0)
    return [ours._end_coalescing()]


def exchange(a, b, peer):
    return dist.batch_isend_irecv([dist.P2POp(dist.isend, a, peer), dist.P2POp(dist.irecv, b, peer)])


ISSUED = {
    # name: (call, what the gated rank 0 and rank 1 then have in a and b)
    "all_reduce": (lambda a, b, peer: [dist.all_reduce(a, async_op=True)], (14, 9), (14, 9)),
    "broadcast": (lambda a, b, peer: [dist.broadcast(a, src=0, async_op=True)], (7, 9), (7, 9)),
    "all_gather": (gather_into_columns, (7, 7), (7, 7)),
    "coalesced": (lambda a, b, peer: [backend("dev").allreduce_coalesced([a, b])], (14, 18), (14, 18)),
    "block": (mixed_block, (14, 9), (14, 9)),
    "batch": (exchange, (7, 7), (7, 7)),
    "send": (lambda a, b, peer: [(dist.irecv if peer == 0 else dist.isend)(a, peer)], (7, 9), (7, 9)),
    "recv": (lambda a, b, peer: [(dist.isend if peer == 0 else dist.irecv)(a, peer)], (3, 9), (3, 9)),
    "recv_any": (
        lambda a, b, peer: [dist.isend(a, 0) if peer == 0 else dist.irecv(a)],
        (3, 9),
        (3, 9),
    ),
}


def meet(rank, messages):
    """Twice, so that what was issued before is driven on both sides. Messages and collectives are apart."""
    for _ in range(2):
        if messages:
            dist.barrier()
        elif rank == 0:
            dist.send(torch.zeros(1), 1, tag=9)
            dist.recv(torch.zeros(1), 1, tag=9)
        else:
            dist.recv(torch.zeros(1), 0, tag=9)
            dist.send(torch.zeros(1), 0, tag=9)


def behind_a_gate(rank, n, device, *, kind, count, by_event):
    """Rank 1 has called it when rank 0 does, whose tensors are to be filled by copies behind a gate."""
    issue, *expected = ISSUED[kind]
    messages = kind in ("batch", "send", "recv", "recv_any")
    a, b = (torch.full((count,), value, device="dev") for value in ((0.0, 0.0), (7.0, 9.0))[rank])
    if rank == 1:
        if "recv" in kind:
            a.fill_(3)  # is sent; what is received comes after what rank 0's stream has written before
        works = issue(a, b, 0)
        meet(rank, messages)
        meet(rank, messages)
        for work in works:
            work.wait()
    else:
        sevens, nines = torch.full_like(a, 7), torch.full_like(b, 9)
        stream, behind = torch.dev.Stream(), torch.dev.Stream()
        meet(rank, messages)
        with gate(stream):
            if by_event:
                behind.wait_stream(stream)
            with torch.dev.stream(behind if by_event else stream):
                a.copy_(sevens, non_blocking=True)
                b.copy_(nines, non_blocking=True)
                works = issue(a, b, 1)
                meet(rank, messages)
                assert not any(work.is_completed() for work in works)
                for work in works:
                    work.wait()
                assert not torch.dev.current_stream().query()
        torch.dev.synchronize()
        assert all(work.is_completed() and work.is_success() for work in works)
    assert (a == expected[rank][0]).all() and (b == expected[rank][1]).all(), (a[:4], b[:4])


@pytest.mark.parametrize("by_event", [False, True])
@pytest.mark.parametrize("count", [10, 100_000])
@pytest.mark.parametrize("kind", ISSUED)
def test_a_collective_begins_when_its_stream_comes_to_it(pool, kind, count, by_event):
    pool.run(behind_a_gate, 2, kind=kind, count=count, by_event=by_event)


def both_streams(rank, n, device):
    """A call with tensors of two devices begins and is waited for on the streams of both."""
    tensors = [torch.full((10,), rank + 1.0, device=f"dev:{i}") for i in range(2)]
    if rank == 1:
        works = [backend("dev").allreduce_coalesced(tensors) for _ in range(3)]
        meet(rank, messages=False)
        meet(rank, messages=False)
        for work in works:
            work.wait()
        return
    here, there = torch.dev.Stream("dev:0"), torch.dev.Stream("dev:1")
    meet(rank, messages=False)
    with torch.dev.stream(here), torch.dev.stream(there):
        with gate(there):
            work = backend("dev").allreduce_coalesced(tensors)
            meet(rank, messages=False)
            assert not work.is_completed()
            work.wait()
            assert not here.query() and not there.query()
        here.synchronize()
        assert work.is_completed()
    for side in (here, there):
        with gate(side) as opened, torch.dev.stream(side):  # the other device's is the default one: the host
            work = backend("dev").allreduce_coalesced(tensors)
            open_when_the_caller_sleeps(opened)
            work.wait()
            assert opened.is_set() and work.is_completed()
    torch.dev.synchronize(0)
    torch.dev.synchronize(1)
    assert all((t == 12).all() for t in tensors)


def test_a_call_with_tensors_of_two_devices_uses_the_streams_of_both(pool):
    pool.run(both_streams, 2)


def sparse_behind_a_gate(rank, n, device):
    """It blocks until done; what is queued is part of what it adds."""
    values = torch.zeros(2, device="dev")
    t = torch.sparse_coo_tensor(torch.tensor([[0, 2]], device="dev"), values, (4,), is_coalesced=True)
    sevens, stream = torch.full((2,), 7.0, device="dev"), torch.dev.Stream()
    with gate(stream) as event, torch.dev.stream(stream):
        values.copy_(sevens, non_blocking=True)
        open_when_the_caller_sleeps(event)
        dist.all_reduce(t)
    stream.synchronize()
    assert t.to_dense().tolist() == [14, 0, 14, 0]


def test_a_sparse_tensor_is_what_the_stream_has_made_of_it(pool):
    pool.run(sparse_behind_a_gate, 2)


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


def a_poller_copies(rank, n, device):
    """Rank 0's main thread drives, under a stream that goes on only when it has finished."""
    stream, part, out = torch.Stream(device="dev"), torch.ones(400, device="dev"), []
    for _ in range(20):
        columns = torch.zeros(400, n, device="dev").unbind(1)
        if rank == 1:
            dist.recv(torch.zeros(1), 0)
        work = dist.all_gather(list(columns), part, async_op=True)
        if rank == 0:
            with gate(stream), stream:
                dist.send(torch.zeros(1), 1)
                while not work.is_completed():
                    pass
        work.wait()
        out += columns
    assert all((t == 1).all() for t in out)


def test_a_thread_that_drives_does_not_copy_on_its_own_stream(pool):
    pool.run(a_poller_copies, 2, limit=20)


def three_end_together(rank, n, device):
    """The first one waits for its stream. When that goes on, all are carried out before one is told."""
    stream, y = torch.Stream(device="dev"), torch.zeros(4, 2, device="dev")
    first, part = torch.ones(1, device="dev"), torch.full((4,), 3.0, device="dev")
    with gate(stream):
        with stream:
            works = [dist.all_reduce(first, async_op=True)]
        works.append(dist.all_gather([y[:, 0]], part, async_op=True))
        works.append(dist.all_reduce(y, dist._make_nccl_premul_sum(2.0), async_op=True))
    for work in works:
        work.wait()
    assert (y[:, 0] == 6).all()


def test_outputs_are_copied_before_the_next_operation_begins(pool):
    pool.run(three_end_together, 1)


def streams_of_two_devices(rank, n, device, *, gated):
    """The stream of one of the devices waits for rank 1, and a copy on it for that."""
    other = dist.new_group(backend="occl")
    streams = [torch.Stream(device=f"dev:{i}") for i in range(2)]
    gate, source = (torch.full((1000,), rank + 1.0, device=f"dev:{gated}") for _ in range(2))
    tensors = [torch.full((1000,), rank + 1.0, device=f"dev:{i}") for i in range(2)]
    tensors[gated].zero_()
    copies = [torch.zeros_like(t) for t in tensors]
    if rank == 1:
        tell("ready")
        listen()
    with streams[0], streams[1]:
        dist.all_reduce(gate, async_op=True, group=other).wait()
        tensors[gated].copy_(source, non_blocking=True)
        if rank == 0:
            tell("issues")
        dist.group.WORLD.allreduce_coalesced(tensors).wait()
        for t, copy in zip(tensors, copies, strict=True):
            copy.copy_(t, non_blocking=True)
    for stream in streams:
        stream.synchronize()
    assert all((copy == n * (n + 1) / 2).all() for copy in copies)


@pytest.mark.parametrize("gated", [0, 1])
def test_a_coalesced_call_waits_for_the_streams_of_all_its_devices_and_they_for_it(fresh, gated):
    with fresh(2) as team:
        team.join().start(streams_of_two_devices, "dev", gated=gated)
        assert team.hear(1) == "ready"
        assert team.hear(0) == "issues"
        team.wait_until_asleep(0)
        team.say(1, "go on")
        ends_well(team)


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
