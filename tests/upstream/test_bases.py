"""The base classes that PyTorch has for tests of any device, with our device and backend: spawned processes.

From ``torch.testing._internal``. Each test does a little of what tests with its base are for; the base starts
the ranks, makes their groups and ends them. By default one of them runs: each rank imports torch.
"""

from __future__ import annotations

import multiprocessing

import pytest
import torch
import torch.distributed as dist

import torch_occl  # noqa: F401  (what follows chooses a device when it is imported)

# isort: split
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.testing._internal.common_distributed import (
    DistributedTestBase,
    MultiProcContinuousTest,
    simple_sparse_reduce_tests,
)
from torch.testing._internal.common_fsdp import FSDPTestContinuous, MLPStack, check_sharded_parity
from torch.testing._internal.distributed._tensor.common_dtensor import (
    DTensorContinuousTestBase,
    DTensorTestBase,
    with_comms,
)


@pytest.fixture(autouse=True, scope="module")
def _spawned_ranks():
    """The base classes ask for spawned processes, but fork where an earlier test has set that method."""
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method("spawn", force=True)
    yield
    multiprocessing.set_start_method(before, force=True)


@pytest.mark.full
class OfDevices(DistributedTestBase):
    """PyTorch's tests of c10d for outside devices have this one."""

    world_size = 2

    def backend(self, device):
        return "occl"

    def test_sums_are_over_all_ranks(self):
        group = self.create_pg("dev")
        (index,) = self.rank_to_device("dev")[self.rank]
        t = torch.full((3,), float(self.rank + 1), device=torch.device("dev", index))
        group.allreduce([t]).wait()
        self.assertEqual(t.tolist(), [3.0] * 3)


@pytest.mark.full
class Continuous(MultiProcContinuousTest):
    """Whose ranks go on from test to test."""

    world_size = 2

    @classmethod
    def backend_str(cls):
        return "occl"

    def test_sparse_tensors_are_summed(self):
        device = self.device_type()
        self.assertEqual(device, "dev")
        for inputs, outputs in simple_sparse_reduce_tests(self.rank, self.world_size):
            tensors = [t.to(device) for t in inputs]
            dist.all_reduce(tensors[0])
            self.assertEqual(tensors[0].to_dense().cpu(), outputs[0].to_dense())

    def test_ranks_are_those_of_the_group(self):
        self.assertEqual((dist.get_rank(), dist.get_world_size()), (self.rank, self.world_size))


@pytest.mark.full
class OfDTensor(DTensorContinuousTestBase):
    """It looks up device and backend."""

    world_size = 2

    def test_a_matrix_is_multiplied(self):
        self.assertEqual((self.device_type, dist.get_backend()), ("dev", "occl"))
        self.init_manual_seed_for_rank()
        mesh = self.build_device_mesh()
        self._test_op(mesh, torch.mm, torch.ones(4, 6, device="dev"), torch.ones(6, 8, device="dev"))


@pytest.mark.full
class OfDTensorWithTwoBackends(DTensorTestBase):
    """It makes groups of backends that it knows by name, and of Gloo with the one of any device."""

    world_size = 2

    @with_comms(backend="cpu:gloo,dev:occl")
    def test_shards_are_gathered(self):
        whole = torch.arange(12.0, device="dev").view(4, 3)
        t = distribute_tensor(whole, self.build_device_mesh(), [Shard(0)])
        self.assertEqual(t.full_tensor(), whole)


@pytest.mark.full
class OfFSDP(FSDPTestContinuous):
    """It knows CUDA's devices and their like by name, and no others."""

    world_size = 2

    @classmethod
    def backend_str(cls):
        return "occl"

    @classmethod
    def device_type(cls):
        return "dev"

    def test_shards_are_those_of_the_whole_model(self):
        torch.dev.set_device(self.rank)
        models = []
        for _ in range(2):
            torch.manual_seed(4)
            models.append(MLPStack(12).to("dev"))
        fully_shard(models[1], mesh=init_device_mesh("dev", (2,)))
        for model in models:
            model(torch.ones(2, 12, device="dev")).sum().backward()
        check_sharded_parity(self, *models)
