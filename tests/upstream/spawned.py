"""PyTorch's tests by PyTorch's own runner: spawned processes, its setUp, its barrier, its exit codes.

`test_distributed.py` forks, because that is ten times cheaper; some tests run this way too, to see that it
makes no difference. As a command:

    export DEVICE=dev BACKEND=occl WORLD_SIZE=2
    python -m unittest tests.upstream.spawned.SpawnedTest.test_all_reduce_sum
"""

from __future__ import annotations

import os

from . import ranks

device, backend, world_size = os.environ["DEVICE"], os.environ["BACKEND"], int(os.environ["WORLD_SIZE"])
upstream = ranks.load(device, backend, world_size, barrier=False)

# setUp asks this one, for whose ranks any exit code will do, for the function under its (opened) gates.
finalized = upstream.DistributedTest._DistTestBase.test_ddp_has_finalized
finalized.__wrapped__ = finalized


class SpawnedTest(upstream.TestDistBackend, upstream.DistributedTest._DistTestBase):
    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()
