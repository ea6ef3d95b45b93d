"""torch.compile's default compiler, inductor, for ``dev``.

Inductor's C++ code generator names the CPU in dozens of places, so it cannot be registered for another
device. Instead, a graph on ``dev`` is compiled as a graph on the CPU: the captured graph with the device
replaced. The compiled code runs as the CPU's kernels do in the fallback: its arguments are CPU tensors over
the same memory, it allocates from the device, and its results become tensors of the device.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch

from occl import _C
from torch_occl.dev.interchange import as_cpu

log = logging.getLogger(__name__)

NAMESPACES = {"aten", "prims"}
"""Namespaces of operators that do the same on ``dev`` and on the CPU. Others may have kernels of their own
for ``dev``, or communicate."""

NOT_ON_THE_CPU = {
    "_scaled_dot_product_fused_attention_overrideable",
    "_scaled_dot_product_fused_attention_overrideable_backward",
    "batch_norm_stats",
    "batch_norm_gather_stats",
    "batch_norm_gather_stats_with_counts",
    "batch_norm_elemt",
    "batch_norm_backward_reduce",
    "batch_norm_backward_elemt",
    "_thnn_fused_lstm_cell",
    "_thnn_fused_lstm_cell_backward_impl",
    "_thnn_fused_gru_cell",
    "_thnn_fused_gru_cell_backward",
}
"""Operators that exist on accelerators, ``dev`` among them, and not on the CPU."""

REFUSED = {"set_", "resize_", "resize", "_resize_output_"}
"""Operators that change the storage of an argument, which the CPU tensor over its memory does not share."""


def _tensors(value: Any) -> list[torch.Tensor]:
    leaves = torch.utils._pytree.tree_leaves(value)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _is_seeds(node: torch.fx.Node) -> bool:
    return node.target is torch.ops.prims.inductor_seeds.default


def why_not(gm: torch.fx.GraphModule, index: int) -> str | None:
    """Why the graph cannot be compiled for the CPU and run on ``dev:index``; None if it can."""
    device = torch.device("dev", index)
    for node in gm.graph.nodes:
        for tensor in _tensors(node.meta.get("val")):
            scalar = node.op == "placeholder" and tensor.device.type == "cpu" and tensor.dim() == 0
            if tensor.device != device and not scalar:
                return f"{node.name} is on {tensor.device}, and others are on {device}"
            if tensor.layout != torch.strided or tensor.is_quantized:
                return f"{node.name} is not a dense tensor"
        if node.op != "call_function":
            continue
        if isinstance(node.target, torch._ops.OpOverload):
            if node.target.namespace not in NAMESPACES:
                return f"{node.target} is not an operator of PyTorch's own"
            if node.target._opname in NOT_ON_THE_CPU:
                return f"{node.target} has no kernel for the CPU"
            if node.target._opname in REFUSED:
                return f"{node.target} changes a storage"
            if torch.Tag.nondeterministic_seeded in node.target.tags and not _is_seeds(node):
                return f"{node.target} draws random numbers"
        elif isinstance(node.target, torch._ops.OperatorBase):
            return f"{node.target} is an operator of a higher order"
    return None


def _to_cpu(value: Any) -> Any:
    """A fake tensor of the same shape on the CPU; the CPU for a device; anything else as it is."""
    if isinstance(value, torch.device):
        return torch.device("cpu") if value.type == "dev" else value
    if not isinstance(value, torch.Tensor) or value.device.type != "dev":
        return value
    mode = torch._guards.detect_fake_mode(value)
    if mode is None:
        return as_cpu(value)
    with mode:
        return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="cpu")


def _move(gm: torch.fx.GraphModule) -> None:
    """Replaces the device of everything in the graph with the CPU."""
    for node in gm.graph.nodes:
        node.args = torch.fx.node.map_aggregate(node.args, _to_cpu)
        node.kwargs = torch.fx.node.map_aggregate(node.kwargs, _to_cpu)
        if "val" in node.meta:
            node.meta["val"] = torch.utils._pytree.tree_map(_to_cpu, node.meta["val"])
        if node.op == "get_attr" and isinstance(constant := getattr(gm, node.target), torch.Tensor):
            setattr(gm, node.target, _to_cpu(constant))


def _seeds_as_inputs(gm: torch.fx.GraphModule) -> list[Any]:
    """Turns the seeds of random operations into inputs, which are drawn from the device's generator at each
    run. Returns the number of seeds of each input."""
    counts: list[Any] = []
    for node in [node for node in gm.graph.nodes if _is_seeds(node)]:
        last = [other for other in gm.graph.nodes if other.op == "placeholder"][-1:]
        before = last[0].next if last else next(iter(gm.graph.nodes))
        with gm.graph.inserting_before(before):
            seeds = gm.graph.placeholder(f"seeds_{len(counts)}")
        seeds.meta = dict(node.meta)
        counts.append(node.args[0])
        node.replace_all_uses_with(seeds)
        gm.graph.erase_node(node)
    return counts


def _draw(count: int, device: torch.device) -> torch.Tensor:
    limits = torch.iinfo(torch.int64)
    return torch.randint(limits.min, limits.max, (count,), dtype=torch.int64, device=device)


def compile_inner(
    compile_on_cpu: Callable[..., Any],
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    **options: Any,
) -> Callable[[list[Any]], Any]:
    """Compiles a graph on ``dev`` with a compiler for the CPU.

    Args:
        compile_on_cpu: takes a graph, fake inputs and options; returns a function of a list of inputs.
        gm: the graph after autograd's tracing: functional, with fake values in ``meta["val"]``.
        example_inputs: fake tensors and sizes.

    Returns:
        A function of a list of inputs, which it empties.
    """
    index = next(tensor.device.index for tensor in _devices(gm) if tensor.device.type == "dev")
    reason = why_not(gm, index)
    if reason is not None:
        log.info("a graph on dev runs as it is, without inductor: %s", reason)
        if torch._inductor.config._micro_pipeline_tp:  # of inductor's passes, the one that is for collectives
            from torch._inductor.fx_passes.micro_pipeline_tp import micro_pipeline_tp_pass

            micro_pipeline_tp_pass(gm.graph)
            gm.recompile()

        def as_it_is(inputs: list[Any]) -> Any:
            arguments = list(inputs)
            inputs.clear()
            return gm(*arguments)

        as_it_is._boxed_call = True  # type: ignore[attr-defined]
        return as_it_is

    device = torch.device("dev", index)
    counts = _seeds_as_inputs(gm)
    _move(gm)
    gm.graph.lint()
    gm.recompile()
    fakes = [_to_cpu(value) for value in example_inputs]
    seeds = [node.meta["val"] for node in gm.graph.nodes if node.op == "placeholder"][len(fakes) :]
    compiled = compile_on_cpu(gm, [*fakes, *seeds], **options)

    def run(inputs: list[Any]) -> Any:
        inputs.extend(_draw(count, device) for count in counts)
        return _C._device_run_compiled(compiled, inputs, index)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _devices(gm: torch.fx.GraphModule) -> list[torch.Tensor]:
    return [tensor for node in gm.graph.nodes for tensor in _tensors(node.meta.get("val"))]


def register_with_inductor(compile_fx: ModuleType) -> None:
    """Makes inductor compile graphs on ``dev`` with `compile_inner`.

    PyTorch has no registration for that. A registered code generator comes at the end of a pipeline whose
    earlier steps ask for the CPU by name.
    """
    original: Callable[..., Any] = compile_fx._compile_fx_inner

    def _compile_fx_inner(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Any:
        if any(tensor.device.type == "dev" for tensor in _devices(gm)):
            return compile_inner(original, gm, example_inputs, **options)
        return original(gm, example_inputs, **options)

    compile_fx._compile_fx_inner = _compile_fx_inner  # type: ignore[attr-defined]
