"""Attention divided by the sequence (context parallelism), by heads and by batch, against one process."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import context_parallel_unshard, set_rotate_method
from torch.distributed.tensor.experimental._context_parallel._attention import _cp_options
from torch.nn.functional import scaled_dot_product_attention

BATCH, HEADS, LENGTH, WIDTH = 4, 4, 32, 8
CLOSE = {"rtol": 1e-5, "atol": 1e-6}
"""The ring adds parts in float32, whatever the dtype."""


def inputs(device: str) -> list[torch.Tensor]:
    """Query, key, value, and the gradient of the result."""
    torch.manual_seed(3)
    return [torch.randn(BATCH, HEADS, LENGTH, WIDTH).to(device) for _ in range(4)]


def whole(device: str, causal: bool, **options) -> list[torch.Tensor]:
    """The result and the gradients of query, key and value, by one process."""
    *qkv, grad = inputs(device)
    for tensor in qkv:
        tensor.requires_grad_()
    out = scaled_dot_product_attention(*qkv, is_causal=causal, **options)
    out.backward(grad)
    return [out.detach(), *(tensor.grad for tensor in qkv)]


def by_sequence(device: str, world_size: int, causal: bool, balanced: bool) -> list[torch.Tensor]:
    from torch_occl import attention

    attention.register()
    _cp_options.enable_load_balance = balanced
    mesh = init_device_mesh(device, (world_size,))
    *qkv, grad = inputs(device)
    buffers = [*qkv, grad]
    with context_parallel(mesh, buffers=buffers, buffer_seq_dims=[2] * 4, no_restore_buffers=set(buffers)):
        for tensor in qkv:
            tensor.requires_grad_()
        out = torch.nn.functional.scaled_dot_product_attention(*qkv, is_causal=causal)
        assert out.shape == (BATCH, HEADS, LENGTH // world_size, WIDTH)
        out.backward(grad)
        parts = [out.detach(), *(tensor.grad for tensor in qkv)]
    return context_parallel_unshard(mesh, parts, [2] * 4)


@pytest.mark.full
@pytest.mark.parametrize("causal, balanced", [(True, True), (True, False), (False, False)])
@pytest.mark.parametrize("rotation", ["allgather", "alltoall"])
@pytest.mark.parametrize("device", ["cpu", "dev"])
@pytest.mark.ranks([2, 4], backend="occl")
def test_a_divided_sequence_has_the_attention_of_the_whole(device, world_size, causal, balanced, rotation):
    set_rotate_method(rotation)
    parts = by_sequence(device, world_size, causal, balanced)
    for part, expected in zip(parts, whole(device, causal), strict=True):
        torch.testing.assert_close(part, expected, **CLOSE)


@pytest.mark.full
@pytest.mark.parametrize("placement", [Replicate(), Shard(0), Shard(1)], ids=str)
@pytest.mark.parametrize("device", ["cpu", "dev"])
@pytest.mark.ranks(2, backend="occl")
def test_divided_heads_and_batches_have_the_attention_of_the_whole_and_send_nothing(
    device, world_size, placement
):
    from torch_occl import attention

    attention.register()
    mesh = init_device_mesh(device, (world_size,))
    *qkv, grad = (distribute_tensor(tensor, mesh, [placement]) for tensor in inputs(device))
    for tensor in qkv:
        tensor.requires_grad_()
    with CommDebugMode() as sent:
        out = scaled_dot_product_attention(*qkv, is_causal=True)
        out.backward(grad)
    assert sent.get_total_counts() == 0
    for part, expected in zip([out, *(t.grad for t in qkv)], whole(device, True), strict=True):
        assert isinstance(part, DTensor) and part.placements == (placement,)
        torch.testing.assert_close(part.full_tensor(), expected)


@pytest.mark.full
@pytest.mark.parametrize("device", ["cpu", "dev"])
@pytest.mark.ranks(2, backend="occl")
def test_a_mask_is_used_by_dtensors_and_refused_with_a_divided_sequence(device, world_size):
    from torch_occl import attention

    attention.register()
    mesh = init_device_mesh(device, (world_size,))
    mask = torch.linspace(-1, 1, LENGTH * LENGTH).view(LENGTH, LENGTH).to(device)
    qkv = inputs(device)[:3]
    divided = [distribute_tensor(tensor, mesh, [Shard(1)]) for tensor in qkv]
    out = scaled_dot_product_attention(*divided, attn_mask=distribute_tensor(mask, mesh, [Replicate()]))
    torch.testing.assert_close(out.full_tensor(), scaled_dot_product_attention(*qkv, attn_mask=mask))
    with (
        context_parallel(mesh, buffers=[*qkv], buffer_seq_dims=[2] * 3),
        pytest.raises(NotImplementedError, match="a mask is not offered"),
    ):
        torch.nn.functional.scaled_dot_product_attention(
            *qkv, attn_mask=mask.chunk(2)[0].view(1, 1, -1, LENGTH)
        )
