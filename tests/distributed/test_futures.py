"""Works and their futures: async_op, callbacks that communicate, tensors that Python has dropped."""

from __future__ import annotations

import gc
import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from tests.support.checks import assert_works, backend
from tests.support.devices import DEVICES
from tests.support.running import PYTORCH


def handles(rank, n, device):
    t = torch.ones(1000, device=device)
    work = dist.all_reduce(t, async_op=True)
    assert work.wait()
    assert work.is_completed()
    assert work.wait(timedelta(seconds=1))  # again
    if PYTORCH >= (2, 13):  # before, it cannot give its result to Python
        assert work.exception() is None
    assert torch.equal(work.result()[0].cpu(), t.cpu())
    assert (t == n).all()
    assert dist.all_reduce(t) is None


def many_in_flight(rank, n, device):
    tensors = [torch.full((1 + 37 * i,), i, device=device) for i in range(300)]
    works = [dist.all_reduce(t, async_op=True) for t in tensors]
    for i in reversed(range(300)):
        works[i].wait()
        assert (tensors[i] == i * n).all()


def completes_in_the_background(rank, n, device):
    """No thread drives: the work ends all the same."""
    tensors = [torch.ones(100_000, device=device) for _ in range(5)]
    futures, events = [], []
    for t in tensors:
        event = threading.Event()
        future = dist.all_reduce(t, async_op=True).get_future()
        future.add_done_callback(lambda _, event=event: event.set())
        futures.append(future)
        events.append(event)
    for t, future, event in zip(tensors, futures, events, strict=True):
        if device == "dev":
            future.wait()
        assert event.wait(60)
        assert (t == n).all()


def dropped(rank, n, device):
    """Neither the tensors nor the works are kept by Python."""
    for i in range(50):
        dist.all_reduce(torch.ones(50_000, device=device), async_op=True)
        dist.isend(torch.full((20_000,), i, device=device), (rank + 1) % n)
    gc.collect()
    for i in range(50):
        out = torch.zeros(20_000, dtype=torch.int64, device=device)
        dist.recv(out, (rank - 1) % n)
        assert (out == i).all()
    assert_works(device)


def then(rank, n, device):
    t = torch.ones(1000, device=device)
    future = dist.all_reduce(t, async_op=True).get_future()
    assert torch.equal(future.then(lambda f: f.value()[0] * 2).wait().cpu(), torch.full((1000,), 2.0 * n))
    assert future.done()
    late = future.then(lambda f: f.value()[0] + 1)  # after the end
    assert torch.equal(late.wait().cpu(), torch.full((1000,), n + 1.0))


def callback_communicates(rank, n, device, *, count, group, inner, outer):
    """A callback launches collectives and waits for them, and so does the callback of one of those.

    `inner` and `outer` say how the callbacks and the body wait: for the work, or for its future, as PyTorch's
    PowerSGD hook does.
    """
    other = dist.new_group(backend="occl") if group == "another" else None

    def reduced(t):
        work = dist.all_reduce(t, group=other, async_op=True)
        if inner == "future":
            return work.get_future().wait()[0]
        work.wait()
        return t

    def again(future):
        t = reduced(future.value()[0].clone())
        work = dist.all_reduce(t, group=other, async_op=True)
        once_more = work.get_future().then(lambda f: reduced(f.value()[0].clone()))
        if inner == "work":
            work.wait()
        return once_more.wait()

    t = torch.ones(count, device=device)
    work = dist.all_reduce(t, async_op=True)
    future = work.get_future().then(again)
    if outer == "work":
        work.wait()
    assert (future.wait() == n**4).all()
    if other:
        dist.destroy_process_group(other)


def callback_fails(rank, n, device):
    """What a callback raises is its own future's; the work and the group are well."""

    def fail(future):
        raise ValueError("no, thanks")

    work = dist.all_reduce(torch.ones(10, device=device), async_op=True)
    future = work.get_future().then(fail)
    with pytest.raises((ValueError, RuntimeError), match="no, thanks"):
        future.wait()
    work.wait()
    assert_works(device)


def failed_future(rank, n, device):
    """A mismatch arrives through the future, too."""
    work = dist.all_reduce(torch.ones(4 + rank, device=device), async_op=True)
    with pytest.raises(Exception, match=r"called all_reduce\(float32\[4\], SUM\)"):
        work.get_future().wait()
    assert_works(device)


def sequence_numbers(rank, n, device):
    pg = backend(device)
    before = pg._get_sequence_number_for_group()
    for _ in range(3):
        dist.all_reduce(torch.ones(1, device=device))
    dist.barrier()
    assert pg._get_sequence_number_for_group() == before + 4


def collectives_of_lists(rank, n, device):
    """The future of an all_gather has all outputs in one tensor, unless their sizes differ."""
    mine = torch.full((10,), float(rank), device=device)
    outputs = [torch.zeros(10, device=device) for _ in range(n)]
    work = dist.all_gather(outputs, mine, async_op=True)
    (rows,) = work.get_future().wait()
    assert rows.tolist() == [[float(r)] * 10 for r in range(n)]
    assert all(a is b for a, b in zip(work.result(), outputs, strict=True))

    outputs = [torch.zeros(r + 1, device=device) for r in range(n)]
    values = dist.all_gather(outputs, mine[: rank + 1], async_op=True).get_future().wait()
    assert [v.tolist() for v in values] == [[float(r)] * (r + 1) for r in range(n)]


def several_devices(rank, n, device):
    """The future of tensors on several devices, whose callbacks run with streams of each."""
    for devices in (["dev:0", "dev:1"], ["dev:1", "dev:0", "dev:1"], ["cpu", "dev:1"]):
        tensors = [torch.full((1000,), i + 1.0, device=d) for i, d in enumerate(devices)]
        work = dist.all_reduce_coalesced(tensors, async_op=True)
        future = work.get_future() if hasattr(work, "get_future") else work
        doubled = future.then(lambda f: [t * 2 for t in f.value()])
        values = doubled.wait()
        assert [v.device for v in values] == [t.device for t in tensors]
        assert all((v == 2 * n * (i + 1)).all() for i, v in enumerate(values))
        assert all((t == n * (i + 1)).all() for i, t in enumerate(tensors))


def copies_keep_their_place(rank, n, device):
    """Lists of columns are copied in the group's order: rank 1 comes when all is issued."""
    x, y = torch.full((4, n), rank + 1.0, device=device), torch.zeros(4, n, device=device)
    u, v = torch.full((4,), rank + 1.0, device=device), torch.zeros(4, device=device)
    part, total = torch.zeros(4, device=device), n * (n + 1) // 2
    if rank == 1:
        dist.recv(torch.zeros(1), 0)
    works = [
        dist.all_reduce(x, async_op=True),
        dist.reduce_scatter(part, list(x.unbind(1)), async_op=True),
        dist.all_gather(list(y.unbind(1)), part, async_op=True),
        dist.all_reduce(y, async_op=True),
        dist.all_reduce(u, async_op=True),
        backend(device).allreduce([u, v]),
    ]
    if rank == 0:
        dist.send(torch.zeros(1), 1)
    for work in works:
        work.wait()
    assert (x == total).all() and (part == n * total).all() and (y == n * n * total).all()
    assert (u == n * total).all() and (v == n * total).all()


def callbacks_come_after_the_end(rank, n, device):
    if device == "dev":
        return  # the future is complete before the end, see below
    t, seen = torch.ones(10, device=device), []
    if rank == 1:
        dist.recv(torch.zeros(1), 0)
    work = dist.all_reduce(t, async_op=True)
    future = work.get_future()
    called = threading.Event()  # after `wait` has returned, perhaps: it waits for no callback

    def see(_):
        seen.append((work.is_completed(), work.is_success(), t.tolist()))
        called.set()

    future.add_done_callback(see)
    if rank == 0:
        dist.send(torch.zeros(1), 1)
    work.wait()
    future.wait()
    called.wait()
    assert seen == [(True, True, [n] * 10)]


def late_futures(rank, n, device):
    """A work that has ended has futures, too."""
    t = torch.ones(10, device=device)
    work = dist.all_reduce(t, async_op=True)
    work.wait()
    assert work.get_future().wait()[0].tolist() == [n] * 10
    assert work.get_future_result().wait() == 0


def a_block_ends_with_its_last_message(rank, n, device):
    ours, ready = backend(device), torch.zeros(1)
    a, b = (torch.full((10,), float(rank), device=device) for _ in range(2))
    if rank == 0:
        ours._start_coalescing()
        ours.recv([a], 1, 1)
        ours.recv([b], 1, 2)
        work = ours._end_coalescing()
        dist.recv(ready, 1)
        with pytest.raises(dist.DistBackendError, match="Timed out waiting 20ms"):
            work.wait(timedelta(milliseconds=20))
        assert not work.is_completed() and (a == 1).all() and (b == 0).all()
        dist.send(ready, 1)
        work.wait()
        assert work.is_completed() and (b == 1).all()
    elif rank == 1:
        dist.send(a, 0, tag=1)
        dist.send(ready, 0)
        dist.recv(ready, 0)
        dist.send(b, 0, tag=2)


def calls_of_callbacks_keep_their_place(rank, n, device):
    """A callback runs before `then` returns, with its work in flight: its calls come before the next ones."""
    a, b, c = (torch.full((5,), rank + 1.0, device="dev") for _ in range(3))
    if rank == 1:
        dist.recv(torch.zeros(1), 0)  # so rank 0's calls are all in flight
    calls = []

    def callback(future):
        calls.append("b")
        return dist.broadcast(b, src=1, async_op=True).get_future().value()[0]

    work = dist.all_reduce(a, async_op=True)
    future = work.get_future()
    assert future.done()
    chained = future.then(callback).then(lambda f: calls.append("then") or f.value())
    calls.append("c")
    last = dist.all_reduce(c, async_op=True)
    if rank == 0:
        assert not work.is_completed()
        dist.send(torch.zeros(1), 1)
    assert calls == ["b", "then", "c"]
    last.wait()
    assert chained.wait() is b
    total = n * (n + 1) / 2
    assert (a == total).all() and (b == 2).all() and (c == total).all()


def errors_pass_through_callbacks(rank, n, device):
    """Callbacks that compute nothing do not notice that their work has failed. Their futures do."""
    mismatch = r"called all_reduce\(float32\[4\], SUM\)"
    for side in (None, torch.dev.Stream()):
        if rank == 1:
            dist.recv(torch.zeros(1), 0)
        work = dist.all_reduce(torch.ones(4 + rank, device="dev"), async_op=True)
        future = work.get_future().then(lambda f: f.value()[0]).then(lambda f: f.value())
        if rank == 0:
            assert not work.is_completed()
            dist.send(torch.zeros(1), 1)
        with pytest.raises(RuntimeError, match=mismatch):
            if side:
                with torch.dev.stream(side):
                    future.wait()  # the stream waits
                side.synchronize()
            else:
                future.wait()
        torch.dev.synchronize()  # the error was the future's, and has been raised
    computes = dist.all_reduce(torch.ones(4 + rank, device="dev"), async_op=True).get_future()
    with pytest.raises(RuntimeError, match=mismatch):
        computes.then(lambda f: f.value()[0].sum()).wait()
    for _ in range(70):  # of no stream that a callback gets later
        future = dist.all_reduce(torch.ones(4, device="dev"), async_op=True).get_future()
        assert future.then(lambda f: f.value()[0].sum().item()).wait() == 4 * n


def callbacks_of_a_side_stream(rank, n, device):
    """A future's wait makes a side stream wait, and not the host; so for what a callback copies."""
    stream, t, copy = torch.dev.Stream(), torch.ones(100, device="dev"), torch.zeros(100, device="dev")
    if rank == 1:
        dist.recv(torch.zeros(1), 0)
    future = dist.all_reduce(t, async_op=True).get_future()
    copied = future.then(lambda f: copy.copy_(f.value()[0]))  # as in PyTorch's fp16_compress_hook
    with torch.dev.stream(stream):
        copied.wait()
    if rank == 0:
        assert not stream.query()
        dist.send(torch.zeros(1), 1)
    stream.synchronize()
    assert (copy == n).all()


def rows_come_with_the_end(rank, n, device):
    """The value of an all_gather's future is one tensor, which is filled when the work has ended."""
    outputs = [torch.zeros(10, device="dev") for _ in range(n)]
    if rank == 1:
        dist.recv(torch.zeros(1), 0)
    work = dist.all_gather(outputs, torch.full((10,), float(rank), device="dev"), async_op=True)
    (rows,) = work.get_future().value()
    if rank == 0:
        assert not work.is_completed()
        dist.send(torch.zeros(1), 1)
    work.get_future().wait()
    assert rows.tolist() == [[float(r)] * 10 for r in range(n)]


def mixed_futures_end_with_the_work(rank, n, device):
    """A future with a tensor on the CPU has no stream for it."""
    tensors = [torch.ones(10), torch.ones(10, device="dev")]
    if rank == 1:
        dist.recv(torch.zeros(1), 0)
    future = dist.all_reduce_coalesced(tensors, async_op=True)
    if rank == 0:
        assert not future.done()
        dist.send(torch.zeros(1), 1)
    future.wait()
    assert all((t == n).all() for t in tensors)


def late_calls_of_callbacks(rank, n, device):
    """On the CPU a callback runs when its work has ended, at another moment on each rank: on rank 0 later."""
    if rank == 1:
        dist.recv(torch.zeros(1), 0)
    t = torch.ones(4)
    work = dist.all_reduce(torch.ones(4), async_op=True)
    if rank == 0:
        future = work.get_future().then(lambda _: dist.all_reduce(t))
    works = [work, dist.all_reduce(torch.ones(4), async_op=True)]
    if rank == 0:
        dist.send(torch.zeros(1), 1)
        with pytest.raises(
            RuntimeError, match=r"all_reduce: operation #.* is called in a callback of a future"
        ):
            future.wait()
    for work in works:
        work.wait()
    assert (t == 1).all()
    # Asked for after the later call, the callback's call has its place.
    futures = [
        work.get_future() for work in [dist.all_reduce(torch.ones(4), async_op=True) for _ in range(2)]
    ]
    futures[0].then(lambda _: dist.all_reduce(t)).wait()
    assert (t == n).all()
    assert_works(device)


BODIES = [
    copies_keep_their_place,
    callbacks_come_after_the_end,
    late_futures,
    a_block_ends_with_its_last_message,
    handles,
    many_in_flight,
    completes_in_the_background,
    dropped,
    then,
    callback_fails,
    failed_future,
    sequence_numbers,
    collectives_of_lists,
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("body", BODIES)
def test_works_and_futures(pool, body, world_size, device):
    pool.run(body, world_size, device)


@pytest.mark.skipif("dev" not in DEVICES, reason="only the device has streams")
@pytest.mark.parametrize(
    "body",
    [
        calls_of_callbacks_keep_their_place,
        errors_pass_through_callbacks,
        callbacks_of_a_side_stream,
        rows_come_with_the_end,
        mixed_futures_end_with_the_work,
    ],
)
def test_futures_of_the_device_are_those_of_an_accelerator(pool, body):
    pool.run(body, 2, "dev")


def test_a_callback_that_communicates_too_late_is_refused(pool):
    pool.run(late_calls_of_callbacks, 2)


@pytest.mark.skipif("dev" not in DEVICES, reason="needs two devices")
def test_a_future_may_carry_tensors_of_several_devices(pool):
    pool.run(several_devices, 2, "dev")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("outer", ["work", "future"])
@pytest.mark.parametrize("inner", ["work", "future"])
@pytest.mark.parametrize("count", [1, 500_000])
@pytest.mark.parametrize("group", ["the same", "another"])
def test_a_callback_may_launch_collectives_and_wait_for_them(pool, group, count, inner, outer, device):
    pool.run(callback_communicates, 2, device, limit=10, count=count, group=group, inner=inner, outer=outer)
