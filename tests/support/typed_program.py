"""A program of a user who asks for strict types. `tests/test_packaging.py` gives it to mypy and runs it."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Mapping
from datetime import timedelta

import torch
import torch.distributed as dist

import torch_occl
from torch_occl import ProcessGroupOCCL, attention, dev, replicas


def on_streams() -> float:
    """Streams, events and the current device; returns milliseconds."""
    assert dev.is_available() and dev.device_count() > 0
    dev.set_device(0)
    side: dev.Stream = dev.Stream(priority=-1)
    start, end = dev.Event(enable_timing=True), dev.Event(enable_timing=True)
    with dev.stream(side):
        start.record()
        x = torch.ones(8, device="dev").to("cpu", non_blocking=True)
        end.record()
    side.synchronize()
    dev.current_stream().wait_stream(side)
    dev.synchronize()
    assert float(x.sum()) == 8.0
    elapsed: float = start.elapsed_time(end)
    return elapsed


def memory() -> int:
    """Statistics, limits and random states."""
    with dev.device(0):
        before: int = dev.memory_allocated()
        kept = torch.empty(1 << 20, device="dev:0")
        assert dev.memory_allocated() > before
        stats = dev.memory_stats()
        free, total = dev.mem_get_info()
        assert free <= total and dev.max_memory_allocated() >= kept.nbytes and stats
        dev.empty_cache()
    dev.manual_seed(7)
    state: torch.Tensor = dev.get_rng_state()
    dev.set_rng_state(state)
    return total


def in_a_group() -> None:
    """A group of one rank, with options."""
    limit = timedelta(seconds=60)
    options = ProcessGroupOCCL.Options(limit, staging_bytes=1 << 22)
    with tempfile.TemporaryDirectory() as folder:
        method = f"file://{folder}/store"
        dist.init_process_group("occl", method, limit, rank=0, world_size=1, pg_options=options)
    shared: torch.Tensor = torch_occl.empty_shared(16, dtype=torch.float32)
    dist.all_reduce(shared.fill_(2))
    bytes_of: Mapping[str, int] = torch_occl.shared_cpu_memory_stats()
    ours: bool = torch_occl.uses_occl(device="dev:0")
    assert ours and bytes_of
    with contextlib.suppress(torch_occl.ArgumentError):
        dist.all_reduce(torch.ones(2, device="dev:0"), dist.ReduceOp.BAND)
    dist.destroy_process_group()


def in_one_process() -> None:
    """Replicas of a module on two devices."""
    modules = replicas.prepare_replicas(torch.nn.Linear(2, 2), ["dev:0", "dev:1"])
    assert len(modules) == 2


if __name__ == "__main__":
    assert on_streams() >= 0 and memory() > 0
    in_a_group()
    in_one_process()
    print(torch_occl.__version__, attention.__name__)
