"""Every pair of different operations, and every parameter that can differ: on every rank."""

from __future__ import annotations

import itertools
import re
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from tests.support.checks import assert_works
from tests.support.devices import DEVICES

from .test_errors_mismatch import MAX, SUM, description, differ, zeros

NAMES = (
    "broadcast",
    "all_reduce",
    "reduce",
    "all_gather",
    "gather",
    "scatter",
    "reduce_scatter",
    "all_to_all",
    "barrier",
)
REDUCTIONS = ("all_reduce", "reduce", "reduce_scatter")
ROOTED = ("broadcast", "reduce", "gather", "scatter")
COUNTS = (0, 1, 4, 5, 1000, 100_000)
"""Elements on each path, so that every pair of paths meets."""
DTYPES = (torch.float32, torch.float64, torch.int32, torch.bfloat16, torch.uint8, torch.int64)


def rows_of_pairs() -> list[tuple]:
    """Each operation beside each other one, where one is small and the other large as well."""
    rows = []
    for a, b in itertools.combinations(NAMES, 2):
        rows += [((a, {"count": i}), (b, {"count": j})) for i, j in ((4, 4), (4, 100_000), (100_000, 4))]
    return [((a, {} if a == "barrier" else p), (b, {} if b == "barrier" else q)) for (a, p), (b, q) in rows]


def rows_of_parameters() -> list[tuple]:
    """Each operation beside itself with one parameter that differs."""
    rows = []
    for name in NAMES[:-1]:
        rows += [((name, {"count": i}), (name, {"count": j})) for i, j in itertools.combinations(COUNTS, 2)]
        rows += [((name, {"dtype": a}), (name, {"dtype": b})) for a, b in itertools.combinations(DTYPES, 2)]
        if name in REDUCTIONS:
            rows += [((name, {"count": n, "op": SUM}), (name, {"count": n, "op": MAX})) for n in (4, 100_000)]
        if name in ROOTED:
            rows += [((name, {"count": n}), (name, {"count": n, "root": 1})) for n in (4, 100_000)]
    return rows


ROWS = {"pairs": rows_of_pairs, "parameters": rows_of_parameters}


def differ_in_each(rank, n, device, *, odd_one, rows):
    """The odd rank calls the other one of each row; after each error the group does its job."""
    for usual, odd in ROWS[rows]():
        differ(rank, n, device, odd_one=odd_one, usual=usual, odd=odd)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("world_size", "odd_one"),
    [(2, 0), pytest.param(2, 1, marks=pytest.mark.full), (3, 1), pytest.param(4, 3, marks=pytest.mark.full)],
)
@pytest.mark.parametrize("rows", ROWS)
def test_whatever_differs_is_an_error_on_every_rank_that_names_both_sides(
    pool, count, rows, world_size, odd_one, device
):
    pool.run(differ_in_each, world_size, device, odd_one=odd_one, rows=rows, limit=240.0)
    count(f"mismatches, of {rows}", len(ROWS[rows]()))


def test_the_table_has_every_pair_and_every_parameter():
    pairs = {frozenset((usual[0], odd[0])) for usual, odd in rows_of_pairs()}
    assert pairs == {frozenset(pair) for pair in itertools.combinations(NAMES, 2)}
    for usual, odd in rows_of_pairs() + rows_of_parameters():
        assert description(usual[0], **usual[1]) != description(odd[0], **odd[1])


def groups_in_another_order(rank, n, device):
    """Rank 0 waits in one group, the others in another: each error names the missing rank and operation."""
    patience = timedelta(seconds=1)
    first, second = (dist.new_group(timeout=patience, backend="occl") for _ in range(2))
    for group in (first, second):
        assert_works(device, group)
    t = torch.ones(4, device=device)
    with pytest.raises(dist.DistBackendError) as caught:
        dist.all_reduce(t, group=first if rank == 0 else second)
    text = str(caught.value)
    assert "all_reduce(float32[4], SUM) #5" in text, text
    assert "has not arrived, its last operation was all_gather(int64[3]) #4" in text, text
    assert re.search(r"rank 0 \(pid" if rank else r"rank 1 \(pid", text), text
    assert_works(device)  # no rank leaves a group before all have given up
    for group in (first, second):
        dist.destroy_process_group(group)
    assert_works(device)


def one_operation_less(rank, n, device):
    """Rank 1 leaves one out and goes on to the next kind: the others are still at the one before."""
    t = zeros(device, 4)
    dist.all_reduce(t)
    if rank != 1:
        with pytest.raises(
            dist.DistBackendError, match=re.escape("rank 1 called broadcast(float32[4], src=0)")
        ):
            dist.all_reduce(t)
    else:
        with pytest.raises(
            dist.DistBackendError, match=re.escape("rank 0 called all_reduce(float32[4], SUM)")
        ):
            dist.broadcast(t, 0)
    assert_works(device)


def coalesced_in_another_number(rank, n, device):
    """Two tensors in one coalesced call, or three: the third is another operation than what comes next."""
    tensors = [zeros(device, 4) for _ in range(3 if rank == 1 else 2)]
    if rank == 1:
        with pytest.raises(dist.DistBackendError, match=re.escape("rank 0 called barrier()")):
            dist.all_reduce_coalesced(tensors)
    else:
        dist.all_reduce_coalesced(tensors)
        with pytest.raises(
            dist.DistBackendError, match=re.escape("rank 1 called all_reduce(float32[4], SUM)")
        ):
            dist.barrier()
    assert_works(device)


def order_of_sizes(rank, n, device):
    """The same sizes in another order are another operation."""
    counts = [3, 4, 5] if rank != 2 else [3, 5, 4]
    with pytest.raises(dist.DistBackendError, match=re.escape("reduce_scatter(float32[uneven], SUM)")):
        dist.reduce_scatter(zeros(device, counts[rank]), [zeros(device, k) for k in counts])
    assert_works(device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "body",
    [groups_in_another_order, one_operation_less, coalesced_in_another_number, order_of_sizes],
)
def test_the_order_and_the_number_of_operations_differ(pool, body, device):
    pool.run(body, 3, device)
