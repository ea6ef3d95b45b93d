"""Measures the peak memory of whole training steps with PyTorch's allocator and with shared CPU tensors.

    python benchmarks/memory.py --json memory.json
    python benchmarks/memory.py --models mlp_ddp --steps 10 --runs 1

The models are those of benchmarks/training.py, without communication. Each value is the median of some
processes, which take turns:

resident   the most memory that the process had at once, as the kernel counts it (VmHWM): the pages of every
           mapping, so a page that is mapped twice counts twice
own        the most that was seen while it trained (Pss): each page counts once
training   the same, less what the process had before it made the model; with digits_ddp, this includes the
           import of the example

The ratio is that to PyTorch's allocator; the goal for shared tensors is at most 1.1.
"""

import argparse
import json
import multiprocessing
import statistics
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from training import ALONE, MODELS, Trainer  # of this folder

from occl.bench import machine
from torch_occl import shared_cpu_memory_stats

CONTENDERS = ("none-cpu", "none-cpu-shared")
COLUMNS = ("resident", "own", "training")
LOOK = 0.002
"""Seconds between two looks at a process that trains."""


def mebibytes(pid: int | str, file: str, field: str) -> float:
    """A field of a file of /proc that has its numbers in KiB."""
    for line in Path("/proc", str(pid), file).read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/{pid}/{file} has no {field}")


def train(model: str, contender: str, steps: int, parent: Connection) -> None:
    """What a process does. It says when it begins and when it ends, and waits for an answer each time."""
    torch.set_num_threads(1)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    parent.send(0.0)
    parent.recv()
    trainer = Trainer(MODELS[model], contender, None, 0)
    trainer(steps)
    shared = shared_cpu_memory_stats()["allocated_bytes.all.peak"] > 0
    if shared != ALONE[contender].shared:
        raise RuntimeError(f"{contender}: tensors {'lie' if shared else 'do not lie'} in shared memory")
    parent.send(mebibytes("self", "status", "VmHWM"))
    parent.recv()


def measure(model: str, contender: str, steps: int) -> dict[str, float]:
    """MiB of one process by column."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=train, args=(model, contender, steps, theirs))
    process.start()
    theirs.close()  # so that the end of the process is an error here
    ours.recv()
    before = own = mebibytes(process.pid, "smaps_rollup", "Pss")
    ours.send(None)
    while not ours.poll(LOOK):
        own = max(own, mebibytes(process.pid, "smaps_rollup", "Pss"))
    resident = ours.recv()
    own = max(own, mebibytes(process.pid, "smaps_rollup", "Pss"))
    ours.send(None)
    process.join()
    return {"resident": resident, "own": own, "training": own - before}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    models = [name for name, model in MODELS.items() if not model.sharded]
    parser.add_argument("--models", nargs="+", choices=models, default=models, metavar="MODEL")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--runs", type=int, default=5, help="processes of each")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write machine and results to FILE")
    options = parser.parse_args()
    about = machine.describe()
    print(*machine.lines(about), sep="\n")
    print(f"\n{'':<12}{'MiB':<16}" + "".join(f"{column:>10}{'ratio':>7}" for column in COLUMNS), flush=True)
    results: dict[str, dict[str, dict[str, float]]] = {}
    for model in options.models:
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in CONTENDERS}
        for _ in range(options.runs):
            for name in CONTENDERS:
                runs[name].append(measure(model, name, options.steps))
        results[model] = rows = {
            name: {column: statistics.median(run[column] for run in found) for column in COLUMNS}
            for name, found in runs.items()
        }
        for name, row in rows.items():
            base = rows[CONTENDERS[0]]
            cells = (f"{row[column]:>10.1f}{row[column] / base[column]:>7.2f}" for column in COLUMNS)
            print(f"{model if name == CONTENDERS[0] else '':<12}{name:<16}{''.join(cells)}", flush=True)
    if options.json:
        content = {"machine": about, "steps": options.steps, "runs": options.runs, "results": results}
        options.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
