"""The typed stub of the extension module names exactly what the module has."""

import ast
import inspect
import re
from pathlib import Path

import pytest
import torch

import occl
from occl import _C

STUB = ast.parse((Path(occl.__file__).parent / "_C.pyi").read_text())

# Written otherwise in what pybind11 generates, or in more detail in the stub.
SAME = {
    "typing.SupportsInt | typing.SupportsIndex": "int",
    "typing.SupportsFloat | typing.SupportsIndex": "float",
    "torch.distributed.distributed_c10d.": "c10d.",
    "torch._C._distributed_c10d.": "c10d.",
    "occl._C.": "",
    "datetime.timedelta": "timedelta",
    "Tuple[int, ...]": "Sequence[int]",
    "collections.abc.": "",
}


def public(names) -> set[str]:
    return {name for name in names if not name.startswith("__") or name == "__init__"} - {
        "_pybind11_conduit_v1_"
    }


def members(node: ast.Module | ast.ClassDef) -> dict[str, list[ast.AST]]:
    """By name; overloads, and a property and its setter, have one name."""
    found: dict[str, list[ast.AST]] = {}
    for child in node.body:
        if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
            found.setdefault(child.name, []).append(child)
        elif isinstance(child, ast.AnnAssign):
            found.setdefault(ast.unparse(child.target), []).append(child)
    return found


def written(node: ast.FunctionDef) -> tuple[list[str], str]:
    """Types of the parameters and of the result, with names and defaults where the stub gives them."""

    def plain(annotation: ast.expr) -> str:  # pybind11 does not tell what is in a list
        detailed = isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value)
        return detailed if detailed in ("Callable", "list", "dict") else ast.unparse(annotation)

    positional = [f"{a.arg}: {plain(a.annotation)}" for a in node.args.args if a.arg != "self"]
    only = [plain(a.annotation) for a in node.args.posonlyargs if a.arg != "self"]
    keywords = [f"{a.arg}: {plain(a.annotation)}" for a in node.args.kwonlyargs]
    return only + positional + keywords, plain(node.returns)


def generated(doc: str) -> list[tuple[list[str], str]]:
    """The same of each overload from the signatures in a docstring of pybind11; an unnamed parameter has the
    name arg0."""
    for theirs, ours in SAME.items():
        doc = doc.replace(theirs, ours)
    if "Overloaded function." in doc.splitlines():
        return [one_generated(line) for line in re.findall(r"^\d+\. (\w+\(self: .*)$", doc, re.MULTILINE)]
    return [one_generated(doc.strip().splitlines()[0])]


def one_generated(line: str) -> tuple[list[str], str]:
    parameters, result = re.fullmatch(r"\w+\((.*)\) -> (.+)", line).groups()
    parameters = re.sub(r"Callable\[\[.*?\], \w+\]", "Callable", parameters.replace("*, ", ""))
    parameters = re.sub(r" = \S+?(?=, \w+:|$)", "", parameters)
    parts = [part for part in re.split(r", (?=\w+: )", parameters) if part and not part.startswith("self: ")]
    parts = [re.sub(r"^arg\d+: ", "", part) for part in parts]
    return parts, re.sub(r"^(dict|list)\[.*\]$", r"\1", result)


def differences(stub: ast.Module | ast.ClassDef, module) -> list[str]:
    """What the stub and the module (or a class) do not have in common, in words."""
    in_stub, in_module = members(stub), dict(vars(module))
    if "(self: " not in (getattr(in_module.get("__init__"), "__doc__", None) or ""):
        in_module.pop("__init__", None)  # the one that classes without a constructor inherit
    found = [f"only in the stub: {name}" for name in public(in_stub) - public(in_module)]
    found += [f"not in the stub: {name}" for name in public(in_module) - public(in_stub)]
    for name in public(in_stub) & public(in_module):
        nodes, value = in_stub[name], in_module[name]
        node = nodes[0]
        if isinstance(node, ast.ClassDef) or inspect.isclass(value):
            if not (isinstance(node, ast.ClassDef) and inspect.isclass(value)):
                found.append(f"a class in one of them only: {name}")
                continue
            bases = [base.__name__ for base in value.__bases__ if base.__name__ != "pybind11_object"]
            if [ast.unparse(base).split(".")[-1] for base in node.bases] != bases:
                found.append(f"another base: {name}")
            found += differences(node, value)
        elif isinstance(node, ast.AnnAssign):  # a value of an enumeration
            if type(value).__name__ != ast.unparse(node.annotation):
                found.append(f"of another type: {name}")
        elif isinstance(value, property):
            if "property" not in [ast.unparse(decorator) for decorator in node.decorator_list]:
                found.append(f"not a property in the stub: {name}")
        elif (stub_has := [written(it) for it in nodes]) != (module_has := generated(value.__doc__)):
            found.append(f"{name}: {stub_has} in the stub, {module_has} in the module")
    return found


@pytest.mark.skipif(
    hasattr(torch._C._distributed_c10d, "Window"),
    reason="the stub describes windows as PyTorch before 2.14 has them: our own",
)
def test_the_stub_names_exactly_what_the_module_has():
    found = differences(STUB, _C)
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("def _device_get() -> int", "def _device_got() -> int", "only in the stub: _device_got"),
        ("def _device_get() -> int", "def _device_got() -> int", "not in the stub: _device_get"),
        ("def _isa() -> str", "def _isa() -> int", "_isa"),
        ("def _device_set(index: int, /)", "def _device_set(index: int, more: int, /)", "_device_set"),
        ("timeout: timedelta=...", "limit: timedelta=...", "__init__"),
        ("rank: int, size: int", "size: int, rank: int", "__init__"),
        ("class WorkOCCL(c10d.Work)", "class WorkOCCL(c10d.Store)", "another base: WorkOCCL"),
    ],
)
def test_a_wrong_stub_is_noticed(old, new, complaint):
    text = ast.unparse(STUB)
    assert old in text
    found = differences(ast.parse(text.replace(old, new)), _C)
    assert any(line.startswith(complaint) for line in found), found


def test_everything_public_and_typed_is_shipped():
    pyproject = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    assert 'occl = ["py.typed", "*.pyi",' in pyproject
    assert (Path(occl.__file__).parent / "py.typed").exists()
