"""The memory of windows: whose it is, how long it lives, and what is used again."""

from __future__ import annotations

import gc

import torch
import torch.distributed as dist

import torch_occl
from tests.distributed.test_windows import memory, new_window, on_devices, signal_all
from tests.support.checks import assert_works, backend
from tests.support.worker import listen, tell


def maps(rank, n, device):
    """Each rank has another shape and type."""
    shapes = {0: (2, 3), 1: (4,), 2: ()}
    types = {0: torch.float32, 1: torch.int16, 2: torch.float64}
    window = new_window()
    tensor = (
        memory(device, *shapes[rank], dtype=types[rank])
        if rank != 2
        else memory(device, 1, dtype=types[rank]).view(())
    )
    tensor.fill_(rank + 1)
    window.tensor_register(tensor)
    dist.barrier()
    views = [window.map_remote_tensor(peer) for peer in range(n)]
    for peer, view in enumerate(views):
        assert (tuple(view.shape), view.dtype, view.device.type) == (shapes[peer], types[peer], device)
        assert (view == peer + 1).all() and view.is_contiguous()
    dist.barrier()
    views[(rank + 1) % n].add_(10)  # the rank's own memory
    dist.barrier()
    assert (tensor == rank + 11).all()
    summed = views[(rank + 1) % n].clone()
    dist.all_reduce(summed := summed.double().sum())
    assert summed == sum((peer + 11) * max(1, torch.Size(shapes[peer]).numel()) for peer in range(n))
    assert window.get_attr(0).access_type.name == "UNIFIED"
    window.tensor_deregister()
    assert (views[rank] == rank + 11).all()
    window.tensor_register(tensor, owning=False)
    assert (window.map_remote_tensor((rank + 2) % n) == (rank + 2) % n + 11).all()
    window.tensor_deregister()


@on_devices
def test_a_mapped_tensor_is_the_memory_of_the_other_rank(pool, device):
    pool.run(maps, 3, device)


def share(rank, n, device):
    with torch_occl.share_cpu_memory(min_bytes=1):
        tensor = torch.zeros(1000)
    window = new_window(tensor)
    window.put(torch.ones(1000), 1 - rank, 0, False)
    signal_all(window, n)
    assert (tensor == 1).all()
    window.tensor_deregister()
    allocated = backend(device).allocate_tensor(1000, dtype=torch.float32, device=torch.device(device))
    new_window(allocated).tensor_deregister()


@on_devices
def test_memory_of_share_cpu_memory_and_of_the_allocator_serves(pool, device):
    pool.run(share, 2, device)


def window_many_times(rank, n, device):
    """Rows and memory are used again: what the process holds does not grow."""
    group = dist.new_group()

    def held():
        return backend(device, group).memory_stats()["group.control_bytes"]

    for i in range(200):
        window = new_window(memory(device, 1000), group)
        window.signal(1 - rank, False)  # which nothing waits for: the next window has none
        if i % 2:
            window.tensor_deregister()
        dist.barrier(group)
        del window
        dist.barrier(group)
        if i == 0:
            before = held()
    assert held() == before
    window = new_window(memory(device, 1), group)
    assert not window.wait_signal(1 - rank, True).is_completed()
    dist.barrier(group)
    window.signal(1 - rank, False)
    window.tensor_deregister()
    del window
    gc.collect()
    dist.destroy_process_group(group)


@on_devices
def test_windows_that_are_over_leave_nothing_behind(pool, device):
    pool.run(window_many_times, 2, device)


def keeps(rank, n, device):
    """The owner drops its window, which the other still has: the memory is not used for another tensor."""
    window = new_window(memory(device, 1 << 20))
    dist.barrier()
    if rank == 0:
        del window
        others = [memory(device, 1 << 20).fill_(7) for _ in range(4)]
        dist.barrier()
        dist.barrier()
        assert all((other == 7).all() for other in others)
    else:
        view = window.map_remote_tensor(0)
        dist.barrier()
        assert (view == 0).all()
        view.fill_(3)
        dist.barrier()
    assert_works(device)


@on_devices
def test_memory_is_kept_while_another_rank_has_the_window(pool, device):
    pool.run(keeps, 2, device)


def view_of_a_dead_rank(rank, n, device):
    window = new_window(memory(device, 1 << 16).fill_(rank))
    view = window.map_remote_tensor(0) if rank else None
    tell("ready")
    listen()
    if rank:
        assert (view == 0).all()
        view.fill_(5)
        assert (view == 5).all()
        del window
        assert (view == 5).all()


@on_devices
def test_a_view_of_a_rank_that_died_can_be_read_and_written(fresh, device):
    with fresh(2) as team:
        team.join().start(view_of_a_dead_rank, device)
        assert team.hear(0) == team.hear(1) == "ready"
        team.kill(0)
        team.wait_for(0)
        team.say(1, "go on")
        outcomes = team.finish()
        assert not outcomes[1].failed, outcomes[1].traceback or outcomes[1].died
