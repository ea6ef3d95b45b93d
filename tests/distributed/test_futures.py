"""Works and their futures: async_op, callbacks that communicate, tensors that Python has dropped."""

from __future__ import annotations

import gc
import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from .checks import assert_works, backend
from .devices import DEVICES


def handles(rank, n, device):
    t = torch.ones(1000, device=device)
    work = dist.all_reduce(t, async_op=True)
    assert work.wait()
    assert work.is_completed()
    assert work.wait(timedelta(seconds=1))  # again
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
    """Nobody waits: the work ends all the same."""
    tensors = [torch.ones(100_000, device=device) for _ in range(5)]
    events = []
    for t in tensors:
        event = threading.Event()
        work = dist.all_reduce(t, async_op=True)
        work.get_future().add_done_callback(lambda _, event=event: event.set())
        events.append(event)
    for t, event in zip(tensors, events, strict=True):
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


BODIES = [
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


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("outer", ["work", "future"])
@pytest.mark.parametrize("inner", ["work", "future"])
@pytest.mark.parametrize("count", [1, 500_000])
@pytest.mark.parametrize("group", ["the same", "another"])
def test_a_callback_may_launch_collectives_and_wait_for_them(pool, group, count, inner, outer, device):
    pool.run(callback_communicates, 2, device, limit=10, count=count, group=group, inner=inner, outer=outer)
