"""What each rank of the benchmark does. Its own module, because new processes cannot import __main__."""

import argparse
import contextlib
import gc
import pickle
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from occl.bench.contenders import CONTENDERS, make_groups
from occl.bench.gate import Gate
from occl.bench.measure import Contestant, External, measure
from occl.bench.operations import OPERATIONS, Operation
from occl.bench.report import Result, Table, summarize, with_roofline

Start = Callable[[list[str], Path, int, int], AbstractContextManager[dict[str, External]]]
"""(names, folder, rank, number of ranks) to this rank's ends of the programs, which run in the context."""


def no_programs(*_: object) -> AbstractContextManager[dict[str, External]]:
    return contextlib.nullcontext({})


def work(
    rank: int, options: argparse.Namespace, folder: str, counters: Any, start: Start = no_programs
) -> None:
    """What each rank does. The first prints the table, and leaves the results in ``folder``."""
    torch.set_num_threads(1)
    gc.disable()  # a collection in a timed section would be noise
    # The default group, with which the ranks agree about times. It is not timed itself.
    store = dist.FileStore(str(Path(folder, "store")), options.ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=options.ranks)
    groups = make_groups(name for name in options.contenders if name in CONTENDERS)
    programs = [name for name in options.contenders if name not in CONTENDERS]
    with start(programs, Path(folder), rank, options.ranks) as connections:
        results = measure_all(rank, options, groups | connections, Gate(counters, rank))
        if rank == 0:
            versions = {name: connection.version for name, connection in connections.items()}
            Path(folder, "results").write_bytes(pickle.dumps((results, versions)))
    dist.destroy_process_group()


def turns(options: argparse.Namespace) -> Iterator[tuple[Operation, int, float]]:
    """Every operation at every size in bytes, with the seconds that it may take. Collective."""
    cells = [
        (operation, size)
        for operation in OPERATIONS
        if operation.name in options.ops
        for size in (sorted(options.sizes) if operation.has_data else [4])
    ]
    end = time.monotonic() + options.seconds
    for index, (operation, size) in enumerate(cells):
        # Time that small sizes leave goes to larger ones. All ranks must use the same value.
        left = torch.tensor([(end - time.monotonic()) / (len(cells) - index)])
        dist.broadcast(left, 0)
        yield operation, size, left.item()


def measure_all(
    rank: int, options: argparse.Namespace, contestants: dict[str, Contestant], gate: Gate
) -> list[Result]:
    """Every operation at every size, as far as the time goes."""
    table = Table(list(contestants))
    measured: list[Result] = []
    if rank == 0:
        print(table.header(), flush=True)
    for operation, size, seconds in turns(options):
        line = with_roofline([summarize(s) for s in measure(operation, size, contestants, gate, seconds)])
        measured.extend(line)
        if rank == 0 and line:  # else no contender has this operation
            print(table.line(line), flush=True)
    return measured
