"""Times collectives of occl, beside Gloo and beside a backend that does nothing, in one run.

occl bench                        every operation, 4 B to 64 MiB, about four minutes
occl bench --quick                fewer sizes, about a minute
occl bench --ops all_reduce --sizes 4 1M --json all_reduce.json --plot all_reduce.png
occl bench --json new.json --against old.json        says what became slower

In a checkout, `make bench ARGS=--peers` measures MPI, oneCCL and the limit of the memory too.
"""

import argparse
import dataclasses
import json
import pickle
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch.multiprocessing as mp

from occl.bench import against, machine, worker
from occl.bench.contenders import CONTENDERS, check_available
from occl.bench.launch import run_ranks
from occl.bench.noise import judge, verdict
from occl.bench.operations import OPERATIONS
from occl.bench.report import Result, footnotes, summary

SIZES = ["4", "64", "1K", "16K", "64K", "256K", "1M", "4M", "16M", "64M"]
QUICK_SIZES = ["4", "4K", "64K", "1M", "16M"]
QUICK_PEERS_SIZES = ["4", "64K", "2M"]
SECONDS, QUICK_SECONDS, PEERS_SECONDS = 200.0, 20.0, 540.0
NAMES = [operation.name for operation in OPERATIONS]


def nothing_missing(names: list[str]) -> tuple[list[str], dict[str, str]]:
    return names, {}


@dataclass(frozen=True)
class Programs:
    """Contenders that are programs of their own: those of ``benchmarks/peers`` in a checkout, or none."""

    names: tuple[str, ...] = ()
    prepare: Callable[[list[str]], tuple[list[str], dict[str, str]]] = nothing_missing
    """Builds those with these names. Returns the names of those that can run, and what the others lack."""
    work: Callable[..., None] = worker.work
    """What each rank does. It must be a function of a module, for new processes to find it."""


NO_PROGRAMS = Programs()


def parse_size(text: str) -> int:
    """Bytes: 4, 16K, 1M. Raises ValueError for anything else, and for less than one float32."""
    match = re.fullmatch(r"(\d+)([KM]?)", text)
    size = int(match[1]) << {"": 0, "K": 10, "M": 20}[match[2]] if match else 0
    if size < 4:
        raise ValueError(text)
    return size


def arguments(parser: argparse.ArgumentParser, programs: Programs = NO_PROGRAMS) -> None:
    parser.description, parser.formatter_class = __doc__, argparse.RawDescriptionHelpFormatter
    parser.add_argument("--ranks", type=int, default=2, help="processes (default: 2)")
    usual = [operation.name for operation in OPERATIONS if not operation.mapped]
    parser.add_argument(
        "--ops", nargs="+", choices=NAMES, default=usual, metavar="OP",
        help=f"{', '.join(NAMES)} (by default all before put)",
    )  # fmt: skip
    parser.add_argument("--sizes", nargs="+", type=parse_size, metavar="SIZE", help="bytes: 4, 16K, 64M")
    parser.add_argument(
        "--contenders", nargs="+", choices=[*CONTENDERS, *programs.names], metavar="NAME",
        help=f"{', '.join(CONTENDERS)} (the default)"
        + (f"; {', '.join(programs.names)} (all of them: --peers)" if programs.names else ""),
    )  # fmt: skip
    parser.set_defaults(peers=False, error=parser.error)
    if programs.names:
        parser.add_argument(
            "--peers",
            action="store_true",
            help="all contenders that are installed here; says which are not (see docs/benchmarking.md)",
        )
    parser.add_argument("--seconds", type=float, help=f"time to spend measuring (default: {SECONDS:.0f})")
    parser.add_argument("--quick", action="store_true", help="fewer sizes and less time")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write machine and results to FILE")
    parser.add_argument(
        "--against",
        type=Path,
        metavar="FILE",
        help="say what is slower by more than the noise than in FILE, which --json has written on this "
        "machine; the exit status is 1 then",
    )
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="FILE.png",
        help="draw time over size, and with a roofline the share of it in "
        "FILE-roofline.png (needs matplotlib)",
    )


def complete(chosen: argparse.Namespace, programs: Programs = NO_PROGRAMS) -> None:
    """Refuses what does not fit together, and chooses what the user has not chosen."""
    if chosen.ranks < 1:
        chosen.error(f"--ranks must be at least 1, and is {chosen.ranks}")
    if chosen.peers and chosen.contenders:
        chosen.error("--peers are all contenders, and --contenders chooses some: give one of the two")
    if chosen.against:
        try:
            chosen.against = against.load(chosen.against)
        except ValueError as error:
            chosen.error(f"--against: {error}")
        if misfit := chosen.against.misfit(machine.describe(), chosen.ranks):
            chosen.error(f"--against: {misfit}")
    del chosen.error  # every rank gets the options, and no parser
    chosen.contenders = chosen.contenders or [*CONTENDERS, *(programs.names if chosen.peers else [])]
    sizes, seconds = SIZES, PEERS_SECONDS if chosen.peers else SECONDS
    if chosen.quick:
        sizes, seconds = QUICK_PEERS_SIZES if chosen.peers else QUICK_SIZES, QUICK_SECONDS
    chosen.sizes = chosen.sizes or [parse_size(size) for size in sizes]
    chosen.seconds = chosen.seconds or seconds


def run(options: argparse.Namespace, programs: Programs = NO_PROGRAMS) -> int:
    """Returns the exit status; what fails is printed in one line."""
    complete(options, programs)
    try:
        return int(compare(options, programs))
    except (RuntimeError, ImportError, mp.ProcessRaisedException, mp.ProcessExitedException) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def compare(options: argparse.Namespace, programs: Programs) -> bool:
    """Measures, prints the table, and writes the files that are asked for.

    Returns whether something became slower, as far as it is compared.
    """
    if options.plot:
        import matplotlib  # noqa: F401  (missing: better now than after minutes)
    check_available(name for name in options.contenders if name in CONTENDERS)
    missing = drop_missing(options, programs)
    about, written, shares = run_ranks(programs.work, options, "float32, one thread each")
    measured: list[Result]
    measured, versions = pickle.loads(written)
    noise = judge(measured, *shares)
    lines = [*footnotes(measured), verdict(noise)]
    if versions:
        lines += ["", *summary(measured), "", *(f"{name}: {version}" for name, version in versions.items())]
    lines += [f"not found: {name} lacks {lacking}" for name, lacking in missing.items()]
    became_slower = False
    if options.against:
        compared, became_slower = against.compared(options.against, measured)
        lines += ["", *compared]
    print("\n" + "\n".join(lines))
    if options.json:
        rows = [dataclasses.asdict(result) | {"noisy": result.noisy} for result in measured]
        content = {
            "machine": about,
            "ranks": options.ranks,
            "dtype": "float32",
            "versions": versions,
            "not_found": missing,
            "noise": noise,
            "results": rows,
        }
        options.json.write_text(json.dumps(content, indent=1) + "\n")
    if options.plot:
        from occl.bench.plot import draw_all

        title = f"{options.ranks} ranks, {about['cpu']} ({about['cores']} cores), torch {about['torch']}"
        draw_all(options.plot, measured, title)
    return became_slower


def drop_missing(options: argparse.Namespace, programs: Programs) -> dict[str, str]:
    """Builds the programs among the contenders, and takes out those that cannot run.

    Returns what each of these lacks, by name. Raises RuntimeError if the user asked for one by name.
    """
    runnable, missing = programs.prepare([name for name in options.contenders if name in programs.names])
    if missing and not options.peers:
        raise RuntimeError("; ".join(f"{name} lacks {lacking}" for name, lacking in missing.items()))
    options.contenders = [name for name in options.contenders if name in CONTENDERS or name in runnable]
    return missing
