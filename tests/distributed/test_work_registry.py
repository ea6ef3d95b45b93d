"""Works that c10d has registered, so that a graph can wait for their tensors: a wait takes them out again."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch._C._distributed_c10d import _get_work_registry_size
from torch.multiprocessing.reductions import StorageWeakRef

from tests.support.checks import assert_works
from tests.support.devices import DEVICES

allowed = functional.allow_inflight_collective_as_graph_input_ctx


def wait_until_freed(*storages):
    """The thread that drove an operation may be about to let go of its tensors."""
    while not all(storage.expired() for storage in storages):
        time.sleep(0.001)


def calls(rank, n, device):
    """Every operation of torch.distributed that gives a work."""
    world, back = dist.group.WORLD, (rank - 1) % n

    def new(count=1000):
        return torch.ones(count, device=device)

    def some(count=n):
        return [new() for _ in range(count)]

    async_op = {"async_op": True}
    return {
        "all_reduce": lambda: dist.all_reduce(new(), **async_op),
        "group.allreduce_coalesced": lambda: world.allreduce_coalesced(some(3)),
        "broadcast": lambda: dist.broadcast(new(), 0, **async_op),
        "reduce": lambda: dist.reduce(new(), 0, **async_op),
        "all_gather": lambda: dist.all_gather(some(), new(), **async_op),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(new(1000 * n), new(), **async_op),
        "group.allgather_coalesced": lambda: world.allgather_coalesced([some(2) for _ in range(n)], some(2)),
        "gather": lambda: dist.gather(new(), some() if rank == 0 else None, **async_op),
        "scatter": lambda: dist.scatter(new(), some() if rank == 0 else None, **async_op),
        "reduce_scatter": lambda: dist.reduce_scatter(new(), some(), **async_op),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(new(), new(1000 * n), **async_op),
        "all_to_all": lambda: dist.all_to_all(some(), some(), **async_op),
        "all_to_all_single": lambda: dist.all_to_all_single(new(1000 * n), new(1000 * n), **async_op),
        "barrier": lambda: dist.barrier(**async_op),
        "a batch": lambda: dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, new(), (rank + 1) % n), dist.P2POp(dist.irecv, new(), back)]
        )[0],
        "group.allreduce": lambda: world.allreduce(some(1)),
    }


def waited(rank, n, device):
    assert _get_work_registry_size() == 0
    for name, call in calls(rank, n, device).items():
        with allowed():
            works = [call() for _ in range(3)]
            assert _get_work_registry_size() > 0 or name == "gather", name
            for work in works:
                work.wait()
            assert _get_work_registry_size() == 0, name
            works = [call()]
        works[0].wait()  # after the block, too
        assert _get_work_registry_size() == 0, name
    with allowed():
        t = torch.ones(4, device=device)
        dist.all_reduce(t)
        dist.barrier()
        dist.send(t, (rank + 1) % n)
        dist.recv(t, (rank - 1) % n)
        assert _get_work_registry_size() == 0


def freed(rank, n, device):
    """The registry held the works, and they their tensors."""
    storages = []
    with allowed():
        for _ in range(40):
            t = torch.ones(10_000, device=device)
            storages.append(StorageWeakRef(t.untyped_storage()))
            dist.all_reduce(t, async_op=True).wait()
    del t
    wait_until_freed(*storages)


def ended_otherwise(rank, n, device):
    """A failed work is taken out as well; one whose wait was given up stays, for it is still in flight."""
    with allowed():
        work = dist.all_reduce(torch.ones(4 + (rank == 0), device=device), async_op=True)
        with pytest.raises(dist.DistBackendError):
            work.wait()
        assert _get_work_registry_size() == 0
        t = torch.ones(4, device=device)
        if rank == 0:
            work = dist.irecv(t, 1)
            with pytest.raises(dist.DistBackendError, match="still in flight"):
                work.wait(timedelta(milliseconds=10))
            assert _get_work_registry_size() == 1
            dist.send(torch.ones(1, device=device), 1, tag=7)
            work.wait()
        elif rank == 1:
            dist.recv(torch.ones(1, device=device), 0, tag=7)
            dist.send(t, 0)
        assert _get_work_registry_size() == 0
    assert_works(device)


def functional_collectives(rank, n, device):
    storages = []
    for _ in range(20):
        t = torch.ones(1000, device=device)
        results = [
            functional.all_reduce(t, "sum", dist.group.WORLD),
            functional.all_gather_tensor(t, 0, dist.group.WORLD),
            functional.reduce_scatter_tensor(t.repeat(n), "sum", 0, dist.group.WORLD),
            functional.all_to_all_single(t.repeat(n), None, None, dist.group.WORLD),
            functional.broadcast(t, 0, dist.group.WORLD),
            *functional.all_reduce_coalesced([t, t], "sum", dist.group.WORLD),
        ]
        assert _get_work_registry_size() == len(results)
        values = [functional.wait_tensor(result) for result in results]
        assert (values[0] == n).all()
        assert _get_work_registry_size() == 0
        storages += [StorageWeakRef(v.untyped_storage()) for v in [t, *values]]
    del t, results, values
    wait_until_freed(*storages)


def compiled_graphs(rank, n, device):
    @torch.compile(backend="aot_eager", fullgraph=True)
    def inside(t):
        return functional.all_reduce(t * 2, "sum", dist.group.WORLD) + 1

    @torch.compile(backend="aot_eager", fullgraph=True)
    def waits(t):
        torch.ops.c10d_functional.wait_tensor(t)
        return t * 2

    storages = []
    for _ in range(5):
        t = torch.ones(1000, device=device)
        result = inside(t)
        assert (result == 2 * n + 1).all() and _get_work_registry_size() == 0
        with allowed():
            eager = t * 3
            dist.all_reduce(eager, async_op=True)
            assert _get_work_registry_size() == 1
            doubled = waits(eager)
            assert (doubled == 6 * n).all() and _get_work_registry_size() == 0
        storages += [StorageWeakRef(x.untyped_storage()) for x in (t, result, eager, doubled)]
    del t, result, eager, doubled
    wait_until_freed(*storages)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("body", [waited, freed, ended_otherwise, functional_collectives])
def test_a_wait_takes_works_out_of_the_registry(pool, body, device):
    pool.run(body, 2, device)


@pytest.mark.parametrize("device", DEVICES)
def test_compiled_graphs_leave_nothing_in_the_registry(fresh, device):
    with fresh(2) as team:
        team.join().run(compiled_graphs, device)


def under_a_side_stream(rank, n, device):
    """The host goes on, and so does the work; the registry needs it no more."""
    stream = torch.dev.Stream()
    with allowed(), torch.dev.stream(stream):
        t = torch.ones(100_000, device=device)
        dist.all_reduce(t, async_op=True).wait()
        assert _get_work_registry_size() == 0
    stream.synchronize()
    assert (t == n).all()


@pytest.mark.skipif("dev" not in DEVICES, reason="streams are the device's")
def test_a_stream_that_waits_is_enough(pool):
    pool.run(under_a_side_stream, 2, "dev")
