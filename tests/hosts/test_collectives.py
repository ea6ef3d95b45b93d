"""Every collective over several hosts, against what it must give.

The values are small multiples of 12: their sums, and the means of three or four of them, are exact in every
type and in any order. So results are compared to the bit, whichever order a backend adds them up in.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from tests.hosts.launch import CASES, SHAPES
from tests.support.references import assert_guards, assert_same_bits, place, reduced, room

DTYPES = ("float32", "bfloat16", "int64")
COUNTS = (1, 1000, 1 << 20)
"""Elements of the largest tensor of a call, about."""

FLOAT_REDUCTIONS = ("SUM", "MIN", "MAX", "PRODUCT", "AVG")
INTEGER_REDUCTIONS = ("SUM", "MIN", "MAX", "PRODUCT", "BAND", "BOR", "BXOR")
GLOO_LACKS = {"AVG"}


def values(dtype: str, rank: int, count: int, op: str = "SUM", salt: int = 0) -> torch.Tensor:
    """What a rank contributes."""
    pattern = (torch.arange(count, dtype=torch.int32) * 5 + rank * 7 + salt * 3) % 16
    return (pattern % 2 + 1 if op == "PRODUCT" else pattern * 12).to(getattr(torch, dtype))


def blocks(dtype: str, rank: int, n: int, count: int) -> list[torch.Tensor]:
    """One for each rank."""
    return [values(dtype, rank, count, salt=to + 1) for to in range(n)]


def reductions(dtype: str, backend: str) -> list[str]:
    names = FLOAT_REDUCTIONS if getattr(torch, dtype).is_floating_point else INTEGER_REDUCTIONS
    return [name for name in names if not (backend == "gloo" and name in GLOO_LACKS)]


def check(found: torch.Tensor, expected: torch.Tensor, *what: object) -> None:
    assert_same_bits(found.cpu(), expected, *what)
    assert_guards(found)


def all_reduce(rank, n, device, dtype, count, op):
    t = place(values(dtype, rank, count, op), device)
    dist.all_reduce(t, getattr(dist.ReduceOp, op))
    check(t, reduced([values(dtype, r, count, op) for r in range(n)], op))


def reduce(rank, n, device, dtype, count, op):
    for root in range(n):
        t = place(values(dtype, rank, count, op), device)
        dist.reduce(t, root, getattr(dist.ReduceOp, op))
        if rank == root:
            check(t, reduced([values(dtype, r, count, op) for r in range(n)], op), root)


def reduce_scatter(rank, n, device, dtype, count, op):
    """Both of its forms."""
    part = max(count // n, 1)
    inputs = [values(dtype, r, part * n, op) for r in range(n)]
    expected = reduced([x[rank * part : (rank + 1) * part] for x in inputs], op)
    out = room(dtype, part, device)
    dist.reduce_scatter_tensor(out, place(inputs[rank], device), getattr(dist.ReduceOp, op))
    check(out, expected, "single")
    out = room(dtype, part, device)
    pieces = [place(x, device) for x in inputs[rank].chunk(n)]
    dist.reduce_scatter(out, pieces, getattr(dist.ReduceOp, op))
    check(out, expected, "list")


def all_reduce_coalesced(rank, n, device, dtype, count, op):
    sizes = [count, 1, max(count // 3, 1)]
    tensors = [place(values(dtype, rank, size, op), device) for size in sizes]
    dist.all_reduce_coalesced(tensors, getattr(dist.ReduceOp, op))
    for t, size in zip(tensors, sizes, strict=True):
        check(t, reduced([values(dtype, r, size, op) for r in range(n)], op), size)


def broadcast(rank, n, device, dtype, count):
    for root in range(n):
        t = place(values(dtype, rank, count), device)
        dist.broadcast(t, root)
        check(t, values(dtype, root, count), root)


def all_gather(rank, n, device, dtype, count):
    """Both of its forms."""
    part = max(count // n, 1)
    mine = place(values(dtype, rank, part), device)
    out = room(dtype, part * n, device)
    dist.all_gather_into_tensor(out, mine)
    check(out, torch.cat([values(dtype, r, part) for r in range(n)]), "single")
    outs = [room(dtype, part, device) for _ in range(n)]
    dist.all_gather(outs, mine)
    for source, t in enumerate(outs):
        check(t, values(dtype, source, part), "list", source)


def gather(rank, n, device, dtype, count):
    part = max(count // n, 1)
    for root in range(n):
        outs = [room(dtype, part, device) for _ in range(n)] if rank == root else None
        dist.gather(place(values(dtype, rank, part), device), outs, root)
        for source, t in enumerate(outs or []):
            check(t, values(dtype, source, part), root, source)


def scatter(rank, n, device, dtype, count):
    part = max(count // n, 1)
    for root in range(n):
        out = room(dtype, part, device)
        given = [place(x, device) for x in blocks(dtype, root, n, part)] if rank == root else None
        dist.scatter(out, given, root)
        check(out, blocks(dtype, root, n, part)[rank], root)


def all_to_all(rank, n, device, dtype, count):
    """The form with lists, and the one with a single tensor."""
    part = max(count // n, 1)
    given = [place(x, device) for x in blocks(dtype, rank, n, part)]
    outs = [room(dtype, part, device) for _ in range(n)]
    dist.all_to_all(outs, given)
    for source, t in enumerate(outs):
        check(t, blocks(dtype, source, n, part)[rank], "list", source)
    out = room(dtype, part * n, device)
    dist.all_to_all_single(out, place(torch.cat(blocks(dtype, rank, n, part)), device))
    check(out, torch.cat([blocks(dtype, source, n, part)[rank] for source in range(n)]), "single")


def all_to_all_with_splits(rank, n, device, dtype, count):
    """Rank a sends a + b times as much to rank b: some send nothing to themselves."""
    part = max(count // (n * n), 1)
    splits = [(rank + other) * part for other in range(n)]
    sent = lambda source, to: values(dtype, source, (source + to) * part, salt=to)  # noqa: E731
    out = room(dtype, sum(splits), device)
    given = place(torch.cat([sent(rank, to) for to in range(n)]), device)
    dist.all_to_all_single(out, given, splits, splits)
    check(out, torch.cat([sent(source, rank) for source in range(n)]))


def in_flight_together(rank, n, device, dtype, count):
    """Several operations are begun before any is waited for."""
    tensors = [place(values(dtype, rank, count, salt=i), device) for i in range(4)]
    gathered = room(dtype, n, device)
    work = [dist.all_reduce(t, async_op=True) for t in tensors]
    work.append(dist.all_gather_into_tensor(gathered, place(values(dtype, rank, 1), device), async_op=True))
    for pending in reversed(work):
        pending.wait()
    for i, t in enumerate(tensors):
        check(t, reduced([values(dtype, r, count, salt=i) for r in range(n)], "SUM"), i)
    check(gathered, torch.cat([values(dtype, r, 1) for r in range(n)]))


REDUCING: list[Callable] = [all_reduce, reduce, reduce_scatter, all_reduce_coalesced]
MOVING: list[Callable] = [
    broadcast, all_gather, gather, scatter, all_to_all, all_to_all_with_splits, in_flight_together,
]  # fmt: skip


def reducing(rank, n, device, *, kind, dtype, ops):
    """Every reduction in small sizes; one in the largest, where the others would only take time."""
    for count in COUNTS:
        for op in ops if count < COUNTS[-1] else ops[:1]:
            try:
                globals()[kind](rank, n, device, dtype, count, op)
            except AssertionError as error:
                raise AssertionError(f"{kind} of {count} {dtype}, {op}: {error}") from error


def moving(rank, n, device, *, kind, dtype):
    for count in COUNTS:
        try:
            globals()[kind](rank, n, device, dtype, count)
        except AssertionError as error:
            raise AssertionError(f"{kind} of {count} {dtype}: {error}") from error


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("backend, device", CASES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [body.__name__ for body in REDUCING])
def test_a_reduction_over_hosts_gives_the_reference(hosts, kind, dtype, backend, device, shape):
    ops = reductions(dtype, backend)
    hosts.run_on(shape, backend, reducing, device, kind=kind, dtype=dtype, ops=ops)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("backend, device", CASES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [body.__name__ for body in MOVING])
def test_data_that_move_between_hosts_arrive_unchanged(hosts, kind, dtype, backend, device, shape):
    hosts.run_on(shape, backend, moving, device, kind=kind, dtype=dtype)


def sums_of_any_floats(rank, n, device):
    """Twice the same all_reduce of numbers whose sum depends on the order."""
    generator = torch.Generator().manual_seed(rank)
    mine = torch.randn(100_003, generator=generator)
    sums = []
    for _ in range(2):
        t = mine.to(device, copy=True)
        dist.all_reduce(t)
        sums.append(t.cpu())
    assert_same_bits(sums[1], sums[0], "the second time")
    everyone = [torch.empty_like(sums[0]).to(device) for _ in range(n)]
    dist.all_gather(everyone, sums[0].to(device))
    for other, t in enumerate(everyone):
        assert_same_bits(t.cpu(), sums[0], "rank", other)
    exact = sum(torch.randn(100_003, generator=torch.Generator().manual_seed(r)).double() for r in range(n))
    torch.testing.assert_close(sums[0].double(), exact, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("backend, device", CASES)
def test_all_ranks_of_all_hosts_get_the_same_bits_every_time(hosts, backend, device, shape):
    hosts.run_on(shape, backend, sums_of_any_floats, device)
