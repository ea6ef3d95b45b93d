"""Loads PyTorch's distributed tests, as they are in the torch wheel, for another backend and device.

The tests are gated by decorators that know gloo and nccl by name (and read ``BACKEND`` while the class body
is executed), and the half of them that is for accelerators spells that "cuda". So the source of the module is
parsed and rewritten by `occl.testing.gpu.rewriting` before it is compiled, and the lines in `REWORDED`
change, each for the reason given there.

No assertion is lost (`test_adapter.py` compares them). Line numbers stay, so tracebacks show PyTorch's
file. What the rewritten code calls is in
`occl.testing.gpu.names` and in `stand_ins.py`.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
from pathlib import Path

from occl.testing.gpu import rewriting
from occl.testing.gpu.rewriting import Rewriter
from tests.support.running import PYTORCH

MODULE = "torch.testing._internal.distributed.distributed_test"

OPENED = rewriting.OPENED | {
    "skip_but_pass_in_sandcastle",
    "skip_but_pass_in_sandcastle_if",
    "skipIfNoTorchVision",
    "unittest.skip",
    "unittest.skipIf",
}
"""Decorators that are dropped, whatever their arguments: here, those on platforms too."""


REWORDED = {
    # Rank 0 is to time out after 1 ms, and nothing keeps the other ranks from leaving the group before that.
    "test_barrier_timeout_arg": [
        ("dist.destroy_process_group(pg)", "self._barrier(); dist.destroy_process_group(pg)")
    ],
    # It meets at a fixed port that may be in use.
    "test_nccl_high_priority_stream": [('"env://"', 'INIT_METHOD + "_by_class"')],
    # NCCL's words for a timeout become those that the test wants with TORCH_DISTRIBUTED_DEBUG=DETAIL.
    "_test_monitored_barrier_allreduce_hang": [
        ('"caught collective operation timeout"', '"Timed out waiting"')
    ],
    # NCCL's name for an event in the profiler.
    "test_ddp_sync_bn_training_vs_eval": [('"_all_gather_base"', '"all_gather_into_tensor"')],
    # DDP's data call every backend from outside "custom".
    "test_ddp_logging_data_cpu": [("dist.get_backend(group_id)", "_occl_logged(dist.get_backend(group_id))")],
}
"""By the method that they are in: pieces of PyTorch's file, and what is run in their place."""
if PYTORCH < (2, 15):
    REWORDED |= {
        # 1000 x 1000 are convolved for hours on a few cores. Later versions take 64 x 64.
        "test_ddp_uneven_inputs": [
            ("torch.ones(batch, batch, dim, dim,", "torch.ones(batch, batch, 50, 50,")
        ],
        # The file holds more than weights, which torch.load refuses by default since PyTorch 2.6.
        "_test_hook_pickling": [
            ("map_location=map_location)", "map_location=map_location, weights_only=False)")
        ],
    }


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


def rewrite(device: str, backend: str) -> ast.Module:
    """The module's syntax tree, ready to be compiled."""
    # skip_if_small_worldsize asks for 8 ranks, but what these tests need is a rank 2: their group is [1, 2].
    gates = {"skip_if_small_worldsize": "require_world_size(3)"}
    tree = Rewriter(device, backend, OPENED, gates).visit(ast.parse(reworded()))
    return ast.fix_missing_locations(tree)
