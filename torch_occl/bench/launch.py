"""Starts the processes of a benchmark, and watches meanwhile how much of the machine others take."""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch.multiprocessing as mp

from torch_occl.bench import machine
from torch_occl.bench.gate import make_counters
from torch_occl.bench.noise import Watch


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
    for name, value in about.items():
        print(f"{name + ':':<13}{value}")
    print(f"{'ranks:':<13}{options.ranks}, {note}\n", flush=True)
    watch = Watch()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, (options, folder, make_counters(options.ranks)), nprocs=options.ranks)
        return about, Path(folder, "results").read_bytes(), watch.shares()
