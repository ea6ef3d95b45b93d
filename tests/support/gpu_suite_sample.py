"""Tests for GPUs and NCCL, as projects write them; `tests/test_testing_gpu_suites.py` runs them without."""

import unittest

import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed import distributed_c10d as c10d
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.common_distributed import (
    MultiProcessTestCase,
    requires_nccl,
    skip_if_lt_x_gpu,
)
from torch.testing._internal.common_fsdp import FSDPTest
from torch.testing._internal.common_utils import TEST_CUDA


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA not available")
@pytest.mark.parametrize("place", ["cuda", "cuda:1"])
def test_place(place):
    tensor = torch.ones(3, device=place)
    assert tensor.is_cuda and not torch.ones(3).is_cuda
    assert tensor.device == torch.device("cuda", tensor.get_device())
    torch.cuda.synchronize()


@unittest.skipUnless(TEST_CUDA, "needs CUDA")
def test_device_type():
    assert next(nn.Linear(2, 2).cuda().parameters()).device.type == "cuda"


@unittest.skipIf(torch.cuda.device_count() < 2, "needs two GPUs")
def test_bad_assertion():
    left = torch.ones(2).cuda()
    assert left.sum().item() == 3


@unittest.skipIf(not c10d.is_nccl_available(), "NCCL not available")
class OfProcesses(MultiProcessTestCase):
    @property
    def world_size(self):
        return 2

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def group(self):
        store = dist.FileStore(self.file_name, self.world_size)
        torch.cuda.set_device(self.rank)
        dist.init_process_group("nccl", store=store, rank=self.rank, world_size=self.world_size)
        return dist.group.WORLD

    @requires_nccl()
    @skip_if_lt_x_gpu(2)
    def test_ddp(self):
        self.group()
        model = DistributedDataParallel(nn.Linear(3, 1, bias=False).cuda(self.rank), device_ids=[self.rank])
        model(torch.full((1, 3), float(self.rank), device=f"cuda:{self.rank}")).sum().backward()
        self.assertEqual(model.module.weight.grad, torch.full((1, 3), 0.5, device="cuda"))
        self.assertEqual(dist.get_backend(), "nccl")
        dist.destroy_process_group()

    @requires_nccl()
    def test_group_by_class(self):
        store = dist.FileStore(self.file_name, self.world_size)
        group = c10d.ProcessGroupNCCL(store, self.rank, self.world_size, c10d.ProcessGroupNCCL.Options())
        tensor = torch.ones(2, device=f"cuda:{self.rank}")
        group.allreduce([tensor]).wait()
        self.assertEqual(tensor.tolist(), [2, 2])

    @skip_if_lt_x_gpu(2)
    def test_bad_rank(self):
        self.assertEqual(torch.ones(1).cuda(self.rank).item(), self.rank)


class OfFSDP(FSDPTest):
    @property
    def world_size(self):
        return 2

    @skip_if_lt_x_gpu(2)
    def test_shards(self):
        self.assertEqual(torch.cuda.current_device(), self.rank)
        model = fully_shard(nn.Linear(4, 4).cuda())
        model(torch.ones(2, 4, device="cuda")).sum().backward()
        self.assertEqual(model.bias.grad.full_tensor(), torch.full((4,), 2.0, device="cuda"))
