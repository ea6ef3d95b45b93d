"""Outputs of one call must not overlap: in each list form, and in coalesced operations, on either side."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch._C._distributed_c10d import AllgatherOptions, AllreduceCoalescedOptions, ReduceScatterOptions

from tests.support.checks import assert_works, backend
from tests.support.devices import DEVICES

REFUSED = r"(?s)Timed out .*rank 0 \(pid .*; its call was refused there: .*"
WRITTEN = "tensors that are written overlap in memory"
JOINED = "one of the joined operations writes what another reads"


def shapes(device):
    """Pairs of tensors of 4 elements that have memory in common, and pairs that have not."""
    base = torch.zeros(64, device=device)
    matrix = base.view(8, 8)
    overlapping = {
        "the same": (base[:4], base[:4]),
        "a slice": (base[:4], base[3:7]),
        "a slice of another": (base[2:6], base[:4]),
        "strided, the same": (base[:8:2], base[:8:2]),
        "strided, one element": (base[:8:2], base[6:14:2]),
        "strided and dense": (base[:8:2], base[3:7]),
        "a row and a column": (matrix[2, :4], matrix[:4, 2]),
        "other strides": (base[0:12:3], base[1:9:2]),
    }
    apart = {
        "neighbours": (base[:4], base[4:8]),
        "interleaved": (base[:8:2], base[1:8:2]),
        "columns": (matrix[:4, 0], matrix[:4, 1]),
        "a row beside a column": (matrix[2, :4], matrix[:4, 5]),
        "other strides": (base[0:16:4], base[1:9:2]),
        "blocks": (matrix[:2, :2].T, matrix[:2, 2:4]),
        "a dense one in the gap": (base[:64:16], base[1:5]),
    }
    return overlapping, apart


def calls(n, device):
    """For each form, a call that writes these two tensors (of 4 elements), and others."""
    pg = backend(device)

    def new(count=4):
        return torch.zeros(count, device=device)

    def some(count, of=4):
        return [new(of) for _ in range(count)]

    def all_gather_of_two(a, b):
        return pg.allgather([[a, *some(2 * n - 1)], [*some(2 * n - 1), b]], some(2))

    def all_gather_coalesced(a, b):
        return dist.all_gather_coalesced([[a, new()], [new(), b], *(some(2) for _ in range(n - 2))], some(2))

    def reduce_scatter_tensor_coalesced(a, b):
        return dist.group.WORLD.reduce_scatter_tensor_coalesced(
            [a, b], some(2, 4 * n), ReduceScatterOptions()
        )

    opts = AllreduceCoalescedOptions()
    return {
        "all_reduce_coalesced": lambda a, b: dist.all_reduce_coalesced([a, b]),
        "all_reduce_coalesced, far": lambda a, b: pg.allreduce_coalesced([a, *some(5), b], opts).wait(),
        "_coalescing_manager": in_a_block,
        "all_reduce of two": lambda a, b: pg.allreduce([a, b]),
        "broadcast of two": lambda a, b: pg.broadcast([a, b]),
        "all_gather": lambda a, b: dist.all_gather([a, b, *some(n - 2)], new()),
        "all_gather of two": all_gather_of_two,
        "all_gather_coalesced": all_gather_coalesced,
        "all_to_all": lambda a, b: dist.all_to_all([a, b, *some(n - 2)], some(n)),
        "reduce_scatter_tensor_coalesced": reduce_scatter_tensor_coalesced,
    }


def in_a_block(a, b):
    with dist._coalescing_manager():
        dist.all_reduce(a)
        dist.all_reduce(b)


def batch(ops):
    for work in dist.batch_isend_irecv([dist.P2POp(op, t, 1) for op, t in ops]):
        work.wait()


def lists_that_overlap(rank, n, device):
    """One rank alone makes the mistake; nothing is sent, and nothing is written."""
    if rank == 0:
        forms = calls(n, device)
        forms["gather"] = lambda a, b: dist.gather(torch.zeros(4, device=device), [a, torch.zeros_like(a), b])
        forms["receives of a batch"] = lambda a, b: batch([(dist.irecv, a), (dist.irecv, b)])
        for form, call in forms.items():
            for name, (a, b) in shapes(device)[0].items():
                with pytest.raises(ValueError, match=WRITTEN):
                    call(a, b)
                    pytest.fail(f"{form}: {name} was accepted")
        t = torch.zeros(8, device=device)
        for form in ("all_reduce_coalesced, far", "receives of a batch"):
            with pytest.raises(ValueError, match=WRITTEN):
                forms[form](t[:4], t.view(torch.uint8)[13:29:4])
    assert_works(device)


@pytest.mark.parametrize("device", DEVICES)
def test_what_a_call_writes_may_not_overlap(pool, device):
    pool.run(lists_that_overlap, 3, device)


def lists_that_do_not(rank, n, device):
    """Whatever lies between the elements of a tensor may be another's."""
    for form, call in calls(n, device).items():
        for name, (a, b) in shapes(device)[1].items():
            a.fill_(rank + 1)
            b.fill_(10 * rank)
            call(a, b)
            if form in ("all_reduce_coalesced", "all_reduce_coalesced, far", "_coalescing_manager"):
                assert (a == n * (n + 1) / 2).all() and (b == 10 * sum(range(n))).all(), (form, name)
    assert_works(device)


@pytest.mark.parametrize("device", DEVICES)
def test_what_lies_between_each_other_does_not_overlap(pool, device):
    pool.run(lists_that_do_not, 3, device)


def joined(rank, n, device):
    """An operation of a call may not write what another one of the call reads: their order is undefined."""
    if rank == 0:
        into, from_ = AllgatherOptions(), ReduceScatterOptions()

        def new(count=4):
            return torch.zeros(count, device=device)

        whole = new(4 * n)
        refused = {
            "gathered into another's input": lambda: dist.group.WORLD.allgather_into_tensor_coalesced(
                [new(4 * n), whole], [whole[4:8], new()], into
            ),
            "gathered into an earlier one's input": lambda: dist.group.WORLD.allgather_into_tensor_coalesced(
                [whole, new(4 * n)], [new(), whole[:8:2]], into
            ),
            "a list": lambda: dist.all_gather_coalesced(
                [[new(), whole[:4]], *([new(), new()] for _ in range(n - 1))], [whole[2:6], new()]
            ),
            "scattered": lambda: dist.group.WORLD.reduce_scatter_tensor_coalesced(
                [new(), whole[1:5]], [whole, new(4 * n)], from_
            ),
            "a batch": lambda: batch([(dist.isend, whole[:4]), (dist.irecv, whole[3:7])]),
            "a batch the other way round": lambda: batch(
                [(dist.irecv, whole[:4]), (dist.isend, whole[:8:2])]
            ),
        }
        for name, call in refused.items():
            with pytest.raises(ValueError, match=JOINED):
                call()
                pytest.fail(f"{name} was accepted")
        with pytest.raises(ValueError, match=WRITTEN):
            dist.group.WORLD.allgather_into_tensor_coalesced([whole, whole], [new(), new()], into)
    assert_works(device)
    # What is right alone is right together: in place, and inputs that are read more than once.
    whole = [torch.zeros(4 * n, device=device) for _ in range(2)]
    own = [t[4 * rank :][:4].fill_(rank + i) for i, t in enumerate(whole)]
    dist.group.WORLD.allgather_into_tensor_coalesced(whole, own, AllgatherOptions()).wait()
    assert all(t[::4].tolist() == [r + i for r in range(n)] for i, t in enumerate(whole))
    dist.group.WORLD.reduce_scatter_tensor_coalesced(own, whole, ReduceScatterOptions()).wait()
    assert all((t == n * (rank + i)).all() for i, t in enumerate(own))
    mine, out = (
        torch.full((4,), float(rank), device=device),
        [torch.zeros(4 * n, device=device) for _ in range(2)],
    )
    dist.group.WORLD.allgather_into_tensor_coalesced(out, [mine, mine], AllgatherOptions()).wait()
    assert all(t[::4].tolist() == list(range(n)) for t in out)
    received = [torch.zeros(4, device=device) for _ in range(n)]
    ops = [dist.P2POp(dist.isend, mine, r) for r in range(n) if r != rank]
    ops += [dist.P2POp(dist.irecv, received[r], r) for r in range(n) if r != rank]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    assert all((t == r).all() for r, t in enumerate(received) if r != rank)
    t = torch.ones(4, device=device)
    results = functional.all_reduce_coalesced([t, t], "sum", dist.group.WORLD)  # copies of them are reduced
    assert all((functional.wait_tensor(result) == n).all() for result in results)


@pytest.mark.parametrize("device", DEVICES)
def test_joined_operations_may_not_write_what_others_read(pool, device):
    pool.run(joined, 3, device)


def blocks(rank, n, device):
    """Between startCoalescing and endCoalescing whatever is called; the next block is as good as new."""
    pg, t = backend(device), torch.ones(4, device=device)
    out = torch.zeros(4 * n, device=device)
    for _ in range(2):
        pg._start_coalescing()
        pg.allreduce([t])
        pg._allgather_base(out, t)
        with pytest.raises(ValueError, match=r"all_reduce \(coalesced\): .*" + JOINED):
            pg._end_coalescing()
        assert (t == 1).all()
        pg._start_coalescing()
        pg._allgather_base(out, t)
        pg.barrier()
        pg._end_coalescing().wait()
        assert (out == 1).all()
    assert_works(device)


def told(rank, n, device):
    """Ranks that wait in vain for one whose block was refused learn why."""
    t = torch.ones(4, device=device)
    if rank == 0:
        with pytest.raises(ValueError, match=WRITTEN):
            dist.all_reduce_coalesced([t, t])
    else:
        with pytest.raises(dist.DistBackendError, match=REFUSED + WRITTEN):
            dist.all_reduce_coalesced([t, t.clone()])


def told_of_a_batch(rank, n, device):
    t = torch.ones(4, device=device)
    if rank == 0:
        with pytest.raises(ValueError, match=r"send \(coalesced\): .*" + JOINED):
            batch([(dist.isend, t), (dist.irecv, t)])
    elif rank == 1:
        with pytest.raises(dist.DistBackendError, match=REFUSED + JOINED):
            dist.recv(t, 0)


@pytest.mark.parametrize("device", DEVICES)
def test_a_block_of_operations_is_checked_as_a_whole(pool, device):
    pool.run(blocks, 3, device)


@pytest.mark.parametrize("body", [told, told_of_a_batch])
def test_ranks_that_wait_in_vain_for_a_refused_block_are_told(fresh, body):
    with fresh(2) as team:
        team.join(timeout=1.5).run(body)
