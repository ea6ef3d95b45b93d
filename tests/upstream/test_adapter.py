"""The adapter itself: what it changes in PyTorch's tests, what it does not, and that a failure stays one."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from . import exceptions, rewriting, stand_ins

GLOO = Path(__file__).with_name("gloo.txt")


KEPT = {
    "parametrize",
    "require_exact_world_size",
    "require_world_size",
    "skipIfNoTorchVision",
    "skip_if_odd_worldsize",
    "staticmethod",
    "with_dist_debug_levels",
    "with_nccl_blocking_wait",
}


def assertions(tree: ast.Module) -> Counter:
    """The names of all assertions, by the method that they are in."""
    return Counter(
        (method.name, node.func.attr)
        for method in rewriting.base_class(tree).body
        if isinstance(method, ast.FunctionDef)
        for node in ast.walk(method)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr.startswith("assert")
    )


@pytest.mark.parametrize("device", ["cpu", "dev"])
def test_no_assertion_is_lost(device):
    before, after = rewriting.parse(), rewriting.rewrite(device, "occl")
    assert assertions(before) == assertions(after)
    assert assertions(before).total() > 300


@pytest.mark.parametrize("device", ["cpu", "dev"])
def test_the_images_of_one_test_are_smaller(device):
    before, after = (ast.unparse(tree) for tree in (rewriting.parse(), rewriting.rewrite(device, "occl")))
    assert before.count(rewriting.IMAGES) == 1 and rewriting.IMAGES not in after
    assert after.count("torch.ones(batch, batch, 50, 50, ") == 1


@pytest.mark.parametrize("device", ["cpu", "dev"])
def test_no_gate_is_left_but_the_world_size(device):
    gates = Counter()
    for method in rewriting.base_class(rewriting.rewrite(device, "occl")).body:
        gates.update(rewriting._name(decorator) for decorator in getattr(method, "decorator_list", []))
    assert set(gates) <= KEPT
    assert gates["require_world_size"] > 30


def test_devices_are_spelt_for_the_device_under_test():
    text = """
x.cuda(rank).to(1); torch.cuda.synchronize(); f(device="cuda"); d = f"cuda:{rank}"; e = "cuda:" + str(i)
h = torch.device(rank)
n = "nccl"; g = "gloo"; dist.Backend.NCCL; dist.new_group(backend="nccl")
"""

    def rewritten(device):
        tree = rewriting.Rewriter(device, "occl").visit(ast.parse(text))
        return ast.unparse(ast.fix_missing_locations(tree)).splitlines()

    assert rewritten("dev") == [
        "_occl_to(_occl_cuda(x, rank), 1)",
        "_occl_accelerator.synchronize()",
        "f(device=_occl_device('dev'))",
        "d = f'dev:{rank}'",
        "e = 'dev:' + str(i)",
        "h = torch.device(_occl_device(rank))",
        "n = 'occl'",
        "g = 'gloo'",
        "'occl'",
        "dist.new_group(backend='occl')",
    ]
    assert rewritten("cpu") == [
        "_occl_to(_occl_cuda(x, rank), 1)",
        "_occl_accelerator.synchronize()",
        "f(device=_occl_device('cpu'))",
        "d = 'cpu'",
        "e = 'cpu'",
        "h = torch.device(_occl_device(rank))",
        "n = 'nccl'",
        "g = 'occl'",
        "'occl'",
        "dist.new_group(backend='occl')",
    ]


def test_exceptions_and_long_tests_are_tests_of_pytorch():
    names = set(rewriting.test_names())
    assert len(names) == 285
    assert not (set(exceptions.EXCEPTIONS) | set(exceptions.SLOW)) - names


def test_occl_passes_what_gloo_passes():
    """By name, with four ranks and CPU tensors, but for what looks at the names of backends in logs."""
    endings = dict(line.split()[1::-1] for line in GLOO.read_text().splitlines() if not line.startswith("#"))
    assert set(endings) == set(rewriting.test_names())
    lost = {
        name
        for name, ending in endings.items()
        if ending == "passed" and exceptions.reason(name, "cpu", 4).partition(":")[0] not in ("", "logging")
    }
    assert not lost


def ranks_meet(rank, world_size, device, *, path):
    stand_ins.Barrier.place(os.open(path, os.O_RDWR), rank, world_size)
    for _ in range(3):
        stand_ins.Barrier.sync()
    if rank == 0:
        with pytest.raises(RuntimeError, match="barrier timeout"):
            stand_ins.Barrier.sync(timeout=0.01)
        stand_ins.Barrier.sync(wait_for=1)


def fails_on(rank, world_size, device, *, who, how):
    if rank == who:
        if how == "dies":
            os._exit(0)
        raise AssertionError("deliberately")
    return ""


def test_the_barrier_meets(ranks, tmp_path):
    path = tmp_path / "counts"
    path.write_bytes(bytes(8 * 3))
    with ranks.fresh(3) as team:
        team.run(ranks_meet, path=str(path))


@pytest.mark.parametrize("how", ["raises", "dies"])
@pytest.mark.parametrize("who", [0, 2])
def test_a_failure_of_any_rank_is_one(ranks, who, how):
    """Even of a rank that exits with status 0."""
    with ranks.fresh(3) as team, pytest.raises(AssertionError, match=f"rank {who}"):
        team.run(fails_on, who=who, how=how)


SPAWNED = [
    "test_all_reduce_sum",
    "test_send_recv",
    "test_all_gather_object_default_pg",
    "test_ddp_static_graph_nested_types",
]


@pytest.mark.parametrize("name", SPAWNED[:1] + [pytest.param(n, marks=pytest.mark.full) for n in SPAWNED[1:]])
@pytest.mark.parametrize("device", ["cpu", "dev"])
def test_it_is_the_same_in_spawned_processes(device, name):
    """By PyTorch's own runner: see `spawned.py`."""
    result = subprocess.run(
        [sys.executable, "-m", "unittest", "-v", f"upstream.spawned.SpawnedTest.{name}"],
        cwd=Path(__file__).parent.parent,
        env=os.environ
        | {"DEVICE": device, "BACKEND": "occl", "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
        | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=500,
        check=False,
    )
    assert result.returncode == 0, result.stdout
    assert "skipped" not in result.stdout, result.stdout
    assert f"{name} (upstream.spawned.SpawnedTest" in result.stdout
