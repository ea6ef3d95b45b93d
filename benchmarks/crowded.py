"""Times all_reduce where ranks share their cores with each other and with other programs.

    python -m benchmarks.crowded --write                      2, 4 and 8 ranks, about 16 minutes
    python -m benchmarks.crowded --ranks 8 --beside compilers:4
    python -m benchmarks.crowded --update docs/performance.md

Beside nothing, beside processes that compute in a loop, and beside compilers, which also read and write
memory and files. Each backend is alone in its processes, as in benchmarks/sweep.py, and the backends take
turns. Rank 0 starts the other programs once all ranks have joined. A round's time is the mean of its calls
and of the ranks; the file has the median of all rounds and the quartiles, and the page the median.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks import pages, sweep
from occl.bench import machine
from occl.bench.launch import exit_on_sigterm
from occl.bench.noise import Watch
from occl.tools import text

CALLS = {4: 100, 64 << 10: 60, 48 << 20: 3}
"""By the bytes of the tensor: the calls of a round."""
CONTENDERS = ["occl-cpu", "occl-dev", sweep.GLOO]
RANKS = [2, 4, 8]
BESIDE = ["nothing", "loops:2", "loops:4", "loops:8", "compilers:4", "compilers:16"]
SOURCE = "#include <algorithm>\n#include <iostream>\n#include <map>\n#include <regex>\nstd::regex r;\n"
PROGRAMS = {
    "loops": [sys.executable, "-c", "while True: pass"],
    "compilers": [
        "sh",
        "-c",
        f"while :; do printf '{SOURCE}' | c++ -std=c++20 -O2 -x c++ -c - -o /dev/null; done",
    ],
}
NAMES = {"loops": "busy loop", "compilers": "compiler"}
BEGIN, END = "<!-- table: benchmarks/crowded.py writes it -->", "<!-- end of the table of shared cores -->"


def work(contender: str, folder: str, rank: str, ranks: str, *besides: str) -> None:
    """What a rank does."""
    finish = sweep.join(contender, folder, rank, ranks)
    found: sweep.Rounds = {}
    for beside in besides:
        with programs(beside) if rank == "0" else nullcontext():
            for size, calls in CALLS.items():
                tensor = torch.ones(size // 4, device=sweep.EVERY[contender].device_type)
                found[cell(beside, size)] = sweep.seconds_of(
                    lambda tensor=tensor: dist.all_reduce(tensor), calls, finish
                )
    sweep.leave(folder, found)


@contextmanager
def programs(beside: str) -> Iterator[None]:
    """Runs other programs meanwhile: "loops:4"."""
    kind, _, number = beside.partition(":")
    running = [
        subprocess.Popen(
            # The kernel ends them when this process ends, however it does.
            ["setpriv", "--pdeathsig", "KILL", *PROGRAMS[kind]],
            start_new_session=True,
            stderr=subprocess.DEVNULL,
        )
        for _ in range(int(number or 0))
    ]
    try:
        yield
        if any(program.poll() is not None for program in running):
            raise RuntimeError(f"one of the {kind} has ended")
    finally:
        for program in running:
            if program.poll() is None:
                os.killpg(program.pid, signal.SIGKILL)
                program.wait()


def cell(beside: str, size: int) -> str:
    """Its name in the results."""
    return f"{beside}, {text.size(size)}"


def in_words(beside: str) -> str:
    """ "4 busy loops" """
    kind, _, number = beside.partition(":")
    return f"{number} {NAMES[kind]}{'s' if int(number) > 1 else ''}" if number else "nothing"


def in_full(content: dict[str, Any], ranks: str) -> list[str]:
    """What the file says of a number of ranks."""
    return [f"{ranks} ranks", "", *sweep.table(content["results"][ranks])]


def page(content: dict[str, Any]) -> str:
    """The table of docs/performance.md: in each cell the time, and how much longer Gloo's is."""
    kinds = [name for name in CONTENDERS if name != sweep.GLOO]
    head = [f"{text.size(size)}, {sweep.KINDS[kind]}" for size in CALLS for kind in kinds]
    lines = []
    for ranks, measured in content["results"].items():
        speeds = {kind: sweep.speeds(measured, kind) for kind in kinds}
        for beside in dict.fromkeys(name.split(", ")[0] for name in measured[sweep.GLOO]):
            line = [ranks, in_words(beside)]
            for name in (cell(beside, size) for size in CALLS):
                for kind in kinds:
                    median = text.duration(measured[kind][name]["median_us"] * 1e3)
                    line.append(f"{median}, {speeds[kind][name]:.1f}")
            lines.append(line)
    return "\n".join(text.markdown_table(["ranks", "beside", *head], lines)) + "\n"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.crowded",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--ranks", nargs="+", type=int, default=RANKS, metavar="N")
    parser.add_argument("--beside", nargs="+", default=BESIDE, metavar="PROGRAMS:N")
    parser.add_argument(
        "--update", type=Path, metavar="PAGE", help="measure nothing: write the newest table into a page"
    )
    parser.add_argument(
        "--write", action="store_true", help=f"into {sweep.RESULTS.name}/DATE-crowded.txt and .json"
    )
    chosen = parser.parse_args()
    for beside in chosen.beside:
        kind, _, number = beside.partition(":")
        if beside != "nothing" and not (kind in PROGRAMS and number.isdigit() and int(number) > 0):
            parser.error(
                f'--beside {beside}: give "nothing", or {" or ".join(f"{name}:4" for name in PROGRAMS)}'
            )
    return chosen


def main() -> None:
    exit_on_sigterm()
    options = parse_arguments()
    if options.update:
        pages.write_between(options.update, BEGIN, END, page(sweep.newest("crowded")))
        return
    about = machine.describe()
    print(*machine.lines(about), sep="\n", flush=True)
    content: dict[str, Any] = {"machine": about, "results": {}, "noise": {}}
    for ranks in map(str, options.ranks):
        watch = Watch()
        rounds = sweep.in_turns(ranks, CONTENDERS, sweep.TURNS, "benchmarks.crowded", options.beside)
        content["results"][ranks] = sweep.cells_of(rounds)
        content["noise"][ranks] = {"stolen_share": watch.shares()[1]}
        print("", *in_full(content, ranks), sep="\n", flush=True)
        if options.write:
            sweep.write("crowded", content, in_full)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        work(*sys.argv[2:])
    else:
        main()
