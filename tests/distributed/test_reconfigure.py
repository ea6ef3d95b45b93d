"""Groups whose members change while their backends stay: `reconfigure`."""

from __future__ import annotations

import os
import random
import re
import signal
import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import torch_occl
from tests.support import groups
from tests.support.checks import assert_works
from tests.support.devices import DEVICES
from tests.support.groups import run
from tests.support.running import PYTORCH
from tests.support.worker import listen, tell

TRIALS = 8
"""Of each seed."""

pytestmark = pytest.mark.skipif(PYTORCH < (2, 14), reason="PyTorch 2.14 has it first")


def begin(rank: int, n: int, store: str, nodes: int = 1) -> dist.Store:
    """Returns the store in which the ranks leave their handles."""
    if nodes > 1:
        os.environ["OCCL_NODE"] = str(rank % nodes)
    shared = dist.FileStore(store, n)
    groups.begin(rank, n, shared, "occl", timeout=60.0, enable_reconfigure=True)
    shared.set(f"handle of {rank}", dist._get_reconfigure_handle())
    return shared


def handles_of(store: dist.Store, ranks: list[int]) -> list[str]:
    return [store.get(f"handle of {rank}").decode() for rank in ranks]


def make(store: dist.Store, uuid: int, ranks: list[int], timeout: float | None = None) -> None:
    """The group of these ranks, by position."""
    given = None if timeout is None else timedelta(seconds=timeout)
    assert dist._reconfigure(uuid, handles_of(store, ranks), timeout=given).wait()


def is_made_by_the_first_call(rank, n, device, *, store):
    shared = begin(rank, n, store)
    assert dist._supports_reconfigure()
    for call in (
        lambda: dist.all_reduce(torch.ones(3, device=device)),
        lambda: dist.barrier(),
        lambda: dist.isend(torch.ones(3, device=device), (rank + 1) % n),
        lambda: dist.new_group(list(range(n))),
    ):
        with pytest.raises(ValueError, match="has no members yet: all of them call reconfigure"):
            call()
    assert re.fullmatch(rf"occl:{rank}:[0-9a-f]+:pid {os.getpid()}, host .+", dist._get_reconfigure_handle())
    backwards = list(reversed(range(n)))
    make(shared, 7, backwards)
    assert (dist.get_rank(), dist.get_world_size()) == (n - 1 - rank, n)
    assert_works(device)
    ends = sorted({0, n - 1})
    of_ends = dist.new_group(ends)
    if dist.get_rank() in ends:
        assert_works(device, of_ends)
    make(shared, 8, list(range(n)))  # the same members again, in another order
    assert dist.get_rank() == rank
    assert_works(device)
    dist.destroy_process_group()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("n", [1, 2, 4])
def test_the_first_call_makes_the_group_and_the_next_ones_change_it(fresh, device, n):
    run(fresh, is_made_by_the_first_call, n, device)


def shrinks_and_grows(rank, n, device, *, store, nodes):
    shared = begin(rank, n, store, nodes)
    for uuid, members in enumerate([[0, 1, 2], [0, 2], [0, 3, 2], [1, 3], [3, 2, 1, 0]]):
        if rank in members:
            make(shared, uuid, members)
            assert dist.get_rank() == members.index(rank) and dist.get_world_size() == len(members)
            assert_works(device)
        shared.set(f"{uuid} done by {rank}", "")
        shared.wait([f"{uuid} done by {other}" for other in range(n)])
    dist.destroy_process_group()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("nodes", [1, 2])
def test_a_group_shrinks_grows_and_does_both_at_once(fresh, device, nodes):
    run(fresh, shrinks_and_grows, 4, device, nodes=nodes)


def halves_merge(rank, n, device, *, store):
    """As sets: the backend chooses the ranks."""
    shared = begin(rank, n, store)
    mine = [r for r in range(n) if r % 2 == rank % 2]
    dist._reconfigure(10 + rank % 2, set(handles_of(shared, mine))).wait()
    assert (dist.get_rank(), dist.get_world_size()) == (rank // 2, n // 2)
    assert_works(device)
    dist._reconfigure(20, set(handles_of(shared, list(range(n))))).wait()
    assert dist.get_rank() == rank
    assert_works(device)
    dist.destroy_process_group()


def test_two_halves_merge(fresh):
    run(fresh, halves_merge, 4)


def refuses_a_used_uuid(rank, n, device, *, store, seen_by):
    """`seen_by`: the ranks that have seen the uuid before; the others are told."""
    shared = begin(rank, n, store)
    if rank in seen_by:
        make(shared, 2, [rank])  # alone
    make(shared, 1, list(range(n)))
    with pytest.raises((ValueError, dist.DistBackendError), match="uuid 2 was already used in this group"):
        make(shared, 2, list(range(n)))
    assert dist.get_world_size() == n
    assert_works(device)
    make(shared, 3, list(range(n)))
    assert_works(device)
    dist.destroy_process_group()


@pytest.mark.parametrize("seen_by", [[0], [2], [0, 1, 2]])
def test_a_uuid_that_was_used_is_refused_on_all_ranks_and_the_group_stays(fresh, seen_by):
    run(fresh, refuses_a_used_uuid, 3, seen_by=seen_by)


def survives_a_death(rank, n, device, *, store, nodes):
    """Rank 1 dies while it waits for rank 2, which comes when rank 0 has given up."""
    shared = begin(rank, n, store, nodes)
    make(shared, 1, list(range(n)))
    assert_works(device)
    if rank == 1:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()
    if rank == 2:
        listen()
    with pytest.raises(dist.DistBackendError, match="rank 1"):
        make(shared, 2, list(range(n)), timeout=5.0)
    if rank == 0:
        tell("it has failed")
    make(shared, 3, [2, 0])
    assert dist.get_rank() == [2, 0].index(rank)
    assert_works(device)
    dist.destroy_process_group()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("nodes", [1, 2])
def test_a_member_that_dies_in_the_middle_fails_the_attempt_and_not_the_next_one(fresh, device, nodes):
    with fresh(3) as team:
        team.start(survives_a_death, device, store=team.source.new_file(), nodes=nodes)
        team.hear(0)
        team.say(2, "rank 0 has given up")
        outcomes = team.finish()
        assert [outcomes[rank].traceback for rank in (0, 2) if outcomes[rank].failed] == []


def in_flight(rank, n, device, *, store):
    """Rank 1 takes no part in the call."""
    shared = begin(rank, n, store)
    make(shared, 1, list(range(n)))
    work = dist.all_reduce(torch.ones(3, device=device), async_op=True) if rank == 0 else None
    make(shared, 2, list(range(n)))
    if work:
        with pytest.raises(dist.DistBackendError):
            work.wait()
    assert_works(device)
    dist.destroy_process_group()


@pytest.mark.parametrize("device", DEVICES)
def test_calls_in_flight_in_the_old_group_fail(fresh, device):
    run(fresh, in_flight, 2, device)


def refuses_wrong_handles(rank, n, device, *, store):
    shared = begin(rank, n, store)
    mine, other = handles_of(shared, [rank, 1 - rank])
    for handles, why in (
        ([], "is not among the 0 given"),
        ([other], "is not among the 1 given"),
        ([mine, other, mine], "members 0 and 2 have one handle"),
        ([mine, "gloo:0"], "'gloo:0' is no handle of occl"),
        ([mine, "occl:x:"], "'occl:x:' is no handle of occl"),
        ({mine, ""}, "'' is no handle of occl"),
    ):
        with pytest.raises(torch_occl.ArgumentError, match=re.escape(why)):
            dist._reconfigure(1, handles)
    make(shared, 1, list(range(n)))  # a call with wrong arguments uses up no uuid
    assert_works(device)
    dist.destroy_process_group()


def test_wrong_handles_are_errors_before_anything_is_sent(fresh):
    run(fresh, refuses_wrong_handles, 2)


def was_made_without(rank, n, device):
    for call in (dist._get_reconfigure_handle, lambda: dist._reconfigure(1, ["occl:0:0:"])):
        with pytest.raises(torch_occl.ArgumentError, match="enable_reconfigure=True"):
            call()
    assert_works(device)


def test_a_group_made_without_it_says_how(pool):
    pool.run(was_made_without, 2)


def windows_end(rank, n, device, *, store):
    shared = begin(rank, n, store)
    make(shared, 1, list(range(n)))
    window = torch_occl.new_window(tensor=torch_occl.empty_shared(4))
    make(shared, 2, list(range(n)))
    with pytest.raises(dist.DistBackendError, match=r"from before reconfigure\(\): make a new one"):
        window.signal(0, False)
    assert_works(device)
    dist.destroy_process_group()


def test_a_window_belongs_to_the_members_that_made_it(fresh):
    run(fresh, windows_end, 2)


def is_late(rank, n, device, *, store):
    shared = begin(rank, n, store)
    make(shared, 1, list(range(n)))
    if rank == 1:
        listen()
    else:
        with pytest.raises(dist.DistBackendError, match="rank 1"):
            make(shared, 2, list(range(n)), timeout=0.5)
        dist._reconfigure(3, [dist._get_reconfigure_handle()]).wait()
        assert_works(device)
        tell("gave up")
    shared.set(f"met {rank}", "")
    shared.wait([f"met {r}" for r in range(n)])
    make(shared, 4, list(range(n)))
    assert_works(device)
    dist.destroy_process_group()


def test_a_member_that_is_late_is_named_and_may_come_to_the_next_attempt(fresh):
    with fresh(2) as team:
        team.start(is_late, "cpu", store=team.source.new_file())
        team.hear(0)
        team.say(1, "rank 0 gave up")
        assert not any(outcome.failed for outcome in team.finish())


def is_struck(rank, n, device, *, store, victim, after):
    """The members change places again and again, and use a window, until one of them is killed."""
    shared = begin(rank, n, store)
    members = list(range(n))
    if rank == victim:
        threading.Timer(after, os.kill, (os.getpid(), signal.SIGKILL)).start()
    with pytest.raises(dist.DistBackendError) as caught:
        for uuid in range(1, 1_000_000):
            members.append(members.pop(0))
            make(shared, uuid, members, timeout=2.0)
            memory = torch_occl.empty_shared(n).zero_()
            window = torch_occl.new_window(tensor=memory)
            place = dist.get_rank()
            for peer in range(n):
                window.put(torch.ones(1), peer, place, False)
                window.signal(peer, False)
            for peer in range(n):
                window.wait_signal(peer, False)
            assert memory.tolist() == [1.0] * n
            window.tensor_deregister()
            assert_works(device)
    make(shared, 1_000_000, [r for r in range(n) if r != victim], timeout=20.0)
    assert_works(device)
    dist.destroy_process_group()
    return str(caught.value)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(5))
def test_random_deaths_while_members_change(fresh, seed):
    """Each survivor's error names a process that is gone, and the next group is made without it."""
    draw = random.Random(seed)
    for _ in range(TRIALS):
        n, device = draw.randint(2, 4), draw.choice(DEVICES)
        victim, after = draw.randrange(n), draw.uniform(0, 0.05)
        with fresh(n) as team:
            team.start(is_struck, device, store=team.source.new_file(), victim=victim, after=after)
            outcomes = team.finish()
            for rank, outcome in enumerate(outcomes):
                if rank != victim:
                    assert not outcome.failed, (seed, n, victim, after, outcome.traceback)
                    assert f"pid {team.pids[victim]}" in outcome.result, (seed, victim, outcome.result)
