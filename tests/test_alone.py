"""Says a process that it trains alone although a launcher has started several?"""

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


@pytest.mark.full
def test_ranks_of_a_group_of_two_say_nothing():
    code = f"""
import os, {IMPORT.removeprefix("import ")}
rank = 0 if os.fork() else 1
store = dist.FileStore(os.environ["MEETING"], 2)
dist.init_process_group("occl", store=store, rank=rank, world_size=2)
{STEP}
dist.destroy_process_group()
if rank == 0:
    os.wait()
"""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        shown = run_python("-c", code, MEETING=f"{folder}/store", **SEVERAL)
    assert "trains alone" not in shown
