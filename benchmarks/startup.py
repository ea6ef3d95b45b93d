"""What it takes to begin: the import of torch_occl, the first group, and later ones.

    python benchmarks/startup.py --json startup.json
    python benchmarks/startup.py --ranks 8 --nodes 4   # one host as several nodes (OCCL_NODE)

import     seconds that `import torch_occl` takes after `import torch`, in processes of their own
create     milliseconds of dist.new_group() between ranks that are connected already
destroy    the same of dist.destroy_process_group(group)
first      milliseconds of dist.init_process_group() in processes that have only imported torch and torch_occl
change     the same of dist._reconfigure() with the same members, where PyTorch has it (from 2.14 on)

occl and Gloo take turns. Every time of a group is that of the slowest rank, and the median of all rounds.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch.distributed as dist

from occl.bench.gate import Gate
from occl.bench.launch import run_script
from occl.bench.measure import slowest, timed

BACKENDS = ["occl", "gloo"]
FIRST = "--first"
FIRST_GROUPS = 7
"""First groups of each backend, which take a process of each rank."""
IMPORT = """
import time
begin = time.perf_counter()
import torch
between = time.perf_counter()
import torch_occl
print(between - begin, time.perf_counter() - between)
"""


def import_seconds(times: int) -> dict[str, float]:
    """Medians for torch and for torch_occl after it, which torch does not load by itself here."""
    environment = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    command = [sys.executable, "-c", IMPORT]
    runs = []
    for _ in range(times):
        shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        runs.append([float(value) for value in shown.split()])
    of_torch, of_occl = (statistics.median(column) for column in zip(*runs, strict=True))
    return {"torch_s": of_torch, "torch_occl_s": of_occl}


def make_store(rank: int, ranks: int, nodes: int, folder: str) -> dist.Store:
    """A file where all ranks are on one node, and a server, as between hosts, where they are on several."""
    store = dist.FileStore(str(Path(folder, "store")), ranks)
    if nodes == 1:
        return store
    if rank > 0:
        return dist.TCPStore("127.0.0.1", int(store.get("port")), ranks)
    server = dist.TCPStore("127.0.0.1", 0, ranks, is_master=True, wait_for_workers=False)
    store.set("port", str(server.port))
    return server


def make_first_group(name: str, rank: int, ranks: int, nodes: int, folder: str) -> None:
    """What a process of `first_group` does: says when it is ready, makes the default group after a line, and
    tells how many milliseconds the slowest rank took. Ends after another line."""
    store = make_store(rank, ranks, nodes, folder)
    print("ready", flush=True)
    sys.stdin.readline()
    begin = time.perf_counter()
    dist.init_process_group(name, store=store, rank=rank, world_size=ranks)
    print(slowest([time.perf_counter() - begin])[0] * 1e3, flush=True)
    sys.stdin.readline()
    dist.destroy_process_group()


def first_group(name: str, rank: int, options: argparse.Namespace, folder: str, counters) -> float:
    """Makes the default group in a process of its own for each rank: one that was forked from this one would
    copy its pages meanwhile. Returns the milliseconds of the slowest rank."""
    gate = Gate(counters, rank)
    arguments = [name, str(rank), str(options.ranks), str(options.nodes), folder]
    command = [sys.executable, __file__, FIRST, *arguments]
    Path(folder).mkdir(exist_ok=True)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        said = [process.stdout.readline()]
        gate.wait(asleep=True)
        process.stdin.write("begin\n")
        process.stdin.flush()
        said.append(process.stdout.readline())
        gate.wait(asleep=True)  # no rank leaves while another one needs it
        process.communicate("end\n")
    if process.returncode or not all(said):
        raise RuntimeError(f"rank {rank} could not make its first group with {name}")
    return float(said[1])


def change(name: str, rank: int, options: argparse.Namespace, folder: str, counters) -> list[float]:
    """Makes the default group again and again; returns the milliseconds of the slowest rank, each time."""
    store = make_store(rank, options.ranks, options.nodes, folder)
    dist.init_process_group(name, store=store, rank=rank, world_size=options.ranks, enable_reconfigure=True)
    gate = Gate(counters, rank)
    taken = []
    for uuid in range(options.rounds + 1):
        store.set(f"{uuid}/{rank}", dist._get_reconfigure_handle())  # with Gloo another one each time
        handles = [store.get(f"{uuid}/{member}").decode() for member in range(options.ranks)]
        taken.append(timed(gate, lambda: dist._reconfigure(uuid, handles).wait()) * 1e3)  # noqa: B023
    return taken[1:]  # the first one makes the first group


def in_child(body, name: str, rank: int, options: argparse.Namespace, folder: str, counters):
    """What it returns in a child, which has what this process has imported, and has made no group yet."""
    fork = multiprocessing.get_context("fork")
    result = fork.SimpleQueue()
    Path(folder).mkdir(exist_ok=True)

    def run() -> None:
        result.put(body(name, rank, options, folder, counters))
        Gate(counters, rank).wait(asleep=True)  # no rank leaves while another one needs it

    child = fork.Process(target=run)
    child.start()
    child.join()
    if child.exitcode:
        raise RuntimeError(f"rank {rank} could not make its groups with {name}")
    return result.get()


def work(rank: int, options: argparse.Namespace, folder: str, counters) -> None:
    """What each rank does."""
    if options.nodes > 1:
        os.environ["OCCL_NODE"] = str(rank * options.nodes // options.ranks)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    first: dict = {name: [] for name in BACKENDS}
    for round_ in range(FIRST_GROUPS):
        for name in BACKENDS:
            apart = str(Path(folder, f"{name}{round_}"))
            first[name].append(first_group(name, rank, options, apart, counters))
    changes = {
        name: in_child(change, name, rank, options, str(Path(folder, f"{name} changes")), counters)
        for name in BACKENDS
        if hasattr(dist, "_reconfigure")
    }
    store = make_store(rank, options.ranks, options.nodes, folder)
    dist.init_process_group("occl", store=store, rank=rank, world_size=options.ranks)
    gate = Gate(counters, rank)
    taken: dict = {name: {"create_ms": [], "destroy_ms": []} for name in BACKENDS}
    made: list = []
    for round_ in range(options.rounds + 1):
        for name in BACKENDS:
            create = timed(gate, lambda name=name: made.append(dist.new_group(backend=name)))
            destroy = timed(gate, lambda: dist.destroy_process_group(made.pop()))
            if round_:  # the first one warms up
                taken[name]["create_ms"].append(create * 1e3)
                taken[name]["destroy_ms"].append(destroy * 1e3)
    if rank == 0:
        Path(folder, "results").write_text(
            json.dumps({"first_ms": first, "change_ms": changes, "groups": taken})
        )
    dist.destroy_process_group()


def show(options: argparse.Namespace, taken: dict) -> dict:
    groups = {
        name: {k: statistics.median(v) for k, v in row.items()} for name, row in taken["groups"].items()
    }
    imports = import_seconds(max(3, options.rounds // 4))
    print(f"import torch {imports['torch_s']:.2f} s, then torch_occl {imports['torch_occl_s']:.3f} s\n")
    print(f"{'':<10}{'create_ms':>15}{'destroy_ms':>15}")
    for name, row in groups.items():
        print(f"{name:<10}{row['create_ms']:>15.2f}{row['destroy_ms']:>15.2f}")
    first = {name: statistics.median(times) for name, times in taken["first_ms"].items()}
    texts = ", ".join(f"{name} {ms:.1f} ms" for name, ms in first.items())
    print(f"the first group of {options.ranks} ranks on {options.nodes} nodes: {texts}")
    changes = {name: statistics.median(times) for name, times in taken["change_ms"].items()}
    if changes:
        texts = ", ".join(f"{name} {ms:.2f} ms" for name, ms in changes.items())
        print(f"the same members in a new group, by reconfigure: {texts}")
    return {
        "nodes": options.nodes,
        "import": imports,
        "first_ms": first,
        "change_ms": changes,
        "groups": groups,
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nodes", type=int, default=1, help="nodes into which the ranks are divided")


if __name__ == "__main__":
    if sys.argv[1:2] == [FIRST]:
        name, *numbers, folder = sys.argv[2:]
        make_first_group(name, *map(int, numbers), folder)
    else:
        run_script(__doc__, work, 30, "groups", show, add_options)
