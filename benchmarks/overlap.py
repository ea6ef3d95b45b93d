"""What communication costs a program that has something else to do meanwhile.

    python benchmarks/overlap.py --json overlap.json
    python benchmarks/overlap.py --ranks 4 --threads 1

together   a 64 MiB all_reduce is issued, matrices are multiplied for about 16 ms by ``--threads`` threads of
           each rank, then it is waited for. `of the sum` compares this with one after the other. Where no
           core is free, 1 is the best that can be had.
one waits  the same, but only rank 0 multiplies; the others wait from the beginning, so their cores are free.
           `of the larger` compares it with the longer of the all_reduce and the products. `least` is what it
           would take if no core were ever idle, and an all_reduce took all the time of a core on each rank.
waiting    the share of a core that a rank takes which waits in all_reduce for one that sleeps
idle       the same for a rank that has a group and calls nothing

All contenders live in the same processes and take turns. Every time is that of the slowest rank.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from occl.bench.contenders import CONTENDERS, make_groups
from occl.bench.gate import Gate
from occl.bench.launch import run_script
from occl.bench.measure import slowest, timed

NAMES = ("occl-dev", "occl-cpu", "gloo")
ELEMENTS = 16 << 20
COMPUTE_SECONDS = 0.016
QUIET_SECONDS = 2.0


def used(action: Callable[[], object]) -> float:
    """Processor seconds of this process in a second."""
    started, before = time.perf_counter(), time.process_time()
    action()
    return (time.process_time() - before) / (time.perf_counter() - started)


def products(gate: Gate) -> Callable[[], None]:
    """A call multiplies as often on every rank, for about COMPUTE_SECONDS."""
    a, b, out = torch.randn(512, 512), torch.randn(512, 512), torch.empty(512, 512)

    def compute(times: int = 20) -> None:
        for _ in range(times):
            torch.mm(a, b, out=out)

    compute()
    times = max(1, round(COMPUTE_SECONDS / (timed(gate, compute) / 20)))
    return lambda: compute(times)


def work(rank: int, options: argparse.Namespace, folder: str, counters) -> None:
    """What each rank does."""
    torch.set_num_threads(options.threads)
    store = dist.FileStore(str(Path(folder, "store")), options.ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=options.ranks)
    gate = Gate(counters, rank)
    groups = make_groups(NAMES)
    data = {name: torch.ones(ELEMENTS, device=CONTENDERS[name].device_type) for name in NAMES}
    compute = products(gate)

    def communicate(name: str) -> dist.Work:
        return dist.all_reduce(data[name], group=groups[name], async_op=True)

    def together(name: str) -> None:
        pending = communicate(name)
        compute()
        pending.wait()

    kinds = {
        "alone": lambda name: communicate(name).wait(),
        "compute": lambda _: compute(),
        "together": together,
        "one computes": lambda _: None if rank else compute(),
        "one waits": lambda name: communicate(name).wait() if rank else together(name),
    }
    seconds: dict = {name: {kind: [] for kind in kinds} for name in NAMES}
    for round_ in range(options.rounds + 1):
        for name in NAMES:
            for kind, action in kinds.items():
                took = timed(gate, lambda action=action, name=name: action(name))
                if round_:  # the first one warms up
                    seconds[name][kind].append(took)
    results = {}
    cores = len(os.sched_getaffinity(0))
    for name, row in seconds.items():
        median = {kind: statistics.median(row[kind]) for kind in kinds}
        larger = max(median["alone"], median["one computes"])
        core_seconds = median["one computes"] * min(cores, options.threads)
        core_seconds += median["alone"] * min(cores, options.ranks)
        results[name] = {
            "all_reduce ms": median["alone"] * 1e3,
            "compute ms": median["compute"] * 1e3,
            "together ms": median["together"] * 1e3,
            "of the sum": median["together"] / (median["alone"] + median["compute"]),
            "one waits ms": median["one waits"] * 1e3,
            "least ms": max(larger, core_seconds / cores) * 1e3,
            "of the larger": median["one waits"] / larger,
        }
    for name in NAMES:
        results[name]["idle"] = slowest([used(lambda: time.sleep(QUIET_SECONDS))])[0]
        gate.wait()
        if rank:
            time.sleep(QUIET_SECONDS)
        waiting = used(lambda name=name: communicate(name).wait())
        results[name]["waiting"] = slowest([0.0 if rank else waiting])[0]
    if rank == 0:
        Path(folder, "results").write_text(json.dumps(results))
    dist.destroy_process_group()


def show(options: argparse.Namespace, results: dict) -> dict:
    columns = list(next(iter(results.values())))
    print(f"threads of each rank: {options.threads}")
    print(f"{'':<10}" + "".join(f"{column:>15}" for column in columns))
    for name, row in results.items():
        print(f"{name:<10}" + "".join(f"{row[column]:>15.3f}" for column in columns))
    return {"threads": options.threads, "results": results}


if __name__ == "__main__":
    run_script(
        __doc__,
        work,
        40,
        "with computation beside",
        show,
        lambda parser: parser.add_argument("--threads", type=int, default=1, help="that compute, in a rank"),
    )
