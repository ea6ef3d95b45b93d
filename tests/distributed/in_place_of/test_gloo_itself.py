"""What needs Gloo itself works beside occl in its place."""

import os
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

import torch_occl
from tests.distributed.in_place_of.running import assert_occl
from tests.support.checks import assert_works, backend
from tests.support.groups import begin, run
from torch_occl import ProcessGroupOCCL


def calls_are_checked(rank, n, device, *, store):
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    dist.set_debug_level_from_env()
    torch_occl.replace_gloo()
    begin(rank, n, store)
    wrapper = backend()
    assert type(wrapper.wrapped_pg) is ProcessGroupOCCL
    assert torch_occl.uses_occl() and dist.get_backend() == "gloo"
    assert_works()
    with pytest.raises(RuntimeError, match="Detected mismatch between collectives on ranks"):
        dist.all_reduce(torch.ones(rank + 1))
    pair = dist.new_group([0, 1])
    assert torch_occl.uses_occl(pair)
    assert_works("cpu", pair)
    dist.barrier()  # no rank leaves while Gloo still connects another one
    dist.destroy_process_group()


def test_the_debug_level_detail_wraps_it_with_gloo_beside(fresh):
    run(fresh, calls_are_checked)


def made_by_class(rank, n, device, *, store):
    torch_occl.replace_gloo()
    direct = dist.ProcessGroupGloo(dist.FileStore(store, n), rank, n, timeout=timedelta(seconds=50))
    assert isinstance(direct, distributed_c10d.ProcessGroupGloo)
    t = torch.ones(3)
    direct.allreduce([t]).wait()
    assert (t == n).all()
    begin(rank, n, f"{store}-group")
    dist.barrier()  # no rank ends its connections while another one still reads


def test_what_makes_gloo_by_its_class_gets_gloo(fresh):
    run(fresh, made_by_class)


def add(a, b):
    return a + b


def calls_remotely(rank, n, device, *, store):
    from torch.distributed import rpc

    torch_occl.replace_gloo()
    begin(rank, n, store)
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{store}-rpc", rpc_timeout=50)
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=n, rpc_backend_options=options)
    assert rpc.rpc_sync(f"worker{1 - rank}", add, (torch.ones(2), 2)).tolist() == [3, 3]
    assert_occl()
    rpc.shutdown()
    dist.destroy_process_group()


def test_rpc_works_beside(fresh):
    run(fresh, calls_remotely)
