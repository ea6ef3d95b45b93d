"""Trains the digits with each backend in turn and prints one table: what `make demo` runs.

python examples/compare.py                              # occl on dev, occl on cpu, gloo on cpu
python examples/compare.py --runs gloo:cpu --epochs 5
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

RUNS = ["occl:dev", "occl:cpu", "gloo:cpu"]
EXAMPLE = Path(__file__).with_name("ddp_digits.py")
HEADER = ("backend", "device", "test accuracy", "s/epoch", "samples/s", "communication", "with waiting")
EXPLANATION = """\
s/epoch: the median epoch. communication: the share of time from the last rank's arrival at the gradients'
all-reduce to its end. with waiting: the same from each rank's own arrival, including the wait for the last.
"""


def train(run: str, ranks: int, extra: list[str]) -> dict:
    """The results of ``ddp_digits.py`` with one backend and device, which shows its progress meanwhile."""
    backend, device = run.split(":")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "results.json")
        torchrun = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={ranks}",
        ]
        options = ["--backend", backend, "--device", device, "--json", str(file), *extra]
        # One thread computes in each process, because there may be no more cores than processes.
        environment = {"OMP_NUM_THREADS": "1"} | os.environ
        subprocess.run([*torchrun, str(EXAMPLE), *options], env=environment, check=True)
        return json.loads(file.read_text())


def row(results: dict) -> tuple[str, ...]:
    epoch = statistics.median(results["epoch_seconds"])
    return (
        results["backend"],
        results["device"],
        f"{results['accuracy']:.2%}",
        f"{epoch:.3f}",
        f"{results['samples_per_epoch'] / epoch:.0f}",
        f"{results['communication_share']:.1%}",
        f"{results['communication_share_with_waiting']:.1%}",
    )


def table(rows: list[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=RUNS, help="backend:device, in this order")
    parser.add_argument("--ranks", type=int, default=2)
    arguments, extra = parser.parse_known_args()
    rows = [HEADER]
    for run in arguments.runs:
        print(f"\n{run.replace(':', ' on ')}, {arguments.ranks} ranks", flush=True)
        try:
            rows.append(row(train(run, arguments.ranks, extra)))
        except subprocess.CalledProcessError as error:
            sys.exit(
                f"{run.replace(':', ' on ')} failed, with status {error.returncode}; its output is above"
            )
    print(f"\n{table(rows)}\n\n{EXPLANATION}", end="")


if __name__ == "__main__":
    main()
