"""Loads PyTorch's distributed tests, as they are in the torch wheel, for another backend and device.

The tests are gated by decorators that know gloo and nccl by name (and read ``BACKEND`` while the class body
is executed), and the half of them that is for accelerators spells that "cuda". So the source of the module is
parsed, and in its syntax tree, before it is compiled,

* the gates on backends, GPUs and platforms are taken away, and those on the world size are kept;
* the names of backends become the backend's under test;
* ``dist.monitored_barrier``, which serves gloo only, becomes the method of the group that it would call;
* ``torch.cuda``, ``x.cuda(...)`` and ``"cuda:1"`` become the device's under test;
* the lines in `REWORDED` change, each for the reason given there.

No assertion is lost (`test_adapter.py` compares them). Line numbers stay, so tracebacks show PyTorch's
file. What the rewritten code calls in their place is in `stand_ins.py`.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
from pathlib import Path

MODULE = "torch.testing._internal.distributed.distributed_test"

OPENED = {
    "require_backend_is_available",
    "require_n_gpus_for_nccl_backend",
    "requires_nccl_version",
    "nccl_skip_if_lt_x_gpu",
    "skip_but_pass_in_sandcastle",
    "skip_but_pass_in_sandcastle_if",
    "skip_if_lt_x_gpu",
    "skip_if_no_gpu",
    "skip_if_rocm_multiprocess",
    "skipIfNoTorchVision",
    "unittest.skip",
    "unittest.skipIf",
}
"""Decorators that are dropped, whatever their arguments."""


REWORDED = {
    # 1000 x 1000 are convolved for hours on a few cores.
    "test_ddp_uneven_inputs": [("torch.ones(batch, batch, dim, dim,", "torch.ones(batch, batch, 50, 50,")],
    # Rank 0 is to time out after 1 ms, and nothing keeps the other ranks from leaving the group before that.
    "test_barrier_timeout_arg": [
        ("dist.destroy_process_group(pg)", "self._barrier(); dist.destroy_process_group(pg)")
    ],
    # It makes a ProcessGroupNCCL by its class, and meets at a fixed port that may be in use.
    "test_nccl_high_priority_stream": [
        ("dist.ProcessGroupNCCL", "_occl_ProcessGroup"),
        ('"env://"', 'INIT_METHOD + "_by_class"'),
    ],
    # NCCL's words for a timeout become those that the test wants with TORCH_DISTRIBUTED_DEBUG=DETAIL.
    "_test_monitored_barrier_allreduce_hang": [
        ('"caught collective operation timeout"', '"Timed out waiting"')
    ],
    # NCCL's name for an event in the profiler.
    "test_ddp_sync_bn_training_vs_eval": [('"_all_gather_base"', '"all_gather_into_tensor"')],
    # DDP's data call every backend from outside "custom".
    "test_ddp_logging_data_cpu": [("dist.get_backend(group_id)", "_occl_logged(dist.get_backend(group_id))")],
    # The file holds more than weights, which torch.load refuses by default since PyTorch 2.6.
    "_test_hook_pickling": [("map_location=map_location)", "map_location=map_location, weights_only=False)")],
}
"""By the method that they are in: pieces of PyTorch's file, and what is run in their place."""


def source() -> tuple[str, Path]:
    """The module's text and path, without importing it."""
    spec = importlib.util.find_spec(MODULE)
    path = Path(spec.origin)
    return path.read_text(), path


def parse() -> ast.Module:
    return ast.parse(source()[0])


def base_class(tree: ast.Module) -> ast.ClassDef:
    """``DistributedTest._DistTestBase``, whose methods are the tests."""
    (outer,) = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "DistributedTest")
    (inner,) = (n for n in outer.body if isinstance(n, ast.ClassDef) and n.name == "_DistTestBase")
    return inner


def reworded() -> str:
    """The module's text with what `REWORDED` says, line for line."""
    lines = source()[0].splitlines(keepends=True)
    for method in base_class(parse()).body:
        for before, after in REWORDED.get(getattr(method, "name", ""), []):
            own = slice(method.lineno - 1, method.end_lineno)
            lines[own] = [line.replace(before, after) for line in lines[own]]
    return "".join(lines)


@functools.cache
def test_names() -> list[str]:
    """The names of all tests in the order of the source."""
    return [
        node.name
        for node in base_class(parse()).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test")
    ]


def _name(decorator: ast.expr) -> str:
    return ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)


def _call(function: str, *args: ast.expr, keywords: list[ast.keyword] = ()) -> ast.Call:
    return ast.Call(ast.Name(f"_occl_{function}", ast.Load()), list(args), list(keywords))


class Rewriter(ast.NodeTransformer):
    """Rewrites for ``device`` ("cpu" or "dev") and ``backend`` ("occl", or "gloo" for a reference)."""

    def __init__(self, device: str, backend: str) -> None:
        self.device = device
        self.backend = backend
        # On the CPU, tests take the paths they take for gloo, on a device those for nccl.
        self.strings = {"gloo": backend} if device == "cpu" else {"nccl": backend}

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.decorator_list = [self._gate(d) for d in node.decorator_list if _name(d) not in OPENED]
        return self.generic_visit(node)

    def _gate(self, decorator: ast.expr) -> ast.expr:
        # It asks for 8 ranks, but what these tests need is a rank 2: their group is [1, 2].
        if _name(decorator) == "skip_if_small_worldsize":
            return ast.parse("require_world_size(3)", mode="eval").body
        return decorator

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

    def visit_Compare(self, node: ast.Compare) -> ast.Compare:
        # "Is it NCCL?" before its metadata is looked at is a question that stays.
        return node if ast.unparse(node.left) == "dist.get_backend()" else self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.expr:
        first = node.values[0]
        if isinstance(first, ast.Constant) and first.value.startswith("cuda:") and self.device == "cpu":
            return ast.Constant("cpu")
        return self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        if isinstance(node.left, ast.Constant) and node.left.value == "cuda:" and self.device == "cpu":
            return ast.Constant("cpu")
        return self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        path = ast.unparse(node)
        if path == "torch.cuda":
            return ast.Name("_occl_accelerator", ast.Load())
        if path == "dist.monitored_barrier":
            return ast.Name("_occl_monitored_barrier", ast.Load())
        if path in ("dist.Backend.GLOO", "dist.Backend.NCCL"):
            return ast.Constant(self.backend)
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.Call:
        function = node.func
        if isinstance(function, ast.Attribute) and function.attr in ("cuda", "to"):
            thing = self.visit(function.value)
            args = [self.visit(arg) for arg in node.args]
            keywords = [self.visit(keyword) for keyword in node.keywords]
            return _call(function.attr, thing, *args, keywords=keywords)
        node = self.generic_visit(node)
        if ast.unparse(function) == "torch.device":
            node.args[:1] = [_call("device", node.args[0])]
        for keyword in node.keywords:
            if keyword.arg in ("device", "device_ids", "output_device"):
                keyword.value = _call(keyword.arg, keyword.value)
            elif keyword.arg == "backend" and getattr(keyword.value, "value", "") == "nccl":
                keyword.value = ast.Constant(self.backend)
        return node


def rewrite(device: str, backend: str) -> ast.Module:
    """The module's syntax tree, ready to be compiled."""
    tree = Rewriter(device, backend).visit(ast.parse(reworded()))
    return ast.fix_missing_locations(tree)
