"""What communication costs a program that has something else to do meanwhile.

    python benchmarks/overlap.py --json overlap.json

overlap    a 64 MiB all_reduce is issued, matrices are multiplied for about 20 ms, then it is waited for.
           `hidden` is the share of the shorter of both that is gone: all of it where each rank has a second
           core for its background thread, little where it has not.
waiting    the share of a core that a rank takes which waits in all_reduce for one that sleeps
idle       the same for a rank that has a group and calls nothing

All contenders live in the same processes and take turns. Every time is that of the slowest rank.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from torch_occl.bench.gate import Gate
from torch_occl.bench.launch import run_script
from torch_occl.bench.measure import slowest, timed

CONTENDERS = {"occl-dev": ("occl", "dev"), "occl-cpu": ("occl", "cpu"), "gloo": ("gloo", "cpu")}
ELEMENTS = 16 << 20
COMPUTE_SECONDS = 0.020
QUIET_SECONDS = 2.0


def used(action: Callable[[], object]) -> float:
    """Processor seconds of this process in a second."""
    started, before = time.perf_counter(), time.process_time()
    action()
    return (time.process_time() - before) / (time.perf_counter() - started)


def work(rank: int, options: argparse.Namespace, folder: str, counters) -> None:
    """What each rank does."""
    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(folder, "store")), options.ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=options.ranks)
    gate = Gate(counters, rank)
    groups = {name: dist.new_group(backend=backend) for name, (backend, _) in CONTENDERS.items()}
    data = {name: torch.ones(ELEMENTS, device=device) for name, (_, device) in CONTENDERS.items()}
    a, b = torch.randn(512, 512), torch.randn(512, 512)

    def product() -> None:
        torch.mm(a, b)

    product()
    times = max(1, round(COMPUTE_SECONDS / (timed(gate, lambda: [product() for _ in range(20)]) / 20)))

    def compute() -> None:
        for _ in range(times):
            product()

    def communicate(name: str) -> dist.Work:
        return dist.all_reduce(data[name], group=groups[name], async_op=True)

    def both(name: str) -> None:
        pending = communicate(name)
        compute()
        pending.wait()

    kinds = {"alone": lambda name: communicate(name).wait(), "compute": lambda _: compute(), "both": both}
    seconds: dict = {name: {kind: [] for kind in kinds} for name in CONTENDERS}
    for round_ in range(options.rounds + 1):
        for name in CONTENDERS:
            for kind, action in kinds.items():
                took = timed(gate, lambda action=action, name=name: action(name))
                if round_:  # the first one warms up
                    seconds[name][kind].append(took)
    results = {}
    for name, row in seconds.items():
        alone, computed, together = (statistics.median(row[kind]) for kind in kinds)
        results[name] = {
            "all_reduce_ms": alone * 1e3,
            "compute_ms": computed * 1e3,
            "both_ms": together * 1e3,
            "of_the_larger": together / max(alone, computed),
            "hidden": (alone + computed - together) / min(alone, computed),
        }
    for name in CONTENDERS:
        results[name]["idle"] = slowest([used(lambda: time.sleep(QUIET_SECONDS))])[0]
        gate.wait()
        if rank:
            time.sleep(QUIET_SECONDS)
        waiting = used(lambda name=name: communicate(name).wait())
        results[name]["waiting"] = slowest([0.0 if rank else waiting])[0]
    if rank == 0:
        Path(folder, "results").write_text(json.dumps(results))
    dist.destroy_process_group()


def show(_: argparse.Namespace, results: dict) -> dict:
    columns = list(next(iter(results.values())))
    print(f"{'':<10}" + "".join(f"{column:>15}" for column in columns))
    for name, row in results.items():
        print(f"{name:<10}" + "".join(f"{row[column]:>15.3f}" for column in columns))
    return {"results": results}


if __name__ == "__main__":
    run_script(__doc__, work, 15, "one thread of computation each", show)
