"""Times other projects' packages with Gloo and with occl in its place, in turns.

    .venv-ecosystem/bin/python -m benchmarks.packages                     # all, about twenty minutes
    .venv-ecosystem/bin/python -m benchmarks.packages ray_collective --rounds 5
    .venv-ecosystem/bin/python -m benchmarks.packages --quick --json packages.json
    .venv-ecosystem/bin/python -m benchmarks.packages trl --json RESULTS.json --update docs/integrations.md

The programs are those of examples/integrations, with two ranks and one thread each. A program prints its own
speed. All contenders run the same command; variables choose occl, and shared CPU tensors. The table has
medians. A file that --json names keeps its other programs, and --update writes the table of them all into a
page, between marks. With --rounds 0, programs have a row without speeds.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.pages import write_between
from occl.bench import machine
from occl.bench.noise import Watch

EXAMPLES = Path(__file__).parents[1] / "examples" / "integrations"
GLOO, OCCL, SHARED = "Gloo", "`OCCL_IN_PLACE_OF=gloo`", "and `OCCL_SHARE_CPU=1`"
VARIABLES = {
    GLOO: {},
    OCCL: {"OCCL_IN_PLACE_OF": "gloo"},
    SHARED: {"OCCL_IN_PLACE_OF": "gloo", "OCCL_SHARE_CPU": "1"},
}
SPEED = re.compile(r", (\d+) (samples/s|tokens/s|us)$", re.MULTILINE)
BEGIN, END = "<!-- table: benchmarks/packages.py writes it -->", "<!-- end of the table of packages -->"
REFUSED = re.compile(r"RuntimeError: (Invalid scalar type)")
"""What Gloo says of a tensor's type that it does not know."""


class Program(NamedTuple):
    package: str
    command: str
    """After it come the options of ``size``, but with --quick."""
    size: str
    distribution: str = ""
    """Its name, if it is not the package's."""


TORCHRUN = "torchrun --nproc-per-node 2 "
PROGRAMS = {
    "trainer": Program(
        "Trainer of transformers", TORCHRUN + "trainer_gpt2.py", "--steps 60 --width 256", "transformers"
    ),
    "accelerate": Program("Accelerate", TORCHRUN + "accelerate_digits.py", "--epochs 20"),
    "lightning": Program("Lightning", "python lightning_digits.py --backend gloo", "--epochs 20"),
    "fabric": Program(
        "Fabric, of Lightning",
        "python lightning_digits.py --fabric --backend gloo",
        "--epochs 20",
        "lightning",
    ),
    "deepspeed": Program(
        "DeepSpeed, ZeRO stage 2",
        "env DS_ACCELERATOR=cpu " + TORCHRUN + "deepspeed_digits.py --stage 2",
        "--steps 100 --width 512",
        "deepspeed",
    ),
    "ray": Program("Ray Train", "python ray_digits.py --backend gloo", "--epochs 20", "ray"),
    "tensor_parallel": Program(
        "tensor parallelism of transformers",
        TORCHRUN + "tensor_parallel_llama.py",
        "--width 256 --layers 4 --tokens 64",
        "transformers",
    ),
    "trl": Program("trl, SFTTrainer", TORCHRUN + "sft_llama.py", "--steps 100", "trl"),
    "peft": Program("peft, LoRA in trl", TORCHRUN + "sft_llama.py --lora", "--steps 100", "peft"),
    "torchrec": Program(
        "torchrec, by row",
        TORCHRUN + "torchrec_tables.py --backend gloo --ways row",
        "--rows 10000 --width 32 --steps 500",
        "torchrec",
    ),
    "ignite": Program("pytorch-ignite", TORCHRUN + "ignite_digits.py", "--epochs 40"),
    "notebook": Program(
        "notebook_launcher of Accelerate", "python accelerate_notebook.py", "--epochs 20", "accelerate"
    ),
    "ray_collective": Program(
        "ray.util.collective", "python ray_collective.py", "--kib 1024 --times 200", "ray"
    ),
    "torchao": Program(
        "torchao, gathers float8",
        TORCHRUN + "float8_fsdp.py --backend gloo",
        "--width 1024 --steps 40",
        "torchao",
    ),
    "torchao_float32": Program(
        "torchao, gathers float32",
        TORCHRUN + "float8_fsdp.py --backend gloo --float32",
        "--width 1024 --steps 40",
        "torchao",
    ),
}


def speed_of(command: str, variables: dict[str, str]) -> tuple[float | None, str]:
    """What the program says, and the unit; None if Gloo refuses the type."""
    before = {key: value for key, value in os.environ.items() if not key.startswith("OCCL_")}
    scripts = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    alone = command.replace("torchrun ", "torchrun --standalone ")  # another port than other runs
    done = subprocess.run(
        alone.split(),
        cwd=EXAMPLES,
        env=before | {"PATH": scripts, "OMP_NUM_THREADS": "1", "RAY_ADDRESS": "local"} | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    if done.returncode and REFUSED.search(done.stdout):
        return None, ""
    found = SPEED.findall(done.stdout)
    if len(found) != 1:
        raise RuntimeError(f"{command} with {variables} printed no speed:\n{done.stdout}")
    return float(found[0][0]), found[0][1]


def version_of(program: Program) -> str:
    return importlib.metadata.version(program.distribution or program.package)


def measure(program: Program, rounds: int, quick: bool) -> dict[str, Any]:
    unit = ""
    command = program.command if quick else f"{program.command} {program.size}"
    speeds: dict[str, list[float | None]] = {contender: [] for contender in VARIABLES}
    watch = Watch()
    for turn in range(rounds):
        for contender in sorted(VARIABLES, reverse=bool(turn % 2)):
            speed, its_unit = speed_of(command, VARIABLES[contender])
            unit = its_unit or unit
            speeds[contender].append(speed)
            print(f"{command}, {contender}: {speed} {unit}", file=sys.stderr, flush=True)
    return {
        "package": program.package,
        "version": version_of(program),
        "command": command,
        "unit": unit,
        "speeds": speeds,
        "foreign_share": round(watch.shares()[0], 3),
    }


def text_of(speeds: list[float | None], unit: str) -> str:
    if not speeds:
        return "-"
    known = [speed for speed in speeds if speed is not None]
    return f"{statistics.median(known):,.0f} {unit}" if known else "refuses the type"


def table(content: dict[str, Any]) -> str:
    """The table of a file of results, and what it was measured on."""
    about, results = content["machine"], content["results"]
    foreign = [row["foreign_share"] for row in results.values() if any(row["speeds"].values())]
    noise = "Not yet measured"
    if foreign:
        noise = (
            f"Other programs, among them those that Ray starts, took at most {max(foreign):.0%} of the cores"
        )
    cores = about["cores"].split()[0]
    lines = [f"{about['date'][:10]}, {about['cpu']}, {cores} cores, PyTorch {about['torch']}. {noise}.", ""]
    lines += [f"| package | version | command | {' | '.join(VARIABLES)} |", "|---|---|---|---|---|---|"]
    for row in (results[name] for name in PROGRAMS if name in results):
        figures = " | ".join(text_of(row["speeds"][contender], row["unit"]) for contender in VARIABLES)
        lines.append(f"| {row['package']} | {row['version']} | `{row['command']}` | {figures} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Time other projects' packages with Gloo and with occl.")
    parser.add_argument("programs", nargs="*", help=f"of {', '.join(PROGRAMS)} (default: all)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="short runs, whose speeds mean little")
    parser.add_argument("--json", type=Path, help="a file to write the results into")
    parser.add_argument("--update", type=Path, metavar="FILE.md", help="write the table into this file")
    given = parser.parse_args()
    if unknown := set(given.programs) - set(PROGRAMS):
        parser.error(f"there is no program {', '.join(sorted(unknown))}")
    for name in given.programs or PROGRAMS:
        try:
            version_of(PROGRAMS[name])
        except importlib.metadata.PackageNotFoundError as error:
            parser.error(f"{name}: {error}")
    old = json.loads(given.json.read_text()) if given.json and given.json.exists() else {"results": {}}
    content = {"machine": machine.describe(), "results": old["results"]}
    for name in given.programs or PROGRAMS:
        content["results"][name] = measure(PROGRAMS[name], given.rounds, given.quick)
        if given.json:  # after each, because the next may fail
            given.json.write_text(json.dumps(content, indent=1) + "\n")
    print(table(content))
    if given.update:
        write_between(given.update, BEGIN, END, table(content))


if __name__ == "__main__":
    main()
