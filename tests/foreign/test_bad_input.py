"""What a group answers to calls that cannot work on another package's device, and to a device that fails."""

from __future__ import annotations

import os
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from tests.support.checks import assert_works, backend
from tests.support.thinning import first

DEVICE = "foreign:0"


def without_copies(rank: int, n: int, device: str) -> None:
    os.environ["MY_DEVICE_LACKS"] = "copies"
    t = torch.empty(3, device=device)
    with pytest.raises(ValueError, match=r"unsupported device type foreign: .* fail \(.*has no copies"):
        dist.all_reduce(t)
    assert_works("cpu")


@pytest.mark.full
def test_a_device_without_copies_is_refused(pool):
    with pool.fresh(2) as team:
        team.join().run(without_copies, DEVICE)


def mixed(rank: int, n: int, device: str, other: str) -> None:
    here, there = torch.ones(2 * n, device=device), torch.ones(2 * n, device=other)
    part = torch.ones(2, device=other)
    for call in (
        lambda: dist.all_gather_into_tensor(here, part),
        lambda: dist.all_gather(list(here.chunk(n)), part),
        lambda: dist.reduce_scatter_tensor(part, here),
        lambda: dist.reduce_scatter(part, list(here.chunk(n))),
        lambda: dist.all_to_all_single(there, here),
        lambda: dist.all_to_all(list(there.chunk(n)), list(here.chunk(n))),
        lambda: backend(device).allreduce([here, there]),
    ):
        with pytest.raises(ValueError, match="on the same device"):
            call()
    assert_works(device)
    assert here.tolist() == [1] * 2 * n


@pytest.mark.parametrize("other", first(["foreign:1", "cpu"]))
def test_tensors_of_two_devices_in_one_operation_are_refused(pool, other):
    pool.run(mixed, 2, DEVICE, other=other)


def not_dense(rank: int, n: int, device: str) -> None:
    with pytest.raises(RuntimeError):  # PyTorch, or the device
        dist.all_reduce(torch.sparse_coo_tensor([[0]], [1.0], (3,)).to(device))
    with pytest.raises(RuntimeError):
        dist.broadcast(torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8).to(device), 0)
    assert_works(device)


def test_sparse_and_quantized_tensors_are_refused(pool):
    pool.run(not_dense, 2, DEVICE)


def never_ends(rank: int, n: int, device: str) -> None:
    x = torch.zeros(3, device=device)
    with torch.Stream(device):
        torch.ops.my_device.hold(x)
        work = dist.all_reduce(x, async_op=True)
        with pytest.raises(dist.DistBackendError, match=r"Timed out .*: its stream on foreign:0 has not"):
            work.wait()
        torch.ops.my_device.release()


def test_a_stream_that_does_not_end_is_named_by_the_timeout(pool):
    with pool.fresh(2) as team:
        team.join(timeout=0.5).run(never_ends, DEVICE)


SENDS = (dist.isend, lambda x, peer: dist.batch_isend_irecv([dist.P2POp(dist.isend, x, peer)])[0])
RECEIVES = (dist.irecv, lambda x, peer: dist.batch_isend_irecv([dist.P2POp(dist.irecv, x, peer)])[0])


def message_never_begins(rank: int, n: int, device: str, *, which: int) -> None:
    x = torch.zeros(3, device=device)
    with torch.Stream(device):
        torch.ops.my_device.hold(x)
        work = (SENDS if rank == 0 else RECEIVES)[which](x, 1 - rank)
        with pytest.raises(dist.DistBackendError, match=r"Timed out .*: its stream on foreign:0 has not"):
            work.wait()
        torch.ops.my_device.release()


@pytest.mark.parametrize("which", first([0, 1]))
def test_a_stream_that_does_not_end_is_named_by_the_timeout_of_messages(pool, which):
    with pool.fresh(2) as team:
        team.join(timeout=0.5).run(message_never_begins, DEVICE, which=which)


def all_reduced(x: torch.Tensor) -> None:
    dist.all_reduce(x)


def from_rank_0(x: torch.Tensor) -> None:
    dist.broadcast(x, 0)


def rows_of_a_future(x: torch.Tensor) -> None:
    out = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(out, x, async_op=True).get_future().wait()


def message(x: torch.Tensor) -> None:
    dist.send(x, 1) if dist.get_rank() == 0 else dist.recv(x, 0)


HANGS = {
    "all_reduce": (all_reduced, 0, "from"),
    "all_reduce on both": (all_reduced, None, "from"),
    "broadcast": (from_rank_0, 1, "to"),
    "all_gather": (rows_of_a_future, 1, "from"),
    "send": (message, 0, "from"),
    "recv": (message, 1, "to"),
}
"""Operation, the rank whose device hangs, and the copies that do not end."""


def hangs(rank: int, n: int, device: str, *, name: str) -> None:
    call, culprit, copies = HANGS[name]
    other = dist.new_group(timeout=timedelta(minutes=5))
    x = torch.zeros(3, device=device)
    dist.all_reduce(x)  # the first call tries the device
    torch.accelerator.synchronize()
    if culprit in (rank, None):
        torch.ops.my_device.hang(True)
    else:
        backend(device).set_timeout(timedelta(minutes=5))  # the other rank tells this one
    named = rf"its copies {copies} foreign:0 have not ended"
    if name in ("broadcast", "recv") and rank == 0:
        call(x)  # what this rank sends has left
    else:
        with pytest.raises(RuntimeError, match=rf"Timed out .*: {named}"):
            call(x)
    assert_works("cpu", group=other)  # no thread of this rank hangs with the device
    torch.ops.my_device.hang(False)
    assert_works(device, group=other)


@pytest.mark.parametrize("name", first(HANGS, stay=2))
def test_a_device_that_hangs_in_a_copy_is_named_by_the_timeout(pool, name):
    with pool.fresh(2) as team:
        team.join(timeout=1).run(hangs, DEVICE, name=name)


def hangs_at_the_end(rank: int, n: int, device: str) -> None:
    x = torch.zeros(3, device=device)
    dist.all_reduce(x)
    torch.accelerator.synchronize()
    torch.ops.my_device.hang(True)
    works = [dist.all_reduce(x, async_op=True), dist.all_reduce(x, async_op=True)]
    dist.barrier(group=dist.new_group())
    dist.destroy_process_group()
    for work in works:
        with pytest.raises(RuntimeError, match=r"has been destroyed|left the group"):
            work.wait()
    torch.ops.my_device.hang(False)


def test_a_group_can_be_destroyed_while_a_device_hangs(pool):
    with pool.fresh(2) as team:
        team.join().run(hangs_at_the_end, DEVICE)


def is_lost(rank: int, n: int, device: str) -> None:
    x = torch.zeros(3, device=device)
    dist.all_reduce(x)
    with torch.Stream(device):
        torch.ops.my_device.hold(x)
        work = dist.all_reduce(x, async_op=True)
        if rank == 0:
            torch.ops.my_device.lose(True)
        torch.ops.my_device.release()
        with pytest.raises(RuntimeError, match="this device is lost" if rank == 0 else "rank 0"):
            work.wait()
    with pytest.raises(RuntimeError):
        dist.all_reduce(torch.zeros(3))  # the group has ended
    torch.ops.my_device.lose(False)


def test_a_device_that_is_lost_ends_the_group_with_its_reason(pool):
    with pool.fresh(2) as team:
        team.join(timeout=20).run(is_lost, DEVICE)
