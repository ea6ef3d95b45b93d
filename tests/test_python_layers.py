"""What the modules of ``occl`` and ``torch_occl`` may import when they are imported."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in ("occl", "torch_occl")
    for path in (ROOT / package).rglob("*.py")
}


def imported(statements: list[ast.stmt]) -> set[str]:
    """What is imported at the level of the module, and not for types only."""
    found: set[str] = set()
    for it in statements:
        if isinstance(it, ast.Import):
            found |= {alias.name for alias in it.names}
        elif isinstance(it, ast.ImportFrom) and it.module:
            for alias in it.names:
                full = f"{it.module}.{alias.name}"
                found.add(full if full in FILES else it.module)
        elif isinstance(it, ast.If) and "TYPE_CHECKING" not in ast.unparse(it.test):
            found |= imported([*it.body, *it.orelse])
        elif isinstance(it, ast.Try):
            found |= imported([*it.body, *(s for h in it.handlers for s in h.body), *it.orelse])
    return found


EDGES = {name: imported(ast.parse(path.read_text()).body) for name, path in FILES.items()}


def wrong(begins: str, *forbidden: str) -> list[str]:
    return [
        f"{name} -> {it}"
        for name, edges in EDGES.items()
        for it in edges
        if f"{name}.".startswith(begins) and any(f"{it}.".startswith(f"{other}.") for other in forbidden)
    ]


def test_no_modules_of_occl_import_each_other_in_a_circle():
    ours = {name: edges for name, edges in EDGES.items() if name.startswith("occl")}
    TopologicalSorter({name: edges & set(ours) for name, edges in ours.items()}).prepare()


def test_occl_does_not_import_what_makes_the_device():
    assert set(wrong("occl.", "torch_occl")) == {  # a process of its own, which tests the device
        "occl.tools.doctor.rank -> torch_occl",
        "occl.tools.doctor.rank -> torch_occl.dev._registration",
    }


def test_tools_need_no_pytorch():
    found = wrong("occl.tools.", "torch", "occl._C", "occl.distributed", "occl.memory", "occl.bench")
    assert all(it.startswith("occl.tools.doctor.rank ") for it in found), found
