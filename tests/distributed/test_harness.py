"""The harness itself: it must never hang, and never call a failure a success."""

from __future__ import annotations

import os
import signal
import threading

import pytest
import torch
import torch.distributed as dist

from occl.testing import RanksFailed
from tests.support.worker import listen, tell


def rank_and_size(rank, world_size, device, *, extra):
    return rank, world_size, device, extra, os.getpid(), threading.active_count()


def sum_of_ranks(rank, world_size, device):
    tensor = torch.tensor([rank + 1])
    dist.all_reduce(tensor)
    return tensor.item()


def fails_on_rank_1(rank, world_size, device):
    if rank == 1:
        raise ValueError("rank one is unhappy")
    return rank


def dies_on_rank_1(rank, world_size, device):
    print("some last words", flush=True)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def rank_2_waits_for_ever(rank, world_size, device):
    if rank == 2:
        signal.pause()


def echo(rank, world_size, device):
    tell(("hello from", rank))
    return listen()


def forks_a_sleeper(rank, world_size, device):
    if os.fork() == 0:
        signal.pause()


def test_bodies_run_in_every_rank_and_their_results_come_in_rank_order(fresh):
    with fresh(3) as team:
        results = team.run(rank_and_size, "cpu", extra="x")
        assert [r[:4] for r in results] == [(i, 3, "cpu", "x") for i in range(3)]
        assert [r[4] for r in results] == team.pids


def test_workers_start_with_one_thread(fresh):
    with fresh(2) as team:
        assert [r[5] for r in team.run(rank_and_size, extra=None)] == [1, 1]


def test_a_pooled_team_keeps_its_processes_and_its_group(pool):
    before = pool.run(rank_and_size, 2, extra=None)
    assert pool.run(sum_of_ranks, 2) == [3, 3]
    assert [r[4] for r in pool.run(rank_and_size, 2, extra=None)] == [r[4] for r in before]


def test_an_exception_in_one_rank_fails_the_test_with_its_traceback(pool):
    with pytest.raises(
        RanksFailed, match=r"(?s)^rank 1 raised ValueError.*of 2 ranks.*fails_on_rank_1.*rank one is unhappy"
    ):
        pool.run(fails_on_rank_1, 2)
    assert pool.run(sum_of_ranks, 2) == [3, 3]


def test_a_rank_that_dies_is_reported_with_its_output(pool):
    with pytest.raises(RanksFailed, match=r"(?s)rank 1 .pid .* was killed by SIGKILL.*some last words"):
        pool.run(dies_on_rank_1, 2)
    assert pool.run(sum_of_ranks, 2) == [3, 3]


def test_a_rank_that_does_not_finish_is_killed_and_shows_where_it_was(fresh):
    with fresh(3) as team:
        with pytest.raises(RanksFailed, match=r"(?s)rank 2 did not finish.*rank_2_waits_for_ever"):
            team.run(rank_2_waits_for_ever, limit=1.0)
        assert not team.alive


def test_tests_and_bodies_can_talk(fresh):
    with fresh(2) as team:
        team.start(echo)
        for rank in (1, 0):
            assert team.hear(rank) == ("hello from", rank)
            team.say(rank, rank * 10)
        assert [outcome.result for outcome in team.finish()] == [0, 10]


def test_processes_that_a_killed_rank_leaves_behind_are_found(pool):
    with pool.fresh(1) as team:
        team.run(forks_a_sleeper)
    strays = pool.strays()
    assert len(strays) == 1
    os.kill(strays[0][0], signal.SIGKILL)
    while pool.strays():
        pass
