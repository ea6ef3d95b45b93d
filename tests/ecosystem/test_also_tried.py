"""Do the programs of the table of speeds (docs/integrations.md) give over occl what Gloo gives?"""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.ecosystem.running import (
    CPU,
    DEV,
    EXAMPLES,
    IN_PLACE,
    OWN_RAY,
    SETTINGS,
    TIMEOUT,
    TORCHRUN,
    assert_same_losses,
    fails,
    losses,
    run,
    with_gloo,
)

LLAMA = (*TORCHRUN, "tensor_parallel_llama.py")


def tokens(shown: str) -> str:
    (line,) = re.findall(r"^tokens (.*)$", shown, re.MULTILINE)
    assert len(set(line.split())) > 2, line
    return line


@pytest.mark.parametrize(
    "options, variables, where",
    [
        pytest.param((), IN_PLACE[CPU], "cpu", id="in the place of Gloo"),
        pytest.param(("--backend", "occl"), {}, "cpu", id="by name"),
        pytest.param(("--backend", "occl", "--device", "dev"), {}, "dev:0", id="dev"),
    ],
)
def test_tensor_parallelism_of_transformers_generates_the_same_tokens(options, variables, where):
    shown = run(*LLAMA, *options, **variables)
    assert tokens(shown) == tokens(with_gloo(*LLAMA))
    assert f"2 ranks on {where}, 16 parameters are split" in shown


def test_tensor_parallelism_on_dev_needs_a_group_that_the_program_makes():
    """If this fails, transformers has learned it: correct the page."""
    shown = fails(*LLAMA, "--device", "dev", **IN_PLACE[CPU])
    assert "No distributed backend found for device type 'dev'" in shown


@pytest.mark.parametrize("options", [(), ("--lora",)], ids=["all parameters", "adapters of peft"])
def test_supervised_fine_tuning_of_trl(options):
    command = (*TORCHRUN, "sft_llama.py", *options)
    shown = run(*command, **IN_PLACE[CPU])
    assert_same_losses(shown, with_gloo(*command))
    assert "2 ranks on cpu:0, of type DistributedDataParallel" in shown


def test_torchao_gathers_float8_which_gloo_refuses():
    command = (*TORCHRUN, "float8_fsdp.py", "--backend")
    in_float32 = losses(with_gloo(*command, "gloo", "--float32"))
    assert losses(run(*command, "occl")) == pytest.approx(in_float32, abs=2e-4)
    assert "Invalid scalar type" in fails(*command, "gloo")


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_notebook_launcher_of_accelerate(setting):
    shown = run(sys.executable, "accelerate_notebook.py", **IN_PLACE[setting])
    assert_same_losses(shown, with_gloo(sys.executable, "accelerate_notebook.py"))
    assert f"2 ranks on {'dev' if setting == DEV else 'cpu'}:0" in shown


def test_the_collectives_between_actors_of_ray():
    shown = run(sys.executable, "ray_collective.py", **IN_PLACE[CPU], **OWN_RAY)
    assert "sums 3.0 3.0" in shown


RAY_BY_NAME = """
import ray
from ray.util import collective

@ray.remote(num_cpus=1)
class Actor: ...

ray.init(num_cpus=1)
collective.create_collective_group([Actor.remote()], 1, [0], backend="occl")
"""


def test_the_collectives_of_ray_refuse_occl_by_name(tmp_path):
    (program := tmp_path / "by_name.py").write_text(RAY_BY_NAME)
    assert "Backend OCCL is not registered" in fails(sys.executable, str(program), **OWN_RAY)


def test_the_benchmark_times_a_package_with_gloo_and_with_occl():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.packages", "ignite", "--quick", "--rounds", "1"],
        cwd=EXAMPLES.parents[1],
        capture_output=True,
        text=True,
        timeout=2 * TIMEOUT,
    )
    assert done.returncode == 0, done.stderr
    (row,) = re.findall(r"^\| pytorch-ignite .*$", done.stdout, re.MULTILINE)
    assert re.search(
        r"`torchrun .*ignite_digits.py` \| [\d,]+ samples/s \| [\d,]+ samples/s \| [\d,]+ samples/s \|$", row
    ), row
