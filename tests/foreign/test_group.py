"""A group serves a device whose memory the host cannot touch as it serves CPU tensors: most bodies are those
of the tests of `dev` and CPU tensors, with the same expected bits."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist

from tests.distributed import (
    test_ddp,
    test_futures,
    test_movement,
    test_objects,
    test_point_to_point,
    test_reductions,
    test_strided,
)
from tests.support.references import assert_same_bits, contribution, reduced
from tests.support.thinning import first

DEVICE = "foreign:0"
COUNTS = (1, 1000, 300_001)


def reductions(rank: int, n: int, device: str) -> None:
    for dtype in ("float32", "bfloat16", "int64", "float8_e5m2"):
        for count in COUNTS:
            given = [contribution(dtype, r, count * n) for r in range(n)]
            expected = reduced(given, "SUM")
            t = given[rank].to(device)
            dist.all_reduce(t)
            assert_same_bits(t.cpu(), expected, "all_reduce", dtype, count)
            t = given[rank].to(device)
            dist.reduce(t, n - 1)
            assert_same_bits(t.cpu(), expected if rank == n - 1 else given[rank], "reduce", dtype, count)
            out = torch.empty(count, dtype=t.dtype, device=device)
            dist.reduce_scatter_tensor(out, given[rank].to(device))
            mine = expected[rank * count : (rank + 1) * count].clone()
            assert_same_bits(out.cpu(), mine, "reduce_scatter_tensor", dtype, count)
            dist.reduce_scatter(out.zero_(), list(given[rank].to(device).split(count)))
            assert_same_bits(out.cpu(), mine, "reduce_scatter", dtype, count)


def several(rank: int, n: int, device: str) -> None:
    """Several tensors of each rank, which are put together on the host."""
    pg = dist.group.WORLD._get_backend(torch.device(device))
    given = [torch.full((5,), float(rank + 1 + i), device=device) for i in range(2)]
    pg.allreduce(given).wait()
    total = float(sum(2 * r + 3 for r in range(n)))
    assert all(t.tolist() == [total] * 5 for t in given)


BODIES = {
    "reductions": (reductions, {}),
    "several tensors of a rank": (several, {}),
    "premul sum": (test_reductions.premultiplied_by_a_tensor, {}),
    "uneven reduce_scatter": (test_reductions.uneven_reduce_scatter, {}),
    "uneven all_gather": (test_movement.uneven_all_gather, {"step": 1000}),
    "uneven all_to_all": (test_movement.uneven_all_to_all, {"step": 1000}),
    "uneven all_to_all_single": (test_movement.uneven_all_to_all_single, {"step": 1000}),
    "several of each rank": (test_movement.several_of_each_rank, {}),
    "lists of columns": (test_movement.lists_of_columns, {}),
    "order": (test_movement.copies_keep_the_order, {}),
    "in place": (test_movement.in_place, {}),
    "strided order": (test_strided.copies_keep_the_order, {}),
    "strided messages": (test_strided.messages_keep_the_order, {}),
    "errors leave outputs": (test_strided.errors_leave_outputs_alone, {}),
    "ring": (test_point_to_point.around_the_ring, {"dtype": "float32", "sizes": [1, 1000, 300_001]}),
    "both ways": (test_point_to_point.both_ways_at_once, {"size": 1 << 20}),
    "batches": (test_point_to_point.batches, {}),
    "from anyone": (test_point_to_point.from_anyone, {"count": 5}),
    "objects": (test_objects.gather_everywhere, {"size": 1000}),
    "handles": (test_futures.handles, {}),
    "then": (test_futures.then, {}),
    "rows": (test_futures.collectives_of_lists, {}),
    "training": (test_ddp.parallel, {"options": {}, "hook": None, "tolerance": {}}),
    "sharded training": (test_ddp.sharded, {}),
}
TYPES = {"sharded training": "foreign"}
"""What is handed to a body that takes the type of the device alone."""


@pytest.mark.parametrize("world_size", first([2, 3]))
@pytest.mark.parametrize("name", BODIES)
def test_operations_give_what_they_give_on_the_cpu(pool, name, world_size):
    body, params = BODIES[name]
    pool.run(body, world_size, TYPES.get(name, DEVICE), **params)


def begins_when_the_stream_reaches_it(rank: int, n: int, device: str) -> None:
    x = torch.zeros(300_001, device=device)
    y = torch.zeros(3, device=device)
    torch.accelerator.synchronize()  # the next stream is not ordered after this one
    with torch.Stream(device):
        torch.ops.my_device.hold(x)
        x.fill_(rank + 1)
        y.fill_(rank + 1)
        work = dist.all_reduce(x, async_op=True)
        joined = dist.all_reduce(y, async_op=True)
        assert not work.is_completed() and not joined.is_completed()
        torch.ops.my_device.release()
        work.wait()
        joined.wait()
    total = n * (n + 1) / 2
    assert (x.cpu() == total).all() and y.tolist() == [total] * 3  # on another stream: the host has waited
    x.fill_(rank)
    dist.broadcast(x, n - 1)
    x *= 2
    assert (x.cpu() == 2 * (n - 1)).all()


def test_an_operation_begins_when_the_callers_stream_reaches_it(pool):
    pool.run(begins_when_the_stream_reaches_it, 2, DEVICE)


def is_there_for_every_stream(rank: int, n: int, device: str) -> None:
    each = 10  # the last copy out comes long after the first
    given = [torch.full((3,), float(rank), device=device) for _ in range(each)]
    out = [torch.full((3,), -1.0, device=device) for _ in range(each * n)]
    others = [[torch.empty(3, device=device) for _ in out] for _ in range(each - 1)]
    torch.accelerator.synchronize()
    with torch.Stream(device):
        dist.group.WORLD._get_backend(torch.device(device)).allgather([out, *others], given).wait()
        assert others[-1][-1].tolist() == [n - 1] * 3


def test_a_result_is_there_for_every_stream(pool):
    pool.run(is_there_for_every_stream, 2, DEVICE)


def two_devices(rank: int, n: int, device: str) -> None:
    """Of one process: in two calls, and in one with a CPU tensor."""
    total = n * (n + 1) / 2
    tensors = [torch.full((1000,), rank + 1.0, device=each) for each in ("foreign:0", "foreign:1", "cpu")]
    works = [dist.all_reduce(t, async_op=True) for t in tensors]
    for work in works:
        work.wait()
    assert all((t.cpu() == total).all() for t in tensors)
    dist.all_reduce_coalesced(tensors, async_op=True).wait()
    assert all((t.cpu() == n * total).all() for t in tensors)


def test_a_process_may_have_two_devices(pool):
    pool.run(two_devices, 2, DEVICE)


def streams_do_not_wait_for_each_other(rank: int, n: int, device: str) -> None:
    """Another group's operation ends while one waits for a stream."""
    other = dist.new_group()
    held, x, y = torch.Stream(device), torch.ones(3, device=device), torch.ones(3, device=device)
    torch.accelerator.synchronize()
    with held:
        torch.ops.my_device.hold(x)
        work = dist.all_reduce(x, async_op=True)
    with torch.Stream(device):
        y.fill_(2)
        dist.all_reduce(y, group=other)
        assert not work.is_completed()
    torch.ops.my_device.release()
    work.wait()
    assert x.tolist() == [n] * 3 and y.tolist() == [2 * n] * 3
    dist.destroy_process_group(other)


def test_operations_on_two_streams_do_not_wait_for_each_other(pool):
    pool.run(streams_do_not_wait_for_each_other, 2, DEVICE)


def follows_its_stream(rank: int, n: int, device: str, lacks: str) -> None:
    os.environ["MY_DEVICE_LACKS"] = lacks
    for count in (3, 300_001):
        x = torch.zeros(count, device=device)
        for i in range(20):  # each some time after the call
            x.fill_(rank + i)
        dist.all_reduce(x, async_op=True).get_future().wait()
        x *= 2
        assert (x.cpu() == 2 * sum(range(19, 19 + n))).all()


@pytest.mark.parametrize("lacks", first(["synchronization, events, pool", "pool", "events", "events, pool"]))
def test_a_device_may_lack_streams_and_events(pool, lacks):
    with pool.fresh(2) as team:
        team.join().run(follows_its_stream, DEVICE, lacks=lacks)
