"""Times every operation in ordinary programs: each backend alone in its processes, calls in a row.

    python -m benchmarks.sweep                                     2, 3, 4 and 8 ranks, about eight minutes
    python -m benchmarks.sweep --shapes 1+1 2+2 --contenders occl-tcp gloo     network namespaces; needs root
    python -m benchmarks.sweep --shapes 2 3 4 8 1+1 2+2 4+4 --write
    python -m benchmarks.sweep --update docs/performance.md

A shape is a number of ranks of this host, or the ranks of each of several hosts. A cell is one operation on
float32 tensors (or of another type, or on objects), of SIZES bytes for each rank. Its time is the mean of the
ranks over some calls. The table has the median and the quartiles of ROUNDS in each of TURNS, in which the
backends follow each other. The last lines compare with Gloo.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.pages import write_between
from occl.bench import machine
from occl.bench.contenders import EVERY
from occl.bench.launch import exit_on_sigterm
from occl.bench.noise import Watch, judge, verdict
from occl.tools import text
from tests.hosts.launch import placement
from tests.hosts.namespaces import INTERFACE, Host, Network, why_not
from torch_occl import ProcessGroupOCCL

RESULTS = Path(__file__).parent / "results"
ROUNDS = 7
TURNS = 2
SIZES = {4: 40, 4 << 10: 40, 64 << 10: 20, 4 << 20: 2}
"""Bytes of a rank's block, and the calls of a round."""
BREAK = 0.02
"""Seconds."""
TYPES_BYTES = 64 << 10
"""The size at which other types are timed."""
GLOO = "gloo"


MODELS = [(100, 64), (1024, 256), (2048, 512)]
"""Of models whose steps are timed: the widths of their two layers, inside and outside."""
STEP = "step of training"
"""How the names of their cells begin, which are no operations: `summarize` leaves them out."""

KINDS = {
    "occl-cpu": "CPU",
    "occl-dev": "`dev`",
    "occl-tcp": "CPU, over TCP",
    "occl-ucx": "CPU, over UCX",
    "occl-gloo": "CPU, over Gloo",
}
"""The contenders beside Gloo, of occl.bench.contenders, and what the page calls them."""
WIDTH = 36
"""Letters of a column of the table: "8.508e+05 (8.203e+05 to 8.708e+05)"."""
BEGIN, END = "<!-- table: benchmarks/sweep.py writes it -->", "<!-- end of the table of all operations -->"

Call = Callable[[], object]
Rounds = dict[str, list[float]]
"""Seconds of a call, by the name of the cell."""
Cells = dict[str, dict[str, float]]


# ---- a rank


def calls_of(size: int, device: str) -> Iterator[tuple[str, Call]]:
    """What is timed at a size, by the name of the cell."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    count = size // 4
    block, part = torch.ones(count, device=device), torch.empty(count, device=device)
    blocks, gathered = torch.ones(count * ranks, device=device), torch.empty(count * ranks, device=device)
    parts, places = list(blocks.view(ranks, count)), list(gathered.view(ranks, count))
    root = rank == 0

    def messages_in_a_ring() -> None:
        send = dist.P2POp(dist.isend, block, (rank + 1) % ranks)
        receive = dist.P2POp(dist.irecv, part, (rank - 1) % ranks)
        for work in dist.batch_isend_irecv([send, receive]):
            work.wait()

    yield "all_reduce", lambda: dist.all_reduce(block)
    yield "broadcast", lambda: dist.broadcast(block, 0)
    yield "reduce", lambda: dist.reduce(block, 0)
    yield "all_gather", lambda: dist.all_gather(places, block)
    yield "all_gather_into_tensor", lambda: dist.all_gather_into_tensor(gathered, block)
    yield "reduce_scatter_tensor", lambda: dist.reduce_scatter_tensor(part, blocks)
    yield "all_to_all_single", lambda: dist.all_to_all_single(gathered, blocks)
    yield "gather", lambda: dist.gather(block, places if root else None, dst=0)
    yield "scatter", lambda: dist.scatter(part, parts if root else None, src=0)
    yield "messages in a ring", messages_in_a_ring
    if size == min(SIZES):
        objects: list[Any] = [None] * ranks
        yield "barrier", dist.barrier
        yield "all_gather_object", lambda: dist.all_gather_object(objects, {"rank": rank, "list": [1] * 20})
        yield "broadcast_object_list", lambda: dist.broadcast_object_list([{"rank": rank}], 0)
    if size == TYPES_BYTES:
        for name in ("bfloat16", "float64", "int32"):
            other = torch.ones(count, device=device, dtype=getattr(torch, name))
            yield f"all_reduce of {name}", lambda other=other: dist.all_reduce(other)  # type: ignore[misc]
        yield "all_reduce, maximum", lambda: dist.all_reduce(block, dist.ReduceOp.MAX)


def step_of_training(inside: int, outside: int, device: str) -> Call:
    """A step of DistributedDataParallel without an optimizer, of a model of two layers."""
    layers = nn.Linear(outside, inside), nn.ReLU(), nn.Linear(inside, outside)
    model = DistributedDataParallel(nn.Sequential(*layers).to(device))
    data = torch.ones(16, outside, device=device)

    def step() -> None:
        model.zero_grad()
        model(data).sum().backward()

    return step


def seconds_of(call: Call, calls: int, finish: Call) -> list[float]:
    """Of a call, in each round: the mean of the ranks."""
    for _ in range(2):
        call()
    rounds = []
    for _ in range(ROUNDS):
        finish()
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        finish()
        (seconds,) = mean_of_ranks([time.perf_counter() - begin])
        rounds.append(seconds / calls)
    return rounds


def mean_of_ranks(mine: list[float]) -> list[float]:
    values = torch.tensor(mine)
    dist.all_reduce(values)
    return [value / dist.get_world_size() for value in values.tolist()]


def breaks(times: int) -> Iterator[torch.Tensor]:
    """Breaks of BREAK in which the ranks compute, and the moment at which all ranks go on: float64[1]."""
    matrix, end = torch.rand(300, 300), torch.zeros(1, dtype=torch.float64)
    for _ in range(times):
        end[0] = time.perf_counter() + BREAK
        dist.broadcast(end, 0)
        while time.perf_counter() < end - BREAK / 20:
            matrix @ matrix
        while time.perf_counter() < end:
            pass
        yield end


def seconds_after_a_break(call: Call, finish: Call) -> list[float]:
    """Of single calls, each after a break: the mean of the ranks."""
    rounds = []
    for begin in breaks(4 * ROUNDS):
        call()
        finish()
        rounds += mean_of_ranks([time.perf_counter() - begin.item()])
    return rounds


def quartiles(seconds: list[float]) -> dict[str, float]:
    lower, median, upper = statistics.quantiles(seconds, n=4)
    return {"lower_us": lower * 1e6, "median_us": median * 1e6, "upper_us": upper * 1e6}


def cells_of(rounds: dict[str, Rounds]) -> dict[str, Cells]:
    """Of each contender, the quartiles of what `in_turns` has found."""
    return {
        name: {cell: quartiles(seconds) for cell, seconds in found.items()} for name, found in rounds.items()
    }


def join(contender: str, folder: str, rank: str, ranks: str) -> Call:
    """Joins a rank to its group. Returns what waits until its calls have ended. All hosts have the folder."""
    chosen = EVERY[contender]
    carrier = chosen.carrier
    torch.set_num_threads(1)
    dist.init_process_group(
        chosen.backend,
        init_method=f"file://{folder}/store",
        rank=int(rank),
        world_size=int(ranks),
        pg_options=ProcessGroupOCCL.Options(inter_node=carrier) if carrier else None,
    )
    finish: Call = torch.get_device_module(chosen.device_type).synchronize
    return finish


def leave(folder: str, found: object) -> None:
    """Rank 0 gives what it found to the program that has started it."""
    if dist.get_rank() == 0:
        Path(folder, "found").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def work(contender: str, folder: str, rank: str, ranks: str) -> None:
    """What a rank does."""
    finish = join(contender, folder, rank, ranks)
    device = EVERY[contender].device_type
    cells: Rounds = {}
    for size, calls in SIZES.items():
        for name, call in calls_of(size, device):
            cells[f"{name}, {text.size(size)}"] = seconds_of(call, calls, finish)
    for size in (4, 1 << 20):
        block = torch.ones(size // 4, device=device)
        cells[f"all_reduce, {text.size(size)}, after a break"] = seconds_after_a_break(
            functools.partial(dist.all_reduce, block), finish
        )
    for widths in MODELS:
        step = step_of_training(*widths, device)
        weights = 4 * (2 * math.prod(widths) + sum(widths))
        cells[f"{STEP}, {text.size(weights)}"] = seconds_of(step, 10, finish)
    leave(folder, cells)


# ---- the whole


def measure(
    shape: str, contender: str, program: str = "benchmarks.sweep", arguments: Sequence[str] = ()
) -> Any:
    """Starts the ranks of a shape, and waits for what rank 0 finds. Raises RuntimeError if one fails."""
    places = placement(shape)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with ExitStack() as stack:
        hosts: list[Host | None] = [None]
        if max(places) > 0:
            hosts = list(stack.enter_context(Network(max(places) + 1)).hosts)
            environment["GLOO_SOCKET_IFNAME"] = INTERFACE
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        processes = []
        for rank, place in enumerate(places):
            host = hosts[place]
            command = [sys.executable, "-m", program, "--rank", contender, folder]
            command += [str(rank), str(len(places)), *arguments]
            command = host.command(*command) if host else command
            processes.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
            stack.callback(processes[-1].kill)
        said = [process.communicate()[1] for process in processes]
        for rank, process in enumerate(processes):
            if process.returncode:
                raise RuntimeError(f"{contender}, {shape}: rank {rank} failed:\n{said[rank]}")
        return json.loads(Path(folder, "found").read_text())


def in_turns(
    shape: str,
    contenders: list[str],
    turns: int,
    program: str = "benchmarks.sweep",
    arguments: Sequence[str] = (),
) -> dict[str, Rounds]:
    """What `measure` finds of each contender, of all turns together."""
    found: dict[str, Rounds] = {name: {} for name in contenders}
    for turn in range(turns):
        for name in contenders[:: -1 if turn % 2 else 1]:
            for cell, seconds in measure(shape, name, program, arguments).items():
                found[name].setdefault(cell, []).extend(seconds)
    return found


def speeds(measured: dict[str, Cells], contender: str) -> dict[str, float]:
    """Gloo's time over this contender's, by cell."""
    own, gloo = measured[contender], measured[GLOO]
    return {cell: gloo[cell]["median_us"] / own[cell]["median_us"] for cell in own}


def speeds_of_operations(measured: dict[str, Cells], contender: str) -> dict[str, float]:
    """The same without the steps of training."""
    return {cell: speed for cell, speed in speeds(measured, contender).items() if not cell.startswith(STEP)}


class Summary(NamedTuple):
    """How a contender compares with Gloo over all operations: Gloo's times over its own."""

    cells: int
    mean: float  # geometric
    least: float
    least_cell: str
    behind: int  # cells in which Gloo is faster


def summarize(measured: dict[str, Cells], contender: str) -> Summary:
    found = speeds_of_operations(measured, contender)
    mean = math.exp(statistics.fmean(math.log(speed) for speed in found.values()))
    cell = min(found, key=found.__getitem__)
    return Summary(len(found), mean, found[cell], cell, sum(speed < 1 for speed in found.values()))


def sentence(measured: dict[str, Cells], contender: str) -> str:
    it = summarize(measured, contender)
    return (
        f"{contender}: {it.mean:.1f} times as fast as Gloo in the geometric mean of {it.cells} cells, "
        f"at least {it.least:.2f} times ({it.least_cell}); behind it in {it.behind}"
    )


def page(content: dict[str, Any]) -> str:
    """The tables of docs/performance.md: all operations by ranks, and the steps of training."""
    lines = [
        "| ranks | tensors | times as fast as Gloo, geometric mean | least | behind Gloo in |",
        "|---|---|---|---|---|",
    ]
    rows = [
        (f"| {shape} | {kind} |", measured, contender)
        for shape, measured in content["results"].items()
        for contender, kind in KINDS.items()
        if contender in measured
    ]
    for begin, measured, contender in rows:
        it = summarize(measured, contender)
        least = f"{it.least:.2f} ({it.least_cell})"
        lines.append(f"{begin} {it.mean:.1f} | {least} | {it.behind} of {it.cells} |")
    steps = [cell for cell in next(iter(content["results"].values()))[GLOO] if cell.startswith(STEP)]
    titles = [cell.partition(", ")[2] for cell in steps]
    lines += ["", f"| ranks | tensors | {' | '.join(titles)} |", "|---|---|" + "---|" * len(steps)]
    for begin, measured, contender in rows:
        rates = [f"{speeds(measured, contender)[cell]:.2f}" for cell in steps]
        lines.append(f"{begin} {' | '.join(rates)} |")
    return "\n".join(lines) + "\n"


def table(measured: dict[str, Cells]) -> list[str]:
    """A line for each cell: median and quartiles of each contender, and Gloo's time over the contender's."""
    others = [name for name in measured if name != GLOO]
    columns = [f"{name} us" for name in measured] + [f"{GLOO}/{name}" for name in others if GLOO in measured]
    lines = [" " * 34 + "".join(column.rjust(WIDTH) for column in columns)]
    for cell in next(iter(measured.values())):
        line = cell.ljust(34)
        for cells in measured.values():
            low, median, high = (cells[cell][f"{name}_us"] for name in ("lower", "median", "upper"))
            line += f"{median:.4g} ({low:.4g} to {high:.4g})".rjust(WIDTH)
        if GLOO in measured:
            for name in others:
                line += f"{speeds(measured, name)[cell]:.2f}".rjust(WIDTH)
        lines.append(line)
    if GLOO in measured:
        lines += ["", *(sentence(measured, name) for name in others)]
    return lines


def in_full(content: dict[str, Any], shape: str) -> list[str]:
    """What the file says of a shape."""
    return [f"{shape} ranks", "", *table(content["results"][shape]), "", verdict(content["noise"][shape])]


def newest(kind: str) -> dict[str, Any]:
    """The results of the last day on which some were written."""
    content: dict[str, Any] = json.loads(max(RESULTS.glob(f"*-{kind}.json")).read_text())
    return content


def write(kind: str, content: dict[str, Any], in_full: Callable[[dict[str, Any], str], list[str]]) -> None:
    """Into the files of this day, with the lines that ``in_full`` has for each shape.

    Shapes that were measured earlier on this day stay.
    """
    stem = RESULTS / f"{content['machine']['date'][:10]}-{kind}"
    kept = stem.with_suffix(".json")
    if kept.exists():
        earlier = json.loads(kept.read_text())
        for part in ("results", "noise"):
            content[part] = earlier[part] | content[part]
    said = machine.lines(content["machine"])
    for shape in content["results"]:
        said += ["", *in_full(content, shape)]
    stem.with_suffix(".txt").write_text("\n".join(said) + "\n")
    kept.write_text(json.dumps(content, indent=1) + "\n")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sweep",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--shapes", nargs="+", default=["2", "3", "4", "8"], metavar="SHAPE")
    parser.add_argument(
        "--contenders",
        nargs="+",
        choices=[*KINDS, GLOO],
        metavar="NAME",
        help=f"of {', '.join([*KINDS, GLOO])}; by default those of one host, or of several",
    )
    parser.add_argument(
        "--update", type=Path, metavar="PAGE", help="measure nothing: write the newest results into a page"
    )
    parser.add_argument("--turns", type=int, default=TURNS, help=f"of all contenders ({TURNS})")
    parser.add_argument("--write", action="store_true", help=f"into {RESULTS.name}/DATE-sweep.txt and .json")
    return parser.parse_args()


def main() -> None:
    exit_on_sigterm()
    options = parse_arguments()
    if options.update:
        write_between(options.update, BEGIN, END, page(newest("sweep")))
        return
    if any("+" in shape for shape in options.shapes) and (reason := why_not()):
        sys.exit(f"error: {reason}")
    about = machine.describe()
    print(*machine.lines(about), sep="\n", flush=True)
    content: dict[str, Any] = {"machine": about, "results": {}, "noise": {}}
    for shape in options.shapes:
        names = options.contenders or (
            ["occl-tcp", "occl-ucx", GLOO] if "+" in shape else ["occl-cpu", "occl-dev", GLOO]
        )
        watch = Watch()
        measured = cells_of(in_turns(shape, names, options.turns))
        noise = judge([], *watch.shares())
        content["results"][shape], content["noise"][shape] = measured, noise
        print("", *in_full(content, shape), sep="\n", flush=True)
    if options.write:
        write("sweep", content, in_full)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        work(*sys.argv[2:])
    else:
        main()
