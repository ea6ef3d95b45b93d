"""What each rank of the benchmark does. Apart from __main__, which new processes cannot import."""

import argparse
import gc
import pickle
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from torch_occl.bench.contenders import make_groups
from torch_occl.bench.gate import Gate
from torch_occl.bench.measure import measure
from torch_occl.bench.operations import OPERATIONS
from torch_occl.bench.report import Result, Table, summarize


def work(rank: int, options: argparse.Namespace, folder: str, counters: Any) -> None:
    """What each rank does. The first prints the table, and leaves the results in ``folder``."""
    torch.set_num_threads(1)
    gc.disable()  # a collection in a timed section would be noise; nothing here makes cycles that matter
    # The default group, on which the ranks agree about times. It is timed itself nowhere.
    store = dist.FileStore(str(Path(folder, "store")), options.ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=options.ranks)
    groups = make_groups(options.contenders)
    gate = Gate(counters, rank)
    cells = [
        (operation, size)
        for operation in OPERATIONS
        if operation.name in options.ops
        for size in (sorted(options.sizes) if operation.has_data else [4])
    ]
    table = Table(options.contenders)
    measured: list[Result] = []
    if rank == 0:
        print(table.header(), flush=True)
    for operation, size in cells:
        samples = measure(operation, size, groups, gate, options.seconds / len(cells))
        line = [summarize(sample) for sample in samples]
        measured.extend(line)
        if rank == 0:
            print(table.line(line), flush=True)
    if rank == 0:
        Path(folder, "results").write_bytes(pickle.dumps(measured))
    dist.destroy_process_group()
