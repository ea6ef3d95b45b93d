"""The adapter itself: what it changes in PyTorch's tests, what it does not, and that a failure stays one."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from occl.testing.gpu import rewriting as gpu_rewriting
from tests.support.devices import DEVICES
from tests.support.running import PYTORCH

from . import exceptions, rewriting, stand_ins, survey

KEPT = {
    "parametrize",
    "require_exact_world_size",
    "require_world_size",
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


def test_only_the_lines_that_are_listed_are_reworded():
    """In the methods under which they are listed, and each of them at least once."""
    before, after = rewriting.source()[0].splitlines(), rewriting.reworded().splitlines()
    changed = {i for i, lines in enumerate(zip(before, after, strict=True), start=1) if len(set(lines)) > 1}
    listed = set()
    for method in rewriting.base_class(rewriting.parse()).body:
        for piece, _ in rewriting.REWORDED.get(getattr(method, "name", ""), []):
            lines = {i for i in range(method.lineno, method.end_lineno + 1) if piece in before[i - 1]}
            assert lines, f"{method.name} has no {piece}"
            listed |= lines
    assert changed == listed
    assert len(changed) == (8 if PYTORCH < (2, 15) else 6)


@pytest.mark.parametrize("device", ["cpu", "dev"])
def test_no_gate_is_left_but_the_world_size(device):
    gates = Counter()
    for method in rewriting.base_class(rewriting.rewrite(device, "occl")).body:
        gates.update(
            gpu_rewriting.decorator_name(decorator) for decorator in getattr(method, "decorator_list", [])
        )
    assert set(gates) <= KEPT
    assert gates["require_world_size"] > 30


def test_devices_are_spelt_for_the_device_under_test():
    text = """
x.cuda(rank).to(1); torch.cuda.synchronize(); f(device="cuda"); d = f"cuda:{rank}"; e = "cuda:" + str(i)
h = torch.device(rank)
n = "nccl"; g = "gloo"; dist.Backend.NCCL; dist.new_group(backend="nccl")
"""

    def rewritten(device):
        tree = gpu_rewriting.Rewriter(device, "occl").visit(ast.parse(text))
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
    """By name, with four ranks and CPU tensors."""
    endings = survey.with_gloo()
    assert set(endings) == set(rewriting.test_names())
    passed = {name for name, ending in endings.items() if ending == "passed"}
    assert not {name for name in passed if exceptions.find(name, "cpu", 4)}


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


LOOKS_FOR_A_NUMBER = "test_ddp_logging_data_gpu"
"""Which the CPU does not have: each rank fails with "AssertionError: String comparison failed: '' != ..."."""


@pytest.mark.parametrize(
    ("name", "errors", "says"),
    [
        (
            LOOKS_FOR_A_NUMBER,
            {0: "ValueError", 1: "AssertionError: String"},
            "expected to fail with 'ValueError'",
        ),
        (
            LOOKS_FOR_A_NUMBER,
            {0: "AssertionError: '0'", 1: "AssertionError: String"},
            "expected to fail with",
        ),
        (LOOKS_FOR_A_NUMBER, {1: "AssertionError: String"}, "rank 0 raised(?s:.)*String comparison failed"),
        ("test_get_rank", dict.fromkeys(range(2), "AssertionError"), "it passes now"),
    ],
    ids=["another type", "other words", "one more rank", "none"],
)
def test_an_exception_is_one_with_its_error_on_its_ranks_only(upstream, name, errors, says):
    ending = upstream(name, "cpu", 2, errors)
    assert ending.kind == "failed"
    assert re.search(says, ending.reason)


def test_what_is_excepted_says_how_it_fails():
    """An expression that any failure would match ties nothing."""
    for name, excepted in exceptions.EXCEPTIONS.items():
        for device in excepted.devices:
            for words in excepted.errors(device, 4).values():
                assert len(words) > 40 and not re.match(words, "AssertionError: "), name


SPAWNED = [
    "test_all_reduce_sum",
    "test_send_recv",
    "test_all_gather_object_default_pg",
    "test_ddp_static_graph_nested_types",
]


@pytest.mark.full
@pytest.mark.parametrize(
    ("device", "name"),
    [
        # Each case starts an interpreter for each rank: CI has every second one.
        pytest.param(device, name, marks=[pytest.mark.matrix] * ((at + other) % 2))
        for other, device in enumerate(DEVICES)
        for at, name in enumerate(SPAWNED)
    ],
)
def test_it_is_the_same_in_spawned_processes(device, name):
    """By PyTorch's own runner: see `spawned.py`."""
    result = subprocess.run(
        [sys.executable, "-m", "unittest", "-v", f"tests.upstream.spawned.SpawnedTest.{name}"],
        cwd=Path(__file__).parents[2],
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
    assert f"{name} (tests.upstream.spawned.SpawnedTest" in result.stdout
