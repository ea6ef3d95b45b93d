"""The main job: training on handwritten digits, with every backend and device."""

import importlib.util
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from tests.support.thinning import first

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "ddp_digits.py"
KINDS = ["occl:dev", "occl:cpu", "gloo:cpu"]
TIMEOUT = 300
"""Seconds after which a run counts as hanging."""


def run(command: list[str], **variables: str) -> str:
    """The output of a command, which must succeed. Each process computes with one thread."""
    result = subprocess.run(
        [sys.executable, *command],
        env=os.environ | {"OMP_NUM_THREADS": "1"} | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT,
    )
    assert result.returncode == 0, result.stdout
    assert "%|" not in result.stdout, "a progress bar where the output is no terminal"
    return result.stdout


def train(kind: str, ranks: int, file: Path, *options: str) -> dict:
    """The results of the example, under torchrun where there is more than one rank."""
    backend, device = kind.split(":")
    torchrun = (
        ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    )
    run([*torchrun, str(EXAMPLE), "--backend", backend, "--device", device, "--json", str(file), *options])
    return json.loads(file.read_text())


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> dict:
    """The first two epochs on one rank, without torchrun."""
    return train("gloo:cpu", 1, tmp_path_factory.mktemp("reference") / "one.json", "--epochs", "2")


@pytest.mark.parametrize("kind", first(KINDS, 0, ci=1))
def test_two_ranks_reach_97_percent_and_have_the_losses_of_one(kind, reference, tmp_path):
    results = train(kind, 2, tmp_path / "two.json")
    assert results["accuracy"] >= 0.97
    assert len(results["parameter_hashes"]) == len(results["epoch_seconds"]) == 20
    assert len(set(results["parameter_hashes"])) == 20
    assert 0 < results["communication_share"] <= results["communication_share_with_waiting"] < 1
    steps = len(reference["losses"])
    torch.testing.assert_close(results["losses"][:steps], reference["losses"], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", first(KINDS, 0, ci=1))
def test_one_rank_without_torchrun_has_the_same_losses(kind, reference, tmp_path):
    results = train(kind, 1, tmp_path / "one.json", "--epochs", "1")
    assert results["losses"] == pytest.approx(reference["losses"][:22], rel=1e-3, abs=1e-4)


@pytest.mark.matrix
@pytest.mark.full
def test_two_runs_of_the_same_seed_have_the_same_bits(tmp_path):
    first, second = (
        train("occl:dev", 2, tmp_path / f"{name}.json", "--epochs", "2") for name in ("first", "second")
    )
    assert first["parameter_hashes"] == second["parameter_hashes"]
    assert first["losses"] == second["losses"]


def test_gloo_on_the_device_is_refused_with_the_way_out():
    with pytest.raises(AssertionError, match="add --device cpu"):
        run([str(EXAMPLE), "--backend", "gloo"])


@pytest.mark.matrix
@pytest.mark.full
def test_the_comparison_prints_one_line_for_each_run():
    shown = run([str(ROOT / "examples" / "compare.py"), "--runs", "gloo:cpu", "gloo:cpu", "--epochs", "1"])
    table = shown[shown.index("backend") :].splitlines()
    assert [line.split()[:2] for line in table[2:4]] == [["gloo", "cpu"], ["gloo", "cpu"]]
    assert all(math.isfinite(float(line.split()[3])) for line in table[2:4])


def compare_different_parameters(rank: int, store: str) -> None:
    spec = importlib.util.spec_from_file_location("ddp_digits", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    network = torch.nn.Linear(2, 2)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.fill_(0)
    cpu = torch.device("cpu")
    example.same_bits_everywhere(network, cpu)
    if rank == 1:
        with torch.no_grad():
            network.weight[1, 1] = -0.0  # equal as a number, but not the same bits
    with pytest.raises(RuntimeError, match="differ between ranks"):
        example.same_bits_everywhere(network, cpu)
    dist.destroy_process_group()


@pytest.mark.full
def test_parameters_that_differ_in_one_bit_are_an_error_on_every_rank(tmp_path):
    mp.spawn(compare_different_parameters, args=(str(tmp_path / "store"),), nprocs=2)
