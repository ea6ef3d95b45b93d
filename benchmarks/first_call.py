"""Times calls after a break, in which a rank computes: what the first costs that the second does not.

    python -m benchmarks.first_call --write
    python -m benchmarks.first_call --update docs/performance.md

After a break the code of a call has left the core's caches. So the table has, beside an all_reduce of 4 B
over occl and over Gloo, calls that reach no other rank, and two processes that meet in shared memory. Each
program is alone in its processes; a time is the median of TIMES calls, the mean of the ranks.
"""

from __future__ import annotations

import argparse
import json
import mmap
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy
import torch
import torch.distributed as dist

from benchmarks import pages, sweep
from occl.bench import machine
from occl.bench.launch import exit_on_sigterm
from occl.tools import text

TIMES = 60
RANKS = 2
CONTENDERS = ["occl-cpu", sweep.GLOO]
NAMES = {
    "operator": "`tensor.add_(1)`, an operator of PyTorch, on one number",
    "rank": "`dist.get_rank(group)`",
    "alone": "all_reduce of 4 B in a group of one rank",
    "exchange": "two processes that meet in shared memory (numpy)",
    "together": "all_reduce of 4 B of two ranks",
}
"""The calls, and what the page calls them."""
BEGIN, END = "<!-- table: benchmarks/first_call.py writes it -->", "<!-- end of the table of first calls -->"


def meeting(folder: str, rank: int) -> sweep.Call:
    """Meets the other rank in a file that both map."""
    with open(Path(folder, f"meeting{rank}"), "w+b") as own:
        own.truncate(mmap.PAGESIZE)
    dist.barrier()
    marks = []
    for number in (rank, 1 - rank):
        with open(Path(folder, f"meeting{number}"), "r+b") as file:
            marks.append(numpy.frombuffer(mmap.mmap(file.fileno(), mmap.PAGESIZE), dtype=numpy.int64))
    own_mark, other = marks

    def meet() -> None:
        own_mark[0] += 1
        while other[0] < own_mark[0]:
            pass

    return meet


def times_of(call: sweep.Call) -> list[float]:
    """Microseconds of the first and of the second call after a break."""
    found = []
    for _ in sweep.breaks(TIMES):
        begun = time.perf_counter()
        call()
        between = time.perf_counter()
        call()
        found.append([between - begun, time.perf_counter() - between])
    return sweep.mean_of_ranks([statistics.median(times) * 1e6 for times in zip(*found, strict=True)])


def work(contender: str, folder: str, rank: str, ranks: str) -> None:
    """What a rank does."""
    sweep.join(contender, folder, rank, ranks)
    groups = [dist.new_group([number]) for number in range(int(ranks))]
    own, block = groups[int(rank)], torch.ones(1)
    calls: dict[str, sweep.Call] = {
        "operator": lambda: block.add_(1),
        "rank": lambda: dist.get_rank(own),
        "alone": lambda: dist.all_reduce(block, group=own),
        "exchange": meeting(folder, int(rank)),
        "together": lambda: dist.all_reduce(block),
    }
    sweep.leave(folder, {name: times_of(call) for name, call in calls.items()})


def page(content: dict[str, Any]) -> str:
    """What is the same over both backends is shown once."""
    own, gloo = (content["results"][name] for name in CONTENDERS)
    lines = []
    for name, said in NAMES.items():
        both = [(", occl", own), (", Gloo", gloo)] if name in ("alone", "together") else [("", own)]
        for which, times in both:
            lines.append([said + which, *(text.duration(us * 1e3) for us in times[name])])
    return "\n".join(text.markdown_table(["call", "first", "second"], lines)) + "\n"


def main() -> None:
    exit_on_sigterm()
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.first_call",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--update", type=Path, metavar="PAGE", help="write the newest table into a page")
    parser.add_argument(
        "--write", action="store_true", help=f"into {sweep.RESULTS.name}/DATE-first_call.json"
    )
    options = parser.parse_args()
    if options.update:
        pages.write_between(options.update, BEGIN, END, page(sweep.newest("first_call")))
        return
    about = machine.describe()
    results = {name: sweep.measure(str(RANKS), name, "benchmarks.first_call") for name in CONTENDERS}
    content = {"machine": about, "results": results}
    print(*machine.lines(about), "", page(content), sep="\n")
    if options.write:
        file = sweep.RESULTS / f"{about['date'][:10]}-first_call.json"
        file.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        work(*sys.argv[2:])
    else:
        main()
