"""What the modules of ``occl`` and ``torch_occl`` may import, when they are imported and later."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in ("occl", "torch_occl")
    for path in (ROOT / package).rglob("*.py")
}

LATE = {
    # The device, where a caller asks for it: occl does not make it.
    "occl.registration -> torch_occl": "OCCL_DEVICE=1",
    "occl.deprecated -> torch_occl.dev.memory": "counters of a device dev",
    "occl.testing.worker -> torch_occl": "a test with device='dev'",
    "occl.testing.gpu.suites -> torch_occl": "suites of accelerators run on dev",
    "occl.conformance.rank_api -> torch_occl": "--device dev",
    "occl.tools.doctor.probe -> torch_occl": "a process of its own, whose failure is the answer",
    "occl.tools.doctor.probe -> torch_occl.dev._registration": "as above",
    "occl.tools.doctor.probe -> occl._C": "as above",
    "occl.tools.doctor.probe -> occl.distributed.ucx": "as above",
    "torch_occl.dev._registration -> torch_occl.dev": "only where PrivateUse1 is free",
    "torch_occl.dev._registration -> torch_occl.dev.dynamo": "only where PrivateUse1 is free",
    "torch_occl.dev._registration -> occl._C": "after it is known that it works with this PyTorch",
    # What loads the extension, in modules that are imported by `import torch`.
    "occl.registration -> occl.compat": "needs torch.distributed",
    "occl.registration -> occl.memory": "OCCL_SHARE_CPU",
    "occl.registration -> occl.distributed.alone": "OCCL_IN_PLACE_OF",
    "occl.registration -> occl.distributed.gloo": "OCCL_IN_PLACE_OF",
    "occl.registration -> occl.distributed.backend": "the first group is made",
    "occl.distributed.gloo -> occl.distributed.backend": "the first group is made",
    "occl.distributed.gloo -> occl._C": "the first group is made",
    "occl.distributed.gloo -> occl.distributed.long_waits": "the first group is made",
    "occl.distributed.place_agreement -> occl.distributed.backend": "as above",
    "occl.distributed.place_agreement -> occl.distributed.tcp": "a group over several nodes is made",
    "occl.distributed.place_agreement -> occl.distributed.ucx": "as above",
    "occl.distributed.alone -> occl.distributed.stats": "a group has been made",
    # What needs another package, or takes long.
    "occl.distributed.long_waits -> occl.tools.top.groups": "a program has waited for long",
    "occl.distributed.long_waits -> occl.tools.top.processes": "as above",
    "occl.distributed.long_waits -> occl.tools.top.stuck": "as above",
    "occl.tools.top.command -> occl.tools.top.screen": "needs rich",
    "occl.bench.command -> occl.bench.plot": "needs matplotlib",
    "occl.conformance.plugin -> occl.conformance.rules": "needs PyTorch, as pytest's options do not",
    "occl.conformance.rank_api -> occl.conformance.rules": "in each rank",
    "occl.conformance.rank_api -> occl.conformance.catalog": "in each rank, after the rules",
    # What is for some process only.
    "occl.testing.faults -> occl.testing.inject": "a rank's own form of the fixture",
    "occl.testing.gpu.suites -> occl.testing.gpu.names": "after torch_occl is imported",
}
"""Own modules that are imported while a function runs, and when or why. Others are imported at the top."""


def imported(statements: list[ast.stmt]) -> set[str]:
    """What is imported at the level of the module, and not for types only."""
    found: set[str] = set()
    for it in statements:
        if isinstance(it, ast.Import | ast.ImportFrom):
            found |= named(it)
        elif isinstance(it, ast.If) and "TYPE_CHECKING" not in ast.unparse(it.test):
            found |= imported([*it.body, *it.orelse])
        elif isinstance(it, ast.Try):
            found |= imported([*it.body, *(s for h in it.handlers for s in h.body), *it.orelse])
        elif isinstance(it, ast.With | ast.ClassDef):
            found |= imported(it.body)
    return found


def named(it: ast.Import | ast.ImportFrom) -> set[str]:
    if isinstance(it, ast.Import):
        return {alias.name for alias in it.names}
    full = {f"{it.module}.{alias.name}" for alias in it.names}
    return {name if name in FILES or name == "occl._C" else str(it.module) for name in full}


def imported_late(tree: ast.Module) -> set[str]:
    """What functions import, by a statement or by a name that is written there."""
    found: set[str] = set()
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for it in ast.walk(function):
                if isinstance(it, ast.Import | ast.ImportFrom):
                    found |= named(it)
                elif isinstance(it, ast.Call) and ast.unparse(it.func).endswith("import_module"):
                    found |= {arg.value for arg in it.args if isinstance(arg, ast.Constant)}
    return found


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    return {name: ast.parse(path.read_text()) for name, path in FILES.items()}


@pytest.fixture(scope="module")
def edges(trees) -> dict[str, set[str]]:
    return {name: imported(tree.body) for name, tree in trees.items()}


@pytest.fixture(scope="module")
def late_edges(trees) -> dict[str, set[str]]:
    return {name: imported_late(tree) for name, tree in trees.items()}


def ours(name: str) -> bool:
    return name.partition(".")[0] in ("occl", "torch_occl")


def wrong(edges: dict[str, set[str]], begins: str, *forbidden: str) -> set[str]:
    return {
        f"{name} -> {it}"
        for name, found in edges.items()
        for it in found
        if f"{name}.".startswith(begins) and any(f"{it}.".startswith(f"{other}.") for other in forbidden)
    }


def test_no_modules_import_each_other_in_a_circle(edges):
    TopologicalSorter({name: found & FILES.keys() for name, found in edges.items()}).prepare()


def test_the_packages_do_not_import_each_other_in_a_circle(edges):
    """``occl`` alone, and the rooms in it, of which one is made of its modules."""
    rooms: dict[str, set[str]] = {}
    for name, found in edges.items():
        rooms.setdefault(room(name), set()).update(map(room, found & FILES.keys()))
    rooms.pop("occl.tools.doctor.rank")
    for name, others in rooms.items():
        others.discard(name)
    TopologicalSorter(rooms).prepare()


def room(name: str) -> str:
    """The folder, or the module of a package's first floor."""
    if name == "occl.tools.doctor.rank":
        return name  # a process of its own
    depth = 3 if name.startswith("occl.tools.") else 2 if name.startswith("occl.") else 1
    return ".".join(name.split(".")[:depth])


def test_occl_does_not_import_what_makes_the_device(edges):
    assert wrong(edges, "occl.", "torch_occl") == {
        "occl.bench.contenders -> torch_occl",  # the device is compared
        "occl.tools.doctor.rank -> torch_occl",  # a process of its own, which tests the device
        "occl.tools.doctor.rank -> torch_occl.dev._registration",
    }


def test_tools_need_no_pytorch(edges, late_edges):
    needs = ("torch", "occl._C", "occl.distributed", "occl.memory", "occl.bench")
    found = wrong(edges, "occl.tools.", *needs) | wrong(late_edges, "occl.tools.", *needs)
    apart = ("occl.tools.doctor.rank ", "occl.tools.doctor.probe ")  # processes of their own
    assert all(it.startswith(apart) for it in found), found


def test_the_testing_kit_knows_no_device(edges):
    """It serves any backend: occl's modules are for tests that ask for them."""
    own = ("torch_occl", "occl._C", "occl.distributed", "occl.memory", "occl.conformance", "occl.bench")
    assert wrong(edges, "occl.testing.", *own) == {"occl.testing.gpu.names -> occl._C"}


def test_imports_in_functions_have_a_reason(late_edges):
    assert {
        f"{name} -> {it}" for name, found in late_edges.items() for it in found if ours(it)
    } == LATE.keys()
