"""Threads and descriptors of ranks on several nodes do not grow with their groups, and fall when groups end.

The ranks say which node they are on (OCCL_NODE), so these tests need no network.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

from occl.distributed import inter_node
from tests.hosts.launch import placement
from tests.support.checks import assert_works
from torch_occl import ProcessGroupOCCL

SHAPE = "2+1+1"
TIMEOUT = timedelta(seconds=60)
GROUPS = 10
MEMBERS = [1, 2, 3]
"""Of each group: one rank on each node, which leads the ranks of its node there."""
PEERS = {0: [2, 2, 2], 1: [0, 2, 2], 2: [2, 3, 2], 3: [2, 3, 2]}
"""By rank: how many others it expects messages of before there are groups, with them, and after them. Rank 1
has asked two to make groups, and they can have more to say to that."""
OWN = 3
"""The threads that answer the processes of this node and show them this one's stack, and the one that drives
where no thread waits."""


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def until(count: Callable[[], int], most: int) -> None:
    """Threads that have nothing to do end after a while. If they do not, the test ends at its deadline."""
    while count() > most:
        time.sleep(0.02)


def message(group: dist.ProcessGroup) -> None:
    """From the first member to the second, which expects another one from then on."""
    if dist.get_rank(group) == 0:
        dist.send(torch.ones(1), MEMBERS[1], group=group)
    elif dist.get_rank(group) == 1:
        dist.recv(torch.zeros(1), MEMBERS[0], group=group)


def kept(rank: int, n: int, device: str, *, store: str) -> None:
    os.environ |= {"OCCL_NODE": f"node {placement(SHAPE)[rank]}", "GLOO_SOCKET_IFNAME": "lo"}
    files = dist.FileStore(store, n)
    connect = inter_node.prepare(one_network=True)[1]
    engine = connect(dist.PrefixStore("gloo", files), rank, n, TIMEOUT)
    torch.set_num_threads(1)  # none of PyTorch's own come later
    others = threads() + OWN
    options = ProcessGroupOCCL.Options(inter_node=engine)
    dist.init_process_group("occl", store=files, rank=rank, world_size=n, timeout=TIMEOUT, pg_options=options)

    def settles(step: int) -> None:
        """One thread for each peer, and one that monitors the groups in which this rank leads its node."""
        until(threads, others + PEERS[rank][step] + (step == 1 or rank != 1))
        dist.barrier()

    assert_works()
    dist.barrier(async_op=True).wait()  # nothing waits at first
    settles(0)
    before = descriptors()
    for order in (MEMBERS, MEMBERS[::-1]):
        groups = [dist.new_group(MEMBERS) for _ in range(GROUPS)]
        if rank in MEMBERS:
            for group in groups:
                assert_works(group=group)
                message(group)
        settles(1)
        until(descriptors, before)
        for leaving in order:
            for group in groups if leaving == rank else []:
                dist.destroy_process_group(group)
            dist.barrier()
        settles(2)
    assert_works()


def test_threads_grow_with_peers_and_not_with_groups(ranks):
    with ranks.fresh(len(placement(SHAPE))) as team:
        team.run(kept, store=ranks.source.new_file())
