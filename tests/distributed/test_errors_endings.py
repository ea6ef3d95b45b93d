"""A death ends all operations of the survivors; an exit in good order only those that need that rank."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from multiprocessing.connection import wait

import pytest
import torch
import torch.distributed as dist

import torch_occl
from tests.support.checks import assert_works
from tests.support.devices import DEVICES
from tests.support.running import PYTORCH, WITH_CUDA
from tests.support.worker import EndInterpreter, join, listen, tell

EXITED = r"rank {} \(pid \d+, host .*\) exited"


def hole_in_a_pipeline(rank, n, device, *, victim):
    """Each survivor waits for a message of the next one, and none of them for the victim. Then they go on."""
    tell("ready")
    if rank == victim:
        listen()
    survivors = [r for r in range(n) if r != victim]
    source = survivors[(survivors.index(rank) + 1) % len(survivors)]
    with pytest.raises(dist.DistBackendError, match=EXITED.format(victim)):
        dist.recv(torch.ones(4, device=device), source)
    when = time.monotonic_ns()
    torch_occl.shrink_group([victim])
    assert_works(device)
    return when


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("world_size", "victim"), [(3, 2), (4, 1)])
def test_messages_between_survivors_end_with_a_death(fresh, latency, world_size, victim, device):
    with fresh(world_size) as team:
        team.join().start(hole_in_a_pipeline, device, victim=victim)
        for rank in range(world_size):
            assert team.hear(rank) == "ready"
            if rank != victim:
                team.wait_until_asleep(rank)
        when = team.kill(victim)
        survivors = [outcome for outcome in team.finish() if outcome.rank != victim]
        for outcome in survivors:
            assert not outcome.failed, outcome.traceback or outcome.died
        name = f"between survivors, rank {victim} of {world_size} on {device}"
        latency(name, [(outcome.result - when) / 1e6 for outcome in survivors])


def exchange(rank, device):
    """Ranks 0 and 1 send each other a message, of which each one comes first."""
    t = torch.full((4,), float(rank), device=device)
    for source in (0, 1):
        dist.send(t, 1 - rank) if rank == source else dist.recv(t, source)
    assert (t == 0).all()


def early_end(rank, n, device):
    """Rank 2's script ends without destroying the group."""
    if rank == 2:
        raise EndInterpreter(0)
    listen()
    exchange(rank, device)
    if rank == 0:
        assert dist.recv(torch.ones(4, device=device)) == 1  # from any rank: one is left
    else:
        listen()
        dist.send(torch.ones(4, device=device), 0)


@pytest.mark.parametrize("device", DEVICES)
def test_messages_go_on_when_another_rank_ends_in_good_order(fresh, device):
    with fresh(3) as team:
        team.join().start(early_end, device)
        team.wait_for(2)
        for rank in (0, 1):
            team.say(rank, "go on")
        team.wait_until_asleep(0)
        team.say(1, "go on")
        for outcome in team.finish():
            assert outcome.rank == 2 or not outcome.failed, outcome.traceback


def end(how):
    if how == "raises":
        raise RuntimeError("rank 2 fails")
    if how == "sys.exit":
        sys.exit(3)
    if how == "os._exit":
        os._exit(0)
    if how == "os._exit with an error":
        os._exit(3)
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)


def child(rank, store, how, ended):
    join(rank, 3, "cpu", store=store, timeout=60)
    if rank == 2:
        return end(how)
    ended.wait()
    if how in ("returns", "sys.exit", "os._exit"):
        return exchange(rank, "cpu")
    with pytest.raises(dist.DistBackendError, match=EXITED.format(2)):
        dist.recv(torch.ones(4), 1 - rank)


def three_children(rank, n, device, *, store, how):
    context = multiprocessing.get_context("fork")
    ended = context.Event()
    if how == "raises in start_processes":  # which handles the exception, and calls sys.exit
        arguments = (store, "raises", ended)
        children = torch.multiprocessing.start_processes(
            child, arguments, 3, join=False, start_method="fork"
        ).processes
    else:
        children = [context.Process(target=child, args=(r, store, how, ended)) for r in range(3)]
        for process in children:
            process.start()
    wait([children[2].sentinel])
    ended.set()
    for process in children:
        process.join()
    return [process.exitcode for process in children]


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("returns", 0),
        ("sys.exit", 3),
        ("raises", 1),
        ("raises in start_processes", 1),
        ("os._exit", 0),
        ("os._exit with an error", 3),
        ("killed", -signal.SIGKILL),
    ],
)
def test_how_a_process_of_multiprocessing_ends_tells_its_peers_whether_it_died(fresh, how, code):
    """These processes run no function of atexit."""
    with fresh(1) as team:
        (codes,) = team.run(three_children, store=team.source.new_file(), how=how)
        assert codes == [0, 0, code], team.members[0].output()


def other_groups(rank, n, device, *, victim, make):
    tell("ready")
    if rank == victim:
        listen()
    words = rf"rank {victim} \(pid \d+, host .*\) of group .* exited while rank \d tried to create group"
    with pytest.raises(dist.DistBackendError, match=words):
        dist.new_group() if make == "new_group" else dist.split_group(split_ranks=[list(range(n))])
    return time.monotonic_ns()


def bound(rank, n, device, *, backend):
    """With a device_id: what split_group needs."""
    if rank > 0:
        store = dist.TCPStore("localhost", listen())
    else:
        store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        tell(store.port)
    dist.init_process_group(backend, store=store, rank=rank, world_size=n, device_id=torch.device("dev:0"))


@pytest.mark.parametrize("make", ["new_group", "split_group"])
def test_a_death_before_another_group_is_made_is_noticed_at_once(fresh, latency, make):
    """The victim has not come to the store yet; the others wait for it there."""
    with fresh(3) as team:
        team.start(bound, backend=WITH_CUDA if make == "split_group" and PYTORCH < (2, 12) else None)
        port = team.hear(0)
        for rank in (1, 2):
            team.say(rank, port)
        for outcome in team.finish():
            assert not outcome.failed, outcome.traceback
        team.start(other_groups, victim=1, make=make)
        for rank in range(3):
            assert team.hear(rank) == "ready"
        when = team.kill(1)
        survivors = [outcome for outcome in team.finish() if outcome.rank != 1]
        for outcome in survivors:
            assert not outcome.failed, outcome.traceback
        latency(f"{make} of three ranks", [(outcome.result - when) / 1e6 for outcome in survivors])
