"""Attempts to make a group that some ranks miss: all ranks make it or none, and once all try, all do."""

from __future__ import annotations

import os
import random
import re
import socket
import threading
from datetime import timedelta
from itertools import chain, product, repeat

import pytest
import torch
import torch.distributed as dist
from torch_occl._C import ProcessGroupOCCL

from tests.support.running import with_dist2
from tests.support.thinning import first
from tests.support.worker import EndInterpreter, listen, tell

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
        check_attempts(team, SUBSETS, kind="file", where=team.source.new_file(), nodes=None)


@pytest.mark.parametrize("kind", ["file", "tcp"])
@pytest.mark.parametrize("nodes", first([["a", "b", "b"], None, ["a", "b", "c"]], stay=1))
def test_every_store_and_several_nodes_forget_attempts_that_failed(fresh, kind, nodes):
    server = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    with fresh(RANKS) as team:
        where = server.port if kind == "tcp" else team.source.new_file()
        check_attempts(team, [(True, True, False), (False, True, True)], kind=kind, where=where, nodes=nodes)


def retries(rank, n, device, *, file, seed):
    """Each rank tries until it has made the group, with timeouts and pauses of its own.

    An attempt fails on all ranks if one of them gives up meanwhile. If some ranks made the group and others
    did not, these would try in vain.
    """
    store, chance = dist.FileStore(file, n), random.Random(f"{seed} {rank}")
    pause = threading.Event()
    for timeout in chain([chance.uniform(0.05, 0.3) for _ in range(chance.randrange(3))], repeat(60)):
        pause.wait(chance.uniform(0, 0.1))
        if makes(store, rank, n, timedelta(seconds=timeout)):
            return


@pytest.mark.parametrize("seed", first([2, 8, *range(2), *range(3, 8)], stay=2))
def test_ranks_that_try_again_at_any_time_find_each_other(fresh, seed):
    with fresh(RANKS) as team:
        team.run(retries, file=team.source.new_file(), seed=seed)


def threads_forget(rank, n, device):
    """Each thread is a rank."""
    store = dist.HashStore()
    made = {}

    def run(rank, timeout):
        made[rank] = makes(store, rank, RANKS, timeout)

    for missing in (0, 1, None):
        coming = [rank for rank in range(RANKS) if rank != missing]
        timeout = LONG if missing is None else SHORT
        threads = [threading.Thread(target=run, args=(rank, timeout)) for rank in coming]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert made == dict.fromkeys(coming, missing is None)
        made.clear()


def test_ranks_that_are_threads_forget_attempts_that_failed(fresh):
    with fresh(1) as team:
        team.run(threads_forget)


def comes(rank, n, device, *, file, absent=()):
    return rank in absent or makes(dist.FileStore(file, n), rank, n, LONG)


def test_processes_that_were_killed_in_an_attempt_are_replaced(fresh):
    """What they announced stays in the store."""
    with fresh(RANKS) as team:
        file = team.source.new_file()
        team.start(comes, file=file, absent=[0])
        store = dist.FileStore(file, RANKS)
        while not store.check(["occl/attempt/1", "occl/attempt/2"]):
            assert team.alive
        for rank in (1, 2):
            team.kill(rank)
    with fresh(RANKS) as team:
        assert team.run(comes, file=file) == [True] * RANKS


# ---- Two processes that cannot both be right


def contradicts(rank, n, device, *, file, ranks, sizes):
    """Each process is one of a group as its launcher says, wrongly for some."""
    store = dist.FileStore(file, n)
    with pytest.raises(dist.DistBackendError) as caught:
        ProcessGroupOCCL(store, ranks[rank], sizes[rank], LONG)
    return str(caught.value)


@pytest.mark.parametrize(
    ("ranks", "sizes", "culprits", "says"),
    [
        ([0, 1, 1], [4, 4, 4], [1, 2], "two processes are rank 1"),
        ([0, 0, 1], [3, 3, 3], [0, 1], "two processes are rank 0"),
        ([1, 2, 2], [4, 4, 4], [1, 2], "two processes are rank 2"),
        ([0, 1, 2], [4, 4, 3], [2], "is one of 3 ranks"),
        ([0, 1, 2], [3, 4, 4], [0], "is one of 3 ranks"),
        ([1, 2, 3], [5, 5, 4], [2], "is one of 4 ranks"),
    ],
)
def test_processes_that_contradict_each_other_learn_of_it_at_once(fresh, ranks, sizes, culprits, says):
    """None of these groups could be made, because a rank is missing: the timeout is a minute."""
    with fresh(3) as team:
        texts = team.run(contradicts, file=team.source.new_file(), ranks=ranks, sizes=sizes)
        for text in texts:
            assert says in text, text
            assert all(f"pid {team.pids[it]}, host " in text for it in culprits), text


# ---- A store that has what no rank has stored


class Wrong(dist.Store):
    """Passes every call on, and breaks what the keys hold that end with `of`."""

    def __init__(self, store, of, broken):
        super().__init__()
        self.store, self.of, self.broken = store, of, broken

    def set(self, key, value):
        self.store.set(key, value)

    def compare_set(self, key, expected, desired):
        return self.store.compare_set(key, expected, desired)

    def get(self, key):
        value = self.store.get(key)
        return self.broken(value) if self.of in key else value

    def check(self, keys):
        return self.store.check(keys)

    def wait(self, keys, timeout):
        self.store.wait(keys, timeout)


def shorter(value):
    return value[:-1]


def empty(value):
    return b""


def of_one_more(value):
    return value + (4).to_bytes(4, "little") + b"more"


def too_long(value):
    return (1 << 31).to_bytes(4, "little") + value[4:]


def of_no_carrier(value):
    """The number of what a rank offers to carry messages, which is written as a text of one digit."""
    one = (1).to_bytes(4, "little")
    return re.sub(re.escape(one) + rb"\d", one + b"9", value)


def reads_nonsense(rank, n, device, *, file, of, broken):
    if of.startswith("seat"):
        os.environ |= {"OCCL_NODE": str(rank), "GLOO_SOCKET_IFNAME": "lo"}
    store = Wrong(dist.FileStore(file, n), of, broken)
    with pytest.raises(dist.DistBackendError) as caught:
        ProcessGroupOCCL(store, rank, n, timedelta(seconds=3))
    return str(caught.value)


@pytest.mark.parametrize(
    ("of", "size", "broken"),
    [
        *product(["/given"], [2], [shorter, empty, of_one_more, too_long]),
        *first([("seat/64/0", 9, broken) for broken in (too_long, shorter, of_one_more)], stay=1),
        *product(["occl/round"], [2], [shorter, of_one_more]),
        ("occl/attempt/1", 2, empty),
        ("seat", 2, of_no_carrier),
    ],
)
def test_a_value_that_no_rank_has_stored_is_an_error(fresh, of, size, broken):
    with fresh(size) as team:
        texts = team.run(reads_nonsense, file=team.source.new_file(), of=of, broken=broken)
    assert any("that none of its" in text and of in text for text in texts), texts


# ---- The end of making a group


def without_the_store(group, rank):
    """A message each way, between ranks 1 and 2."""
    t, out = torch.full((4,), rank), torch.zeros(4, dtype=torch.int64)
    sending = group.send([t], 3 - rank, 0)
    group.recv([out], 3 - rank, 0).wait()
    sending.wait()
    return out.tolist()


def with_the_store(group, rank):
    """PyTorch connects to the store, which rank 0 has, before it splits a group."""
    t = torch.full((4,), rank)
    part = group.split_group([1, 2], timeout=timedelta(seconds=20))
    part.allreduce([t]).wait()
    return t.tolist()


def goes_on(rank, n, device, *, port, nodes, how):
    """Rank 0 serves the store, and ends as soon as it has made the group."""
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(n)}
    if nodes:
        os.environ |= {"OCCL_NODE": nodes[rank], "GLOO_SOCKET_IFNAME": "lo"}
    from torch.distributed import _dist2

    group = _dist2.new_group("occl", timedelta(seconds=20), torch.device("cpu"))
    if rank > 0:
        return globals()[how](group, rank)
    del group
    raise EndInterpreter(0)


@with_dist2
@pytest.mark.parametrize(
    ("nodes", "how", "expected"),
    [
        (None, "with_the_store", [[3] * 4, [3] * 4]),
        (None, "without_the_store", [[2] * 4, [1] * 4]),
        ("abc", "without_the_store", [[2] * 4, [1] * 4]),
    ],
)
def test_a_rank_with_the_store_may_end_when_it_has_made_the_group(fresh, nodes, how, expected):
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    with fresh(3) as team:
        team.start(goes_on, port=port, nodes=nodes, how=how)
        outcomes = team.finish()
    assert not any(outcome.traceback for outcome in outcomes), [outcome.traceback for outcome in outcomes]
    assert [outcome.result for outcome in outcomes[1:]] == expected, outcomes
