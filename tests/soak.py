"""Looks for defects for a given time: each piece gets an equal share of ``--minutes`` and prints its seed.

``make soak ARGS="--minutes 30"`` runs them all; ``ARGS="--seed 7 fuzz"`` repeats one as it was. A piece is a
function ``(seconds, seed)`` that returns a sentence with its counts, and raises an exception that describes
what it has found.
"""

import argparse
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.fuzz import run as fuzzing
from tests.support import cpp_build

PIECES: dict[str, Callable[[float, int], str]] = {}


def piece(function: Callable[[float, int], str]) -> Callable[[float, int], str]:
    """Registers a piece under the function's name."""
    PIECES[function.__name__] = function
    return function


@piece
def fuzz(seconds: float, seed: int) -> str:
    """Every fuzz target for the same time."""
    sources = cpp_build.fuzz_sources()
    for source in sources:
        cpp_build.build("fuzz", source)  # not from the target's time
    counts = [
        f"{source.stem} {fuzzing.fuzz(source, max(1, int(seconds / len(sources))), seed)}"
        for source in sources
    ]
    return "executions: " + ", ".join(counts)


@piece
def interleavings(seconds: float, seed: int) -> str:
    """The explorer's random schedules, with new seeds until the time is over."""
    program = cpp_build.build("explore", Path("tests/cpp/test_interleavings.cpp"))
    end, rounds = time.monotonic() + seconds, 0
    while rounds == 0 or time.monotonic() < end:
        settings = {"EXPLORE_FACTOR": "5", "EXPLORE_SEED": str(seed + rounds * 1_000_003)}
        done = subprocess.run(
            [program], env=os.environ | settings, capture_output=True, text=True, timeout=3600
        )
        if done.returncode:
            raise RuntimeError(f"with {settings}:\n{done.stdout}{done.stderr}")
        rounds += 1
    return f"{rounds} rounds"


@piece
def faults(seconds: float, seed: int) -> str:
    """Ranks that are killed, stopped, slowed and refused memory, in Python and at the core's named steps."""
    run = [sys.executable, "-m", "tests.faults", "--seed", str(seed), "--minutes", str(seconds / 120)]
    root = Path(__file__).parents[1]
    done = subprocess.run(run, cwd=root, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise RuntimeError(f"{done.stdout}ended with {done.returncode}")
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pieces", nargs="*", help=f"some of {', '.join(PIECES)}; all if none is given")
    parser.add_argument("--minutes", type=float, default=15, help="for all pieces together")
    parser.add_argument("--seed", type=int, default=None)
    args = parser.parse_args()
    chosen = args.pieces or list(PIECES)
    if unknown := set(chosen) - set(PIECES):
        parser.error(f"no such piece: {', '.join(sorted(unknown))}")
    seed = args.seed if args.seed is not None else random.randrange(1, 1 << 31)
    failed = []
    for name in chosen:
        seconds = args.minutes * 60 / len(chosen)
        print(f"{name}: {seconds:.0f} s, seed {seed}", flush=True)
        try:
            print(f"{name}: {PIECES[name](seconds, seed)}", flush=True)
        except Exception as error:  # noqa: BLE001 - the other pieces run all the same
            failed.append(name)
            print(f"{name}: FAILED with seed {seed}\n{error}", flush=True)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
