"""Says a process that it trains alone although a launcher has started several?"""

from pathlib import Path

import pytest

from tests.support.interpreter import install, run_python

STEP = "torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1).step()"
IMPORT = "import torch, torch_occl, torch.distributed as dist"
MEET = "dist.init_process_group('occl', store=dist.HashStore(), rank=0, world_size=1)"
SEVERAL = {"WORLD_SIZE": "2", "RANK": "1", "OCCL_DEVICE": "0"}
WARNING = "RuntimeWarning: WORLD_SIZE is 2, but rank 1 trains alone: "


def test_a_process_that_steps_without_a_group_warns_once():
    shown = run_python("-c", f"{IMPORT}\n{STEP}\n{STEP}", **SEVERAL)
    assert shown.count(WARNING + "it has no process group at the first step of an optimizer.") == 1, shown


@pytest.mark.full
def test_a_group_of_one_rank_is_alone():
    shown = run_python("-c", f"{IMPORT}\n{MEET}\n{STEP}\ndist.destroy_process_group()", **SEVERAL)
    assert WARNING + "it has no process group of more than one rank" in shown


@pytest.mark.full
def test_a_process_that_only_asks_for_occl_in_the_place_of_gloo_warns(tmp_path):
    installed = install(tmp_path)
    shown = run_python(
        "-c", f"import torch\n{STEP}", path=installed, OCCL_IN_PLACE_OF="gloo", WORLD_SIZE="2", RANK="1"
    )
    assert WARNING in shown


@pytest.mark.full
@pytest.mark.parametrize(
    ("code", "environment"),
    [
        pytest.param(f"{IMPORT}\n{STEP}", {"WORLD_SIZE": "1"}, id="one process"),
        pytest.param(f"{IMPORT}\n{STEP}", {}, id="no launcher"),
        pytest.param(f"import torch\n{STEP}", {"WORLD_SIZE": "2"}, id="nothing of ours was asked for"),
    ],
)
def test_a_process_that_is_alone_on_purpose_says_nothing(code, environment, tmp_path):
    shown = run_python("-c", code, path=install(tmp_path), **{"OCCL_DEVICE": "0"} | environment)
    assert "trains alone" not in shown


def in_a_group_of_two(before: str, folder: Path) -> str:
    """What two ranks write that share a group and step, the second one after ``before``."""
    code = f"""
import os, sys, types, {IMPORT.removeprefix("import ")}
child = os.fork()
rank = 0 if child else 1
os.environ["RANK"] = str(rank)
store = dist.FileStore(os.environ["MEETING"], 2)
dist.init_process_group("occl", store=store, rank=rank, world_size=2)
if rank == 1:
    {before}
{STEP}
dist.destroy_process_group()
if child:
    assert os.waitpid(child, 0)[1] == 0
"""
    return run_python("-c", code, MEETING=f"{folder}/store", **SEVERAL)


@pytest.mark.full
def test_ranks_of_a_group_of_two_say_nothing(tmp_path):
    assert "trains alone" not in in_a_group_of_two("pass", tmp_path)


ACCELERATE = (
    "sys.modules['accelerate.state'] = types.SimpleNamespace(AcceleratorState=types.SimpleNamespace("
    "_shared_state={state}))"
)
"""Accelerate's state, as this process would have it; tests/ecosystem asks Accelerate itself."""


@pytest.mark.full
def test_a_rank_whose_models_accelerate_does_not_wrap_warns(tmp_path):
    shown = in_a_group_of_two(ACCELERATE.format(state="{'distributed_type': 'DistributedType.NO'}"), tmp_path)
    assert shown.count(f"{WARNING}Accelerate has no kind of training for the process group") == 1, shown


@pytest.mark.full
@pytest.mark.parametrize("state", ["{'distributed_type': 'DistributedType.MULTI_CPU'}", "{}"])
def test_accelerate_that_wraps_models_or_is_not_used_is_no_reason_to_warn(state, tmp_path):
    assert "trains alone" not in in_a_group_of_two(ACCELERATE.format(state=state), tmp_path)
