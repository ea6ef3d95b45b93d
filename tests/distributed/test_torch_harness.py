"""A small suite on PyTorch's own harness, with spawned processes: as a user's tests would be."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcessTestCase
from torch.testing._internal.common_utils import run_tests

from tests.support.devices import DEVICES


class OcclTest(MultiProcessTestCase):
    @property
    def world_size(self) -> int:
        return 2

    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()

    def init(self) -> None:
        store = dist.FileStore(self.file_name, self.world_size)
        dist.init_process_group("occl", store=store, rank=self.rank, world_size=self.world_size)

    @pytest.mark.full
    def test_collectives_have_the_right_results(self) -> None:
        self.init()
        for device in DEVICES:
            t = torch.arange(10.0, device=device) + self.rank
            dist.all_reduce(t)
            self.assertEqual(t.cpu(), torch.arange(10.0) * 2 + 1)
            outputs = [torch.empty(3, device=device) for _ in range(2)]
            dist.all_gather(outputs, torch.full((3,), float(self.rank), device=device))
            self.assertEqual([o.tolist() for o in outputs], [[0.0] * 3, [1.0] * 3])
            dist.barrier()
        dist.destroy_process_group()

    @pytest.mark.full
    def test_messages_arrive(self) -> None:
        self.init()
        for device in DEVICES:
            if self.rank == 0:
                dist.send(torch.arange(100000, device=device), 1, tag=4)
            else:
                out = torch.zeros(100000, dtype=torch.int64, device=device)
                self.assertEqual(dist.recv(out, 0, tag=4), 0)
                self.assertEqual(out.cpu(), torch.arange(100000))
        dist.destroy_process_group()


if __name__ == "__main__":
    run_tests()
