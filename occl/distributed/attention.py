"""Attention over sharded sequences, batches and heads, on CPU tensors and on ``dev``.

``torch.nn.functional.scaled_dot_product_attention`` runs the CPU's fused kernel on both. PyTorch 2.13 tells
DTensor only how CUDA's kernels are divided. ``register`` adds the CPU's:

    from torch.distributed.tensor.experimental import context_parallel
    import torch_occl.attention

    torch_occl.attention.register()
    with context_parallel(mesh, buffers=[q, k, v], buffer_seq_dims=[2, 2, 2]):
        out = scaled_dot_product_attention(q, k, v, is_causal=True)     # of this rank's part of the sequence

Masks and dropout are not offered there, as with PyTorch's own kernels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding
from torch.distributed.tensor.experimental._context_parallel import _attention

_FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
_SEQUENCE = 2


def register() -> None:
    """Lets DTensor divide fused attention by batch and by heads, and ``context_parallel`` by the sequence.

    Attention with a mask is not divided: every rank computes all of it. Further calls change nothing.
    It holds for query, key and value of shape (batch, heads, sequence, width) on ``dev`` and on the CPU.
    """
    register_sharding(_FORWARD)(_divide_forward)
    register_sharding(_BACKWARD)(_divide_backward)
    handlers: dict[Any, Any] = _attention.custom_ops  # those that context_parallel uses
    handlers |= {_FORWARD: _ring, _BACKWARD: _ring_backward}


_Divisions = list[tuple[list[Placement], list[Placement]]]


def _divide(results: int, tensors: int, mask: object) -> _Divisions:
    """Placements of results and of arguments: replicated, or divided by batch or by heads."""
    if mask is not None:
        return [([Replicate()] * results, [Replicate()] * (tensors + 1))]
    ways = [Replicate(), Shard(0), Shard(1)]
    return [([way] * results, [way] * tensors) for way in ways]


def _divide_forward(*arguments: object, attn_mask: object = None, **options: object) -> _Divisions:
    return _divide(2, 3, attn_mask)


def _divide_backward(*arguments: object, attn_mask: object = None, **options: object) -> _Divisions:
    return _divide(3, 6, attn_mask)


def _local(tensors: tuple[Any, ...], options: dict[str, Any]) -> list[torch.Tensor]:
    """This rank's parts of the sequence. Raises NotImplementedError for a mask."""
    if options.get("attn_mask") is not None:
        raise NotImplementedError("context_parallel: attention with a mask is not offered; is_causal=True is")
    return [tensor.to_local() for tensor in tensors]


def _whole(parts: tuple[torch.Tensor, ...], like: DTensor) -> tuple[DTensor, ...]:
    return tuple(
        DTensor.from_local(part, like.device_mesh, like.placements, run_check=False) for part in parts
    )


def _ring(op: object, arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[DTensor, ...]:
    query, key, value = _local(arguments[:3], options)
    dropout = arguments[3] if len(arguments) > 3 else 0.0
    causal = arguments[4] if len(arguments) > 4 else False
    parts = _attention._templated_ring_attention(
        arguments[0].device_mesh.get_group(),
        _SEQUENCE,
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu,
        query,
        key,
        value,
        is_causal=causal,
        dropout_p=dropout,
        scale=options.get("scale"),
    )
    return _whole(parts, arguments[0])


def _ring_backward(op: object, arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[DTensor, ...]:
    grad, query, key, value, out, logsumexp = _local(arguments[:6], options)
    dropout, causal = arguments[6:]
    parts = _attention._templated_ring_attention_backward(
        arguments[0].device_mesh.get_group(),
        _SEQUENCE,
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward,
        grad_out=grad,
        grad_out_name="grad_out",
        query=query,
        key=key,
        value=value,
        out=out,
        logsumexp=logsumexp,
        is_causal=causal,
        dropout_p=dropout,
        scale=options.get("scale"),
    )
    return _whole(parts, arguments[1])
