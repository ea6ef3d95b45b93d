"""What the ranks of other hosts see when a rank, a host or a cable fails: an error, and never a hang.

Each test has a network of its own. Groups have a timeout of a few seconds, which also bounds an error that no
connection reports. The table at the end of the run says how long each error took; nothing asserts it.
"""

from __future__ import annotations

import re
import signal
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import torch_occl
from occl.testing.outcomes import Outcome
from tests.hosts.launch import BACKENDS, HostTeam
from tests.support.thinning import first
from tests.support.worker import listen, tell

TIMEOUT = 3.0
"""Seconds of the groups."""
ELEMENTS = 1 << 20


def all_reduce_until_error(rank, n, device):
    """When the error came, and its words."""
    t = torch.ones(ELEMENTS, device=device)
    for _ in range(3):
        dist.all_reduce(t, dist.ReduceOp.MAX)
    tell("ready")
    with pytest.raises(RuntimeError) as caught:
        while True:
            dist.all_reduce(t, dist.ReduceOp.MAX)
    return time.monotonic_ns(), str(caught.value)


def one_call_until_error(rank, n, device):
    """The same in a single call, which cannot end because rank n - 1 does not make it."""
    dist.barrier()
    tell("ready")
    if rank == n - 1:
        listen()
    with pytest.raises(RuntimeError) as caught:
        dist.all_reduce(torch.ones(ELEMENTS, device=device))
    return time.monotonic_ns(), str(caught.value)


def receive_until_error(rank, n, device):
    """Rank 0 waits for a message of rank n - 1, which never sends it; the others do nothing."""
    dist.barrier()
    tell("ready")
    if rank:
        listen()
        return None
    with pytest.raises(RuntimeError) as caught:
        dist.recv(torch.ones(1000, device=device), n - 1)
    return time.monotonic_ns(), str(caught.value)


def make_a_group_until_error(rank, n, device, *, absent):
    """A group of all ranks, of which one does not come."""
    dist.barrier()
    tell("ready")
    if rank == absent:
        return listen()
    with pytest.raises(RuntimeError) as caught:
        dist.new_group(list(range(n)), timeout=timedelta(seconds=TIMEOUT))
    return time.monotonic_ns(), str(caught.value)


def go_on_without(rank, n, device, *, victim):
    """The other ranks make a smaller group when the victim has died, and compute with it."""
    dist.barrier()
    tell("ready")
    listen()
    group = torch_occl.shrink_group([victim])
    for count in (1, ELEMENTS):
        t = torch.ones(count)
        dist.all_reduce(t, group=group)
        assert (t == n - 1).all()


def long_all_reduce(rank, n, device):
    """Over a slow link, so that it lasts for about a second."""
    t = torch.full((ELEMENTS * 4,), rank, dtype=torch.float32, device=device)
    dist.barrier()
    tell("ready")
    dist.all_reduce(t)
    assert (t == sum(range(n))).all()


def started(team: HostTeam, body, **params) -> HostTeam:
    """Once every rank is ready."""
    team.start(body, **params)
    for rank in range(team.size):
        assert team.hear(rank) == "ready"
    return team


def outcomes_of(team: HostTeam, *ranks: int) -> list[Outcome]:
    """Of these ranks, or of all. They may take as long as their timeout: there is no impatience here."""
    ranks = ranks or tuple(range(team.size))
    team.wait_for(*ranks)
    return [team.running[rank] for rank in ranks]


def report(latency, name: str, since: int, outcomes: list[Outcome]) -> None:
    """Adds the survivors' times to the table. Each must have raised what it expects, and nothing else."""
    for outcome in outcomes:
        assert not outcome.failed, f"rank {outcome.rank}: {outcome.died}{outcome.traceback}"
        assert outcome.result[1].strip(), "an error without words"
    latency(name, [(outcome.result[0] - since) / 1e6 for outcome in outcomes])


@pytest.mark.parametrize("victim", first([3, 0]))
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_rank_that_is_killed_is_an_error_on_all_hosts(hosts, apart, latency, backend, victim):
    with hosts.fresh_on("2+2", apart).meet(backend, timeout=TIMEOUT) as team:
        started(team, all_reduce_until_error)
        when = team.kill(victim)
        outcomes = outcomes_of(team)
    assert outcomes.pop(victim).died == "killed by SIGKILL"
    report(latency, f"{backend}, between hosts: rank {victim} is killed", when, outcomes)


def test_an_error_names_the_call_of_the_program_and_ranks_of_the_whole_group(hosts, apart):
    """Of a call whose parts run inside the nodes, where ranks have other numbers."""
    with hosts.fresh_on("1+2", apart).meet("occl", timeout=TIMEOUT) as team:
        started(team, one_call_until_error)
        team.kill(2)
        told, saw = (outcome.result[1] for outcome in outcomes_of(team, 0, 1))
    words = rf"rank 2 \(pid {team.pids[2]}, host .*\) exited during all_reduce\(float32\[{ELEMENTS}\], SUM\) "
    assert re.match(words + r"#\d+ of group 0 on rank 1$", saw.splitlines()[0])
    assert re.match(rf"rank 1 \(pid {team.pids[1]}, host .*\) ended group 0: {words}", told)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_sender_that_is_killed_is_an_error_of_the_receiver_on_another_host(hosts, apart, latency, backend):
    with hosts.fresh_on("2+2", apart).meet(backend, timeout=TIMEOUT) as team:
        started(team, receive_until_error)
        when = team.kill(3)
        report(latency, f"{backend}, between hosts: the sender is killed", when, outcomes_of(team, 0))


@pytest.mark.parametrize("victim", first([1, 0]))
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_host_that_dies_is_an_error_on_the_others(hosts, apart, latency, backend, victim):
    with hosts.fresh_on("2+2", apart).meet(backend, timeout=TIMEOUT) as team:
        started(team, all_reduce_until_error)
        when = time.monotonic_ns()
        assert sorted(apart.hosts[victim].kill()) == [team.pids[rank] for rank in team.ranks_on(victim)]
        outcomes = outcomes_of(team)
    died = [outcomes[rank] for rank in team.ranks_on(victim)]
    assert [outcome.died for outcome in died] == ["killed by SIGKILL"] * 2
    alive = [outcome for outcome in outcomes if outcome not in died]
    report(latency, f"{backend}, between hosts: host {victim} is killed", when, alive)


@pytest.mark.parametrize("victim", first([1, 0]))
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_cable_that_is_cut_is_an_error_on_every_rank(hosts, apart, latency, backend, victim):
    with hosts.fresh_on("2+2", apart).meet(backend, timeout=TIMEOUT) as team:
        started(team, all_reduce_until_error)
        when = time.monotonic_ns()
        apart.hosts[victim].cut()
        outcomes = outcomes_of(team)
    report(latency, f"{backend}, between hosts: host {victim} is cut off", when, outcomes)


@pytest.mark.full
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_host_that_is_cut_off_and_dies_is_an_error_on_the_others(hosts, apart, latency, backend):
    """As with a power failure: no connection is closed."""
    with hosts.fresh_on("2+2", apart).meet(backend, timeout=TIMEOUT) as team:
        started(team, all_reduce_until_error)
        when = time.monotonic_ns()
        apart.hosts[1].cut()
        apart.hosts[1].kill()
        outcomes = outcomes_of(team, 0, 1)
    report(latency, f"{backend}, between hosts: host 1 loses power", when, outcomes)


@pytest.mark.full
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_rank_that_stops_is_an_error_on_all_hosts(hosts, apart, latency, backend):
    with hosts.fresh_on("2+2", apart).meet(backend, timeout=TIMEOUT) as team:
        started(team, all_reduce_until_error)
        when = team.kill(3, signal.SIGSTOP)
        outcomes = outcomes_of(team, 0, 1, 2)
    report(latency, f"{backend}, between hosts: rank 3 is stopped", when, outcomes)


@pytest.mark.full
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_call_that_a_rank_of_another_host_does_not_make_times_out(hosts, apart, latency, backend):
    with hosts.fresh_on("2+2", apart).meet(backend, timeout=TIMEOUT) as team:
        started(team, one_call_until_error)
        when = time.monotonic_ns()
        outcomes = outcomes_of(team, 0, 1, 2)
    report(latency, f"{backend}, between hosts: a call is missing", when, outcomes)


@pytest.mark.parametrize("dies", [True, False])
@pytest.mark.parametrize("absent", first([3, 2, 0, 1], stay=2))
def test_a_rank_that_does_not_come_to_a_new_group_is_named_on_all_hosts(hosts, apart, latency, absent, dies):
    with hosts.fresh_on("2+2", apart).meet("occl", timeout=TIMEOUT) as team:
        started(team, make_a_group_until_error, absent=absent)
        when = team.kill(absent) if dies else time.monotonic_ns()
        outcomes = outcomes_of(team, *(rank for rank in range(team.size) if rank != absent))
        if not dies:
            team.say(absent, "go")
            team.finish()
    culprit = f"rank {absent} (pid {team.pids[absent]}, host {team.host_of[absent].name})"
    for outcome in outcomes:
        assert culprit in outcome.result[1]
    name = "is killed" if dies else "does not come"
    report(latency, f"occl, between hosts: a group is made, and rank {absent} {name}", when, outcomes)


@pytest.mark.parametrize("victim", first([2, 3, 1]))
def test_ranks_of_several_hosts_go_on_without_one_that_died(hosts, apart, victim):
    """Not without rank 0, which serves the store: PyTorch's shrink_group connects to it again."""
    with hosts.fresh_on("2+2", apart).meet("occl", timeout=60) as team:
        started(team, go_on_without, victim=victim)
        team.kill(victim)
        team.wait_for(victim)
        alive = [rank for rank in range(team.size) if rank != victim]
        for rank in alive:
            team.say(rank, "go on")
        for outcome in outcomes_of(team, *alive):
            assert not outcome.failed, f"rank {outcome.rank}: {outcome.died}{outcome.traceback}"


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_cable_that_is_restored_in_time_only_delays_an_operation(hosts, apart, backend):
    for host in apart.hosts:
        host.limit("200mbit")
    with hosts.fresh_on("2+2", apart).meet(backend, timeout=30) as team:
        started(team, long_all_reduce)
        apart.hosts[1].cut()
        time.sleep(0.5)  # the time without a connection
        apart.hosts[1].restore()
        assert [outcome.raised + outcome.died for outcome in team.finish()] == [""] * 4
