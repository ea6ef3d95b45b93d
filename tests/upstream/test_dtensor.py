"""DTensor and tensor parallelism, with what PyTorch's own tests of them are made of.

From ``torch.testing._internal.distributed._tensor.common_dtensor``: `DTensorConverter` shards the arguments
of an operator in every way that there is, and ``Transformer`` is a model with a plan for tensor parallelism.
"""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.testing._internal.common_utils import TestCase
from torch.testing._internal.distributed._tensor.common_dtensor import (
    DTensorTestMixin,
    ModelArgs,
    Transformer,
)

OPERATORS = {
    "add": (torch.add, [(12, 12), (12, 12)]),
    "mul with broadcast": (torch.mul, [(12, 12), (12,)]),
    "matmul": (torch.matmul, [(12, 12), (12, 12)]),
    "bmm": (torch.bmm, [(4, 12, 12), (4, 12, 12)]),
    "sum": (torch.sum, [(12, 12)]),
    "mean": (torch.mean, [(12, 12)]),
    "softmax": (lambda t: torch.softmax(t, -1), [(12, 12)]),
    "cat": (lambda a, b: torch.cat([a, b], 1), [(12, 12), (12, 12)]),
    "transpose": (lambda t: t.transpose(0, 1), [(12, 24)]),
    "view": (lambda t: t.view(24, 12), [(12, 24)]),
    "layer norm": (lambda t: torch.nn.functional.layer_norm(t, [12]), [(12, 12)]),
    "topk": (lambda t: torch.topk(t, 5, dim=1).values, [(12, 12)]),
    "linear": (torch.nn.functional.linear, [(12, 12), (12, 12), (12,)]),
}


class Check(DTensorTestMixin, TestCase):
    __test__ = False

    def runTest(self):
        raise NotImplementedError


def sharded_in_every_way(rank, world_size, device):
    """Each operator with all placements of its arguments, against one process."""
    mesh = init_device_mesh(device, (world_size,))
    for name, (operator, shapes) in OPERATORS.items():
        torch.manual_seed(3)
        args = [torch.randn(shape, device=device) for shape in shapes]
        try:
            Check()._test_op(mesh, operator, *args)
        except Exception as error:
            raise AssertionError(f"{name}: {error}") from error


def redistributed(rank, world_size, device):
    """Uneven shards, from one dimension to another and together again."""
    mesh = init_device_mesh(device, (world_size,))
    for shape in [(7, 5), (world_size, 3), (1, 9), (16, 16)]:
        whole = torch.arange(torch.Size(shape).numel(), dtype=torch.float32, device=device).view(shape)
        t = distribute_tensor(whole, mesh, [Shard(0)])
        u = t.redistribute(mesh, [Shard(1)])
        for sharded in (t, u):
            assert torch.equal(sharded.full_tensor(), whole), (shape, sharded.placements)


def tensor_parallel(rank, world_size, device, *, sequence_parallel):
    """Outputs and gradients of a transformer split over all ranks, against the whole one."""
    torch.manual_seed(9)
    reference = Transformer(ModelArgs(dropout_p=0.0)).to(device)
    model = copy.deepcopy(reference)
    mesh = init_device_mesh(device, (world_size,))
    # DTensor does not know the CPU's fused attention, so that gets its local part.
    model = Transformer.parallelize(model, mesh, sequence_parallel, local_output_for_attn=True)
    tokens = torch.randint(0, 8, (4, 8), device=device)
    dist.broadcast(tokens, 0)
    outputs = []
    for m in (reference, model):
        output = m(tokens)
        outputs.append(output.full_tensor() if isinstance(output, DTensor) else output)
        output.sum().backward()
    torch.testing.assert_close(*outputs)
    for (name, whole), (_, part) in zip(reference.named_parameters(), model.named_parameters(), strict=True):
        grad = part.grad.full_tensor() if isinstance(part.grad, DTensor) else part.grad
        torch.testing.assert_close(grad, whole.grad, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("device", ["cpu", "dev"])
def test_operators_are_right_however_their_arguments_are_sharded(ranks, device):
    ranks.run(sharded_in_every_way, 4, device, limit=300)


@pytest.mark.parametrize("world_size", [2, 3, 4])
@pytest.mark.parametrize("device", ["cpu", "dev"])
def test_shards_are_redistributed(ranks, device, world_size):
    ranks.run(redistributed, world_size, device)


@pytest.mark.parametrize("sequence_parallel", [False, True], ids=["tensor", "sequence"])
@pytest.mark.parametrize("device", ["cpu", "dev"])
def test_a_transformer_is_the_same_with_tensor_parallelism(ranks, device, sequence_parallel):
    ranks.run(tensor_parallel, 2, device, sequence_parallel=sequence_parallel)
