"""Says a process that it trains alone although a launcher has started several?"""

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import rpc
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from occl.distributed import alone
from tests.support.interpreter import PACKAGE, install, run_python
from tests.support.thinning import first

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


def in_a_group_of_two(
    before: str, folder: Path, step: str = STEP, imports: str = IMPORT, path: Path = PACKAGE
) -> str:
    """What two ranks write that share a group and step, the second one after ``before``."""
    code = f"""
import os, sys, types, {imports.removeprefix("import ")}
child = os.fork()
rank = 0 if child else 1
os.environ["RANK"] = str(rank)
store = dist.FileStore(os.environ["MEETING"], 2)
dist.init_process_group("occl", store=store, rank=rank, world_size=2)
if rank == 1:
    {before}
{step}
dist.destroy_process_group()
if child:
    assert os.waitpid(child, 0)[1] == 0
"""
    return run_python("-c", code, path=path, MEETING=f"{folder}/store", **SEVERAL)


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


@pytest.mark.parametrize("state", first(["{'distributed_type': 'DistributedType.MULTI_CPU'}", "{}"], 0, ci=1))
def test_accelerate_that_wraps_models_or_is_not_used_is_no_reason_to_warn(state, tmp_path):
    assert "trains alone" not in in_a_group_of_two(ACCELERATE.format(state=state), tmp_path)


# ---- the library that is told what to do -------------------------------------------------------------------

CALLED_BY = """
    {state}
    loop = types.ModuleType('{module}')
    exec('def train(step): step()', vars(loop))
    for name in ('transformers', 'accelerate'):
        sys.modules[name] = types.ModuleType(name)
    step = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1).step
    loop.train(step)
"""
"""A step that a function of another library makes, after both libraries have been imported."""
NO_KIND = ACCELERATE.format(state="{'distributed_type': 'DistributedType.NO'}")


@pytest.mark.full
@pytest.mark.parametrize(
    ("module", "remedy"),
    [
        pytest.param("transformers.trainer", "pass use_cpu=True to TrainingArguments", id="the Trainer"),
        pytest.param(
            "accelerate.optimizer",
            "pass cpu=True to Accelerator",
            id="a loop with Accelerate",
            marks=pytest.mark.matrix,
        ),
        pytest.param(
            "program",
            "pass cpu=True to Accelerator",
            id="a loop of its own",
            marks=pytest.mark.matrix,
        ),
    ],
)
def test_the_remedy_is_that_of_the_library_whose_loop_it_is(module, remedy, tmp_path):
    shown = in_a_group_of_two(CALLED_BY.format(state=NO_KIND, module=module), tmp_path)
    assert remedy in shown and shown.count("; with ") == 1, shown


IGNITE = (
    "sys.modules['ignite.distributed.utils'] = types.SimpleNamespace("
    "_model=types.SimpleNamespace(name='native-dist'))"
)
"""Ignite's state, as this process would have it; tests/ecosystem asks Ignite itself."""


@pytest.mark.full
@pytest.mark.parametrize(
    ("prepared", "warned"),
    [("pass", True), ("dist.broadcast(torch.zeros(1), 0)", False)],
    ids=["bare", "wrapped"],
)
def test_a_rank_whose_model_ignite_does_not_wrap_warns(prepared, warned, tmp_path):
    """Unless the parameters have been exchanged, as DistributedDataParallel does when it wraps a model."""
    shown = in_a_group_of_two(IGNITE, tmp_path, step=f"{prepared}\n{STEP}")
    assert ("rank 1 trains alone: Ignite does not know the backend occl" in shown) == warned, shown
    assert ("make a group named gloo and set OCCL_IN_PLACE_OF=gloo" in shown) == warned


# ---- groups that carry nothing ---------------------------------------------------------------------------

STEPS = alone.STEPS + 5


def small() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model of 1249 parameters, and the optimizer of a program that does not wrap it."""
    model = nn.Sequential(nn.Linear(4, 32), nn.Linear(32, 32), nn.Linear(32, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def loss_of(model: nn.Module) -> torch.Tensor:
    return model(torch.ones(2, 4)).square().sum()


def warnings_of(train: Callable[[], None]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train()
    return [str(warning.message) for warning in caught if "trains alone" in str(warning.message)]


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    loss_of(model).backward()
    optimizer.step()


@pytest.mark.full
@pytest.mark.ranks(2, backend="occl")
def test_a_rank_that_exchanges_nothing_in_its_steps_says_so_once(rank):
    """What comes before them, counts of ranks and samples, does not count."""
    dist.all_reduce(torch.ones(1))
    dist.barrier()
    model, optimizer = small()

    def train():
        for _ in range(2 * STEPS):
            step(model, optimizer)

    (text,) = warnings_of(train)
    assert text.startswith(
        f"WORLD_SIZE is 2, but rank {rank} trains alone: its groups have carried nothing since"
    )


def with_ddp(rank: int) -> None:
    model, optimizer = small()
    wrapped = DistributedDataParallel(model)
    for _ in range(STEPS):
        step(wrapped, optimizer)


def with_accumulated_gradients(rank: int) -> None:
    model, optimizer = small()
    wrapped = DistributedDataParallel(model)
    for i in range(2 * STEPS):
        with wrapped.no_sync():
            loss_of(wrapped).backward()
        if i % 2:
            step(wrapped, optimizer)


def with_gradients_averaged_by_hand(rank: int) -> None:
    model, optimizer = small()
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss_of(model).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, dist.ReduceOp.AVG)
        optimizer.step()


def with_parameters_averaged_now_and_then(rank: int, broadcast: bool = False, period: int = 50) -> None:
    model, optimizer = small()
    if broadcast:
        for parameter in model.parameters():
            dist.broadcast(parameter.detach(), 0)
    for i in range(1, 4 * period):
        step(model, optimizer)
        if i % period == 0:
            for parameter in model.parameters():
                dist.all_reduce(parameter.detach(), dist.ReduceOp.AVG)


def with_parameters_averaged_seldom(rank: int) -> None:
    with_parameters_averaged_now_and_then(rank, broadcast=True, period=2 * alone.STEPS)


def with_a_parameter_server(rank: int) -> None:
    """Rank 0 has the optimizer, and the other computes gradients."""
    model, optimizer = small()
    for _ in range(STEPS):
        for parameter in model.parameters():
            if rank == 0:
                dist.send(parameter.detach(), 1)
                parameter.grad = torch.empty_like(parameter)
                dist.recv(parameter.grad, 1)
            else:
                dist.recv(parameter.detach(), 0)
                dist.send(torch.ones_like(parameter), 0)
        if rank == 0:
            optimizer.step()


def with_seeds_and_rewards(rank: int) -> None:
    """Each rank computes the same step from a number of each rank, as evolution strategies do."""
    model, optimizer = small()
    for _ in range(STEPS):
        dist.all_reduce(torch.ones(1))
        step(model, optimizer)


def with_zero(rank: int) -> None:
    model, _ = small()
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.01)
    wrapped = DistributedDataParallel(model)
    for _ in range(STEPS):
        step(wrapped, optimizer)


def with_shards(rank: int) -> None:
    model, _ = small()
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        step(model, optimizer)


def with_a_discriminator(rank: int) -> None:
    """Two models with an optimizer each, of which one steps more often."""
    pairs = [(DistributedDataParallel(model), optimizer) for model, optimizer in (small(), small())]
    for i in range(STEPS):
        for model, optimizer in pairs[: 1 + (i % 5 == 0)]:
            step(model, optimizer)


def with_a_rank_that_only_evaluates(rank: int) -> None:
    model, optimizer = small()
    for i in range(STEPS):
        if rank == 0:
            step(model, optimizer)
        if i % 20 == 0:
            for parameter in model.parameters():
                dist.broadcast(parameter.detach(), 0)


def with_inputs_of_different_lengths(rank: int) -> None:
    model, optimizer = small()
    wrapped = DistributedDataParallel(model)
    with wrapped.join():
        for _ in range(3 if rank else STEPS):
            step(wrapped, optimizer)


def with_parameters_that_processes_share(rank: int) -> None:
    model, optimizer = small()
    model.share_memory()
    for _ in range(STEPS):
        step(model, optimizer)


def with_rpc(rank: int) -> None:
    model, optimizer = small()
    asked, rpc.api._is_current_rpc_agent_set = rpc.api._is_current_rpc_agent_set, lambda: True
    for _ in range(STEPS):
        step(model, optimizer)
    rpc.api._is_current_rpc_agent_set = asked


def with_a_group_of_gloo(rank: int) -> None:
    """What other backends carry is not counted, so nothing is suspected."""
    group = dist.new_group(backend="gloo")
    model, optimizer = small()
    for _ in range(STEPS):
        step(model, optimizer)
    dist.destroy_process_group(group)


WAYS = [value for name, value in list(globals().items()) if name.startswith("with_")]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.ranks(2, backend="occl")
def test_ranks_that_exchange_something_are_not_suspected(rank, way):
    assert warnings_of(lambda: way(rank)) == []


@pytest.mark.full
def test_a_process_that_has_not_imported_the_package_counts_what_its_groups_carry(tmp_path):
    many = f"for _ in range({STEPS}): {STEP}\nassert 'torch_occl' not in sys.modules"
    imports = "import torch, torch.distributed as dist"
    shown = in_a_group_of_two("pass", tmp_path, many, imports, install(tmp_path / "installed"))
    for rank in range(2):
        assert f"rank {rank} trains alone: its groups have carried nothing since" in shown
