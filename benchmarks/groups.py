"""Counts what groups over several nodes keep: threads, descriptors, and keys in the store.

    python -m benchmarks.groups [--nodes 2 6 16] [--groups 1 10 100] [--json RESULT.json]

Every node is one rank, which OCCL_NODE sets apart, so one machine suffices. Besides the default group, each
rank makes groups of all ranks and sums a number in each. The counts are those of the rank that has most, once
they have not changed for a while: with the groups, and after they have been destroyed. PyTorch's and Gloo's
threads are among them, and the sockets of Gloo and of the store.
"""

import argparse
import json
import multiprocessing
import os
import socket
import time
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist

from occl.tools import text

TIMEOUT = timedelta(minutes=5)
QUIET = 3.0
"""Seconds without a change after which a rank is at rest. Threads that have nothing to do end earlier."""


class Counts(NamedTuple):
    """Of the rank that has most."""

    threads: int
    descriptors: int
    keys: int


def counted(store: dist.Store) -> Counts:
    """Of this process, at rest."""
    before, since = None, time.monotonic()
    while time.monotonic() - since < QUIET:
        now = Counts(len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd")), store.num_keys())
        if now != before:
            before, since = now, time.monotonic()
        time.sleep(0.05)
    return before


def rank_of(rank: int, nodes: int, groups: list[int], port: int, out: Connection) -> None:
    """Sends the counts of each step to the parent."""
    os.environ |= {"OCCL_NODE": f"node {rank}", "GLOO_SOCKET_IFNAME": "lo"}
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, nodes, rank == 0, TIMEOUT)
    found = {"no group": counted(store)}

    def note(step: str) -> None:
        """Between two barriers, so that all ranks are at rest."""
        dist.barrier()
        found[step] = counted(store)
        dist.barrier()

    dist.init_process_group("occl", store=store, rank=rank, world_size=nodes, timeout=TIMEOUT)
    note("the default group")
    made = []
    for count in sorted(groups):
        while len(made) < count:
            made.append(dist.new_group())
            dist.all_reduce(torch.ones(1), group=made[-1])
        note(f"and {count} more")
    for group in made:
        dist.destroy_process_group(group)
    note("after their end")
    out.send(found)
    dist.destroy_process_group()


def measure(nodes: int, groups: list[int]) -> dict[str, Counts]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")
    ends = [context.Pipe(duplex=False) for _ in range(nodes)]
    ranks = [
        context.Process(target=rank_of, args=(rank, nodes, groups, port, ends[rank][1]))
        for rank in range(nodes)
    ]
    for rank in ranks:
        rank.start()
    found = [receiver.recv() for receiver, _ in ends]
    for rank in ranks:
        rank.join()
    return {
        step: Counts(*map(max, zip(*(counts[step] for counts in found), strict=True))) for step in found[0]
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 6, 16])
    parser.add_argument("--groups", type=int, nargs="+", default=[1, 10, 100])
    parser.add_argument("--json", type=Path, help="where the result goes as well")
    options = parser.parse_args()
    result = {nodes: measure(nodes, options.groups) for nodes in options.nodes}
    lines = [
        [f"{nodes} nodes, {step}", *map(str, counts)]
        for nodes in result
        for step, counts in result[nodes].items()
    ]
    print("\n".join(text.table(["", *Counts._fields], lines)))
    if options.json:
        content = {n: {step: counts._asdict() for step, counts in of.items()} for n, of in result.items()}
        options.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
