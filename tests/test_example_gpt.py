"""The GPT example: every strategy has the losses of one process, on one node and two, and after a death."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from tests.support.thinning import first
from tests.test_example_digits import run

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "gpt"))
import ddp_digits
import sample
import train as command
from data import Text
from model import GPT, Size
from strategies import WholeModel, make_mesh
from training import Options, Training

GPT_EXAMPLE = Path(__file__).parents[1] / "examples" / "gpt"
TRAIN = str(GPT_EXAMPLE / "train.py")
SIZE = Size(layers=4, heads=4, width=32, context=16)
TINY = [f"--{name}={number}" for name, number in vars(SIZE).items()] + ["--batch-size=16", "--dtype=float64"]
STRATEGIES = ["ddp", "fsdp", "hsdp", "tp", "fsdp-tp", "pp"]
STEPS = 30
CLOSE = {"rtol": 1e-12, "atol": 0}
"""In float64. The strategies add in different orders, which changes the losses by up to 1e-15 of their value.
A sum in place of a mean changes them by more than 1e-8: Adam hides most of the factor."""


def train(strategy: str, device: str | torch.device, rank: int = 0, **options) -> list[float]:
    """The losses of 30 steps of the smallest model."""
    small = {"size": SIZE, "steps": STEPS, "batch_size": 16, "dtype": torch.float64, "inner": 2}
    training = Training(Options(strategy, torch.device(device), **small | options), Text(), rank)
    training.resume()
    training.run()
    return training.losses


def torchrun(ranks: int, *options: str) -> str:
    command = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "--max-restarts=1"]
    return run([*command, TRAIN, *TINY, *options])


@pytest.fixture(scope="module")
def alone() -> list[float]:
    """The losses of one process, without torch.distributed."""
    losses = train("single", "cpu")
    assert losses[-1] < losses[0] - 1
    return losses


@pytest.mark.ranks(2, device="dev", backend="occl")
def test_two_ranks_with_fsdp_have_the_losses_of_one_process(alone, rank, device):
    torch.testing.assert_close(train("fsdp", device, rank), alone, **CLOSE)


@pytest.mark.matrix
@pytest.mark.full
@pytest.mark.parametrize("device", ["cpu", "dev"])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.ranks([2, 4], backend="occl")
def test_every_strategy_has_the_losses_of_one_process(alone, strategy, rank, device):
    torch.testing.assert_close(train(strategy, device, rank), alone, **CLOSE)


# ---- several nodes ---------------------------------------------------------------------------------------


def join(folder: Path, rank: int, ranks: int, nodes: int) -> None:
    """Makes the default group of ranks on `nodes` nodes, which OCCL_NODE divides one host into."""
    os.environ["OCCL_NODE"] = str(rank * nodes // ranks)
    dist.init_process_group(
        "occl", store=dist.FileStore(str(folder / f"{nodes} nodes"), ranks), rank=rank, world_size=ranks
    )


@pytest.mark.parametrize("device", first(["dev", "cpu"], 0, ci=1))
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.ranks(4, group=False)
def test_two_nodes_have_the_losses_of_one_process(alone, strategy, rank, device, tmp_path):
    join(tmp_path, rank, 4, nodes=2)
    torch.testing.assert_close(train(strategy, device, rank), alone, **CLOSE)


def digits_strategy(name: str, device: torch.device) -> WholeModel:
    torch.manual_seed(0)
    network = ddp_digits.make_network().to(device, torch.float64)
    if name == "single":
        return WholeModel(network)
    if name == "hsdp":
        mesh = make_mesh(device, None, nodes=2, node=2)
        return WholeModel(fully_shard(network, mesh=mesh), [mesh["nodes"], mesh["node"]])
    mesh = make_mesh(device, None, data=4)
    if name == "ddp":
        return WholeModel(DistributedDataParallel(network, process_group=mesh.get_group()), [mesh])
    for layer in network:
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            fully_shard(layer, mesh=mesh)
    return WholeModel(fully_shard(network, mesh=mesh), [mesh])


def train_digits(strategy: WholeModel, device: torch.device) -> list[float]:
    """The losses of 10 steps of the digits example's network."""
    images, labels = (tensor.to(device) for tensor in ddp_digits.load()[0].tensors)
    optimizer = torch.optim.SGD(strategy.model.parameters(), lr=0.07, momentum=0.9)
    losses = []
    for rows in torch.arange(10 * 16).split(16):
        optimizer.zero_grad()
        loss = strategy.loss_and_gradients(images[rows].to(torch.float64), labels[rows])
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.fixture(scope="module")
def digits_alone() -> list[float]:
    cpu = torch.device("cpu")
    return train_digits(digits_strategy("single", cpu), cpu)


@pytest.mark.matrix
@pytest.mark.full
@pytest.mark.parametrize("device", ["cpu", "dev"])
@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "hsdp"])
@pytest.mark.ranks(4, group=False)
def test_two_nodes_have_the_losses_of_one_process_on_digits(digits_alone, strategy, rank, device, tmp_path):
    join(tmp_path, rank, 4, nodes=2)
    losses = train_digits(digits_strategy(strategy, torch.device(device)), torch.device(device))
    torch.testing.assert_close(losses, digits_alone, rtol=1e-10, atol=0)


# ---- checkpoints, deaths and the command -----------------------------------------------------------------


@pytest.fixture
def of_one_process(tmp_path) -> Path:
    """A folder with checkpoints after steps 10 and 20."""
    train("single", "cpu", steps=20, checkpoint=tmp_path, save_every=10)
    return tmp_path


@pytest.mark.parametrize("strategy", first(STRATEGIES, 0, ci=3))
@pytest.mark.ranks(2, backend="occl")
def test_every_strategy_goes_on_from_the_checkpoint_of_one_process(
    alone, strategy, rank, device, of_one_process
):
    losses = train(strategy, device, rank, checkpoint=of_one_process)
    torch.testing.assert_close(losses, alone, **CLOSE)


@pytest.mark.matrix
@pytest.mark.full
@pytest.mark.parametrize("after", STRATEGIES)
@pytest.mark.parametrize("before", ["fsdp-tp", "pp"])
@pytest.mark.ranks(4, device="dev", backend="occl")
def test_every_strategy_goes_on_from_a_checkpoint_of_another(alone, before, after, rank, device, tmp_path):
    kept = {"checkpoint": tmp_path, "save_every": 10}
    train(before, device, rank, steps=20, **kept)
    torch.testing.assert_close(train(after, device, rank, **kept), alone, **CLOSE)
    if rank == 0:  # which removes those before the last two
        assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000020", "step-000030"]


@pytest.mark.full
def test_a_killed_rank_changes_no_loss_and_the_checkpoint_writes_text(alone, tmp_path):
    """Rank 1 dies in step 17; all begin again after step 10, the last one saved."""
    pytest.importorskip("matplotlib")
    files = [f"--json={tmp_path / 'losses.json'}", f"--plot={tmp_path / 'losses.png'}"]
    shown = torchrun(
        2,
        "--strategy=fsdp",
        f"--checkpoint={tmp_path}",
        "--save-every=10",
        "--kill=1:17",
        "--steps=30",
        *files,
    )
    assert f"exitcode: -{signal.SIGKILL}" in shown, shown
    assert "goes on after step 10" in shown, shown
    torch.testing.assert_close(json.loads((tmp_path / "losses.json").read_text()), alone, **CLOSE)
    assert (tmp_path / "losses.png").read_bytes().startswith(b"\x89PNG")
    bits = float(re.search(r"^step-000030: ([\d.]+) bits a byte", shown, re.MULTILINE)[1])
    assert 4 < bits < 8, shown
    text = run([str(GPT_EXAMPLE / "sample.py"), str(tmp_path), "--prompt=for", "--count=20"])
    assert text.splitlines()[1].startswith("for"), text


@pytest.mark.full
def test_a_checkpoint_that_a_death_has_cut_short_is_passed_over(alone, of_one_process):
    (of_one_process / "step-000020" / ".metadata").unlink()
    assert train("single", "cpu", checkpoint=of_one_process) == alone


@pytest.mark.matrix
@pytest.mark.full
def test_speeds_of_both_backends_are_printed():
    shown = torchrun(2, "--strategy=fsdp", "--device=cpu", "--steps=2", "--compare-gloo")
    assert re.search(r"^samples/s: occl \d+, gloo \d+$", shown, re.MULTILINE), shown


@pytest.mark.parametrize(
    "options, text",
    [(["--strategy=fsdp"], "runs without torchrun"), (["--compare-gloo"], "needs torchrun and --device cpu")],
)
def test_what_cannot_work_is_refused(monkeypatch, capsys, options, text):
    monkeypatch.setattr(sys, "argv", [TRAIN, *options])
    with pytest.raises(SystemExit):
        command.parse_arguments()
    assert text in capsys.readouterr().err


def test_text_of_any_length_is_generated_with_the_same_bytes():
    model = GPT(Size(layers=1, heads=1, width=8, context=4))
    first, second = (sample.generate(model, "for", 20) for _ in range(2))
    assert first == second and first.startswith("for") and len(first.encode()) >= 23
