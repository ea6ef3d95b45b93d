"""What a group answers to calls that cannot work on another package's device, and to a device that fails."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist

from tests.support.checks import assert_works, backend
from tests.support.thinning import first

DEVICE = "foreign:0"


def without_copies(rank: int, n: int, device: str) -> None:
    os.environ["FOREIGN_DEVICE_LACKS"] = "copies"
    t = torch.empty(3, device=device)
    with pytest.raises(ValueError, match=r"unsupported device type foreign: .* fail \(.*has no copies"):
        dist.all_reduce(t)
    assert_works("cpu")


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
        torch.ops.foreign.hold(x)
        work = dist.all_reduce(x, async_op=True)
        with pytest.raises(dist.DistBackendError, match=r"Timed out .*: its stream on foreign:0 has not"):
            work.wait()
        torch.ops.foreign.release()


def test_a_stream_that_does_not_end_is_named_by_the_timeout(pool):
    with pool.fresh(2) as team:
        team.join(timeout=0.5).run(never_ends, DEVICE)


def is_lost(rank: int, n: int, device: str) -> None:
    x = torch.zeros(3, device=device)
    dist.all_reduce(x)
    with torch.Stream(device):
        torch.ops.foreign.hold(x)
        work = dist.all_reduce(x, async_op=True)
        if rank == 0:
            torch.ops.foreign.lose(True)
        torch.ops.foreign.release()
        with pytest.raises(RuntimeError, match="the foreign device is lost" if rank == 0 else "rank 0"):
            work.wait()
    with pytest.raises(RuntimeError):
        dist.all_reduce(torch.zeros(3))  # the group has ended
    torch.ops.foreign.lose(False)


def test_a_device_that_is_lost_ends_the_group_with_its_reason(pool):
    with pool.fresh(2) as team:
        team.join(timeout=20).run(is_lost, DEVICE)
