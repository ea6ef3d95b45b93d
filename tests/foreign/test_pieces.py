"""Large tensors are staged in pieces, and nothing but the time shows it."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from tests.support.references import assert_same_bits, contribution, reduced
from tests.support.thinning import first

DEVICE = "foreign:0"
BYTES = 24 << 20
"""Of the blocks of a call together: three pieces."""
COUNT = BYTES // 4 + 12_345
"""Elements of float32. The pieces differ in size."""


def reductions(rank: int, n: int, device: str) -> None:
    for dtype in ("float32", "bfloat16", "complex64"):
        count = COUNT * 4 // contribution(dtype, 0, 1).element_size() // n * n
        given = [contribution(dtype, r, count) for r in range(n)]
        expected = reduced(given, "SUM")
        t = given[rank].to(device)
        dist.all_reduce(t)
        assert_same_bits(t.cpu(), expected, "all_reduce", dtype)
        out = torch.empty(count // n, dtype=t.dtype, device=device)
        dist.reduce_scatter_tensor(out, given[rank].to(device))
        mine = expected[rank * count // n :][: count // n].clone()
        assert_same_bits(out.cpu(), mine, "reduce_scatter_tensor", dtype)


def gathering(rank: int, n: int, device: str) -> None:
    given = [contribution("float32", r, COUNT // n) for r in range(n)]
    mine = given[rank].to(device)
    out = torch.empty(n * mine.numel(), device=device)
    dist.all_gather_into_tensor(out, mine)
    assert_same_bits(out.cpu(), torch.cat(given), "all_gather_into_tensor")
    rows = [torch.empty_like(mine) for _ in range(n)]
    future = dist.all_gather(rows, mine, async_op=True).get_future()
    assert_same_bits(future.wait()[0].cpu(), torch.stack(given), "the future of all_gather")
    for row, expected in zip(rows, given, strict=True):
        assert_same_bits(row.cpu(), expected, "all_gather")


def layouts(rank: int, n: int, device: str) -> None:
    """Strided on one rank, with its dimensions in another order on all."""
    given = [contribution("float32", r, 4096 * 1024).view(4096, 1024) for r in range(n)]
    expected = reduced(given, "SUM")
    whole = torch.zeros(4096, 2048, device=device)
    t = whole[:, ::2] if rank == 0 else torch.empty(4096, 1024, device=device)
    t.copy_(given[rank])
    dist.all_reduce(t)
    assert_same_bits(t.cpu().contiguous(), expected, "strided")
    assert rank or not whole.cpu()[:, 1::2].any()
    t = given[rank].to(device).t()
    dist.all_reduce(t)
    assert_same_bits(t.cpu().contiguous(), expected.t().contiguous(), "transposed")


def output_in_the_input(rank: int, n: int, device: str) -> None:
    """Where no piece of it may be written before the others are read."""
    part = COUNT // n
    given = [contribution("float32", r, part * n) for r in range(n)]
    t = given[rank].to(device)
    out = t[part // 3 :][:part]
    dist.reduce_scatter_tensor(out, t)
    assert_same_bits(out.cpu(), reduced(given, "SUM")[rank * part :][:part].clone(), "reduce_scatter_tensor")


BODIES = {
    "reductions": reductions,
    "gathering": gathering,
    "layouts": layouts,
    "output in the input": output_in_the_input,
}


def run(pool, body, world_size: int, **params) -> list:
    """In ranks that end with the test, because they keep much memory."""
    with pool.fresh(world_size) as team:
        return team.join(timeout=20).run(body, DEVICE, **params)


@pytest.mark.parametrize("world_size", first([2, 3]))
@pytest.mark.parametrize("name", BODIES)
def test_results_have_the_bits_of_the_whole(pool, name, world_size):
    run(pool, BODIES[name], world_size)


def call_in_turn(rank: int, t: torch.Tensor, meanwhile: Callable[[], None]) -> dist.Work:
    """An all_reduce, which rank 1 calls when rank 0 has copied two pieces and then called `meanwhile`."""
    other = dist.new_group()
    dist.all_reduce(torch.ones(3, device=t.device))  # the first call tries the device, by copies
    torch.accelerator.synchronize()
    if rank == 1:
        dist.barrier(group=other)
        return dist.all_reduce(t, async_op=True)
    made = torch.ops.my_device.copies_made
    before = made()
    work = dist.all_reduce(t, async_op=True)
    while made() < before + 2:
        time.sleep(0.001)
    assert not work.is_completed()
    meanwhile()
    dist.barrier(group=other)
    return work


def the_next_piece_is_copied_meanwhile(rank: int, n: int, device: str) -> None:
    """Rank 0's first operation waits for rank 1, which calls when rank 0 has copied two pieces."""
    t = torch.full((COUNT,), rank + 1.0, device=device)
    call_in_turn(rank, t, lambda: None).wait()
    assert (t.cpu() == 3).all()


def test_the_next_piece_is_copied_while_an_operation_waits_for_a_peer(pool):
    run(pool, the_next_piece_is_copied_meanwhile, 2)


def differently(rank: int, n: int, device: str, *, count: int, where: str) -> str:
    """Rank 1 calls with another number of elements, or with a CPU tensor."""
    t = torch.ones(count if rank else COUNT, device=where if rank else device)
    with pytest.raises(RuntimeError) as caught:
        dist.all_reduce(t)
    assert (t.cpu() == 1).all()
    t = torch.ones(COUNT, device=device)
    dist.all_reduce(t)  # the group goes on
    assert (t.cpu() == n).all()
    return str(caught.value)


@pytest.mark.parametrize(("count", "where"), [(2 * COUNT, DEVICE), (COUNT, "cpu")])
def test_ranks_that_call_differently_are_told_before_a_byte_moves(pool, count, where):
    called = f"rank 1 called all_reduce(float32[{count}], SUM)" + " in pieces" * (where == DEVICE)
    for text in run(pool, differently, 2, count=count, where=where):
        assert f"all_reduce(float32[{COUNT}], SUM) in pieces" in text and called in text, text


def is_lost(rank: int, n: int, device: str) -> None:
    """Rank 0's device, when some pieces have been copied."""
    t = torch.ones(COUNT, device=device)
    work = call_in_turn(rank, t, lambda: torch.ops.my_device.lose(True))
    with pytest.raises(RuntimeError, match="this device is lost" if rank == 0 else "rank 0"):
        work.wait()
    torch.ops.my_device.lose(False)


def test_a_device_that_is_lost_between_two_pieces_ends_the_call_with_its_reason(pool):
    run(pool, is_lost, 2)


def is_one_call(rank: int, n: int, device: str) -> None:
    """For a profiler, and for what asks the Work."""
    t = torch.ones(COUNT, device=device)
    with torch.profiler.profile(record_shapes=True) as profile:
        work = dist.all_reduce(t, async_op=True)
        work.wait()
    assert work.result()[0] is t or work.result()[0].data_ptr() == t.data_ptr()
    assert work.get_future().value()[0].shape == t.shape
    events = [event for event in profile.events() if event.name == "occl:all_reduce"]
    assert [event.input_shapes for event in events] == [[[COUNT]]]


def test_a_call_in_pieces_is_one_work(pool):
    run(pool, is_one_call, 2)
