"""What a backend may offer beyond collectives: shrinking, merging, hooks, memory, estimates and more."""

from __future__ import annotations

import os
import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import SHRINK_ABORT, SHRINK_DEFAULT

import torch_occl
from tests.support.checks import assert_works, backend
from tests.support.devices import DEVICES
from tests.support.gates import open_when_the_caller_sleeps
from tests.support.worker import listen, tell

MIB = 1 << 20


# ---- monitored barrier ---------------------------------------------------------------------------------


def all_pass(rank, n, device):
    for _ in range(20):
        dist.group.WORLD.monitored_barrier(timedelta(seconds=60))


def some_stay_away(rank, n, device, *, wait_all, away):
    if rank not in away:
        timeout = timedelta(milliseconds=200) if rank == 0 else timedelta(seconds=60)
        # Gloo's words, which programs look for: "Ranks" also where it is one.
        missing = "Ranks " + ", ".join(map(str, away)) if wait_all else "Rank 1"
        with pytest.raises(RuntimeError, match=rf"{missing} failed to pass monitoredBarrier in \d+ ms"):
            dist.group.WORLD.monitored_barrier(timeout, wait_all)
    assert_works(device)


@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_a_monitored_barrier_lets_everybody_pass(pool, world_size):
    pool.run(all_pass, world_size)


@pytest.mark.parametrize("away", [(1,), (1, 2)])
@pytest.mark.parametrize("wait_all", [False, True])
def test_a_monitored_barrier_names_who_stays_away_and_the_group_goes_on(fresh, wait_all, away):
    with fresh(4) as team:
        team.join().run(some_stay_away, wait_all=wait_all, away=away)


# ---- shrink --------------------------------------------------------------------------------------------


def shrink_and_go_on(rank, n, device, *, gone, flag, die):
    if rank in gone:
        if die:
            tell(os.getpid())
            listen()
        return
    tell("ready")
    if die:
        listen()
    if flag == SHRINK_ABORT:
        never = dist.all_reduce(torch.ones(1, device=device), async_op=True)
    shrink = dist.shrink_group if device == "cpu" else torch_occl.shrink_group
    group = shrink(sorted(gone), shrink_flags=flag)
    survivors = [r for r in range(n) if r not in gone]
    assert (dist.get_rank(), dist.get_world_size()) == (survivors.index(rank), len(survivors))
    assert_works(device, group)
    assert_works(device)  # it is the new default group
    if flag == SHRINK_ABORT:
        with pytest.raises(dist.DistBackendError, match="exited|SHRINK_ABORT" if die else "SHRINK_ABORT"):
            never.wait()
    if len(survivors) > 2:  # and once more
        if rank == survivors[-1]:
            return
        shrink([len(survivors) - 1])
        assert_works(device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("flag", [SHRINK_DEFAULT, SHRINK_ABORT])
@pytest.mark.parametrize(("world_size", "gone"), [(2, {0}), (4, {1}), (5, {0, 3})])
def test_the_others_shrink_the_group(fresh, world_size, gone, flag, device):
    with fresh(world_size) as team:
        team.join().run(shrink_and_go_on, device, gone=gone, flag=flag, die=False)


@pytest.mark.parametrize("flag", [SHRINK_DEFAULT, SHRINK_ABORT])
@pytest.mark.parametrize("victim", [0, 2])
def test_survivors_shrink_the_group_after_a_death(fresh, victim, flag):
    """With a file store, rank 0 is a rank like the others; the group shrinks without any store."""
    with fresh(4) as team:
        team.join().start(shrink_and_go_on, "cpu", gone={victim}, flag=flag, die=True)
        for rank in range(4):
            team.hear(rank)
        team.kill(victim)
        team.wait_for(victim)
        for rank in set(range(4)) - {victim}:
            team.say(rank, "go on")
        for outcome in team.finish():
            assert outcome.rank == victim or not outcome.failed, outcome.traceback


def shrinks_a_part(rank, n, device):
    """The group of ranks 1, 2 and 3 without its rank 1, and then without its rank 0."""
    part = dist.new_group([1, 2, 3])
    for excluded, stay in ((1, [1, 3]), (0, [3])):
        if rank not in stay:
            return
        part = torch_occl.shrink_group([excluded], part)
        assert dist.get_process_group_ranks(part) == stay
        assert backend(device, part).options.global_ranks_in_group == stay
        t = torch.full((2,), float(rank), device=device)
        dist.broadcast(t, src=3, group=part)
        assert (t == 3).all()


@pytest.mark.parametrize("device", DEVICES)
def test_ranks_of_a_part_that_shrank_are_those_of_the_default_group(fresh, device):
    with fresh(4) as team:
        team.join().run(shrinks_a_part, device)


def shrink_bound(rank, n, device, *, store):
    """With a device_id, PyTorch's own function does it on `dev`."""
    dist.init_process_group(
        store=dist.FileStore(store, n), rank=rank, world_size=n, device_id=torch.device("dev:0")
    )
    if rank == 1:
        return
    dist.shrink_group([1])
    assert_works("dev")


@pytest.mark.skipif("dev" not in DEVICES, reason="needs the device")
def test_a_group_bound_to_a_device_shrinks(fresh):
    with fresh(3) as team:
        team.run(shrink_bound, store=team.source.new_file())


def disagree(rank, n, device):
    if rank == 2:
        return
    with pytest.raises(dist.DistBackendError, match=r"shrink group \S+ to ranks 0, 1"):
        backend().shrink([2, 3] if rank == 0 else [2], 0, None)


def test_ranks_that_exclude_different_ones_are_told(fresh):
    with fresh(4) as team:
        team.join().run(disagree)


# ---- merge ---------------------------------------------------------------------------------------------


def merge_halves(rank, n, device, *, store):
    halves = [dist.new_group([0, 1], backend="occl"), dist.new_group([2, 3], backend="occl")]
    half = backend(group=halves[rank // 2])
    whole = half.merge(dist.FileStore(store, n), rank, n)
    t = torch.full((1000,), rank, device=device)
    whole.allreduce([t]).wait()
    assert (t == 6).all()
    whole.shutdown()


def test_groups_merge(fresh):
    with fresh(4) as team:
        team.join().run(merge_halves, store=team.source.new_file())


# ---- completion hooks ----------------------------------------------------------------------------------


def hooked(rank, n, device):
    seen = []
    ours = backend(device)
    ours._register_on_completion_hook(
        lambda info: seen.append((info.op_type, info.seq, info.active_duration))
    )
    before = ours._get_sequence_number_for_group()
    t = torch.ones(10, device=device)
    works = [dist.all_reduce(t, async_op=True) for _ in range(5)]
    dist.broadcast(t, src=0)
    dist.barrier()
    ours._wait_for_pending_works()
    kinds = sorted(str(kind).rsplit(".")[-1] for kind, _, _ in seen)
    assert kinds == ["ALLREDUCE"] * 5 + ["BARRIER", "BROADCAST"]
    assert sorted(seq for _, seq, _ in seen) == [before + 1 + i for i in range(7)]
    assert all(duration >= timedelta(0) for _, _, duration in seen)
    with pytest.raises(ValueError, match="has a hook already"):
        ours._register_on_completion_hook(print)
    for work in works:
        work.wait()


@pytest.mark.parametrize("device", DEVICES)
def test_a_completion_hook_hears_of_every_work(fresh, device):
    with fresh(2) as team:
        team.join().run(hooked, device)


def a_hook_takes_its_time(rank, n, device):
    """The background thread calls rank 0's; waiting for it ends when it has returned."""
    t = torch.zeros(1, device=device)
    if rank == 1:
        listen()
        dist.send(t, 0)
        return
    ours, entered, opened = backend(device), threading.Event(), threading.Event()
    ours._register_on_completion_hook(lambda info: (entered.set(), opened.wait()))
    work = dist.irecv(t, 1)
    tell("issued")
    entered.wait()
    open_when_the_caller_sleeps(opened)
    ours._wait_for_pending_works()
    assert opened.is_set()
    work.wait()


@pytest.mark.parametrize("device", DEVICES)
def test_pending_works_are_those_whose_hook_has_not_returned(fresh, device):
    with fresh(2) as team:
        team.join().start(a_hook_takes_its_time, device)
        assert team.hear(0) == "issued"
        team.say(1, "go on")
        for outcome in team.finish():
            assert not outcome.failed, outcome.traceback


# ---- memory --------------------------------------------------------------------------------------------


def allocated(rank, n, device):
    ours = backend(device)
    assert ours.supports_tensor_alloc(torch.device(device))
    t = ours.allocate_tensor(3 * MIB, dtype=torch.float32, device=torch.device(device))
    assert (t.device.type, t.dtype, t.shape) == (device, torch.float32, (3 * MIB,))
    t.fill_(rank + 1)
    dist.all_reduce(t)
    assert (t == n * (n + 1) // 2).all()
    assert ours.memory_stats()["group.staging_bytes"] == 0  # it went straight from tensor to tensor
    with pytest.raises(ValueError, match="unsupported device type"):
        ours.allocate_tensor(1, dtype=torch.float32, device=torch.device("meta"))


@pytest.mark.skipif("dev" not in DEVICES, reason="without the device there is no memory that peers map")
@pytest.mark.parametrize("device", DEVICES)
def test_tensors_that_the_backend_allocates_need_no_detour(fresh, device):
    with fresh(2) as team:
        team.join().run(allocated, device)


def shared_empty(rank, n, device):
    t = torch_occl.empty_shared(2, MIB, dtype=torch.int32)
    assert (t.device.type, t.shape) == ("cpu", (2, MIB))
    t.fill_(1)
    dist.all_reduce(t)
    assert (t == n).all()
    assert backend().memory_stats()["group.staging_bytes"] == 0


@pytest.mark.skipif("dev" not in DEVICES, reason="without the device there is no memory that peers map")
def test_empty_shared_is_cpu_memory_that_peers_map(fresh):
    with fresh(2) as team:
        team.join().run(shared_empty)


def staging_is_counted(rank, n, device):
    ours = backend()
    before = ours.memory_stats()
    assert before["group.staging_bytes"] == 0
    dist.all_reduce(torch.ones(4 * MIB))
    stats = ours.memory_stats()
    assert stats["group.staging_bytes"] > 0
    assert stats["process.staging_bytes"] >= stats["group.staging_bytes"]


def test_the_memory_of_a_group_is_counted(fresh):
    with fresh(2) as team:
        team.join().run(staging_is_counted)


# ---- estimates -----------------------------------------------------------------------------------------


def estimated(rank, n, device):
    def estimate(count):
        t = torch.ones(count, device=device)
        with dist.distributed_c10d._time_estimator(device=torch.device(device)) as cm:
            dist.all_reduce(t)
            dist.all_reduce(t)
        assert (t == 1).all()  # it did not run
        return cm.estimated_time

    small, large = estimate(1), estimate(16 * MIB)
    assert 0 < small < large
    assert_works(device)
    with pytest.raises(ValueError, match="no time estimate has begun"):
        backend(device)._end_time_estimate()


@pytest.mark.parametrize("device", DEVICES)
def test_durations_are_estimated_without_running(pool, device):
    pool.run(estimated, 2, device)


# ---- a wrong argument on one rank alone ----------------------------------------------------------------


def wrong_on_one(rank, n, device):
    t = torch.ones(4, device=device)
    if rank == 1:
        with pytest.raises(ValueError, match="BAND has no meaning"):
            dist.all_reduce(t, op=dist.ReduceOp.BAND)
        return
    refused = r"Timed out .*rank 1 \(pid .*; its call was refused there: .*BAND has no meaning"
    with pytest.raises(dist.DistBackendError, match=refused):
        dist.all_reduce(t)


@pytest.mark.parametrize("device", DEVICES)
def test_ranks_that_wait_in_vain_for_a_call_with_wrong_arguments_are_told(fresh, device):
    with fresh(3) as team:
        team.join(timeout=1.5).run(wrong_on_one, device)


def wrong_and_right(rank, n, device):
    t = torch.ones(4, device=device)
    for _ in range(3):
        if rank == 1:
            with pytest.raises(ValueError, match="invalid root rank"):
                backend(device).broadcast(t, 99)
        dist.broadcast(t, src=0)
    assert_works(device)


def test_a_call_that_is_put_right_harms_nobody(pool):
    pool.run(wrong_and_right, 3)


# ---- sparse --------------------------------------------------------------------------------------------


def random_sparse(rank, *, dense, dtype, device):
    generator = torch.Generator().manual_seed(rank)
    nnz = (0, 7, 40)[rank % 3]
    indices = torch.randint(0, 6, (2, nnz), generator=generator)  # with duplicates
    values = torch.randint(-8, 8, (nnz, *dense), generator=generator).to(dtype)
    return torch.sparse_coo_tensor(indices, values, (6, 6, *dense)).to(device)


def sparse_sums(rank, n, device):
    for dense in ((), (3,)):
        for dtype in (torch.float32, torch.int64, torch.bfloat16):
            t = random_sparse(rank, dense=dense, dtype=dtype, device=device)
            dist.all_reduce(t)
            expected = sum(
                random_sparse(r, dense=dense, dtype=dtype, device="cpu").to_dense() for r in range(n)
            )
            assert t.is_coalesced() and t.device.type == device and t.dtype == dtype
            assert torch.equal(t.to_dense().cpu(), expected), (dense, dtype)
    t = random_sparse(1, dense=(), dtype=torch.float32, device=device)
    work = dist.all_reduce(t, op=dist.ReduceOp.AVG, async_op=True)
    work.wait()
    assert torch.equal(
        work.result()[0].to_dense().cpu(),
        random_sparse(1, dense=(), dtype=torch.float32, device="cpu").to_dense(),
    )
    for value, dtype in (
        (100, torch.int8),
        (-7, torch.int32),
        ((1 << 40) + 1, torch.int64),
        (6e4, torch.float16),
    ):
        t = torch.sparse_coo_tensor([[1]], torch.tensor([value], dtype=dtype), (3,)).to(device)
        dist.all_reduce(t, op=dist.ReduceOp.AVG)
        assert t.to_dense()[1].item() == value, "as of dense tensors, narrow types do not overflow"
    t = torch.sparse_coo_tensor([[1]], torch.tensor([-1 if rank == 0 else 0]), (3,)).to(device)
    dist.all_reduce(t, op=dist.ReduceOp.AVG)
    assert t.to_dense()[1].item() == 0, "averages of integers are truncated"
    with pytest.raises(ValueError, match="SUM and AVG only"):
        dist.all_reduce(t, op=dist.ReduceOp.MAX)
    op = dist.ReduceOp.AVG if rank == 0 else dist.ReduceOp.SUM
    with pytest.raises(dist.DistBackendError, match=r"sparse dimensions, (SUM|AVG)\) where .*, (SUM|AVG)\)"):
        dist.all_reduce(t, op=op)
    wrong = torch.sparse_coo_tensor(size=(5 + rank, 4)).to(device)
    with pytest.raises(dist.DistBackendError, match=r"rank \d called all_reduce_sparse\(Float\[\d, 4\]"):
        dist.all_reduce(wrong)
    assert_works(device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_sparse_tensors_are_added_up(pool, world_size, device):
    pool.run(sparse_sums, world_size, device)


def sparse_among_others(rank, n, device):
    """A call of several collectives takes its place among the others, and is one operation."""
    before = backend(device)._get_sequence_number_for_group()
    for _ in range(3):
        sparse = torch.eye(4).to_sparse().to(device)
        works = [dist.all_reduce(sparse, async_op=True)]
        dense = [torch.full((3,), float(i), device=device) for i in range(3)]
        works += [dist.all_reduce(t, async_op=True) for t in dense]
        future = works[0].get_future()
        for work in reversed(works):
            work.wait()
        assert torch.equal(sparse.to_dense().cpu(), torch.eye(4) * n)
        assert torch.equal(future.wait()[0].to_dense().cpu(), torch.eye(4) * n)
        assert [t[0].item() for t in dense] == [0.0, n, 2.0 * n]
    assert backend(device)._get_sequence_number_for_group() == before + 12
    # What differs is found before anything is moved; the group goes on with what comes next.
    wrong = torch.eye(4 + rank).to_sparse().to(device)
    works = [dist.all_reduce(wrong, async_op=True), dist.all_reduce(dense[0], async_op=True)]
    with pytest.raises(dist.DistBackendError, match=r"rank \d called all_reduce_sparse"):
        works[0].wait()
    works[1].wait()
    assert_works(device)


@pytest.mark.parametrize("device", DEVICES)
def test_sparse_sums_are_asynchronous(pool, device):
    pool.run(sparse_among_others, 3, device)


def several_sparse(rank, n, device):
    """Several of each rank in one call add up, and all of them become the sum, as dense ones do."""
    pg = backend(device)
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        parts = [
            [random_sparse(3 * r + i, dense=(2,), dtype=dtype, device="cpu") for i in range(3)]
            for r in range(n)
        ]
        several = [t.to(device) for t in parts[rank]]
        expected = sum(t.to_dense() for own in parts for t in own)
        pg.allreduce(several).wait()
        for t in several:
            assert t.is_coalesced() and torch.equal(t.cpu().to_dense(), expected)
    a, b = (torch.eye(4).to_sparse().to(device) for _ in range(2))
    opts = dist.AllreduceOptions()
    opts.reduceOp = dist.ReduceOp.AVG
    refused = {
        "AVG takes one tensor of each rank": lambda: pg.allreduce([a, b], opts),
        "invalid tensor layout .* at index 1": lambda: pg.allreduce([a, b.to_dense()]),
        "invalid tensor layout .* at index 0": lambda: pg.allreduce([b.to_dense(), a]),
        "invalid tensor type at index 1": lambda: pg.allreduce([a, b.int()]),
        "invalid tensor size at index 1": lambda: pg.allreduce([a, torch.eye(5).to_sparse().to(device)]),
        "2 sparse dimensions, got .* with 1": lambda: pg.allreduce([a, torch.eye(4).to_sparse(1).to(device)]),
        "overlap": lambda: pg.allreduce([a, a]),
    }
    for text, call in refused.items():
        with pytest.raises(ValueError, match=text):
            call()
    assert_works(device)


@pytest.mark.parametrize("device", DEVICES)
def test_several_sparse_tensors_of_one_rank_add_up(pool, device):
    pool.run(several_sparse, 3, device)


def sparse_ddp(rank, n, device):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Embedding(20, 4, sparse=True), torch.nn.Linear(4, 2)).to(device)
    single = torch.nn.Sequential(torch.nn.Embedding(20, 4, sparse=True), torch.nn.Linear(4, 2)).to(device)
    single.load_state_dict(model.state_dict())
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    batch = torch.arange(8 * n, device=device) % 20
    for step in range(3):
        ddp(batch.roll(step)[rank * 8 : rank * 8 + 8]).pow(2).mean().backward()
        single(batch.roll(step)).pow(2).mean().backward()
        for mine, theirs in zip(model.parameters(), single.parameters(), strict=True):
            torch.testing.assert_close(mine.grad.to_dense(), theirs.grad.to_dense())
        model.zero_grad()
        single.zero_grad()


@pytest.mark.parametrize("device", DEVICES)
def test_ddp_trains_sparse_embeddings(pool, device):
    pool.run(sparse_ddp, 2, device)


# ---- the rest ------------------------------------------------------------------------------------------


def works_are_alive_without_python(rank, n, device):
    """The test keeps neither the tensors nor the works; memory that were freed would be overwritten."""
    kept, events = [], []
    for _ in range(50):
        t = torch.full((50_000,), float(rank), device=device)
        done = threading.Event()
        events.append(done)
        dist.all_reduce(t, async_op=True).get_future().add_done_callback(
            lambda future, done=done: (kept.append(future.value()[0].sum().item()), done.set())
        )
        del t
        torch.full((50_000,), -1.0, device=device)
    dist.barrier()
    assert all(event.wait(60) for event in events)
    assert kept == [50_000.0 * n * (n - 1) / 2] * 50


@pytest.mark.parametrize("device", DEVICES)
def test_works_keep_their_tensors_alive(pool, device):
    pool.run(works_are_alive_without_python, 2, device)
