"""Ranks that make different calls: every rank gets an error that names both sides, and the group works on."""

from __future__ import annotations

import itertools
import os
import re

import pytest
import torch
import torch.distributed as dist

from tests.support.checks import assert_works, backend
from tests.support.devices import DEVICES

SUM, MAX = dist.ReduceOp.SUM, dist.ReduceOp.MAX

TIMEOUT = 1.5
"""Seconds, of the groups whose ranks wait in vain."""


def zeros(device, count, dtype=torch.float32):
    return torch.zeros(count, dtype=dtype, device=device)


def call(name, device, count=4, dtype=torch.float32, op=SUM, root=0):
    """One collective, and how errors name it."""
    n, t = dist.get_world_size(), zeros(device, count, dtype)
    many = [t.clone() for _ in range(n)]
    lists = many if dist.get_rank() == root else None
    flat = zeros(device, count * n, dtype)
    calls = {
        "broadcast": lambda: dist.broadcast(t, root),
        "all_reduce": lambda: dist.all_reduce(t, op),
        "reduce": lambda: dist.reduce(t, root, op),
        "all_gather": lambda: dist.all_gather(many, t),
        "gather": lambda: dist.gather(t, lists, root),
        "scatter": lambda: dist.scatter(t, lists, root),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(t, flat, op),
        "all_to_all": lambda: dist.all_to_all_single(flat.clone(), flat),
        "barrier": dist.barrier,
    }
    calls[name]()


def description(name, count=4, dtype=torch.float32, op=SUM, root=0):
    if name == "barrier":
        return "barrier()"
    text = f"{name}({str(dtype).removeprefix('torch.')}[{count}]"
    if name in ("all_reduce", "reduce", "reduce_scatter"):
        text += ", MAX" if op == MAX else ", SUM"
    if name in ("broadcast", "scatter"):
        text += f", src={root}"
    if name in ("reduce", "gather"):
        text += f", dst={root}"
    return text + ")"


def differ(rank, n, device, *, odd_one, usual, odd):
    """The odd rank calls `odd` where the others call `usual`."""
    mine, theirs = (odd, usual) if rank == odd_one else (usual, odd)
    other = (0 if odd_one != 0 else 1) if rank == odd_one else odd_one
    assert_works(device)
    number = backend(device)._get_sequence_number_for_group() + 1
    with pytest.raises(dist.DistBackendError) as caught:
        call(mine[0], device, **mine[1])
    text = str(caught.value)
    expected = (
        f"rank {other} called {description(theirs[0], **theirs[1])} where rank {rank} called "
        f"{description(mine[0], **mine[1])} as operation #{number} of group "
    )
    assert expected in text, f"{text}\n  is not\n{expected}"
    assert_works(device)


def differ_in_flight(rank, n, device):
    """Of ten operations in flight the fifth does not fit: the others do their job."""
    tensors = [torch.ones(1 + (rank == 1 and i == 5), device=device) for i in range(10)]
    works = [dist.all_reduce(t, async_op=True) for t in tensors]
    for i, (work, t) in enumerate(zip(works, tensors, strict=True)):
        if i == 5:
            with pytest.raises(dist.DistBackendError, match=re.escape("all_reduce(float32[2], SUM)")):
                work.wait()
        else:
            work.wait()
            assert (t == n).all()
    assert_works(device)


def error_then_next(rank, n, device):
    """One rank's arguments are bad; it goes on to what comes next, and the others learn of it."""
    t = torch.zeros(4, device=device)
    if rank == 0:
        with pytest.raises(ValueError, match="share memory"):
            dist.all_reduce(torch.zeros(1, device=device).expand(4))
    else:
        with pytest.raises(dist.DistBackendError, match=re.escape("rank 0 called barrier()")):
            dist.all_reduce(t)
    if rank == 0:
        with pytest.raises(dist.DistBackendError, match=re.escape("called all_reduce(float32[4], SUM)")):
            dist.barrier()
    assert_works(device)


def message_refused(rank, n, device):
    """A send with a wrong tensor raises there, and the rank that waits for the message in vain learns why."""
    if rank == 0:
        with pytest.raises(ValueError, match="unsupported layout"):
            backend(device).send([torch.zeros(2, 2).to_sparse_csr()], 1, 0)
    elif rank == 1:
        with pytest.raises(
            dist.DistBackendError,
            match=r"(?s)Timed out .*rank 0 \(pid .*; its call was refused there: .*unsupported layout",
        ):
            dist.recv(torch.zeros(4, device=device), 0)


def uneven_lists_differ(rank, n, device):
    """all_gather and reduce_scatter of lists: rank 1 believes in other sizes."""
    for scale, name in itertools.product((1, 10_000), ("all_gather", "reduce_scatter")):
        counts = [3 * scale, 4 * scale, (6 if rank == 1 else 5) * scale]
        theirs = [*counts[:2], (5 if rank == 1 else 6) * scale]
        many, one = [zeros(device, k) for k in counts], zeros(device, counts[rank])
        with pytest.raises(dist.DistBackendError) as caught:
            dist.all_gather(many, one) if name == "all_gather" else dist.reduce_scatter(one, many)
        called = f"called {name}(float32[uneven]" + (", SUM)" if name == "reduce_scatter" else ")")
        of = [f"{called} of {', '.join(map(str, sizes))} elements" for sizes in (theirs, counts)]
        assert f"{of[0]} where rank {rank} {of[1]} as operation" in str(caught.value)
    assert_works(device)


def splits_differ(rank, n, device):
    """Rank 0 sends rank 1 more than it expects: no rank gets wrong data or hangs."""
    received = [2] * n
    sent = [2] * n
    if rank == 0:
        sent[1] = 3
    with pytest.raises(dist.DistBackendError) as caught:
        dist.all_to_all_single(zeros(device, sum(received)), zeros(device, sum(sent)), received, sent)
    assert "rank 0 sends 3 elements to rank 1, which expects 2" in str(caught.value)
    assert "Entry 1 of rank 0's input sizes must equal entry 0 of rank 1's output sizes" in str(caught.value)


def equal_parts_differ(rank, n, device):
    """Rank 2 says what each rank gets; ranks 0 and 1 say that all get as much, but not how much alike."""
    t = zeros(device, n * (2 + rank % 2))
    splits = [2] * n if rank == 2 else None
    with pytest.raises(dist.DistBackendError, match=r"all_to_all\(float32\[[23]\]\)"):
        dist.all_to_all_single(t.clone()[: 2 * n] if rank == 2 else t.clone(), t, splits, splits)
    assert_works(device)


def sparse_beside_dense(rank, n, device):
    t = torch.eye(4).to_sparse().to(device)
    calls = ["all_reduce(float32[4], SUM)", "all_reduce_sparse(...)"]
    with pytest.raises(dist.DistBackendError) as caught:
        dist.all_reduce(zeros(device, 4) if rank == 0 else t)
    mine, theirs = calls if rank == 0 else calls[::-1]
    assert f"called {theirs} where rank {rank} called {mine} as operation" in str(caught.value)
    assert_works(device)


def sparse_refused(rank, n, device):
    t = torch.eye(4).to_sparse().to(device)
    if rank == 0:
        with pytest.raises(ValueError, match="SUM and AVG only"):
            dist.all_reduce(t, MAX)
    else:
        with pytest.raises(
            dist.DistBackendError,
            match=r"Timed out .*rank 0 \(pid .*; its call was refused there: .*SUM and AVG only",
        ):
            dist.all_reduce(t)


def refused_and_left(rank, n, device):
    """A rank that gives up after a refused call: the others are told of both at once."""
    t = torch.zeros(4, device=device)
    if rank == 0:
        with pytest.raises(ValueError, match="share memory"):
            dist.all_reduce(torch.zeros(1, device=device).expand(4))
        dist.destroy_process_group()
    else:
        with pytest.raises(
            dist.DistBackendError,
            match=r"rank 0 \(pid .*left the group during .*; its call was refused there: .*share memory",
        ):
            dist.all_reduce(t)


def quantized(device, dtype):
    return torch.quantize_per_tensor(torch.ones(8), 0.1, 0, dtype).to(device)


def opaque_types_differ(rank, n, device):
    """They are moved as bytes, and yet mean other things."""
    bits = torch.zeros(8, dtype=torch.uint8, device=device)
    odd = {
        "qint8[8]": lambda: quantized(device, torch.qint8),
        "bits8[8]": lambda: bits.view(torch.bits8),
    }
    usual = {
        "quint8[8]": lambda: quantized(device, torch.quint8),
        "bits1x8[8]": lambda: bits.view(torch.bits1x8),
    }
    for mine, theirs in zip(odd, usual, strict=True) if rank == 1 else zip(usual, odd, strict=True):
        with pytest.raises(dist.DistBackendError) as caught:
            dist.broadcast((odd | usual)[mine](), 0)
        assert (
            f"called broadcast({theirs}, src=0) where rank {rank} called broadcast({mine}, src=0) as"
        ) in str(caught.value)
    assert_works(device)


USUAL = ("all_reduce", {})
ROWS = [
    (USUAL, ("broadcast", {})),
    (USUAL, ("barrier", {})),
    (USUAL, ("reduce_scatter", {})),
    (USUAL, ("all_reduce", {"dtype": torch.int32})),
    (USUAL, ("all_reduce", {"dtype": torch.bfloat16, "count": 8})),
    (USUAL, ("all_reduce", {"count": 5})),
    (USUAL, ("all_reduce", {"count": 0})),
    (USUAL, ("all_reduce", {"count": 5000})),
    (USUAL, ("all_reduce", {"count": 500_000})),
    (USUAL, ("all_reduce", {"op": MAX})),
    (("broadcast", {}), ("broadcast", {"root": 1})),
    (("broadcast", {}), ("scatter", {})),
    (("reduce", {}), ("reduce", {"root": 1})),
    (("reduce", {"count": 200_000}), ("reduce", {"count": 200_000, "op": MAX})),
    (("gather", {}), ("gather", {"root": 1})),
    (("gather", {}), ("gather", {"dtype": torch.int32})),
    (("scatter", {}), ("scatter", {"root": 1})),
    (("all_gather", {}), ("all_gather", {"count": 3})),
    (("all_gather", {"count": 200_000}), ("all_gather", {"count": 3})),
    (("reduce_scatter", {"count": 100_000}), ("reduce_scatter", {"count": 100_000, "dtype": torch.int32})),
    (("all_to_all", {}), ("all_gather", {})),
    (("all_to_all", {}), ("all_to_all", {"count": 8})),
    (("all_to_all", {"count": 100_000}), ("all_to_all", {"count": 100_001})),
    (("barrier", {}), ("all_to_all", {"count": 70_000})),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("world_size", "odd_one"), [(2, 0), (2, 1), (3, 0), (3, 2), (8, 5)])
@pytest.mark.parametrize(("usual", "odd"), ROWS, ids=lambda row: description(row[0], **row[1]))
def test_every_rank_raises_and_names_both_sides(pool, usual, odd, world_size, odd_one, device):
    pool.run(differ, world_size, device, odd_one=odd_one, usual=usual, odd=odd)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "body",
    [
        differ_in_flight,
        error_then_next,
        uneven_lists_differ,
        equal_parts_differ,
        sparse_beside_dense,
        opaque_types_differ,
    ],
)
def test_the_group_works_on_after_a_mismatch(pool, body, device):
    pool.run(body, 3, device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("body", [message_refused, sparse_refused])
def test_a_rank_that_waits_in_vain_for_a_refused_call_learns_why(fresh, body, device):
    with fresh(3) as team:
        team.join(timeout=TIMEOUT).run(body, device)


def test_a_rank_that_leaves_after_a_refused_call_takes_its_reason_along(fresh):
    with fresh(3) as team:
        team.join().run(refused_and_left)


@pytest.mark.parametrize("device", DEVICES)
def test_splits_that_do_not_fit_end_the_group_on_every_rank(fresh, device):
    with fresh(3) as team:
        team.join().run(splits_differ, device)


def shapes_of_as_many_elements(rank, n, device):
    """They go with Gloo and NCCL, and programs rely on that: sizes are numbers of elements."""
    shape = [(2, 6), (3, 4), (12,)][rank]
    mine = torch.arange(12.0, device=device).view(shape)
    total = mine.clone()
    dist.all_reduce(total)
    assert torch.equal(total, mine * n)
    dist.broadcast(mine.mul_(1 + rank), 0)
    assert mine.shape == shape and mine.flatten().tolist() == list(range(12))
    outputs = [torch.zeros(shape, device=device) for _ in range(n)]
    dist.all_gather(outputs, mine + rank)
    assert all(torch.equal(out, mine + r) for r, out in enumerate(outputs))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("world_size", [2, 3])
def test_shapes_of_as_many_elements_are_no_mismatch(pool, world_size, device):
    pool.run(shapes_of_as_many_elements, world_size, device)


def on_two_nodes(rank, n, device, *, store):
    os.environ["OCCL_NODE"] = "aab"[rank]
    dist.init_process_group("occl", init_method=f"file://{store}", rank=rank, world_size=n)
    shapes_of_as_many_elements(rank, n, device)


def test_shapes_of_as_many_elements_are_no_mismatch_between_nodes(fresh):
    with fresh(3) as team:
        team.run(on_two_nodes, store=team.source.new_file())


def other_orders(rank, n, device):
    """Bytes travel as they lie: other orders of dimensions would mean other elements."""
    usual = torch.arange(6.0, device=device).view(2, 3)
    mine = usual if rank == 0 else torch.zeros(3, 2, device=device).t()
    for call in (dist.broadcast, dist.reduce):
        with pytest.raises(dist.DistBackendError, match=r"\[dimensions in another order\]"):
            call(mine, 0)
    with pytest.raises(dist.DistBackendError, match=r"\[dimensions in another order\]"):
        dist.all_reduce(mine)
    with pytest.raises(dist.DistBackendError, match="order"):
        if rank == 0:
            dist.send(torch.zeros(200, 300, device=device).t(), 1)
        else:
            dist.recv(torch.zeros(300, 200, device=device), 0)
    alike = usual.t() * (rank + 1)
    dist.all_reduce(alike)
    assert torch.equal(alike, usual.t() * 3)
    assert_works(device)


@pytest.mark.parametrize("device", DEVICES)
def test_another_order_of_dimensions_is_a_mismatch(pool, device):
    pool.run(other_orders, 2, device)
