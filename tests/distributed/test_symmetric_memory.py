"""Symmetric memory through PyTorch's module: buffers, signal pads, signals and barriers, and their errors."""

from __future__ import annotations

import gc
import re
import threading

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from torch._C._distributed_c10d import _SymmetricMemory

from tests.support.checks import assert_works
from tests.support.devices import DEVICES
from tests.support.gates import gate
from tests.support.processes import in_forked_child
from tests.support.running import PYTORCH
from tests.support.worker import join, listen, tell

on_devices = pytest.mark.parametrize("device", DEVICES)
CHANNELS = 64


def make(device, *sizes, dtype=torch.float32, group=None):
    """Zeros in symmetric memory, and its handle. All ranks."""
    tensor = symm_mem.empty(*sizes, dtype=dtype, device=device).zero_()
    handle = symm_mem.rendezvous(tensor, group or dist.group.WORLD)
    handle.barrier()
    return tensor, handle


def reads_and_writes(rank, n, device):
    tensor, handle = make(device, 3, 5)
    assert (handle.rank, handle.world_size) == (rank, n)
    assert handle.device.type == device and handle.buffer_size == 60
    assert len(handle.buffer_ptrs) == len(handle.signal_pad_ptrs) == n
    assert handle.buffer_ptrs[rank] == tensor.data_ptr()
    assert handle.buffer_ptrs_dev and handle.signal_pad_ptrs_dev
    tensor.fill_(rank)
    handle.barrier()
    for peer in range(n):
        assert (handle.get_remote_tensor(peer, (3, 5), torch.float32) == peer).all()
        assert (handle.get_buffer(peer, (2, 2), torch.float32, 11) == peer).all()
        assert handle.get_buffer(peer, (60,), torch.uint8, 0).device.type == device
    handle.barrier()
    right = handle.get_buffer((rank + 1) % n, (5,), torch.float32, 5)
    right.copy_(torch.arange(5.0))
    handle.barrier()
    assert torch.equal(tensor[1].cpu(), torch.arange(5.0)) and (tensor[::2] == rank).all()


@on_devices
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_each_rank_reads_and_writes_the_buffers_of_all(pool, world_size, device):
    pool.run(reads_and_writes, world_size, device)


def pads(rank, n, device):
    _, handle = make(device, 7, dtype=torch.uint8)
    size = symm_mem.get_signal_pad_size()
    assert handle.signal_pad_size == size
    own = handle.get_signal_pad(rank)
    assert own.dtype == torch.uint32 and own.numel() == size // 4 and not own.cpu().any()
    handle.barrier()
    theirs = handle.get_signal_pad(1 - rank, (2,), torch.int64, 3)
    theirs.copy_(torch.tensor([rank + 5, 6]))
    handle.barrier()
    assert own.cpu()[6:10].tolist() == [6 - rank, 0, 6, 0]
    handle.barrier()


@on_devices
def test_signal_pads_begin_as_zeros_and_are_shared(pool, device):
    pool.run(pads, 2, device)


def sizes(rank, n, device):
    for dtype, count in ((torch.bool, 0), (torch.bfloat16, 1), (torch.int64, 129), (torch.float32, 1 << 20)):
        tensor, handle = make(device, count, dtype=dtype)
        tensor.fill_(rank == 1)
        handle.barrier()
        assert (handle.get_buffer(1, (count,), dtype, 0) == 1).all()
        assert (handle.get_buffer(0, (count,), dtype, 0) == 0).all()
        handle.barrier()


@on_devices
def test_any_size_and_type(pool, device):
    pool.run(sizes, 2, device)


def once(rank, n, device):
    tensor, handle = make(device, 8)
    if PYTORCH >= (2, 12):
        assert symm_mem.is_symm_mem_tensor(tensor) and symm_mem.is_symm_mem_tensor(tensor[3:])
        assert not symm_mem.is_symm_mem_tensor(torch.zeros(8, device=device))
    if rank == 0:  # what is known already waits for nobody
        for again in (tensor, tensor[2:5], tensor.view(2, 4).t()):
            assert symm_mem.rendezvous(again, dist.group.WORLD).buffer_ptrs == handle.buffer_ptrs
        assert symm_mem.rendezvous(tensor, dist.group.WORLD.group_name).buffer_ptrs == handle.buffer_ptrs
    dist.barrier()
    assert symm_mem.rendezvous(torch.zeros(8, device=device), dist.group.WORLD) is None
    named = _SymmetricMemory.empty_strided_p2p(
        (4,), (1,), torch.float32, torch.device(device), dist.group.WORLD.group_name
    )
    assert _SymmetricMemory.rendezvous(named).world_size == n
    with pytest.raises(ValueError, match="rendezvous: no group was given"):
        _SymmetricMemory.rendezvous(tensor)
    assert symm_mem.get_backend(device) == "OCCL"
    symm_mem.set_backend("OCCL")
    assert handle.multicast_ptr == 0


@on_devices
def test_a_tensor_is_connected_once(pool, device):
    pool.run(once, 2, device)


def persistent(rank, n, device):
    def allocate(size=4):
        return _SymmetricMemory.empty_strided_p2p(
            (size,), (1,), torch.float32, torch.device(device), dist.group.WORLD.group_name, 42
        )

    first = allocate()
    address, handle = first.data_ptr(), _SymmetricMemory.rendezvous(first)
    with pytest.raises(RuntimeError, match="a previous allocation with the same alloc_id is still active"):
        allocate()
    del first
    with pytest.raises(RuntimeError, match="is different from the size of a previous allocation"):
        allocate(5)
    again = allocate()
    assert again.data_ptr() == address
    assert _SymmetricMemory.rendezvous(again).buffer_ptrs == handle.buffer_ptrs


@on_devices
def test_a_persistent_allocation_keeps_its_place(fresh, device):
    with fresh(2) as team:
        team.join().run(persistent, device)


def groups(rank, n, device):
    pair, everyone = dist.new_group([2, 0]), dist.group.WORLD
    tensor, handle = make(device, 4)
    if rank != 1:
        inner = symm_mem.rendezvous(tensor, pair)
        me = dist.get_rank(pair)
        assert (inner.rank, inner.world_size) == (me, 2)
        tensor.fill_(rank)
        inner.barrier()
        assert (inner.get_buffer(1 - me, (4,), torch.float32, 0) == 2 - rank).all()
        inner.barrier()
        assert inner.buffer_ptrs[1 - me] == handle.buffer_ptrs[2 - rank]
    else:
        with pytest.raises(RuntimeError, match="no such group"):
            symm_mem.rendezvous(tensor, "no such group")
    assert symm_mem.rendezvous(tensor, everyone).buffer_ptrs == handle.buffer_ptrs
    handle.barrier()
    if rank != 1:
        dist.destroy_process_group(pair)


@on_devices
def test_a_tensor_belongs_to_several_groups(pool, device):
    pool.run(groups, 3, device)


def by_channel(rank, n, device):
    _, handle = make(device, 4)
    handle.put_signal(1 - rank, 3)
    handle.put_signal(1 - rank, 5)
    handle.put_signal(1 - rank, channel=3)  # counts: it waits for nothing
    for channel in (5, 3, 3):
        handle.wait_signal(1 - rank, channel)
    for channel in (0, CHANNELS - 1):
        handle.put_signal(rank, channel)
        handle.wait_signal(rank, channel)
    handle.barrier(channel=7)


@on_devices
def test_signals_are_counted_for_each_channel(pool, device):
    pool.run(by_channel, 2, device)


def barriers(rank, n, device):
    tensor, handle = make(device, 1, dtype=torch.int64)
    for turn in range(100):
        tensor.fill_(turn)
        handle.barrier(turn % CHANNELS)
        seen = [int(handle.get_buffer(peer, (1,), torch.int64, 0)) for peer in range(n)]
        assert seen == [turn] * n
        handle.barrier(turn % CHANNELS)


@on_devices
@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 8])
def test_no_rank_leaves_a_barrier_before_all_have_come(pool, world_size, device):
    pool.run(barriers, world_size, device)


def in_two_threads(rank, n, device):
    """A thread that waits lets the others run: here the one that sends what the peer waits for."""
    _, handle = make("cpu", 4)
    seen = []

    def waits():
        handle.wait_signal(1 - rank, 1)
        seen.append("signal")
        for _ in range(50):
            handle.barrier(2)

    thread = threading.Thread(target=waits)
    thread.start()
    for _ in range(50):
        handle.barrier(3)
    assert not seen
    dist.barrier()
    handle.put_signal(1 - rank, 1)
    thread.join()
    assert seen == ["signal"]


def test_channels_serve_threads_of_one_process(pool):
    pool.run(in_two_threads, 2)


def on_a_side_stream(rank, n, device):
    tensor, handle = make("dev", 1000)
    stream = torch.dev.Stream()
    if rank == 0:
        sevens = torch.full((1000,), 7.0, device="dev")
        with gate(stream), torch.dev.stream(stream):
            handle.get_buffer(1, (1000,), torch.float32, 0).copy_(sevens, non_blocking=True)
            handle.put_signal(1)
            handle.barrier(1)
            assert not stream.query()
            dist.barrier()
        stream.synchronize()
    else:
        with torch.dev.stream(stream):
            handle.wait_signal(0)
            handle.barrier(1)
            assert not stream.query()
            dist.barrier()
        stream.synchronize()
        assert (tensor == 7).all()


@pytest.mark.skipif("dev" not in DEVICES, reason="only the device has streams")
def test_signals_and_barriers_queue_on_side_streams(pool):
    pool.run(on_a_side_stream, 2, "dev")


def peers_keep_memory(rank, n, device):
    tensor, handle = make(device, 1 << 18)
    tensor.fill_(rank)
    handle.barrier()
    if rank == 0:
        del tensor, handle
        gc.collect()
        later = [torch.full((1 << 18,), 9.0, device=device) for _ in range(4)]
        later += [symm_mem.empty(1 << 18, device=device).fill_(9) for _ in range(4)]
        dist.barrier()
        dist.barrier()
        del later
    else:
        dist.barrier()
        assert (handle.get_buffer(0, (1 << 18,), torch.float32, 0) == 0).all()
        dist.barrier()


@on_devices
def test_freed_memory_is_not_used_again_while_a_peer_has_it(pool, device):
    pool.run(peers_keep_memory, 2, device)


def workspaces(rank, n, device, *, store):
    join(rank, n, device, store=store, timeout=300.0)  # after the import of PyTorch's module
    group = dist.group.WORLD.group_name
    first = symm_mem.get_symm_mem_workspace(group, 1000)
    assert first.buffer_size == 1000 and first.device.type == DEVICES[-1]
    smaller = symm_mem.get_symm_mem_workspace(group, 10)
    assert smaller.buffer_ptrs == first.buffer_ptrs
    larger = symm_mem.get_symm_mem_workspace(group, 5000)
    larger.get_buffer(rank, (5000,), torch.uint8, 0).fill_(rank + 1)
    larger.barrier()
    assert (larger.get_buffer(1 - rank, (5000,), torch.uint8, 0) == 2 - rank).all()
    larger.barrier()


def test_a_group_has_one_workspace_that_grows(fresh):
    with fresh(2) as team:
        team.run(workspaces, "any", store=team.source.new_file())


# ---- errors


def wrong_arguments(rank, n, device):
    _, handle = make(device, 4)
    for bad in (-1, n, 1 << 20):
        for name, call in (("signal", handle.put_signal), ("wait_signal", handle.wait_signal)):
            with pytest.raises(ValueError, match=f"{name}: invalid rank {bad} .the group has {n} ranks"):
                call(bad)
    for bad in (-1, CHANNELS, 1 << 20):
        for call in (
            lambda bad=bad: handle.put_signal(1 - rank, bad),
            lambda bad=bad: handle.wait_signal(1 - rank, bad),
            lambda bad=bad: handle.barrier(bad),
        ):
            with pytest.raises(ValueError, match=f"signal: invalid channel {bad} .there are {CHANNELS}"):
                call()
    with pytest.raises(RuntimeError, match="exceeds the allocated size"):
        handle.get_buffer(1 - rank, (5,), torch.float32, 0)
    handle.barrier()
    assert_works(device)


@on_devices
def test_wrong_ranks_channels_and_sizes_are_refused(pool, device):
    pool.run(wrong_arguments, 2, device)


def other_sizes(rank, n, device):
    tensor = symm_mem.empty(4 + 1000 * rank, device=device)
    with pytest.raises(ValueError, match=r"rendezvous: the allocation of rank 1 has \d+ bytes .* all ranks"):
        symm_mem.rendezvous(tensor, dist.group.WORLD)
    with pytest.raises(dist.DistBackendError, match=r"called (rendezvous|all_reduce)\("):
        if rank == 0:
            symm_mem.rendezvous(symm_mem.empty(4, device=device), dist.group.WORLD)
        else:
            dist.all_reduce(torch.ones(1, device=device))
    assert_works(device)


@on_devices
def test_ranks_that_allocate_or_call_something_else_get_an_error_on_both_sides(pool, device):
    pool.run(other_sizes, 2, device)


def other_backend(rank, n, device):
    gloo = dist.new_group(backend="gloo")
    tensor, _ = make("cpu", 4)
    with pytest.raises(
        ValueError, match=r"has the backend gloo for tensors on cpu, and this symm.* needs occl"
    ):
        symm_mem.rendezvous(tensor, gloo)
    dist.destroy_process_group(gloo)


def test_a_group_of_another_backend_is_refused(pool):
    pool.run(other_backend, 2)


def pad_size(rank, n, device):
    _, handle = make("cpu", 4)
    before = symm_mem.get_signal_pad_size()
    symm_mem.set_signal_pad_size(2 * before)
    try:
        with pytest.raises(ValueError, match=f"allocated with {before} bytes, and now {2 * before} are set"):
            handle.get_signal_pad(1 - rank)
        _, larger = make("cpu", 4)
        assert larger.get_signal_pad(1 - rank).numel() == before // 2
    finally:
        symm_mem.set_signal_pad_size(before)


def test_a_pad_of_another_size_is_refused(pool):
    pool.run(pad_size, 2)


def times_out(rank, n, device, *, call):
    _, handle = make(device, 4)
    if rank == 0:
        match = r"Timed out waiting 300ms for wait_signal\(src=1, channel=9\) #\d+ .*: it waits for rank 1 "
        with pytest.raises(dist.DistBackendError, match=match):
            if call == "barrier":
                handle.barrier(9, timeout_ms=300)
            else:
                handle.wait_signal(1, 9, timeout_ms=300)
    else:
        with pytest.raises(dist.DistBackendError, match=r"rank 0 .* ended group .*wait_signal\(src=1"):
            handle.wait_signal(0, 9)
            handle.wait_signal(0, 9)  # of the barrier the first one has come


@on_devices
@pytest.mark.parametrize("call", ["barrier", "wait_signal"])
def test_a_wait_has_a_timeout_and_its_error_names_the_rank(fresh, device, call):
    with fresh(2) as team:
        team.join().run(times_out, device, call=call)


def of_a_dead_rank(rank, n, device):
    _, handle = make(device, 4)
    tell("ready")
    if rank == 0:
        listen()
    with pytest.raises(dist.DistBackendError) as caught:
        handle.barrier(5)
    view = handle.get_buffer(0, (4,), torch.float32, 0)
    assert (view == 0).all()
    view.fill_(3)  # its memory is still there
    return str(caught.value)


@on_devices
def test_a_barrier_with_a_dead_rank_names_it_and_its_buffer_stays(fresh, device):
    with fresh(2) as team:
        team.join().start(of_a_dead_rank, device)
        assert team.hear(0) == team.hear(1) == "ready"
        team.wait_until_asleep(1)
        team.kill(0)
        team.wait_for(0)
        outcome = team.finish()[1]
        assert not outcome.failed, outcome.traceback
        text = outcome.result
        assert re.search(rf"rank 0 \(pid {team.pids[0]}, host .*\) exited during wait_signal\(", text), text


def group_again(rank, n, device):
    tensor, old = make(device, 4)
    name = dist.group.WORLD.group_name
    dist.destroy_process_group()
    with pytest.raises(dist.DistBackendError, match="has been destroyed"):
        old.put_signal(0)
    dist.init_process_group("occl", store=dist.HashStore() if n == 1 else None, rank=0, world_size=1)
    assert dist.group.WORLD.group_name == name
    new = symm_mem.rendezvous(tensor, name)
    new.put_signal(0)
    new.wait_signal(0)
    assert new.world_size == 1 and new.buffer_ptrs == [tensor.data_ptr()]


@on_devices
def test_a_later_group_of_the_same_name_is_connected_anew(fresh, device):
    with fresh(1) as team:
        team.join().run(group_again, device)


def in_a_child(rank, n, device):
    _, handle = make("cpu", 4)

    def use():
        texts = []
        for call in (
            handle.barrier,
            lambda: handle.put_signal(1 - rank),
            lambda: handle.wait_signal(1 - rank),
        ):
            with pytest.raises(Exception) as caught:
                call()
            texts.append(str(caught.value))
        return "\n".join(texts)

    text = in_forked_child(use)
    assert text.count("was created before this process was forked") == 3, text
    handle.barrier()  # the child's end has closed nothing


def test_a_forked_child_cannot_use_the_parents_memory(pool):
    pool.run(in_a_child, 2)
