"""``python -m tests.faults --faults 1000 --seed 1 --minutes 20``: random faults, in Python and the core."""

from __future__ import annotations

import argparse
import os
import random
from pathlib import Path

from tests import test_cpp
from tests.faults import runner
from tests.support import cpp_build
from tests.support.ranks import Ranks


def main() -> None:
    parser = argparse.ArgumentParser(description="Strike random ranks at random moments and named steps.")
    parser.add_argument("--faults", type=int, default=1000, help="in Python, and as many in the core")
    parser.add_argument("--seed", type=int, default=random.randrange(10**9), help="of the first fault")
    parser.add_argument(
        "--minutes",
        type=float,
        default=20.0,
        help="for each of the two, at most",
    )
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    pool = Ranks()
    try:
        tally = runner.run(pool, arguments.faults, arguments.seed, arguments.minutes)
    finally:
        pool.close()
    print("\n".join(tally.lines()), flush=True)
    seconds = int(60 * arguments.minutes)
    os.environ |= {
        "OCCL_TEST_FAULTS": str(arguments.faults),
        "OCCL_TEST_SEED": str(arguments.seed),
        "OCCL_TEST_SECONDS": str(seconds),
    }
    program = cpp_build.build("plain", Path("tests", "cpp", "test_faults.cpp"))
    print(test_cpp.run(program, timeout=seconds + test_cpp.TIMEOUT, only="random faults"))


if __name__ == "__main__":
    main()
