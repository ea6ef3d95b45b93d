"""Times ten equal small tests of two ranks in three harnesses: ours, and the two that PyTorch has for itself.

    python -m benchmarks.testing_harnesses --runs 5

Each harness runs its ten tests in a pytest process of its own; the harnesses take turns. The whole process is
timed, with everything that it imports.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

ROOT = Path(__file__).parents[1]


def all_reduce(rank: int) -> None:
    t = torch.full((10,), rank + 1.0)
    dist.all_reduce(t)
    assert t.tolist() == [3.0] * 10


def all_reduce_max(rank: int) -> None:
    t = torch.full((10,), rank + 1.0)
    dist.all_reduce(t, op=dist.ReduceOp.MAX)
    assert t.tolist() == [2.0] * 10


def broadcast(rank: int) -> None:
    t = torch.full((10,), rank + 1.0)
    dist.broadcast(t, src=1)
    assert t.tolist() == [2.0] * 10


def reduce(rank: int) -> None:
    t = torch.full((10,), rank + 1.0)
    dist.reduce(t, dst=0)
    assert rank == 1 or t.tolist() == [3.0] * 10


def all_gather(rank: int) -> None:
    out = [torch.zeros(2) for _ in range(2)]
    dist.all_gather(out, torch.full((2,), float(rank)))
    assert [o.tolist() for o in out] == [[0.0, 0.0], [1.0, 1.0]]


def gather(rank: int) -> None:
    out = [torch.zeros(2) for _ in range(2)] if rank == 0 else None
    dist.gather(torch.full((2,), float(rank)), out, dst=0)
    assert out is None or out[1].tolist() == [1.0, 1.0]


def scatter(rank: int) -> None:
    t = torch.zeros(2)
    dist.scatter(t, [torch.zeros(2), torch.ones(2)] if rank == 0 else None, src=0)
    assert t.tolist() == [float(rank)] * 2


def send_and_receive(rank: int) -> None:
    t = torch.full((2,), float(rank))
    if rank == 0:
        dist.send(t, 1)
    else:
        dist.recv(t, 0)
    assert t.tolist() == [0.0, 0.0]


def gather_object(rank: int) -> None:
    out: list[object] | None = [None, None] if rank == 0 else None
    dist.gather_object({"rank": rank}, out, dst=0)
    assert out is None or out[1] == {"rank": 1}


def barrier(rank: int) -> None:
    dist.barrier()


BODIES = (
    *(all_reduce, all_reduce_max, broadcast, reduce, all_gather),
    *(gather, scatter, send_and_receive, gather_object, barrier),
)

OURS = """
import pytest
from benchmarks.testing_harnesses import BODIES

@pytest.mark.parametrize("name", [body.__name__ for body in BODIES])
@pytest.mark.ranks(2, backend="{backend}")
def test_it(rank, name):
    next(body for body in BODIES if body.__name__ == name)(rank)
"""

MULTI_PROCESS = """
import torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcessTestCase
from benchmarks.testing_harnesses import BODIES

class TestIt(MultiProcessTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        self._spawn_processes()

def made(body):
    def test(self):
        store = dist.FileStore(self.file_name, 2)
        dist.init_process_group("{backend}", store=store, rank=self.rank, world_size=2)
        body(self.rank)
        dist.destroy_process_group()
    return test

for body in BODIES:
    test = made(body)
    test.__name__ = "test_" + body.__name__
    setattr(TestIt, test.__name__, test)
"""

CONTINUOUS = """
import torch
from torch.testing._internal.common_distributed import MultiProcContinuousTest
from benchmarks.testing_harnesses import BODIES

class TestIt(MultiProcContinuousTest):
    world_size = 2

    @classmethod
    def backend_str(cls):
        return "{backend}"

def made(body):
    return lambda self: body(self.rank)

for body in BODIES:
    test = made(body)
    test.__name__ = "test_" + body.__name__
    setattr(TestIt, test.__name__, test)
"""

HARNESSES = {
    "occl.testing": OURS,
    "MultiProcessTestCase": MULTI_PROCESS,
    "MultiProcContinuousTest": CONTINUOUS,
}


def seconds(text: str, folder: Path) -> float:
    """How long pytest takes for this test module. Its ten tests must pass."""
    (folder / "test_it.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "pytest_torch_occl", "-p", "no:cacheprovider"]
    begin = time.perf_counter()
    done = subprocess.run(
        [*command, "--rootdir=.", "test_it.py"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    took = time.perf_counter() - begin
    if "10 passed" not in done.stdout:
        raise RuntimeError(done.stdout + done.stderr)
    return took


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--runs", type=int, default=5, help="of each harness (%(default)s)")
    made.add_argument("--backend", default="gloo", help="(%(default)s)")
    options = made.parse_args()
    times: dict[str, list[float]] = {name: [] for name in HARNESSES}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.runs):
            for name, text in HARNESSES.items():
                took = seconds(text.replace("{backend}", options.backend), Path(folder))
                times[name].append(took)
    print(f"ten tests of two ranks, {options.backend}, seconds, {os.cpu_count()} cores")
    for name, values in times.items():
        print(f"{name:24} {statistics.median(values):6.1f} median  {min(values):6.1f} to {max(values):.1f}")


if __name__ == "__main__":
    main()
