"""Runs the fuzz targets with libFuzzer, from the inputs in ``corpus/``, or keeps what was found there.

``python -m tests.fuzz.run --seconds 60`` runs each target for a minute and fails with the first input that
breaks one: the line to add to ``corpus/<target>.txt`` is printed. ``--keep N`` adds N inputs of each target
that together reach much, from earlier runs. Needs clang with libFuzzer (Debian: clang, libclang-rt-14-dev).
"""

import argparse
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support import cpp_build

ROOT = cpp_build.ROOT
CORPUS = ROOT / "tests" / "fuzz" / "corpus"


def inputs(target: str) -> list[bytes]:
    """The inputs that are kept in the repository for a target."""
    lines = (CORPUS / f"{target}.txt").read_text().splitlines()
    return [bytes.fromhex(line) for line in lines if line and not line.startswith("#")]


def fuzz(source: Path, seconds: int, seed: int) -> int:
    """Fuzzes one target. Returns how many executions; raises RuntimeError with the input that broke it."""
    target = source.stem
    program = cpp_build.build("fuzz", source)
    folder = ROOT / "build" / "fuzz" / target
    folder.mkdir(parents=True, exist_ok=True)
    for i, data in enumerate(inputs(target)):
        (folder / f"kept-{i}").write_bytes(data)
    artifacts = ROOT / "build" / "fuzz" / f"{target}-found-"
    command = [
        str(program),
        str(folder),
        f"-max_total_time={seconds}",
        f"-seed={seed}",
        "-timeout=20",
        "-max_len=1024",
        "-rss_limit_mb=4096",
        "-print_final_stats=1",
        f"-artifact_prefix={artifacts}",
    ]
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace"
    )
    output = done.stdout if isinstance(done.stdout, str) else done.stdout.decode(errors="replace")
    if done.returncode:
        found = re.search(r"Test unit written to (\S+)", output)
        line = f"\nadd to {CORPUS / target}.txt:\n{Path(found[1]).read_bytes().hex()}" if found else ""
        raise RuntimeError(f"{target} with seed {seed}:\n{output[-6000:]}{line}")
    return int(re.search(r"number_of_executed_units: (\d+)", output)[1])


def keep(source: Path, most: int) -> None:
    """Adds inputs from earlier runs to the repository: the smallest ones that together reach the most."""
    target = source.stem
    program = cpp_build.build("fuzz", source)
    merged = ROOT / "build" / "fuzz" / f"{target}-merged"
    shutil.rmtree(merged, ignore_errors=True)
    merged.mkdir(parents=True)
    subprocess.run(
        [str(program), "-merge=1", str(merged), str(ROOT / "build" / "fuzz" / target)],
        check=True,
        capture_output=True,
    )
    path = CORPUS / f"{target}.txt"
    known = set(inputs(target))
    # Small ones first, but not only those: inputs at equal distances in the sorted list.
    found = sorted((file.read_bytes() for file in merged.iterdir()), key=len)
    chosen = found[:: max(1, len(found) // most)][:most]
    with path.open("a") as file:
        file.writelines(f"{data.hex()}\n" for data in chosen if data not in known and data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", help="names of targets; all if none is given")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--seed", type=int, default=None, help="of the first target")
    parser.add_argument(
        "--keep", type=int, default=0, help="add inputs of earlier runs to the corpus instead"
    )
    args = parser.parse_args()
    seed = args.seed if args.seed is not None else random.randrange(1, 1 << 31)
    for source in cpp_build.fuzz_sources():
        if args.targets and source.stem not in args.targets:
            continue
        if args.keep:
            keep(source, args.keep)
            continue
        print(f"fuzz {source.stem}: {args.seconds} s, seed {seed}", flush=True)
        try:
            print(f"fuzz {source.stem}: {fuzz(source, args.seconds, seed)} executions", flush=True)
        except RuntimeError as error:
            sys.exit(str(error))


if __name__ == "__main__":
    main()
