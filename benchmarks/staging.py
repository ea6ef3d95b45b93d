"""What tensors cost that the host cannot touch: an all_reduce of them, beside one of CPU tensors.

    python -m benchmarks.staging [--ranks 2 4] [--rounds 5] [--json RESULT.json]

The device is that of examples/backend_template, which stands in for another package's accelerator: its
copies run in a thread of each stream, at the speed of the host's memory. `gloo, copied` is what a program
does without staging: it copies to the CPU, calls Gloo, and copies back. Each contender runs alone in
processes of its own, in turns, and calls in an ordinary loop. The times are of rank 0, a call, until the
result is on the device.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from occl.tools import text

SIZES = [4, 1 << 20, 64 << 20]
SECONDS = 1.0
"""Each contender calls for about this long with each size."""
CONTENDERS = ("occl, foreign", "gloo, copied", "occl, CPU", "gloo, CPU")


def rank_of(rank: int, ranks: int, contender: str, folder: str) -> None:
    """Rank 0 writes the seconds of each call, by size."""
    torch.set_num_threads(1)
    backend, where = contender.split(", ")
    device = torch.device("cpu")
    if where != "CPU":
        from tests.foreign.device import load

        load()
        device = torch.device("foreign:0")
    if backend == "occl":
        import torch_occl  # noqa: F401
    dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    found = {}
    for size in SIZES:
        t = torch.zeros(size // 4).to(device)
        on_host = torch.zeros(size // 4)

        def call(t: torch.Tensor = t, on_host: torch.Tensor = on_host) -> float:
            begin = time.perf_counter()
            if where == "copied":
                on_host.copy_(t)
                dist.all_reduce(on_host)
                t.copy_(on_host)
            else:
                dist.all_reduce(t)
            if device.type != "cpu":
                torch.accelerator.synchronize()
            return time.perf_counter() - begin

        calls = torch.tensor([max(5, int(SECONDS / statistics.median(call() for _ in range(5))))])
        group = dist.group.WORLD if where == "CPU" else dist.new_group(backend="cpu:gloo")
        dist.broadcast(calls, 0, group=group)
        found[size] = [call() for _ in range(int(calls))]
    if rank == 0:
        Path(folder, "found").write_text(json.dumps(found))
    dist.barrier(group=group)
    dist.destroy_process_group()


def measure(ranks: int, contender: str) -> dict[int, list[float]]:
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank_of, (ranks, contender, folder), nprocs=ranks)
        return {int(size): times for size, times in json.loads(Path(folder, "found").read_text()).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="where the result goes as well")
    options = parser.parse_args()
    from occl.bench import machine  # makes `dev`, which ranks of another device must not have

    about = machine.describe()
    print(*machine.lines(about), "", sep="\n", flush=True)
    rows, kept = [], {}
    for ranks in options.ranks:
        medians: dict[tuple[str, int], list[float]] = {}
        for _ in range(options.rounds):
            for contender in CONTENDERS:
                for size, times in measure(ranks, contender).items():
                    medians.setdefault((contender, size), []).append(statistics.median(times) * 1e6)
        for size in SIZES:
            cells = [medians[contender, size] for contender in CONTENDERS]
            shown = [
                f"{statistics.median(each):,.1f} ({min(each):,.1f} to {max(each):,.1f})" for each in cells
            ]
            rows.append([f"{ranks} ranks, {text.size(size)}", *shown])
            kept[f"{ranks}, {size}"] = dict(zip(CONTENDERS, cells, strict=True))
    title = "us: median of all rounds (least and greatest)"
    print("\n".join(text.table([title, *CONTENDERS], rows)))
    if options.json:
        options.json.write_text(json.dumps({"machine": about, "microseconds": kept}, indent=1) + "\n")


if __name__ == "__main__":
    main()
