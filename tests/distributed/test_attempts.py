"""Attempts to make a group that some ranks miss: all ranks make it or none, and once all try, all do."""

from __future__ import annotations

import os
import random
import threading
from datetime import timedelta
from itertools import product

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _dist2

from tests.support.thinning import first
from tests.support.worker import listen, tell
from torch_occl import _in_place_of
from torch_occl._C import ProcessGroupOCCL

RANKS = 3
SHORT, LONG = timedelta(milliseconds=400), timedelta(seconds=60)
SUBSETS = [subset for subset in product([False, True], repeat=RANKS) if not all(subset)]
"""Which ranks come to an attempt that one of them misses."""


def works(group: ProcessGroupOCCL, n: int) -> bool:
    t = torch.ones(4)
    group.allreduce([t]).wait()
    return bool((t == n).all())


def makes(store, rank, n, timeout):
    """Whether the group was made, which is used then."""
    try:
        group = ProcessGroupOCCL(store, rank, n, timeout)
    except dist.DistBackendError:
        return False
    assert works(group, n)
    group.shutdown()
    return True


def store_of(kind, where, n):
    if kind == "tcp":
        return dist.TCPStore("localhost", where, is_master=False)
    return dist.FileStore(where, n)


def attempts(rank, n, device, *, kind, where, plan, nodes):
    """The ranks that miss an attempt do not wait for it. To the last attempt all ranks come."""
    if nodes:
        os.environ["OCCL_NODE"] = nodes[rank]
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store, made = store_of(kind, where, n), []
    for coming in plan:
        made.append(coming[rank] and makes(store, rank, n, SHORT))
        tell("has tried")
        listen()  # for the others
    return made, makes(store, rank, n, LONG)


def check_attempts(team, plan, **params):
    team.start(attempts, plan=plan, **params)
    for _ in plan:
        for rank in range(RANKS):
            team.hear(rank)
        for rank in range(RANKS):
            team.say(rank, "all have tried")
    for made, at_last in (outcome.result for outcome in team.finish()):
        assert at_last and not any(made)


def test_ranks_that_miss_attempts_make_the_group_once_all_come(fresh):
    with fresh(RANKS) as team:
        check_attempts(team, SUBSETS, kind="file", where=team.zygote.new_file(), nodes=None)


@pytest.mark.parametrize("kind", ["file", "tcp"])
@pytest.mark.parametrize("nodes", first([["a", "b", "b"], None, ["a", "b", "c"]], stay=1))
def test_every_store_and_several_nodes_forget_attempts_that_failed(fresh, kind, nodes):
    server = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    with fresh(RANKS) as team:
        where = server.port if kind == "tcp" else team.zygote.new_file()
        check_attempts(team, [(True, True, False), (False, True, True)], kind=kind, where=where, nodes=nodes)


def retries(rank, n, device, *, file, seed):
    """Each rank tries as long as it takes, with timeouts and pauses of its own."""
    store, chance = dist.FileStore(file, n), random.Random(f"{seed} {rank}")
    listen_for_start = threading.Event()
    for _ in range(chance.randrange(3)):
        listen_for_start.wait(chance.uniform(0, 0.1))
        if makes(store, rank, n, timedelta(seconds=chance.uniform(0.05, 0.3))):
            return True
    return makes(store, rank, n, LONG)


@pytest.mark.parametrize("seed", first(range(10), stay=2))
def test_ranks_that_try_again_at_any_time_find_each_other(fresh, seed):
    with fresh(RANKS) as team:
        assert team.run(retries, file=team.zygote.new_file(), seed=seed) == [True] * RANKS


def test_ranks_that_are_threads_forget_attempts_that_failed():
    store = dist.HashStore()
    made = {}

    def run(rank):
        made[rank] = makes(store, rank, RANKS, LONG)

    for missing in range(RANKS):
        tries = [
            threading.Thread(target=makes, args=(store, rank, RANKS, SHORT))
            for rank in range(RANKS)
            if rank != missing
        ]
        for thread in tries:
            thread.start()
        for thread in tries:
            thread.join()
    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == dict.fromkeys(range(RANKS), True)


def killed_or_made(rank, n, device, *, file, killed):
    if killed:
        tell("begins")
    return makes(dist.FileStore(file, n), rank, n, LONG)


def test_a_process_that_was_killed_in_an_attempt_is_replaced(fresh):
    """What it announced stays in the store."""
    with fresh(RANKS) as team:
        file = team.zygote.new_file()
        team.start(killed_or_made, file=file, killed=True)
        for rank in range(RANKS):
            team.hear(rank)
    with fresh(RANKS) as team:
        assert team.run(killed_or_made, file=file, killed=False) == [True] * RANKS
