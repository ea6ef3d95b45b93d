"""DTensor and tensor parallelism, with what PyTorch's own tests of them are made of.

From ``torch.testing._internal.distributed._tensor.common_dtensor``: `DTensorConverter` shards the arguments
of an operator in every way that there is, and ``Transformer`` is a model, with or without experts, that has a
plan for tensor and expert parallelism.
"""

from __future__ import annotations

import copy
import functools

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor import rand as distributed_rand
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)
from torch.testing._internal.common_utils import TestCase
from torch.testing._internal.distributed._tensor.common_dtensor import (
    DTensorTestMixin,
    MLPModule,
    ModelArgs,
    Transformer,
)

from tests.support.running import PYTORCH

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


def placed_in_two_dimensions(rank, world_size, device):
    """Operators on tensors with two placements, partial and uneven ones among them, against one process."""
    mesh = init_device_mesh(device, (2, world_size // 2))
    torch.manual_seed(3)
    a, b = torch.randn(7, 10, device=device), torch.randn(10, 5, device=device)
    parts = [Replicate(), Shard(0), Shard(1)]
    for first in parts:
        for second in parts:
            x = distribute_tensor(a, mesh, [first, second])
            for other in parts:
                y = distribute_tensor(b, mesh, [other, Replicate()])
                Check()._test_op_on_dtensor(torch.mm, x, y)
            for to in ([Replicate(), Shard(1)], [Shard(1), Shard(0)], [Shard(0), Shard(0)]):
                assert torch.equal(x.redistribute(mesh, to).full_tensor(), a), (first, second, to)
            for operator in (torch.sum, torch.t, lambda t: torch.softmax(t, 1)):
                Check()._test_op_on_dtensor(operator, x)
            if PYTORCH < (2, 14) or x.placements != (Shard(0), Replicate()):  # fails with Gloo too
                Check()._test_op_on_dtensor(lambda t: t.argmax(0), x)
    partial = DTensor.from_local(a, mesh, [Partial(), Shard(0)])
    assert torch.equal(partial.full_tensor(), torch.cat([a * 2] * (world_size // 2)))


def random(rank, world_size, device):
    """Random numbers of the whole tensor do not depend on where its shards are."""
    mesh = init_device_mesh(device, (world_size,))
    drawn = []
    for placement in (Replicate(), Shard(0), Shard(1)):
        torch.manual_seed(17)
        drawn.append(distributed_rand(8, 4 * world_size, device_mesh=mesh, placements=[placement]))
    shards = drawn[1].full_tensor().chunk(world_size)
    assert all(not torch.equal(shards[0], shard) for shard in shards[1:])
    mine = [torch.empty_like(drawn[0].to_local()) for _ in range(world_size)]
    for t in drawn:
        t = t.full_tensor()
        assert t.min() >= 0 and t.max() < 1
        dist.all_gather(mine, t)
        assert all(torch.equal(t, other) for other in mine)
    dropped = torch.nn.functional.dropout(
        distribute_tensor(torch.ones(64, 8, device=device), mesh, [Shard(0)])
    )
    shards = dropped.full_tensor().chunk(world_size)
    assert all(not torch.equal(shards[0], shard) for shard in shards[1:])


def communicates_as_planned(rank, world_size, device):
    """One all_reduce forwards, one backwards; and a loss of logits that no rank has as a whole."""
    mesh = init_device_mesh(device, (world_size,))
    reference = MLPModule(device)
    model = copy.deepcopy(reference)
    plan = {"net1": ColwiseParallel(), "net2": RowwiseParallel()}
    model = parallelize_module(model, mesh, plan)
    x = torch.randn(4, 10, generator=torch.Generator().manual_seed(2)).to(device)
    x, y = x.clone().requires_grad_(), x.clone().requires_grad_()
    outputs = [reference(x)]
    mode = CommDebugMode()
    with mode:
        outputs.append(model(y))
        assert mode.get_total_counts() == 1
        outputs[1].sum().backward()
    assert mode.get_total_counts() == 2
    assert mode.get_comm_counts()[torch.ops.c10d_functional.all_reduce] == 2
    outputs[0].sum().backward()
    torch.testing.assert_close(*outputs)
    torch.testing.assert_close(x.grad, y.grad)

    logits = torch.randn(6, 8, generator=torch.Generator().manual_seed(2)).to(device).requires_grad_()
    target = torch.arange(6, device=device)
    loss = torch.nn.functional.cross_entropy(logits, target)
    loss.backward()
    sharded = distribute_tensor(logits.detach(), mesh, [Shard(1)]).requires_grad_()
    with loss_parallel():
        other = torch.nn.functional.cross_entropy(sharded, target)
        other.backward()
    torch.testing.assert_close(other.full_tensor(), loss)
    torch.testing.assert_close(sharded.grad.full_tensor(), logits.grad)


def expert_parallel(rank, world_size, device, *, experts, tensors):
    """A transformer with experts, on ranks for experts times ranks for tensors, against the whole one."""
    mesh = init_device_mesh(device, (experts, tensors), mesh_dim_names=("experts", "tensors"))
    tensor_mesh = mesh["tensors"] if tensors > 1 else None
    expert_mesh = mesh["experts"] if experts > 1 else None
    torch.manual_seed(9)
    reference = Transformer(ModelArgs(dropout_p=0.0, num_experts=4)).to(device)
    model = Transformer.parallelize(
        copy.deepcopy(reference), tensor_mesh, False, local_output_for_attn=True, ep_mesh=expert_mesh
    )
    tokens = torch.randint(0, 8, (4, 8), device=device)
    dist.broadcast(tokens, 0)
    whole = reference(tokens)
    whole.square().sum().backward()
    position = mesh.get_local_rank("experts")
    output = model(tokens.chunk(experts)[position])
    output = output.full_tensor() if isinstance(output, DTensor) else output
    output.square().sum().backward()
    torch.testing.assert_close(output, whole.chunk(experts)[position])
    if expert_mesh is None:
        return  # PyTorch's plan for tensors alone leaves the gradients before the experts in parts
    for (name, p), q in zip(reference.named_parameters(), model.parameters(), strict=True):
        grad = q.grad.full_tensor() if isinstance(q.grad, DTensor) else q.grad.clone()
        if "experts" not in name:  # of this rank's tokens
            dist.all_reduce(grad, group=mesh.get_group("experts"))
        close = functools.partial(torch.testing.assert_close, atol=1e-4, rtol=1e-4)
        close(grad, p.grad, msg=lambda text, name=name: f"{name}: {text}")


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


@pytest.mark.parametrize("device", ["cpu", "dev"])
def test_operators_are_right_in_two_dimensions(ranks, device):
    ranks.run(placed_in_two_dimensions, 4, device, limit=300)


@pytest.mark.parametrize("world_size", [2, 4])
def test_random_numbers_are_of_the_whole_tensor(ranks, world_size):
    """On ``dev``: DTensor knows no random numbers on the CPU."""
    ranks.run(random, world_size, "dev")


@pytest.mark.parametrize("device", ["cpu", "dev"])
def test_tensor_parallelism_communicates_as_planned(ranks, device):
    ranks.run(communicates_as_planned, 2, device)


@pytest.mark.parametrize(("experts", "tensors"), [(1, 2), (2, 1), (4, 1), (2, 2)])
@pytest.mark.parametrize("device", ["cpu", "dev"])
def test_a_transformer_is_the_same_with_expert_parallelism(ranks, device, experts, tensors):
    ranks.run(expert_parallel, experts * tensors, device, experts=experts, tensors=tensors)
