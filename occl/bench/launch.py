"""Starts the processes of a benchmark, and measures how much of the machine other programs take."""

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.multiprocessing as mp

from occl.bench import machine
from occl.bench.gate import make_counters
from occl.bench.noise import Watch, judge, verdict

PATIENCE = 10.0
"""Seconds that a rank has to end its programs."""


def exit_on_sigterm() -> None:
    """SIGTERM ends this process by an exception, which ends the processes and namespaces that it made."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


def start(rank: int, work: Callable[..., None], *given: Any) -> None:
    """What each process does. When a rank fails, the others get SIGTERM, and end the programs they run."""
    exit_on_sigterm()
    work(rank, *given)


def run_ranks(
    work: Callable[..., None], options: argparse.Namespace, note: str
) -> tuple[dict[str, str], bytes, tuple[float, float]]:
    """Prints what machine this is, and runs ``work(rank, options, folder, counters)`` in ``options.ranks``
    processes; ``note`` says what they are.

    Returns:
        The machine's description, what rank 0 wrote into the file ``results`` of the folder, and the shares
        of the cores that other programs and the machine's host took.
    """
    about = machine.describe()
    ranks = {"ranks": f"{options.ranks}, {note}"}
    print(*machine.lines(about | ranks), "", sep="\n", flush=True)
    watch = Watch()
    with tempfile.TemporaryDirectory() as folder:
        given = work, options, folder, make_counters(options.ranks)
        running = mp.spawn(start, given, options.ranks, join=False)
        try:
            while not running.join():
                pass
        finally:
            for process in running.processes:
                process.terminate()
            for process in running.processes:  # they write into the folder until they have ended
                process.join(PATIENCE)
                process.kill()
        return about, Path(folder, "results").read_bytes(), watch.shares()


def run_script(
    description: str | None,
    work: Callable[..., None],
    rounds: int,
    note: str,
    show: Callable[..., dict[str, Any]],
    add_options: Callable[[argparse.ArgumentParser], object] = lambda _: None,
) -> None:
    """A whole benchmark of its own, with the options ``--ranks``, ``--rounds`` and ``--json``, and its own.

    ``show(options, results)`` prints what rank 0 wrote as JSON, and returns what else belongs into the file,
    beside the machine and how noisy it was.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write machine and results to FILE")
    add_options(parser)
    options = parser.parse_args()
    about, written, shares = run_ranks(work, options, note)
    noise = judge([], *shares)
    kept = show(options, json.loads(written))
    print("\n" + verdict(noise))
    if options.json:
        content = {"machine": about, "ranks": options.ranks, "noise": noise, **kept}
        options.json.write_text(json.dumps(content, indent=1) + "\n")
