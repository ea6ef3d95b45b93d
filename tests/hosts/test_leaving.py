"""A rank leaves, or exits, only when what it reported as sent cannot be lost."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import traceback

import pytest
import torch
import torch.distributed as dist

from tests.hosts.launch import CARRIERS, OVER_GLOO, OVER_UCX
from tests.support.thinning import first
from tests.support.worker import EndInterpreter, join, listen, tell

SENT = 16
"""Elements of a message that ends at once: a longer one waits for its receive anyway."""


def tell_when_waiting(*functions: str) -> None:
    """Once this rank's main thread waits in one of these functions, which lets signals through."""

    def look(number, frame):
        if {each.name for each in traceback.extract_stack(frame)}.intersection(functions):
            signal.setitimer(signal.ITIMER_REAL, 0)
            tell("waits")

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)


def send_and_go(rank, n, device, *, ends):
    """Rank 1 sends to the last rank, which expects nothing of it yet, and goes."""
    dist.barrier()
    if rank == 1:
        dist.isend(torch.arange(SENT), n - 1)
        tell_when_waiting("destroy_process_group", "announce")
    elif rank == n - 1:
        listen()
        t = torch.zeros(SENT, dtype=torch.int64)
        dist.recv(t, 1)
        assert torch.equal(t, torch.arange(SENT))
    if ends:
        raise EndInterpreter(0)
    dist.destroy_process_group()


@pytest.mark.parametrize("ends", [False, True], ids=["destroys its group", "ends"])
def test_a_rank_goes_when_gloo_on_another_host_has_received_its_message(hosts, apart, ends):
    with hosts.fresh_on("2+2", apart).meet(OVER_GLOO) as team:
        team.start(send_and_go, ends=ends)
        assert team.hear(1) == "waits"
        team.say(3, "receive")
        outcomes = team.finish()
    assert [outcome.died for outcome in outcomes] == ["exited with status 0" if ends else ""] * 4


def send_and_leave(rank, n, device):
    dist.barrier()
    if rank == 1:
        dist.isend(torch.arange(SENT), n - 1)
    elif rank == n - 1:
        listen()
        t = torch.zeros(SENT, dtype=torch.int64)
        dist.recv(t, 1)
        assert torch.equal(t, torch.arange(SENT))
    dist.destroy_process_group()
    if rank == 1:
        tell("left")


@pytest.mark.parametrize("backend", first(["occl", OVER_UCX]))
def test_a_message_that_has_arrived_is_received_after_its_rank_has_left(hosts, apart, backend):
    with hosts.fresh_on("2+2", apart).meet(backend) as team:
        team.start(send_and_leave)
        assert team.hear(1) == "left"
        team.say(3, "receive")
        assert all(not outcome.failed for outcome in team.finish())


def send_in_vain(rank, n, device):
    """To the next rank, which receives nothing."""
    for _ in range(3):
        dist.isend(torch.arange(SENT), (rank + 1) % n)
    dist.destroy_process_group()


def test_ranks_that_receive_nothing_do_not_keep_each_other(hosts, apart):
    with hosts.fresh_on("1+1", apart).meet("occl", timeout=3600) as team:
        team.run(send_in_vain)


COLLECTIVES = ("all_reduce", "barrier", "broadcast", "all_gather")


def collective(name: str, rank: int, n: int, count: int) -> None:
    """With a check of its result."""
    t = torch.full((count,), float(rank + 1))
    if name == "all_reduce":
        dist.all_reduce(t)
        assert (t == n * (n + 1) / 2).all()
    elif name == "broadcast":
        dist.broadcast(t, n - 1)
        assert (t == n).all()
    elif name == "all_gather":
        out = torch.zeros(n, count)
        dist.all_gather_into_tensor(out, t)
        assert (out == torch.arange(1, n + 1).view(n, 1)).all()
    else:
        dist.barrier()


def ends_after(rank, n, device, *, name, count, earlier, store, victim, how):
    """One rank ends right after its collective; the others have to end theirs."""
    os.environ |= {"OCCL_NODE": f"node {rank}", "GLOO_SOCKET_IFNAME": "lo"}
    join(rank, n, device, store=store, timeout=60)
    for _ in range(earlier + 1):
        collective(name, rank, n, count)
    if rank == victim:
        if how == "os._exit":
            os._exit(0)
        if how == "destroys its group":
            dist.destroy_process_group()
        raise EndInterpreter(0)
    return "done"


@pytest.mark.parametrize("how", first(["os._exit", "sys.exit", "destroys its group"]))
@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_rank_may_end_in_any_way_right_after_a_collective(ranks, name, how):
    """Each rank is a node. Many messages of one victim are on their way while it ends, so each may."""
    for victim, (count, earlier) in itertools.product(range(3), [(4, 1), (40_000, 0)]):
        with ranks.fresh(3) as team:
            how_ = {"name": name, "count": count, "earlier": earlier, "victim": victim, "how": how}
            team.start(ends_after, store=team.source.new_file(), **how_)
            for outcome in team.finish():
                if outcome.rank == victim:
                    assert outcome.died == "exited with status 0"
                else:
                    assert not outcome.failed, (how_, outcome.traceback or outcome.died)


def barrier_and_exit(rank, n, device, *, count):
    t = torch.ones(count)
    dist.all_reduce(t)
    assert (t == n).all()
    dist.barrier()
    os._exit(0)


@pytest.mark.parametrize("backend", first(CARRIERS))
@pytest.mark.parametrize("shape", first(["2+2", "1+1", "1+1+1"]))
def test_all_ranks_may_end_at_once_after_a_barrier(hosts, backend, shape):
    """Each has sent what the others wait for, and leaves nothing unread that would reset a connection."""
    for count in (4, 40_000) * 5:
        with hosts.fresh_on(shape).meet(backend) as team:
            team.start(barrier_and_exit, count=count)
            assert {outcome.died for outcome in team.finish()} == {"exited with status 0"}


def returning(rank: int, n: int, store: str, places: list[int]) -> None:
    os.environ |= {"OCCL_NODE": f"node {places[rank]}", "GLOO_SOCKET_IFNAME": "lo"}
    join(rank, n, "cpu", store=store, timeout=60)
    for count in (4, 40_000):
        collective("all_reduce", rank, n, count)
    if rank == 0:
        dist.send(torch.arange(SENT), n - 1)
    if rank == n - 1:
        t = torch.zeros(SENT, dtype=torch.int64)
        dist.recv(t, 0)
        assert torch.equal(t, torch.arange(SENT))


def forks(rank, n, device, *, store, places):
    context = multiprocessing.get_context("fork")
    count = len(places)
    children = [context.Process(target=returning, args=(r, count, store, places)) for r in range(count)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    return [child.exitcode for child in children]


@pytest.mark.parametrize("places", [[0, 1], [0, 0, 1], [0, 1, 2]], ids=str)
def test_processes_of_multiprocessing_return_when_others_have_what_they_sent(ranks, places):
    with ranks.fresh(1) as team:
        (codes,) = team.run(forks, store=team.source.new_file(), places=places)
        assert codes == [0] * len(places), team.members[0].output()
