"""kill -9 of any rank at any moment: the others raise and name it, and nothing is left behind."""

from __future__ import annotations

import os
import re
import signal
import time
from multiprocessing.connection import wait
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.support.devices import DEVICES
from tests.support.worker import join, listen, tell

BYTES = {"4 B": 4, "256 KiB": 256 << 10, "16 MiB": 16 << 20}


def all_reduce_until_error(device, size):
    """A rank that is gone may have done its part of what is in flight: the error comes then or next."""
    t = torch.ones(BYTES[size] // 4, device=device)
    while True:
        dist.all_reduce(t, dist.ReduceOp.MAX)


def survive(device, action, *args):
    """When the error came, and its words; and the group stays an error afterwards."""
    with pytest.raises(dist.DistBackendError) as caught:
        action(device, *args)
    when = time.monotonic_ns()
    with pytest.raises(dist.DistBackendError):
        dist.all_reduce(torch.ones(1, device=device))
    with pytest.raises(dist.DistBackendError):
        dist.recv(torch.ones(1, device=device), (dist.get_rank() + 1) % dist.get_world_size())
    dist.destroy_process_group()
    return when, str(caught.value)


def idle(rank, n, device, *, victim, size):
    """The victim does nothing; the others call once it is dead."""
    tell("ready")
    listen()
    return survive(device, all_reduce_until_error, size)


def blocked(rank, n, device, *, victim, size):
    """The victim waits for the next rank, the others too."""
    if rank == (victim + 1) % n:
        listen()
    tell("ready")
    return survive(device, all_reduce_until_error, size)


def in_flight(rank, n, device, *, victim, size):
    """The victim has an operation in flight that its background drives."""
    if rank != victim:
        listen()
        return survive(device, all_reduce_until_error, size)
    work = dist.all_reduce(torch.ones(BYTES[size] // 4, device=device), dist.ReduceOp.MAX, async_op=True)
    tell("ready")
    listen()
    return work


def busy(rank, n, device, *, victim, size):
    """In the middle of many."""
    t = torch.ones(BYTES[size] // 4, device=device)
    for _ in range(5):
        dist.all_reduce(t, dist.ReduceOp.MAX)
    tell("ready")
    return survive(device, all_reduce_until_error, size)


def receive(device, source, count):
    dist.recv(torch.ones(count, device=device), source)


def receiving(rank, n, device, *, victim, size):
    """All the others wait for a message of the victim, which waits for one itself."""
    tell("ready")
    if rank == victim:
        receive(device, (rank + 1) % n, 1)
    return survive(device, receive, victim, BYTES[size] // 4)


def sending(rank, n, device, *, victim, size):
    """All the others send what the victim does not receive."""
    tell("ready")
    if rank == victim:
        listen()
    return survive(device, send_until_error, victim, BYTES[size] // 4)


def send_until_error(device, to, count):
    """What fits into the ring has left at once."""
    while True:
        dist.send(torch.ones(count, device=device), to)


def with_a_child(rank, n, device, *, victim, size):
    """The victim has a child, like a DataLoader's worker, that has all its descriptors and lives on."""
    if rank == victim:
        child = os.fork()
        if child == 0:
            while True:
                signal.pause()
        tell(child)
        listen()
    return survive(device, all_reduce_until_error, size)


def assert_survived(team, outcomes, victim, when, name, latency):
    survivors = [outcome for outcome in outcomes if outcome.rank != victim]
    assert outcomes[victim].died == "killed by SIGKILL"
    for outcome in survivors:
        assert not outcome.failed, outcome.traceback or outcome.died
        text = outcome.result[1]
        assert re.search(rf"rank {victim} \(pid {team.pids[victim]}, host .*\) exited during", text), text
    latency(name, [(outcome.result[0] - when) / 1e6 for outcome in survivors])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("size", ["4 B", "16 MiB"])
@pytest.mark.parametrize(("world_size", "victim"), [(2, 0), (2, 1), (3, 0), (3, 1), (3, 2), (8, 5)])
@pytest.mark.parametrize("moment", [idle, blocked, in_flight, busy, receiving, sending])
def test_survivors_of_a_killed_rank_raise_and_name_it(
    fresh, latency, moment, world_size, victim, size, device
):
    with fresh(world_size) as team:
        team.join().start(moment, device, victim=victim, size=size)
        assert team.hear(victim) == "ready"
        if moment in (blocked, receiving):
            team.wait_until_asleep(victim)
        when = team.kill(victim)
        team.wait_for(victim)
        for rank in range(world_size):
            if rank != victim and moment in (idle, in_flight):
                team.say(rank, "go on")
        if moment is blocked:
            team.say((victim + 1) % world_size, "go on")
        name = f"{moment.__name__}, {size}, rank {victim} of {world_size} on {device}"
        assert_survived(team, team.finish(), victim, when, name, latency)


def late_survivor(rank, n, device, *, victim, size):
    """Rank 2 finds rank 1 dead, and rank 0 gone because of that."""
    tell("ready")
    if rank > 0:
        listen()
    return survive(device, all_reduce_until_error, size)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("size", ["4 B", "16 MiB"])
def test_a_survivor_that_comes_late_names_the_rank_that_died_first(fresh, latency, size, device):
    with fresh(3) as team:
        team.join().start(late_survivor, device, victim=1, size=size)
        assert team.hear(1) == "ready"
        when = team.kill(1)
        team.wait_for(0, 1)
        team.say(2, "go on")
        assert_survived(
            team, team.finish(), 1, when, f"a survivor that comes late, {size} on {device}", latency
        )


@pytest.mark.parametrize("device", DEVICES)
def test_a_child_of_the_killed_rank_does_not_hide_its_death(fresh, latency, device):
    with fresh(2) as team:
        team.join().start(with_a_child, device, victim=0, size="256 KiB")
        child = os.pidfd_open(team.hear(0))
        when = team.kill(0)
        outcomes = team.finish()
        signal.pidfd_send_signal(child, 0)  # it lives
        signal.pidfd_send_signal(child, signal.SIGKILL)
        wait([child])
        os.close(child)
        assert_survived(team, outcomes, 0, when, f"with a child that lives on, on {device}", latency)


def init_and_survive(rank, n, device, *, store, timeout):
    tell("ready")
    listen()
    try:
        join(rank, n, device, store=store, timeout=timeout)
    except dist.DistBackendError as error:
        return time.monotonic_ns(), str(error)
    return survive(device, all_reduce_until_error, "4 B")


@pytest.mark.parametrize("victim", [0, 1, 2])
@pytest.mark.parametrize("posted", [False, True])
def test_a_rank_killed_while_the_group_is_made_is_an_error_for_the_others(fresh, latency, victim, posted):
    """Before it has put itself into the store it is missing; after that it has exited."""
    with fresh(3) as team:
        store = team.source.new_file()
        team.start(init_and_survive, store=store, timeout=60.0 if posted else 1.0)
        for rank in range(3):
            assert team.hear(rank) == "ready"
        if posted:
            team.say(victim, "go on")
            key = f"occl/attempt/{victim}".encode()  # of its announcement
            while not Path(store).exists() or key not in Path(store).read_bytes():
                assert time.monotonic() < team.deadline
        when = team.kill(victim)
        team.wait_for(victim)
        for rank in range(3):
            if rank != victim:
                team.say(rank, "go on")
        for outcome in team.finish():
            if outcome.rank != victim:
                assert not outcome.failed, outcome.traceback
                text = outcome.result[1]
                words = (
                    f"rank {victim}: |rank {victim} .pid"
                    if posted
                    else f"waiting for rank {victim} of 3 ranks"
                )
                assert re.search(words, text), text
                if posted:
                    latency(f"making the group, rank {victim} of 3", [(outcome.result[0] - when) / 1e6])
