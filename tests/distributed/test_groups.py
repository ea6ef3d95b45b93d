"""Many groups: overlapping, in any order of use (I3), from many threads, destroyed in any order."""

from __future__ import annotations

import os
import random
import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from tests.support.checks import assert_works
from tests.support.devices import DEVICES
from tests.support.worker import join


def rank_sum(n):
    return n * (n + 1) // 2


def subgroups(rank, n, device, *, groups, size):
    """Random subgroups, all alive at once, used and destroyed in an order that differs from their making."""
    same = random.Random(17)
    members = [sorted(same.sample(range(n), size)) for _ in range(groups)]
    made = [dist.new_group(ranks, backend="occl") for ranks in members]
    mine = [(ranks, group) for ranks, group in zip(members, made, strict=True) if rank in ranks]
    order = list(range(len(made)))
    for _ in range(2):
        same.shuffle(order)
        for i in order:
            if rank not in members[i]:
                continue
            t = torch.full((100,), rank, device=device)
            dist.all_reduce(t, group=made[i])
            assert (t == sum(members[i])).all(), (i, members[i], t)
    for ranks, group in mine:
        t = torch.full((3,), rank, device=device)
        dist.broadcast(t, group=group, src=ranks[-1])
        assert (t == ranks[-1]).all()
    same.shuffle(order)
    for i in order:
        if rank in members[i]:
            dist.destroy_process_group(made[i])
    assert_works(device)


def opposite_orders(rank, n, device, *, count, groups):
    """Every rank issues on all groups without waiting, in an order of its own."""
    made = [dist.new_group(backend="occl") for _ in range(groups)]
    order = random.Random(rank)
    for i in range(20):
        issued = order.sample(range(groups), groups)
        tensors = [
            torch.full((count + g,), rank + g, dtype=torch.int64, device=device) for g in range(groups)
        ]
        works = {g: dist.all_reduce(tensors[g], group=made[g], async_op=True) for g in issued}
        for g in order.sample(range(groups), groups):
            works[g].wait()
        for g, t in enumerate(tensors):
            assert (t == n * g + rank_sum(n - 1)).all(), (i, g)
    for group in made:
        dist.destroy_process_group(group)


def two_groups_crosswise(rank, n, device, *, count):
    """Rank 0: A then B; rank 1: B then A."""
    a, b = dist.new_group(backend="occl"), dist.new_group(backend="occl")
    for _ in range(50):
        tensors = {group: torch.ones(count, device=device) for group in (a, b)}
        works = [
            dist.all_reduce(tensors[group], group=group, async_op=True)
            for group in ((a, b) if rank == 0 else (b, a))
        ]
        for work in works:
            work.wait()
        assert all((t == n).all() for t in tensors.values())
    for group in (b, a):
        dist.destroy_process_group(group)


def held_up(rank, n, device):
    """A collective that a rank does not join for long holds up neither other groups nor messages."""
    a, b = dist.new_group(backend="occl"), dist.new_group(backend="occl")
    waiting = None if rank == 1 else dist.all_reduce(torch.ones(5, device=device), group=a, async_op=True)
    for count in (1, 1000, 300_000):
        t = torch.ones(count, device=device)
        dist.all_reduce(t, group=b)
        assert (t == n).all()
        out = torch.zeros(count, device=device)
        sending = dist.isend(torch.full_like(out, rank), (rank + 1) % n, group=a)
        dist.recv(out, (rank - 1) % n, group=a)
        sending.wait()
        assert (out == (rank - 1) % n).all()
    if rank != 1:
        assert not waiting.is_completed()
    dist.barrier(b)
    if rank == 1:
        waiting = dist.all_reduce(torch.ones(5, device=device), group=a, async_op=True)
    waiting.wait()
    for group in (a, b):
        dist.destroy_process_group(group)


def from_many_threads(rank, n, device, *, threads):
    """Each Python thread has a group, and waits for its own collectives."""
    groups, failures = [dist.new_group(backend="occl") for _ in range(threads)], []

    def run(i):
        try:
            for k in range(30):
                t = torch.full((1 + 997 * k,), rank + i, dtype=torch.int64, device=device)
                dist.all_reduce(t, group=groups[i])
                assert (t == n * i + rank_sum(n - 1)).all(), (i, k)
        except BaseException as error:
            failures.append(error)
            raise

    running = [threading.Thread(target=run, args=(i,)) for i in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert not failures
    for group in groups:
        dist.destroy_process_group(group)


def same_group_from_threads(rank, n, device):
    """Threads share a group: what each rank issues is the same whichever thread is first."""
    failures = []

    def run():
        try:
            for _ in range(100):
                t = torch.ones(500, device=device)
                dist.all_reduce(t)
                assert (t == n).all()
        except BaseException as error:
            failures.append(error)
            raise

    running = [threading.Thread(target=run) for _ in range(4)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert not failures


def made_and_destroyed(rank, n, device, *, times):
    for _ in range(times):
        group = dist.new_group(backend="occl")
        assert_works(device, group)
        dist.destroy_process_group(group)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("groups", "size"), [(64, 8), (64, 3), (40, 1)])
def test_many_subgroups_of_eight_ranks(pool, groups, size, device):
    pool.run(subgroups, 8, device, groups=groups, size=size)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("count", [1, 5000, 200_000])
@pytest.mark.parametrize("world_size", [2, 3, 8])
def test_ranks_may_issue_on_groups_in_any_order(pool, world_size, count, device):
    pool.run(opposite_orders, world_size, device, count=count, groups=4)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("count", [1, 5000, 1_000_000])
def test_two_ranks_may_issue_on_two_groups_crosswise(pool, count, device):
    pool.run(two_groups_crosswise, 2, device, count=count)


@pytest.mark.parametrize("device", DEVICES)
def test_a_collective_that_waits_holds_up_no_other_group_and_no_message(pool, device):
    pool.run(held_up, 3, device)


@pytest.mark.parametrize("device", DEVICES)
def test_threads_may_use_groups_of_their_own(pool, device):
    pool.run(from_many_threads, 3, device, threads=8)


@pytest.mark.parametrize("device", DEVICES)
def test_threads_may_share_a_group(pool, device):
    pool.run(same_group_from_threads, 2, device)


@pytest.mark.parametrize("device", DEVICES)
def test_groups_may_come_and_go(pool, device):
    pool.run(made_and_destroyed, 3, device, times=100)


def leaves_at_once(rank, n, device, *, store):
    """Rank 2 has nothing to do, and its process ends as soon as it may."""
    join(rank, n, device, store=store, timeout=60)
    if rank == 2:
        os._exit(0)


@pytest.mark.parametrize("round", range(5))
def test_a_rank_that_leaves_at_once_keeps_nobody_from_joining(fresh, round):
    with fresh(3) as team:
        team.start(leaves_at_once, store=team.source.new_file())
        outcomes = team.finish()
        assert [outcome.died for outcome in outcomes] == ["", "", "exited with status 0"], outcomes
        assert not outcomes[0].failed and not outcomes[1].failed, outcomes


def groups_after_a_shrink(rank, n, device, *, store):
    """PyTorch counts the names of groups anew then, and so uses some again, with other ranks."""
    device_id = torch.device("dev", rank) if device == "dev" else None
    dist.init_process_group(
        "occl", store=dist.FileStore(store, n), rank=rank, world_size=n, device_id=device_id
    )
    assert_works(device, dist.new_group())
    assert_works(device, dist.new_group(timeout=timedelta(days=365_000)))  # more than nanoseconds can count
    if rank == 2:
        return
    dist.shrink_group([2])
    for _ in range(4):
        assert_works(device, dist.new_group(timeout=timedelta(seconds=20)))


@pytest.mark.parametrize("device", DEVICES)
def test_groups_are_made_after_a_shrink(fresh, device):
    with fresh(3) as team:
        team.run(groups_after_a_shrink, device, store=team.source.new_file())


def cannot_take_part(rank, n, device):
    if rank == 1:
        os.environ["OCCL_TUNING"] = "nonsense"
    words = r"rank 1 \(pid .*could not take part in group .*nonsense" if rank == 0 else "nonsense"
    with pytest.raises((ValueError, dist.DistBackendError), match=words):
        dist.new_group()
    os.environ.pop("OCCL_TUNING", None)
    assert_works(device, dist.new_group())


def test_a_rank_that_cannot_make_a_group_tells_the_others_why(fresh):
    with fresh(2) as team:
        team.join().run(cannot_take_part)
