"""I2: a result has the same bits whatever the size, the algorithm, the memory and the call, in every run."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from tests.support.devices import DEVICES
from tests.support.references import assert_same_bits, contribution, ops_for, place, reduce_op, room

DTYPES = ["float32", "float64", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"]
COUNTS = [9, 1000, 4097, 70000, 300001, 1500000]
"""Elements whose bytes travel inline, beside the sequence number, and staged in one, two and many windows."""


def all_reduced(rank, device, dtype, op, count, offset=0):
    t = place(contribution(dtype, rank, count), device, offset)
    dist.all_reduce(t, reduce_op(op, rank))
    return t.cpu()


def prefixes(rank, world_size, device, *, dtype):
    for op in ops_for(dtype):
        longest = all_reduced(rank, device, dtype, op, COUNTS[-1])
        for count in COUNTS:
            assert_same_bits(
                all_reduced(rank, device, dtype, op, count, 3), longest[:count].clone(), dtype, op, count
            )


def every_call(rank, world_size, device, *, dtype):
    """all_reduce, reduce, and reduce_scatter of lists and of one tensor, piece by piece and at once."""
    for op in ops_for(dtype):
        for block in (5, 3000, 90001):
            count = block * world_size
            expected = all_reduced(rank, device, dtype, op, count)
            reduced = place(contribution(dtype, rank, count), device, 1)
            dist.reduce(reduced, world_size - 1, reduce_op(op, rank))
            if rank == world_size - 1:
                assert_same_bits(reduced.cpu(), expected, "reduce", dtype, op, count)
            mine = expected[rank * block : (rank + 1) * block].clone()
            whole = place(contribution(dtype, rank, count), device, 1)
            flat, listed = room(dtype, block, device), room(dtype, block, device, 3)
            dist.reduce_scatter_tensor(flat, whole, reduce_op(op, rank))
            dist.reduce_scatter(listed, list(whole.split(block)), reduce_op(op, rank))
            assert_same_bits(flat.cpu(), mine, "reduce_scatter_tensor", dtype, op, count)
            assert_same_bits(listed.cpu(), mine, "reduce_scatter", dtype, op, count)


def every_device(rank, world_size, device, *, dtype):
    for op in ops_for(dtype):
        for count in COUNTS:
            results = [all_reduced(rank, each, dtype, op, count, 1) for each in DEVICES]
            for result in results[1:]:
                assert_same_bits(result, results[0], dtype, op, count)


def again_and_again(rank, world_size, device, *, dtype):
    first = all_reduced(rank, device, dtype, "SUM", 70000)
    for i in range(20):
        assert_same_bits(all_reduced(rank, device, dtype, "SUM", 70000, i % 5), first, i)


def other_float_environment(rank, world_size, device, *, dtype):
    """One rank flushes denormals to zero in its own computations: results keep them, on every rank."""
    denormals = (
        torch.full((5000,), 1e-40) if dtype == "float32" else torch.full((5000,), 1e-310, dtype=torch.float64)
    )
    torch.set_flush_denormal(rank == 0)
    t = place(denormals, device)
    dist.all_reduce(t)
    torch.set_flush_denormal(False)
    assert_same_bits(t.cpu(), denormals * world_size)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("world_size", [2, 3, 8])
def test_a_prefix_of_a_larger_reduction_has_the_bits_of_the_smaller_one(pool, world_size, dtype, device):
    pool.run(prefixes, world_size, device, limit=120, dtype=dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("world_size", [2, 3, 8])
def test_every_call_that_reduces_gives_the_same_bits(pool, world_size, dtype, device):
    pool.run(every_call, world_size, device, limit=120, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("world_size", [2, 3, 8])
def test_every_device_gives_the_same_bits(pool, world_size, dtype):
    pool.run(every_device, world_size, limit=120, dtype=dtype)


@pytest.mark.parametrize("device", DEVICES)
def test_every_run_gives_the_same_bits(pool, device):
    pool.run(again_and_again, 4, device, dtype="bfloat16")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_rank_that_flushes_denormals_does_not_change_results(pool, dtype, device):
    pool.run(other_float_environment, 3, device, dtype=dtype)
