"""One-sided access: what ranks put into each other's memory, and the signals that order it."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import torch_occl
from tests.support.devices import DEVICES
from tests.support.gates import gate, open_when_the_caller_sleeps
from tests.support.running import PYTORCH

on_devices = pytest.mark.parametrize("device", DEVICES)
TYPES = (
    torch.float32,
    torch.bfloat16,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.float8_e5m2,
)


def memory(device, *sizes, dtype=torch.float32):
    """Zeros that peers can map."""
    if device == "cpu":
        return torch_occl.empty_shared(*sizes, dtype=dtype).zero_()
    return torch.zeros(*sizes, dtype=dtype, device=device)


def new_window(tensor=None, group=None):
    return torch_occl.new_window(group, tensor)


def signal_all(window, n):
    """Every rank waits until every rank has come here."""
    for peer in range(n):
        window.signal(peer, False)
    for peer in range(n):
        window.wait_signal(peer, False)


def puts_in_turns(rank, n, device):
    """Rank r writes into part r of every rank's tensor, itself included, of every size and type."""
    for dtype in TYPES:
        for count in (0, 1, 1000, 1 << 21 if dtype == torch.float32 else 4099):
            window = new_window(memory(device, n, count, dtype=dtype))
            mine = torch.arange(count, device=device).add(rank).remainder(2).to(dtype)
            for peer in range(n):
                window.put(mine, peer, rank * count, False)
            signal_all(window, n)
            found = window.map_remote_tensor(rank).to("cpu")
            for peer in range(n):
                expected = torch.arange(count).add(peer).remainder(2).to(dtype)
                assert torch.equal(found[peer].view(torch.uint8), expected.view(torch.uint8)), (
                    dtype,
                    count,
                    peer,
                )
            window.tensor_deregister()


@on_devices
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_what_was_put_before_a_signal_is_there_after_the_wait(pool, world_size, device):
    pool.run(puts_in_turns, world_size, device)


def strided(rank, n, device):
    """What is put lies anyhow; in the window it lies in the order of its elements."""
    tensor = memory(device, 12)
    window = new_window(tensor)
    base = torch.arange(24.0, device=device).view(6, 4)
    for put in (base.t()[:3, :4], base[::2, ::2], base[0].expand(3, 4), base[1, 1]):
        window.put(put, 1 - rank, 0, False)
        signal_all(window, n)
        assert torch.equal(tensor[: put.numel()].cpu(), put.reshape(-1).cpu())
        signal_all(window, n)
    window.tensor_deregister()


@on_devices
def test_tensors_with_strides_are_put_in_the_order_of_their_elements(pool, device):
    pool.run(strided, 2, device)


def counts(rank, n, device):
    window = new_window(memory(device, 4))
    for _ in range(100):
        window.signal(1 - rank, True)
    waits = [window.wait_signal(1 - rank, True) for _ in range(101)]
    for work in waits[:100]:
        work.wait()
    assert not waits[100].is_completed()
    dist.barrier()
    window.signal(1 - rank, False)
    waits[100].wait()
    assert waits[100].is_success() and waits[100].source_rank() == 1 - rank
    window.tensor_deregister()


@on_devices
def test_signals_count_and_none_is_lost(pool, device):
    pool.run(counts, 2, device)


def overlaps(rank, n, device):
    """Accesses, messages and collectives of one group, in another order on each rank."""
    window = new_window(memory(device, 1000))
    mine, got, total = (torch.full((1000,), rank + 1.0, device=device) for _ in range(3))
    wait = window.wait_signal(1 - rank, True)
    if rank == 0:
        dist.all_reduce(total)
        dist.send(mine, 1)
        window.put(mine, 1, 0, False)
        window.signal(1, False)
    else:
        work = dist.irecv(got, 0)
        window.put(mine, 0, 0, True)
        window.signal(0, True)
        dist.all_reduce(total)
        work.wait()
        assert (got == 1).all()
    wait.wait()
    assert (window.map_remote_tensor(rank) == 2 - rank).all() and (total == 3).all()
    window.tensor_deregister()


@on_devices
def test_accesses_wait_for_no_message_and_no_collective(pool, device):
    pool.run(overlaps, 2, device)


def groups(rank, n, device):
    pair = dist.new_group([2, 0])
    if rank != 1:
        assert torch_occl.supports_window(pair)
        window, other = new_window(memory(device, 4), pair), new_window(memory(device, 4), pair)
        me = dist.get_rank(pair)
        window.put(torch.full((4,), float(rank), device=device), 1 - me, 0, False)
        window.signal(1 - me, False)
        window.wait_signal(1 - me, False)
        assert (window.map_remote_tensor(me) == 2 - rank).all()
        assert (other.map_remote_tensor(me) == 0).all()
        for each in (window, other):
            each.tensor_deregister()
        dist.destroy_process_group(pair)


@on_devices
def test_windows_of_a_subgroup_have_its_ranks(pool, device):
    pool.run(groups, 3, device)


def on_a_side_stream(rank, n, device):
    """Rank 0's put and signal stand behind a gate; rank 1's stream waits, and its host goes on."""
    tensor = memory("dev", 1000)
    window, stream = new_window(tensor), torch.dev.Stream()
    if rank == 0:
        mine, sevens = torch.zeros(1000, device="dev"), torch.full((1000,), 7.0, device="dev")
        with gate(stream), torch.dev.stream(stream):
            mine.copy_(sevens, non_blocking=True)
            put = window.put(mine, 1, 0, True)
            signal = window.signal(1, False)
            assert not put.is_completed() and not signal.is_completed()
            dist.send(torch.zeros(1), 1)  # the host goes on, and so do messages
            dist.barrier()
        stream.synchronize()
        assert put.is_success() and signal.is_success()
    else:
        dist.recv(torch.zeros(1), 0)
        with torch.dev.stream(stream):
            window.wait_signal(0, False)
            assert not stream.query()
            dist.barrier()
            copied = torch.zeros(1000, device="dev")
            copied.copy_(tensor, non_blocking=True)  # after the wait, on the stream
        stream.synchronize()
        assert (copied == 7).all()
    window.tensor_deregister()


@pytest.mark.skipif("dev" not in DEVICES, reason="only the device has streams")
def test_accesses_queue_on_side_streams_and_a_wait_makes_the_stream_wait(pool):
    pool.run(on_a_side_stream, 2, "dev")


def deregisters_while_a_put_is_held(rank, n, device):
    tensor = memory("dev", 1000)
    window, stream = new_window(tensor), torch.dev.Stream()
    if rank == 0:
        sevens = torch.full((1000,), 7.0, device="dev")
        dist.recv(torch.zeros(1), 1)
        with gate(stream) as event:
            with torch.dev.stream(stream):
                put = window.put(sevens, 1, 0, True)
            assert not put.is_completed()
            open_when_the_caller_sleeps(event)
            window.tensor_deregister()
            assert put.is_success()
    else:
        dist.send(torch.zeros(1), 0)
        window.tensor_deregister()
        assert (tensor == 7).all()


@pytest.mark.skipif("dev" not in DEVICES, reason="only the device has streams")
def test_deregistering_waits_for_what_is_under_way(pool):
    pool.run(deregisters_while_a_put_is_held, 2, "dev")


def by_pytorchs_names(rank, n, device):
    group = dist.group.WORLD
    assert group.supports_window
    tensor = memory(device, 4)
    window = group.new_window(tensor)
    window.put(torch.ones(4, device=device), 1 - rank, 0, False)
    signal_all(window, n)
    assert (tensor == 1).all()
    assert dist._supports_window() and isinstance(dist._new_window(tensor), type(window))
    window.tensor_deregister()


@pytest.mark.skipif(PYTORCH < (2, 14), reason="PyTorch 2.14 has it first")
@on_devices
def test_pytorchs_own_names_make_the_same_windows(pool, device):
    pool.run(by_pytorchs_names, 2, device)
