"""Times all_reduce where ranks share their cores with each other and with other programs.

    python -m benchmarks.crowded --write
    python -m benchmarks.crowded --ranks 8 --beside compilers:4
    python -m benchmarks.crowded --update docs/performance.md

Beside nothing, beside processes that compute in a loop, and beside compilers, which also read and write
memory and files. Each backend is alone in its processes, as in benchmarks/sweep.py, and the backends take
turns. A round's time is the mean of its calls and of the ranks; the table has the median of all rounds and
the quartiles.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks import pages, sweep
from occl.bench import machine
from occl.bench.noise import Watch
from occl.tools import text

CALLS = {4: 100, 64 << 10: 60, 48 << 20: 3}
"""By the bytes of the tensor: the calls of a round."""
CONTENDERS = ["occl-cpu", sweep.GLOO]
BESIDE = ["nothing", "loops:2", "compilers:4"]
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


def work(contender: str, folder: str, rank: str, ranks: str) -> None:
    """What a rank does."""
    finish = sweep.join(contender, folder, rank, ranks)
    found: sweep.Rounds = {}
    for size, calls in CALLS.items():
        tensor = torch.ones(size // 4, device=sweep.EVERY[contender].device_type)
        found[text.size(size)] = sweep.seconds_of(
            lambda tensor=tensor: dist.all_reduce(tensor), calls, finish
        )
    sweep.leave(folder, found)


@contextmanager
def programs(beside: str) -> Iterator[None]:
    """Runs other programs meanwhile: "loops:4"."""
    kind, _, number = beside.partition(":")
    running = [
        subprocess.Popen(PROGRAMS[kind], start_new_session=True, stderr=subprocess.DEVNULL)
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


def measure(ranks: int, beside: str) -> dict[str, sweep.Rounds]:
    with programs(beside):
        return sweep.in_turns(str(ranks), CONTENDERS, sweep.TURNS, "benchmarks.crowded")


def in_words(beside: str) -> str:
    """ "4 busy loops" """
    kind, _, number = beside.partition(":")
    return f"{number} {NAMES[kind]}{'s' if int(number) > 1 else ''}" if number else "nothing"


def cell(seconds: list[float]) -> str:
    low, median, high = (text.duration(value * 1e9) for value in statistics.quantiles(seconds, n=4))
    return f"{median} ({low} to {high})"


def page(content: dict[str, Any]) -> str:
    head = ["ranks", "beside", "tensor", "occl, quartiles", "Gloo, quartiles", "Gloo over occl"]
    lines = []
    for ranks, rows in content["results"].items():
        for beside, measured in rows.items():
            own, gloo = (measured[name] for name in CONTENDERS)
            for size in own:
                ratio = statistics.median(gloo[size]) / statistics.median(own[size])
                lines.append(
                    [ranks, in_words(beside), size, cell(own[size]), cell(gloo[size]), f"{ratio:.1f}"]
                )
    return "\n".join(text.markdown_table(head, lines)) + "\n"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.crowded",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 8], metavar="N")
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
    options = parse_arguments()
    if options.update:
        pages.write_between(options.update, BEGIN, END, page(sweep.newest("crowded")))
        return
    about = machine.describe()
    print(*machine.lines(about), sep="\n", flush=True)
    content: dict[str, Any] = {"machine": about, "results": {}}
    watch = Watch()
    for ranks in options.ranks:
        rows = content["results"][str(ranks)] = {}
        for beside in options.beside:
            rows[beside] = measure(ranks, beside)
            print(page({"results": {str(ranks): {beside: rows[beside]}}}), flush=True)
    content["stolen_share"] = watch.shares()[1]
    if options.write:
        stem = sweep.RESULTS / f"{about['date'][:10]}-crowded"
        stem.with_suffix(".txt").write_text("\n".join([*machine.lines(about), "", page(content)]))
        stem.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        work(*sys.argv[2:])
    else:
        main()
