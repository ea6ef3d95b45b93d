"""all_reduce, reduce and reduce_scatter: every type and reduction, bit for bit."""

from __future__ import annotations

import zlib

import pytest
import torch
import torch.distributed as dist

from tests.support import matrix
from tests.support.checks import assert_works, backend
from tests.support.devices import DEVICES
from tests.support.references import (
    COMPLEX,
    REDUCIBLE,
    assert_guards,
    assert_same_bits,
    bits,
    contribution,
    offered,
    place,
    reduce_op,
    reduced,
    room,
)

KINDS = ["all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor"]


def all_contributions(case, world_size, count, first=0):
    """So many elements of each rank's."""
    return [contribution(case.dtype, r, count, first=first) for r in range(world_size)]


def all_reduce(rank, world_size, device, case, checks):
    """Every rank returns a checksum; one of them compares with the reference."""
    t = place(contribution(case.dtype, rank, case.count), device, case.offset)
    dist.all_reduce(t, reduce_op(case.op, rank))
    if checks:
        assert_same_bits(t.cpu(), reduced(all_contributions(case, world_size, case.count), case.op), case)
    assert_guards(t)
    return zlib.crc32(bits(t).numpy())


def reduce(rank, world_size, device, case, checks):
    mine = contribution(case.dtype, rank, case.count)
    t = place(mine, device, case.offset)
    dist.reduce(t, case.root, reduce_op(case.op, rank))
    if rank == case.root:
        mine = reduced(all_contributions(case, world_size, case.count), case.op)
    assert_same_bits(t.cpu(), mine, case)  # elsewhere it is untouched
    assert_guards(t)


def reduce_scatter(rank, world_size, device, case, checks):
    whole = contribution(case.dtype, rank, case.count * world_size)
    blocks = (
        [place(block, device, case.offset) for block in whole.split(case.count or 1)] if case.count else None
    )
    blocks = blocks or [room(case.dtype, 0, device, case.offset) for _ in range(world_size)]
    out = room(case.dtype, case.count, device, case.offset)
    dist.reduce_scatter(out, blocks, reduce_op(case.op, rank))
    check_block(rank, world_size, case, out)
    for sent, kept in zip(blocks, whole.split(case.count or 1), strict=False):
        assert_same_bits(sent.cpu(), kept if case.count else sent.cpu(), case, "inputs stay as they are")


def reduce_scatter_tensor(rank, world_size, device, case, checks):
    whole = contribution(case.dtype, rank, case.count * world_size)
    t = place(whole, device, case.offset)
    out = room(case.dtype, case.count, device, case.offset)
    dist.reduce_scatter_tensor(out, t, reduce_op(case.op, rank))
    check_block(rank, world_size, case, out)
    assert_same_bits(t.cpu(), whole, case, "the input stays as it is")


def check_block(rank, world_size, case, out):
    parts = all_contributions(case, world_size, case.count, rank * case.count)
    assert_same_bits(out.cpu(), reduced(parts, case.op), case)
    assert_guards(out)


def run_cases(rank, world_size, device, *, kind, cases):
    return [
        globals()[kind](rank, world_size, device, case, i % world_size == rank)
        for i, case in enumerate(cases)
    ]


def complex_product(rank, world_size, device):
    """torch.distributed refuses it in Python; the backend knows it."""
    pg = dist.group.WORLD._get_backend(torch.device(device))
    opts = dist.AllreduceOptions()
    opts.reduceOp = dist.ReduceOp.PRODUCT
    for dtype in COMPLEX:
        for count in (1, 5, 257, 10001):
            t = place(contribution(dtype, rank, count), device, 1)
            pg.allreduce([t], opts).wait()
            assert_same_bits(
                t.cpu(), reduced([contribution(dtype, r, count) for r in range(world_size)], "PRODUCT")
            )


def uneven_reduce_scatter(rank, world_size, device):
    """Rank r gets r * step elements: the first gets none."""
    for dtype, op, step in [("float32", "SUM", 5), ("bfloat16", "AVG", 3001), ("int64", "MAX", 70001)]:
        counts = [r * step for r in range(world_size)]
        inputs = [contribution(dtype, r, sum(counts)) for r in range(world_size)]
        out = room(dtype, counts[rank], device, 1)
        dist.reduce_scatter(
            out, [place(b, device, 1) for b in inputs[rank].split(counts)], reduce_op(op, rank)
        )
        assert_same_bits(out.cpu(), reduced([x.split(counts)[rank] for x in inputs], op), dtype, op, step)
        assert_guards(out)


def premultiplied_by_a_tensor(rank, world_size, device):
    factor = torch.tensor([(rank + 1) / 3], dtype=torch.float64, device=device)
    t = place(contribution("float64", rank, 1000), device)
    dist.all_reduce(t, dist._make_nccl_premul_sum(factor))
    assert_same_bits(
        t.cpu(), reduced([contribution("float64", r, 1000) for r in range(world_size)], "PREMUL_SUM")
    )


def streaming(rank, world_size, device):
    """Where results are stored past the caches."""
    count = matrix.STREAMING_BYTES // 4 // (world_size * (world_size + 1))  # a rank's output is one block
    for n in (count - 1, count, count + 1):
        inputs = [contribution("float32", r, n * world_size) for r in range(world_size)]
        output = room("float32", n, device, 3)
        dist.reduce_scatter_tensor(output, place(inputs[rank], device, 3))
        assert_same_bits(output.cpu(), reduced([t.chunk(world_size)[rank] for t in inputs], "SUM"), n)
        assert_guards(output)


def run_matrix(pool, count, kind, world_size, device, full):
    cases = matrix.reductions(kind, world_size, full)
    results = pool.run(run_cases, world_size, device, limit=1200 if full else 120, kind=kind, cases=cases)
    if kind == "all_reduce":
        different = [case for case, *sums in zip(cases, *results, strict=True) if len(set(sums)) > 1]
        assert not different, "the ranks got different bits"
    count(f"{kind} on {device}", len(cases))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("world_size", matrix.WORLD_SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_reductions_have_the_bits_that_rank_order_gives(pool, count, kind, world_size, device):
    run_matrix(pool, count, kind, world_size, device, full=False)


@pytest.mark.full
@pytest.mark.matrix
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("world_size", matrix.WORLD_SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_reductions_have_the_bits_that_rank_order_gives_in_every_combination(
    pool, count, kind, world_size, device
):
    run_matrix(pool, count, kind, world_size, device, full=True)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("world_size", matrix.WORLD_SIZES)
def test_reduce_scatter_takes_lists_of_uneven_tensors(pool, world_size, device):
    pool.run(uneven_reduce_scatter, world_size, device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_the_backend_multiplies_complex_numbers(pool, world_size, device):
    pool.run(complex_product, world_size, device)


def what_is_not_offered(rank, world_size, device):
    """Each pair that the table in docs/reductions.md denies."""
    every = ["SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM"]
    refused = [(dtype, op) for dtype in REDUCIBLE for op in every if op not in offered()[dtype]]
    assert len(refused) == 44
    for dtype, op in refused:
        t = torch.ones(4).to(getattr(torch, dtype)).to(device)
        opts = dist.AllreduceOptions()
        opts.reduceOp = reduce_op(op, rank)
        with pytest.raises(ValueError, match=rf"ReduceOp\.{op} has no meaning for {dtype}"):
            backend(device).allreduce([t], opts)
    assert_works(device)


@pytest.mark.parametrize("device", DEVICES)
def test_what_the_table_does_not_offer_is_refused(pool, device):
    pool.run(what_is_not_offered, 2, device)


@pytest.mark.parametrize("device", DEVICES)
def test_premul_sum_takes_a_tensor_as_its_factor(pool, device):
    pool.run(premultiplied_by_a_tensor, 3, device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("world_size", [2, 3])
def test_reduce_scatter_around_the_size_where_results_bypass_the_caches(pool, world_size, device):
    pool.run(streaming, world_size, device)
