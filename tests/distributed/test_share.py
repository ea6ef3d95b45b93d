"""`share_`: tensors that exist move into memory that peers map."""

from __future__ import annotations

import copy
import gc

import numpy
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import torch_occl
from tests.support.processes import in_forked_child
from tests.support.shared_memory import in_a_group, in_one_process, lies_shared, shared_bytes

WIDTH = 64


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 8))


def moves_with_all_that_has_it(rank, n, device):
    whole = torch.arange(1000.0)
    part, transposed, expected = whole[100:300], whole.view(10, 100).t(), whole.clone()
    assert torch_occl.share_(part) is part
    assert all(lies_shared(t) for t in (whole, part, transposed)) and shared_bytes() >= whole.nbytes
    assert torch.equal(whole, expected) and torch.equal(transposed, expected.view(10, 100).t())
    part.zero_()
    assert whole[100] == 0 == transposed[0, 1] and whole[99] == 99
    at = whole.data_ptr()
    torch_occl.share_(whole)
    assert whole.data_ptr() == at, "it lay there already"
    whole.resize_(5000)  # and so gets ordinary memory, as with empty_shared
    assert torch.equal(whole[300:1000], expected[300:])
    del whole, part, transposed
    gc.collect()
    assert shared_bytes() == 0
    torch_occl.share_(torch.empty(0))


def test_a_storage_moves_below_all_tensors_that_have_it(fresh):
    in_one_process(fresh, moves_with_all_that_has_it)


def modules_train_on(rank, n, device):
    plain, shared = model(), model()
    tied = shared[0].weight
    optimizers = [torch.optim.Adam(m.parameters(), 0.01) for m in (plain, shared)]
    for step in range(4):
        for m, optimizer in zip((plain, shared), optimizers, strict=True):
            torch.manual_seed(step)
            optimizer.zero_grad(set_to_none=False)
            m(torch.randn(16, WIDTH)).square().sum().backward()
            if step == 1 and m is shared:
                assert torch_occl.share_(m) is m
            optimizer.step()
    for (name, a), b in zip(plain.state_dict().items(), shared.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
        assert lies_shared(b), name
    assert all(lies_shared(p.grad) for p in shared.parameters()) and shared[0].weight is tied


def test_a_module_trains_on_with_the_same_bits(fresh):
    in_one_process(fresh, modules_train_on)


def refused(rank, n, device):
    array = torch.zeros(100)
    array.numpy()
    numpy_has, others_have = "NumPy or another library can have", "other processes or a file have"
    for t, who in (
        (array, numpy_has),
        (torch.from_numpy(numpy.zeros(100)), numpy_has),
        (torch.zeros(100).share_memory_(), others_have),
    ):
        text = f"share_: the tensor has memory that {who} too: share a clone of it"
        with pytest.raises(ValueError, match=text):
            torch_occl.share_(t)
        assert not lies_shared(t.clone())
        torch_occl.share_(t.clone())
    holds = nn.Linear(4, 4)
    holds.bias.detach().numpy()
    with pytest.raises(ValueError, match="share_: bias has memory"):
        torch_occl.share_(holds)
    with pytest.raises(ValueError, match="the tensor is on meta, and only CPU tensors can be moved"):
        torch_occl.share_(torch.empty(10, device="meta"))
    with pytest.raises(ValueError, match="the tensor is Sparse, and only strided tensors can be moved"):
        torch_occl.share_(torch.eye(4).to_sparse())
    with pytest.raises(TypeError, match="a tensor or a module, not list"):
        torch_occl.share_([torch.zeros(4)])
    on_dev = torch.zeros(100, device="dev")
    at = on_dev.data_ptr()
    assert torch_occl.share_(on_dev).data_ptr() == at


def test_memory_that_is_not_pytorchs_alone_stays(fresh):
    in_one_process(fresh, refused)


def in_a_child() -> None:
    with pytest.raises(RuntimeError, match="forked"):
        torch_occl.share_(torch.zeros(5000))


def test_a_forked_child_is_told():
    torch_occl.share_(torch.zeros(5000))
    in_forked_child(in_a_child)


def parts_of_dtensors(rank, n, device):
    mesh = init_device_mesh("cpu", (n,))
    sharded = distribute_tensor(torch.arange(64.0).view(8, 8), mesh, [Shard(0)])
    torch_occl.share_(sharded)
    assert lies_shared(sharded.to_local())
    assert torch.equal(sharded.full_tensor(), torch.arange(64.0).view(8, 8))


def test_the_parts_of_a_dtensor_move(fresh):
    in_a_group(fresh, parts_of_dtensors)


def buckets_of_ddp(rank, n, device, views):
    ddp = DistributedDataParallel(model(), gradient_as_bucket_view=views)
    reference = DistributedDataParallel(copy.deepcopy(ddp.module), gradient_as_bucket_view=views)
    torch_occl.share_(ddp)
    seen = []

    def hook(state, bucket):
        seen.append(lies_shared(bucket.buffer()))
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return future.then(lambda f: f.value()[0] / n)

    ddp.register_comm_hook(None, hook)
    for step in range(3):
        for m in (ddp, reference):
            torch.manual_seed(10 * step + rank)
            m.zero_grad()
            m(torch.randn(16, WIDTH)).square().sum().backward()
    for (name, a), b in zip(ddp.named_parameters(), reference.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad) and lies_shared(a), name
        assert not lies_shared(b), name
    assert seen == [False, True, True]
    assert not ddp._forward_hooks and not ddp._forward_pre_hooks
    before = shared_bytes()
    later = torch.zeros(1 << 20)
    assert not lies_shared(later) and shared_bytes() == before


@pytest.mark.parametrize("views", [False, True])
def test_buckets_of_ddp_are_made_there(fresh, views):
    in_a_group(fresh, buckets_of_ddp, views=views)


def buckets_that_stay(rank, n, device):
    late = DistributedDataParallel(model())
    for _ in range(2):
        late(torch.randn(16, WIDTH)).sum().backward()
    for ddp in (late, DistributedDataParallel(model(), find_unused_parameters=True)):
        with pytest.warns(UserWarning, match="these buckets stay where they are. Call share_ before"):
            torch_occl.share_(ddp)
        assert all(lies_shared(p) for p in ddp.parameters())


def test_buckets_that_exist_already_are_told_of(fresh):
    in_a_group(fresh, buckets_that_stay)
