"""Train other projects' packages over occl as they do over Gloo, to the digits that they print?"""

from __future__ import annotations

import importlib.util
import re
import sys

import pytest

from tests.ecosystem.running import (
    CPU,
    DEV,
    EXAMPLES,
    GLOO,
    IN_PLACE,
    OPTIONS,
    OWN_RAY,
    SETTINGS,
    TORCHRUN,
    assert_same_losses,
    fails,
    losses,
    run,
    run_on_two_nodes,
    with_gloo,
)
from tests.hosts.namespaces import why_not


@pytest.mark.parametrize("setting", SETTINGS)
def test_accelerate_prepares_gathers_reduces_and_restores(setting, tell):
    tell("Accelerate", setting)
    command = (*TORCHRUN, "accelerate_digits.py")
    shown = run(*command, **IN_PLACE[setting])
    assert_same_losses(shown, with_gloo(*command))
    assert f"2 ranks on {'dev' if setting == DEV else 'cpu'}:0" in shown
    assert "the saved state was restored" in shown
    tell("Accelerate", GLOO)


BY_NAME = """
import runpy, sys
sys.path.insert(0, ".")  # the examples
import torch.distributed as dist
dist.init_process_group("occl")
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""


@pytest.mark.parametrize("example", ["accelerate_digits.py", "trainer_gpt2.py"])
def test_a_group_that_was_made_by_name_is_used(example, tmp_path):
    (tmp_path / "by_name.py").write_text(BY_NAME)
    shown = run(*TORCHRUN, str(tmp_path / "by_name.py"), example)
    assert_same_losses(shown, with_gloo(*TORCHRUN, example))


FSDP_ON_CPU = """
from accelerate import Accelerator, FullyShardedDataParallelPlugin
import torch
accelerator = Accelerator(cpu=True, fsdp_plugin=FullyShardedDataParallelPlugin())
kind = type(accelerator.prepare(torch.nn.Linear(8, 8))).__name__
print(f"the model is a {kind}")  # in one piece: both ranks write into one pipe, unbuffered
accelerator.end_training()
"""


def test_accelerate_trains_ddp_on_cpus_whatever_is_configured(tmp_path):
    (tmp_path / "fsdp.py").write_text(FSDP_ON_CPU)
    shown = run(*TORCHRUN, str(tmp_path / "fsdp.py"), **IN_PLACE[CPU])
    assert shown.count("the model is a DistributedDataParallel") == 2, shown


def test_accelerate_launch_starts_the_ranks(tell):
    tell("Accelerate", CPU)
    shown = run(
        "accelerate", "launch", "--multi_gpu", "--num_processes=2", "accelerate_digits.py", **IN_PLACE[CPU]
    )
    assert "2 ranks on cpu" in shown


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_trainer_of_transformers(setting, tell):
    tell("Trainer, of transformers", setting)
    command = (*TORCHRUN, "trainer_gpt2.py")
    shown = run(*command, **IN_PLACE[setting])
    assert_same_losses(shown, with_gloo(*command))
    assert f"2 ranks on {'dev' if setting == DEV else 'cpu'}:0, of type DistributedDataParallel, " in shown
    tell("Trainer, of transformers", GLOO)


@pytest.mark.parametrize("kind", [pytest.param((), id="trainer"), pytest.param(("--fabric",), id="fabric")])
@pytest.mark.parametrize("setting", SETTINGS)
def test_lightning(setting, kind, tell):
    name = "Fabric, of Lightning" if kind else "Lightning"
    tell(name, setting)
    command = (sys.executable, "lightning_digits.py", *kind)
    shown = run(*command, *OPTIONS[setting])
    assert_same_losses(shown, with_gloo(*command, *OPTIONS[GLOO]))
    assert f"2 ranks on {'dev:0' if setting == DEV else 'cpu'}, over occl" in shown
    tell(name, GLOO)


@pytest.fixture(scope="module")
def compiled():
    """DeepSpeed's operator, which its first use on CPU tensors would compile for a minute."""
    run(
        sys.executable,
        "-c",
        "from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder as Op; Op().load()",
    )


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("stage", ["0", "1", "2", "3"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_deepspeed_at_every_stage_of_zero(setting, stage, tell):
    tell("DeepSpeed", setting)
    command = (*TORCHRUN, "deepspeed_digits.py", "--stage", stage)
    if setting == DEV:
        shown = run(*command, "--device", "dev")
    else:
        shown = run(*command, **IN_PLACE[CPU], DS_ACCELERATOR="cpu")
    assert_same_losses(shown, with_gloo(*command, DS_ACCELERATOR="cpu"))
    where = "dev:0, over occl" if setting == DEV else "cpu, over gloo"
    assert f"2 ranks on {where}" in shown
    tell("DeepSpeed", GLOO)


@pytest.mark.parametrize("setting", SETTINGS)
def test_torchmetrics(setting, tell):
    tell("torchmetrics", setting)
    command = (*TORCHRUN, "metrics_digits.py")
    shown = run(*command, *OPTIONS[setting])
    gloo = with_gloo(*command, *OPTIONS[GLOO])
    assert_same_losses(shown, gloo)
    (measured,) = re.findall(r"^accuracy .*$", shown, re.MULTILINE)
    assert measured in gloo
    tell("torchmetrics", GLOO)


WITH_TORCHREC = pytest.mark.skipif(
    not importlib.util.find_spec("torchrec"),
    reason="torchrec pins other versions of what is here: docs/integrations.md says how to install it",
)


@WITH_TORCHREC
def test_torchrec_shards_tables_in_each_way_over_cpu_tensors(tell):
    tell("torchrec", CPU)
    command = (*TORCHRUN, "torchrec_tables.py", "--backend")
    lines = [
        re.findall(r"^(.*): (losses .*)$", shown, re.MULTILINE)
        for shown in (run(*command, "occl"), with_gloo(*command, "gloo"))
    ]
    assert lines[0] == lines[1] and [way for way, _ in lines[0]] == [
        "table",
        "row",
        "column",
        "data parallel",
    ]
    assert len({text for _, text in lines[0]}) == 1 and losses(lines[0][0][1])
    tell("torchrec", GLOO)


@WITH_TORCHREC
def test_torchrec_has_no_tables_on_dev():
    """If this fails, torchrec has learned it: docs/integrations.md has the reason why it cannot."""
    shown = fails(*TORCHRUN, "torchrec_tables.py", "--device", "dev")
    assert "Found local shard tensor device: cpu, local shard metadata placement device: dev" in shown


def test_ignite_wraps_models_where_occl_takes_the_place_of_gloo(tell):
    tell("pytorch-ignite", CPU)
    command = (*TORCHRUN, "ignite_digits.py")
    shown = run(*command, **IN_PLACE[CPU])
    assert_same_losses(shown, with_gloo(*command))
    assert "2 ranks, the model is a DistributedDataParallel" in shown
    tell("pytorch-ignite", GLOO)


@pytest.mark.parametrize("setting", SETTINGS)
def test_ray_train_with_two_workers(setting, tell):
    tell("Ray", setting)
    shown = run(sys.executable, "ray_digits.py", *OPTIONS[setting], **OWN_RAY)
    assert_same_losses(shown, with_gloo(sys.executable, "ray_digits.py", *OPTIONS[GLOO], **OWN_RAY))
    assert f"2 ranks on {'dev:0' if setting == DEV else 'cpu'}, over occl" in shown
    tell("Ray", GLOO)


def test_ray_train_on_two_nodes_of_ray(tell):
    tell("Ray", CPU)
    shown = run(sys.executable, "ray_digits.py", "--nodes", "2", *OPTIONS[CPU])
    assert_same_losses(shown, with_gloo(sys.executable, "ray_digits.py", *OPTIONS[GLOO], **OWN_RAY))


@pytest.mark.parametrize("setting", [GLOO, CPU, DEV])
def test_torchft_goes_on_without_a_replica_and_takes_it_in_again(setting, tell):
    tell("torchft", setting)
    shown = run(sys.executable, "torchft_digits.py", *OPTIONS[setting])
    assert "replica 1.0 ended with -9" in shown
    steps = [
        (name, int(step), float(loss), int(number))
        for name, step, loss, number in re.findall(
            r"^replica (\S+) step (\d+) loss ([\d.]+) with (\d)$", shown, re.M
        )
    ]
    together = {step for name, step, _, number in steps if name == "1.1" and number == 2}
    assert together, "the replica that came back takes part"
    assert {number for name, step, _, number in steps if name == "0.0"} == {1, 2}, (
        "one went on without the other"
    )
    last = [loss for name, _, loss, _ in steps if name == "0.0"]
    assert last[-1] < last[0] / 2


@pytest.mark.parametrize(
    "degrees", [(), ("--parallelism.data_parallel_replicate_degree=2",)], ids=["fsdp", "ddp"]
)
def test_torchtitan_trains_unchanged_on_dev(degrees, tell):
    """Not compared: it does not run on CPU tensors, and each strategy draws its own first parameters."""
    tell("torchtitan", DEV)
    shown = run(*TORCHRUN, "torchtitan_llama.py", *degrees, OCCL_DEVICE="1")
    assert losses(shown)
    assert "2 ranks on dev:0, over occl" in shown


@pytest.mark.skipif(bool(why_not()), reason=why_not())
@pytest.mark.parametrize(
    "script",
    [
        ("accelerate_digits.py",),
        ("trainer_gpt2.py",),
        ("ignite_digits.py",),
        ("metrics_digits.py", *OPTIONS[GLOO]),
        ("deepspeed_digits.py", "--stage", "2"),
    ],
    ids=lambda script: script[0].split("_")[0],
)
def test_in_the_place_of_gloo_on_two_nodes(script):
    chosen = {"DS_ACCELERATOR": "cpu"} if "deepspeed" in script[0] else {}
    first, second = run_on_two_nodes(*script, **IN_PLACE[CPU], **chosen)
    assert "uses occl in the place of Gloo" in first, first
    assert "uses Gloo, and not occl" not in first + second, first + second
    assert_same_losses(first, with_gloo(*TORCHRUN, *script, **chosen))


ALONE = (
    "RuntimeWarning: WORLD_SIZE is 2, but rank %d trains alone: Accelerate has no kind of training for the "
    "process group (distributed_type is NO)"
)


def test_a_trainer_that_does_not_know_the_device_says_that_it_trains_alone(tmp_path):
    text = (EXAMPLES / "trainer_gpt2.py").read_text()
    assert text.count("use_cpu=True,") == 1
    (program := tmp_path / "alone.py").write_text(text.replace("use_cpu=True,", ""))
    shown = run(*TORCHRUN, str(program), "--steps=2", alone=True, **IN_PLACE[CPU])
    for rank in range(2):
        assert shown.count(ALONE % rank) == 1, shown
    assert "pass use_cpu=True to TrainingArguments" in shown


ACCELERATE_ALONE = """
import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs

accelerator = Accelerator(kwargs_handlers=[InitProcessGroupKwargs(backend="occl")])
network = torch.nn.Linear(2, 2)
network, optimizer = accelerator.prepare(network, torch.optim.SGD(network.parameters(), lr=0.1))
optimizer.step()
optimizer.step()
ranks, backend = torch.distributed.get_world_size(), torch.distributed.get_backend()
print(type(network).__name__, "of", ranks, "over", backend)
torch.distributed.destroy_process_group()
"""


def test_accelerate_that_is_told_the_backend_but_not_the_cpu_says_that_it_trains_alone(tmp_path):
    (program := tmp_path / "alone.py").write_text(ACCELERATE_ALONE)
    shown = run(*TORCHRUN, str(program), alone=True)
    assert shown.count("Linear of 2 over occl") == 2, shown
    for rank in range(2):
        assert shown.count(ALONE % rank) == 1, shown
    assert "pass cpu=True to Accelerator" in shown


ACCELERATE_IN_A_LOOP_OF_ITS_OWN = "import transformers\n" + ACCELERATE_ALONE


def test_a_loop_of_accelerate_gets_its_remedy_although_transformers_is_imported(tmp_path):
    (program := tmp_path / "alone.py").write_text(ACCELERATE_IN_A_LOOP_OF_ITS_OWN)
    shown = run(*TORCHRUN, str(program), alone=True)
    assert shown.count("pass cpu=True to Accelerator") == 2 and "TrainingArguments" not in shown, shown


def test_ignite_in_a_group_named_occl_says_that_it_trains_alone(tmp_path):
    text = (EXAMPLES / "ignite_digits.py").read_text()
    assert text.count('idist.initialize("gloo")') == 1
    named = text.replace('idist.initialize("gloo")', 'torch.distributed.init_process_group("occl")')
    (program := tmp_path / "alone.py").write_text(named)
    (tmp_path / "digits.py").symlink_to(EXAMPLES / "digits.py")
    shown = run(*TORCHRUN, str(program), alone=True)
    for rank in range(2):
        text = f"rank {rank} trains alone: Ignite does not know the backend occl"
        assert shown.count(text) == 1, shown
    assert "make a group named gloo and set OCCL_IN_PLACE_OF=gloo" in shown
