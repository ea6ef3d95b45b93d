"""Rewrites the source of tests for GPUs so that they use another device and backend.

In the syntax tree of a module, before it is compiled,

* decorators that ask for GPUs or NCCL are taken away (`OPENED`), and those on the world size are kept;
* names of backends become the backend's, and ``ProcessGroupNCCL`` becomes ``ProcessGroupOCCL``;
* ``dist.monitored_barrier``, which serves Gloo only, becomes the method of the group that it would call;
* ``torch.cuda``, ``x.cuda(...)``, ``"cuda:1"``, ``x.is_cuda`` and ``TEST_CUDA`` become the device's.

No assertion is changed. Line numbers stay, so tracebacks show the file as it is. `names.py` has what the
rewritten code calls.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence
from typing import Any

OPENED = frozenset(
    {
        "nccl_skip_if_lt_x_gpu",
        "require_backend_is_available",
        "require_n_gpus_for_nccl_backend",
        "requires_nccl",
        "requires_nccl_version",
        "requires_nccl_version_or",
        "skip_if_lt_x_gpu",
        "skip_if_no_gpu",
        "skip_if_rocm_multiprocess",
    }
)
"""Decorators that are dropped, whatever their arguments."""

AVAILABLE = ("TEST_CUDA", "TEST_MULTIGPU")
"""Names of PyTorch's test code that say whether there are GPUs."""


def decorator_name(decorator: ast.expr) -> str:
    return ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)


def _call(function: str, *args: ast.expr, keywords: Sequence[ast.keyword] = ()) -> ast.Call:
    return ast.Call(ast.Name(f"_occl_{function}", ast.Load()), list(args), list(keywords))


class Rewriter(ast.NodeTransformer):
    """Rewrites for a device type, "cpu" or "dev", and a backend, "occl" or "gloo".

    Args:
        opened: the names of decorators that are dropped, qualified or not.
        gates: expressions in the place of other decorators, by name.
    """

    def __init__(
        self,
        device: str,
        backend: str,
        opened: Collection[str] = OPENED,
        gates: Mapping[str, str] | None = None,
    ) -> None:
        self.device = device
        self.backend = backend
        self.opened = frozenset(opened)
        self.gates = dict(gates or {})
        # On the CPU, tests take the paths they take for gloo, on a device those for nccl.
        self.strings = {"gloo": backend} if device == "cpu" else {"nccl": backend}

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        self._open(node)
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        self._open(node)
        return self.generic_visit(node)

    def _open(self, node: ast.FunctionDef | ast.ClassDef) -> None:
        node.decorator_list = [self._gate(d) for d in node.decorator_list if not self._is_opened(d)]

    def _is_opened(self, decorator: ast.expr) -> bool:
        name = decorator_name(decorator)
        return name in self.opened or name.rpartition(".")[2] in self.opened

    def _gate(self, decorator: ast.expr) -> ast.expr:
        expression = self.gates.get(decorator_name(decorator))
        return decorator if expression is None else ast.parse(expression, mode="eval").body

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if isinstance(node.ctx, ast.Load):
            if node.id in AVAILABLE:
                return ast.Constant(True)
            if node.id == "is_nccl_available":
                return ast.Name("_occl_is_available", ast.Load())
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        if isinstance(node.value, str):
            if node.value in self.strings:
                node.value = self.strings[node.value]
            elif node.value == "cuda":
                node.value = self.device
            elif node.value.startswith("cuda:"):
                node.value = self._numbered(node.value)
        return node

    def _numbered(self, value: str) -> str:
        return value.replace("cuda", self.device) if self.device != "cpu" else "cpu"

    def visit_Compare(self, node: ast.Compare) -> Any:
        # "Is it NCCL?" before its metadata is looked at is a question that stays.
        return node if ast.unparse(node.left) == "dist.get_backend()" else self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> Any:
        first = node.values[0]
        starts = isinstance(first, ast.Constant) and str(first.value).startswith("cuda:")
        if starts and self.device == "cpu":
            return ast.Constant("cpu")
        return self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        if isinstance(node.left, ast.Constant) and node.left.value == "cuda:" and self.device == "cpu":
            return ast.Constant("cpu")
        return self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        path = ast.unparse(node)
        if node.attr == "is_nccl_available":
            return ast.Name("_occl_is_available", ast.Load())
        if node.attr == "ProcessGroupNCCL":
            return ast.Name("_occl_ProcessGroup", ast.Load())
        if node.attr == "is_cuda" and isinstance(node.ctx, ast.Load):
            return _call("is_on_device", self.visit(node.value))
        if node.attr in AVAILABLE:
            return ast.Constant(True)
        if path == "torch.cuda":
            return ast.Name("_occl_accelerator", ast.Load())
        if path == "dist.monitored_barrier":
            return ast.Name("_occl_monitored_barrier", ast.Load())
        if path in ("dist.Backend.GLOO", "dist.Backend.NCCL"):
            return ast.Constant(self.backend)
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> Any:
        function = node.func
        if isinstance(function, ast.Attribute) and function.attr in ("cuda", "to"):
            thing = self.visit(function.value)
            args = [self.visit(arg) for arg in node.args]
            keywords = [self.visit(keyword) for keyword in node.keywords]
            return _call(function.attr, thing, *args, keywords=keywords)
        self.generic_visit(node)
        if ast.unparse(function) == "torch.device" and node.args:
            node.args[:1] = [_call("device", node.args[0])]
        for keyword in node.keywords:
            if keyword.arg in ("device", "device_ids", "output_device"):
                keyword.value = _call(keyword.arg, keyword.value)
            elif keyword.arg == "backend" and getattr(keyword.value, "value", "") == "nccl":
                keyword.value = ast.Constant(self.backend)
        return node
