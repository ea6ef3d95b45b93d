"""Collectives that move data: every type that there is, to the bit."""

from __future__ import annotations

import itertools
import time

import pytest
import torch
import torch.distributed as dist

from tests.support import matrix
from tests.support.checks import backend
from tests.support.devices import DEVICES
from tests.support.references import assert_guards, assert_same_bits, contribution, place, room
from tests.support.running import PYTORCH

KINDS = [
    "broadcast",
    "all_gather",
    "all_gather_into_tensor",
    "gather",
    "scatter",
    "all_to_all",
    "all_to_all_single",
]


def split(whole, counts):
    """Blocks of these sizes, empty ones too."""
    ends = [sum(counts[: i + 1]) for i in range(len(counts))]
    return [whole[end - n : end] for end, n in zip(ends, counts, strict=True)]


def placed_blocks(dtype, rank, counts, device, offset):
    return [place(block, device, offset) for block in split(contribution(dtype, rank, sum(counts)), counts)]


def rooms(dtype, counts, device, offset):
    return [room(dtype, n, device, offset) for n in counts]


def assert_blocks(outputs, expected, *what):
    for out, block in zip(outputs, expected, strict=True):
        assert_same_bits(out.cpu(), block, *what)
        assert_guards(out)


def broadcast(rank, n, device, case):
    t = place(contribution(case.dtype, rank, case.count), device, case.offset)
    dist.broadcast(t, case.root)
    assert_blocks([t], [contribution(case.dtype, case.root, case.count)], case)


def all_gather(rank, n, device, case):
    outputs = rooms(case.dtype, [case.count] * n, device, case.offset)
    dist.all_gather(outputs, place(contribution(case.dtype, rank, case.count), device, case.offset))
    assert_blocks(outputs, [contribution(case.dtype, r, case.count) for r in range(n)], case)


def all_gather_into_tensor(rank, n, device, case):
    out = room(case.dtype, case.count * n, device, case.offset)
    dist.all_gather_into_tensor(out, place(contribution(case.dtype, rank, case.count), device, case.offset))
    assert_guards(out)
    for r, block in enumerate(split(out.cpu(), [case.count] * n)):
        assert_same_bits(block, contribution(case.dtype, r, case.count), case)


def gather(rank, n, device, case):
    outputs = rooms(case.dtype, [case.count] * n, device, case.offset) if rank == case.root else None
    dist.gather(place(contribution(case.dtype, rank, case.count), device, case.offset), outputs, case.root)
    if outputs:
        assert_blocks(outputs, [contribution(case.dtype, r, case.count) for r in range(n)], case)


def scatter(rank, n, device, case):
    counts = [case.count] * n
    inputs = placed_blocks(case.dtype, case.root, counts, device, case.offset) if rank == case.root else None
    out = room(case.dtype, case.count, device, case.offset)
    dist.scatter(out, inputs, case.root)
    assert_blocks([out], [split(contribution(case.dtype, case.root, case.count * n), counts)[rank]], case)


def all_to_all(rank, n, device, case):
    counts = [case.count] * n
    outputs = rooms(case.dtype, counts, device, case.offset)
    dist.all_to_all(outputs, placed_blocks(case.dtype, rank, counts, device, case.offset))
    expected = [split(contribution(case.dtype, r, case.count * n), counts)[rank] for r in range(n)]
    assert_blocks(outputs, expected, case)


def all_to_all_single(rank, n, device, case):
    counts = [case.count] * n
    out = room(case.dtype, case.count * n, device, case.offset)
    dist.all_to_all_single(out, place(contribution(case.dtype, rank, case.count * n), device, case.offset))
    assert_guards(out)
    for r, block in enumerate(split(out.cpu(), counts)):
        assert_same_bits(block, split(contribution(case.dtype, r, case.count * n), counts)[rank], case)


def run_cases(rank, world_size, device, *, kind, cases):
    for case in cases:
        globals()[kind](rank, world_size, device, case)


def counts_of(rank, n, step):
    """Elements that a rank sends to each: 0 here and there, and nothing is symmetric."""
    return [(rank * 3 + to * 5) % 7 * step for to in range(n)]


def uneven_all_gather(rank, n, device, *, step):
    counts = [(r * 2 + 1) % 5 * step for r in range(n)]
    for dtype in ("float32", "uint8", "complex128"):
        outputs = rooms(dtype, counts, device, 1)
        dist.all_gather(outputs, place(contribution(dtype, rank, counts[rank]), device, 3))
        assert_blocks(outputs, [contribution(dtype, r, counts[r]) for r in range(n)], dtype, counts)


def uneven_all_to_all(rank, n, device, *, step):
    sent = [counts_of(r, n, step) for r in range(n)]
    received = [sent[r][rank] for r in range(n)]
    for dtype in ("float32", "int8", "complex64"):
        outputs = rooms(dtype, received, device, 1)
        dist.all_to_all(outputs, placed_blocks(dtype, rank, sent[rank], device, 3))
        expected = [split(contribution(dtype, r, sum(sent[r])), sent[r])[rank] for r in range(n)]
        assert_blocks(outputs, expected, dtype, sent)


def uneven_all_to_all_single(rank, n, device, *, step):
    """Rows of three elements; splits count rows."""
    sent = [counts_of(r, n, step) for r in range(n)]
    received = [sent[r][rank] for r in range(n)]
    for dtype in ("float32", "int16", "float64"):
        out = room(dtype, sum(received) * 3, device, 1)
        rows = place(contribution(dtype, rank, sum(sent[rank]) * 3), device, 3)
        dist.all_to_all_single(out.view(-1, 3), rows.view(-1, 3), received, sent[rank])
        assert_guards(out)
        for r, block in enumerate(split(out.cpu(), [k * 3 for k in received])):
            in_rows = [k * 3 for k in sent[r]]
            assert_same_bits(block, split(contribution(dtype, r, sum(in_rows)), in_rows)[rank], dtype, sent)


def splits_on_one_side(rank, n, device):
    """Equal splits need not be written down, on either side or both."""
    for splits in ([None, [2] * n], [[2] * n, None], [[2] * n, [2] * n], [None, None]):
        out = room("int32", 2 * n, device)
        dist.all_to_all_single(out, place(contribution("int32", rank, 2 * n), device), *splits)
        for r, block in enumerate(split(out.cpu(), [2] * n)):
            assert_same_bits(block, split(contribution("int32", r, 2 * n), [2] * n)[rank])


def splits_on_some_ranks(rank, n, device):
    """Equal splits need not be written down by every rank, nor be splits of one tensor."""
    for count, all_even in itertools.product((1, 300, 100_000), (True, False) if n > 2 else (True,)):
        # Where not all parts are equal, ranks 0 and 1 send less to each other, and write that down.
        def size(a, b, count=count, all_even=all_even):
            return count if all_even or {a, b} != {0, 1} else count // 3

        sent, received = ([size(rank, other) for other in range(n)] for _ in range(2))
        data = place(contribution("int32", rank, sum(sent)), device)
        out = torch.zeros(sum(received), dtype=torch.int32, device=device)
        if rank == n - 1:
            dist.all_to_all_single(out, data)
        elif rank == 0:
            dist.all_to_all(list(out.split(received)), list(data.split(sent)))
        else:
            dist.all_to_all_single(out, data, received, sent)
        for source, part in enumerate(out.split(received)):
            theirs = contribution("int32", source, sum(size(source, other) for other in range(n)))
            begin = sum(size(source, other) for other in range(rank))
            assert part.tolist() == theirs[begin : begin + size(source, rank)].tolist()


def scattered(tensors):
    """The same, each as a column of a matrix: not contiguous."""
    return [torch.stack([t, t.clone()], 1)[:, 0] for t in tensors]


def lists_of_columns(rank, n, device):
    """Tensors of a list need not be contiguous. Waited for, and not."""
    for count, wait in itertools.product((1, 5, 100_000), (True, False)):
        ours = [contribution("int32", 10 * rank + other, count).to(device) for other in range(n)]
        theirs = [contribution("int32", 10 * other + rank, count).to(device) for other in range(n)]
        out = scattered([torch.zeros_like(t) for t in theirs])
        work = dist.all_to_all(out, scattered(ours), async_op=not wait)
        if work:
            assert work.get_future().wait()
        assert all(torch.equal(a, b) for a, b in zip(out, theirs, strict=True))

        firsts = [contribution("int32", 10 * other, count).to(device) for other in range(n)]
        out = scattered([torch.zeros_like(t) for t in firsts])
        works = [dist.all_gather(out, ours[0], async_op=not wait)]
        if works[0]:
            while not works[0].is_completed():
                time.sleep(0.0001)
        assert all(torch.equal(a, b) for a, b in zip(out, firsts, strict=True))

        out = scattered([torch.zeros_like(t) for t in firsts])
        dist.gather(ours[0], out if rank == n - 1 else None, n - 1)
        assert rank != n - 1 or all(torch.equal(a, b) for a, b in zip(out, firsts, strict=True))
        one = torch.zeros_like(ours[0])
        dist.scatter(one, scattered(ours) if rank == 0 else None, 0)
        assert torch.equal(one, contribution("int32", rank, count).to(device))
        dist.reduce_scatter(one, scattered(ours))
        assert torch.equal(one, sum(theirs))


def copies_keep_the_order(rank, n, device):
    """Copies before and after an operation are part of it, even if no rank waits in between."""
    for count in (4, 100_000):
        x, out = torch.ones(count, 2, device=device), torch.zeros(count, device=device)
        views = [x[:, i % 2] for i in range(n)]
        works = [dist.all_reduce(x, async_op=True), dist.reduce_scatter(out, views, async_op=True)]
        base = torch.zeros(count, n, device=device)
        columns = list(base.unbind(1))
        works += [dist.all_gather(columns, out.clone() * 0 + 1, async_op=True)]
        works += [dist.all_reduce(base, async_op=True)]
        a, b = torch.ones(count, device=device), torch.ones(count, device=device)
        works += [dist.all_reduce(a, async_op=True), backend(device).allreduce([a, b])]
        for work in works:
            work.wait()
        assert (out == n * n).all() and (base == n).all() and (a == n * n + n).all() and a.equal(b)


def copies_in_inference_mode(rank, n, device):
    """The thread that makes them is not in that mode."""
    with torch.inference_mode():
        out = scattered([torch.zeros(4, device=device) for _ in range(n)])
        work = dist.all_gather(out, torch.full((4,), rank + 1.0, device=device), async_op=True)
        while not work.is_completed():
            time.sleep(0.01)
        assert work.is_success() and [t[0].item() for t in out] == list(range(1, n + 1))


def several_of_each_rank(rank, n, device):
    """Lists of several tensors in one call of the backend, as Gloo takes them."""
    pg = backend(device)
    for count in (1, 7, 100_000):
        columns = [torch.zeros(count, 2, device=device).t().contiguous().t() for _ in range(2)]
        columns[0] += rank
        columns.append(torch.zeros(count, 2, device=device) + 10 * rank)
        opts = dist.BroadcastOptions()
        opts.rootRank, opts.rootTensor = n - 1, 2
        many = [t.clone() for t in columns]
        pg.broadcast(many, opts).wait()
        assert all((t == 10 * (n - 1)).all() for t in many)
        many = [t.clone() for t in columns]
        pg.allreduce(many).wait()
        assert all((t == 11 * sum(range(n))).all() for t in many)

        out = [[torch.zeros(count, 2, device=device) for _ in range(3 * n)] for _ in range(3)]
        pg.allgather(out, columns).wait()
        for each in out:
            assert [t.unique().tolist() for t in each] == [[x] for r in range(n) for x in (r, 0, 10 * r)]


def all_splits_empty(rank, n, device):
    empty = torch.empty(0, 4, device=device)
    dist.all_to_all_single(empty.clone(), empty, [0] * n, [0] * n)
    dist.all_to_all(
        [torch.empty(0, device=device) for _ in range(n)], [torch.empty(0, device=device) for _ in range(n)]
    )


def other_orders_of_memory(rank, n, device):
    """A transposed matrix has no gaps: its bytes are reduced, and moved, as they lie."""
    mine = contribution("float32", rank, 35).nan_to_num()
    t = place(mine, device).view(5, 7).t()
    dist.all_reduce(t, dist.ReduceOp.MAX)
    assert_same_bits(
        t.t().reshape(-1).cpu(),
        torch.stack([contribution("float32", r, 35).nan_to_num() for r in range(n)]).amax(0),
    )
    t = place(mine, device).view(5, 7).t()
    dist.broadcast(t, n - 1)
    assert_same_bits(t.t().reshape(-1).cpu(), contribution("float32", n - 1, 35).nan_to_num())


def in_place(rank, n, device):
    """Input and output of the flat operations may share the rank's own block."""
    for count in (3, 5000, 200001):
        out = room("float32", count * n, device)
        mine = split(out, [count] * n)[rank]
        mine.copy_(contribution("float32", rank, count))
        dist.all_gather_into_tensor(out, mine)
        for r, block in enumerate(split(out.cpu(), [count] * n)):
            assert_same_bits(block, contribution("float32", r, count))
        whole = place(contribution("int32", rank, count * n), device)
        mine = split(whole, [count] * n)[rank]
        dist.reduce_scatter_tensor(mine, whole)
        parts = [split(contribution("int32", r, count * n), [count] * n)[rank] for r in range(n)]
        assert_same_bits(mine.cpu(), torch.stack(parts).sum(0, dtype=torch.int32))


def bytes_of(t):
    return torch.empty(0, dtype=torch.uint8, device=t.device).set_(t.untyped_storage())


PARTS = 2 if PYTORCH >= (2, 13) else 4
"""Before, PyTorch wants a byte for each element of a slice, also of types with four elements in a byte."""


def first_part(dtype, elements, device, value):
    """The first of PARTS parts of a tensor of any type, all of whose bytes are alike."""
    if str(dtype).startswith(("torch.qint", "torch.quint")):
        t = torch._empty_affine_quantized(
            [PARTS * elements], scale=1.0, zero_point=0, dtype=dtype, device=device
        )
    else:
        t = torch.empty(PARTS * elements, dtype=dtype, device=device)
    bytes_of(t).fill_(value)
    return t[:elements]


def every_dtype(rank, n, device):
    """Every dtype, also those with several elements in a byte and those without arithmetic."""
    calls = {
        "broadcast": lambda: dist.broadcast(own if rank == 1 else out, 1),
        "all_gather": lambda: dist.all_gather([out if r == 1 else other for r in range(n)], own),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(whole, own),
        "gather": lambda: dist.gather(own, [other, out] if rank == 0 else None),
        "scatter": lambda: dist.scatter(out, [own] * n if rank == 1 else None, 1),
        "all_to_all": lambda: dist.all_to_all([other, out], [own] * n),
        "all_to_all_single": lambda: dist.all_to_all_single(whole, zeros),
        "send": lambda: dist.recv(out, 1) if rank == 0 else dist.send(own, 0),
    }
    receives = {"broadcast": [0], "gather": [0], "send": [0]}
    for dtype in sorted({d for d in vars(torch).values() if isinstance(d, torch.dtype)}, key=str):
        for elements in (40, 100_000):
            for name, call in calls.items():
                own, out, other = (first_part(dtype, elements, device, v) for v in (rank + 1, 0, 0))
                whole, zeros = (first_part(dtype, elements * n, device, 0) for _ in range(2))
                call()
                case = name, dtype, elements
                part = bytes_of(out).numel() // PARTS
                assert bytes_of(out)[part:].eq(0).all() and bytes_of(whole)[part * n :].eq(0).all(), case
                if name == "all_gather_into_tensor":
                    for r in range(n):
                        assert bytes_of(whole)[part * r : part * (r + 1)].eq(r + 1).all(), case
                elif name != "all_to_all_single" and rank in receives.get(name, range(n)):
                    assert bytes_of(out)[:part].eq(2).all(), case


def barriers(rank, n, device, *, times):
    log = []
    for _ in range(times):
        before = time.monotonic_ns()
        dist.barrier()
        log.append((before, time.monotonic_ns()))
    return log


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("world_size", matrix.WORLD_SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_data_arrives_as_it_was(pool, count, kind, world_size, device):
    cases = matrix.movements(kind, world_size)
    pool.run(run_cases, world_size, device, limit=120, kind=kind, cases=cases)
    count(f"{kind} on {device}", len(cases))


@pytest.mark.matrix
@pytest.mark.full
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("world_size", matrix.WORLD_SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_data_arrives_as_it_was_in_every_combination(pool, count, kind, world_size, device):
    cases = matrix.movements(kind, world_size, full=True)
    pool.run(run_cases, world_size, device, limit=600, kind=kind, cases=cases)
    count(f"{kind} on {device}", len(cases))


@pytest.mark.parametrize("device", DEVICES)
def test_every_type_there_is_is_moved_to_the_byte(pool, device):
    pool.run(every_dtype, 2, device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("world_size", matrix.WORLD_SIZES)
@pytest.mark.parametrize("step", [1, 4001, 40009])
@pytest.mark.parametrize("body", [uneven_all_gather, uneven_all_to_all, uneven_all_to_all_single])
def test_blocks_may_differ_in_size(pool, body, step, world_size, device):
    pool.run(body, world_size, device, step=step)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("world_size", matrix.WORLD_SIZES)
@pytest.mark.parametrize(
    "body", [splits_on_one_side, splits_on_some_ranks, all_splits_empty, other_orders_of_memory, in_place]
)
def test_special_arguments(pool, body, world_size, device):
    pool.run(body, world_size, device)


@pytest.mark.parametrize("world_size", matrix.WORLD_SIZES)
def test_nobody_leaves_a_barrier_before_everybody_has_come(pool, world_size):
    for entries in zip(*pool.run(barriers, world_size, times=50), strict=True):
        assert max(before for before, _ in entries) <= min(after for _, after in entries)
