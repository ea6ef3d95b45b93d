"""Runs PyTorch's tests in one configuration and prints how each one ends.

    python -m tests.upstream.survey --backend gloo --world-size 4 > tests/upstream/gloo.txt

A line is ``passed``, ``skipped`` or ``failed``, the test's name, and the reason. `test_distributed.py` is
what runs in ``make test``; this is for looking around, and for the reference with Gloo.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from occl.testing import RanksFailed
from occl.testing.launch import Clone
from tests.support.ranks import Ranks

from . import ranks, rewriting

GLOO = Path(__file__).with_name("gloo.txt")
"""What Gloo makes of the tests."""

LIMIT = 240.0
"""Seconds that a test may take on a busy machine; then its ranks show their stacks and are killed."""


@dataclass
class Ending:
    """How a test ended, on all ranks alike."""

    kind: str  # "passed", "skipped", "failed"
    reason: str = ""


def with_gloo() -> dict[str, str]:
    """How each test ends with Gloo, by name."""
    return dict(line.split()[1::-1] for line in GLOO.read_text().splitlines() if not line.startswith("#"))


def start(source: Clone | None = None) -> Ranks:
    """Ranks whose warm process has everything imported. ``source``: as of `Ranks`."""
    pool = Ranks(source)
    pool.source.ask("warm_up", ranks.__name__, "warm_up")
    return pool


def run(
    pool: Ranks,
    name: str,
    device: str,
    world_size: int,
    backend: str = "occl",
    limit: float = LIMIT,
    errors: dict[int, str] | None = None,
    in_place: bool = False,
    nodes: str = "",
) -> Ending:
    """One test, in processes of its own. It passes if the ranks in ``errors``, and no others, fail so.

    ``in_place``: occl takes the place of the backend, which is "gloo".
    ``nodes``: a letter for each rank, its node, as in "aabb"; the ranks of a node share memory.
    """
    if backend == "gloo":
        pool.source.ask("warm_up", ranks.__name__, ranks.warm_up_gloo.__name__)
    with tempfile.TemporaryDirectory(prefix="occl-test-") as directory:
        for part in ("test_dir", "init_dir"):
            (Path(directory) / part).mkdir()
        (Path(directory) / "barrier").write_bytes(bytes(8 * world_size))
        try:
            with pool.fresh(world_size) as team:
                reasons = team.run(
                    ranks.run,
                    device,
                    limit=limit,
                    name=name,
                    directory=directory,
                    backend=backend,
                    errors=errors or {},
                    in_place=in_place,
                    nodes=nodes,
                )
        except RanksFailed as failure:
            return Ending("failed", str(failure))
    if len(set(reasons)) != 1:
        return Ending("failed", f"skipped by some ranks only: {reasons}")
    return Ending("skipped", reasons[0]) if reasons[0] else Ending("passed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--backend", default="occl")
    parser.add_argument("--in-place", action="store_true", help="occl takes the place of --backend gloo")
    parser.add_argument("--device", default="cpu", choices=["cpu", "dev"])
    parser.add_argument("--world-size", type=int, default=4)
    parser.add_argument("--nodes", default="", help="a letter for each rank, its node: aabb")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds for one test")
    parser.add_argument("--times", action="store_true", help="print seconds too")
    parser.add_argument("--verbose", action="store_true", help="print the whole output of what fails")
    parser.add_argument("names", nargs="*", help="tests; all by default")
    args = parser.parse_args()
    pool = start()
    for name in args.names or rewriting.test_names():
        begin = time.monotonic()
        ending = run(
            pool,
            name,
            args.device,
            args.world_size,
            args.backend,
            args.limit,
            in_place=args.in_place,
            nodes=args.nodes,
        )
        seconds = f"{time.monotonic() - begin:6.2f} " if args.times else ""
        reason = ending.reason if args.verbose else summary(ending.reason)
        print(f"{seconds}{ending.kind} {name} {reason}".rstrip(), flush=True)
    pool.close()


def summary(reason: str) -> str:
    """The error of the first rank that failed, in one line; for a skipped test, why."""
    lines = reason.split("\n----")[1 if "\n----" in reason else 0].splitlines()
    errors = [line for line in lines if "Error" in line.partition(":")[0] and not line.startswith(" ")]
    return (errors[-1:] or reason.splitlines()[:1] or [""])[0][:200]


if __name__ == "__main__":
    main()
