"""What PyTorch asks of a backend in newer versions only. Each test needs a version that has it."""

from __future__ import annotations

import pickle
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

import torch_occl
from tests.support.checks import assert_works, backend
from tests.support.devices import DEVICES
from tests.support.interpreter import install, run_python
from tests.support.running import PYTORCH
from tests.support.worker import listen, tell

from_2_14 = pytest.mark.skipif(PYTORCH < (2, 14), reason="PyTorch 2.14 has it first")
from_2_15 = pytest.mark.skipif(PYTORCH < (2, 15), reason="PyTorch 2.15 has it first")


def run_with_a_late_rank(fresh, body, device):
    """Rank 1 listens in its body until rank 0 has told that it has launched its calls."""
    with fresh(2) as team:
        team.join().start(body, device)
        team.hear(0)
        team.say(1, "rank 0 has launched")
        assert not any(outcome.failed for outcome in team.finish())


# ---- gather_single -------------------------------------------------------------------------------------


def gathers_into_one(rank, n, device):
    mine = torch.arange(6, device=device).view(2, 3) + 10 * rank
    everything = torch.stack([torch.arange(6).view(2, 3) + 10 * r for r in range(n)])
    for root in range(n):
        for shape in ((n, 2, 3), (6 * n,)):
            out = torch.zeros(shape, dtype=mine.dtype, device=device) if rank == root else None
            dist.gather_single(mine, out, dst=root)
            if rank == root:
                assert torch.equal(out.cpu(), everything.view(shape))
    if rank == 0:
        with pytest.raises(torch_occl.ArgumentError, match=r"gather_single: .*\(2 times 6\), got 5"):
            backend(device).gather_single(mine.new_zeros(5), mine)
        with pytest.raises(torch_occl.ArgumentError, match=r"gather_single: .* overlap"):
            both = mine.new_zeros(6 * n + 1)
            backend(device).gather_single(both[1:], both[:6])


def quantized_is_gathered(rank, n, device):
    mine = torch.quantize_per_tensor(torch.full((4,), float(rank)), 1.0, 0, torch.quint8)
    out = torch.quantize_per_tensor(torch.zeros(4 * n), 1.0, 0, torch.quint8)
    dist.group.WORLD.gather_single(out, mine).wait()
    if rank == 0:
        assert out.int_repr().tolist() == [r for r in range(n) for _ in range(4)]


@from_2_14
@pytest.mark.parametrize("device", DEVICES)
def test_the_root_gathers_into_one_tensor(fresh, device):
    with fresh(2) as team:
        team.join().run(gathers_into_one, device)


@from_2_14
def test_quantized_tensors_are_gathered_into_one(pool):
    pool.run(quantized_is_gathered, 2)


# ---- timeouts ------------------------------------------------------------------------------------------


def has_its_timeout(rank, n, device):
    work = dist.all_reduce(torch.ones(3, device=device), async_op=True)
    work.wait()
    assert work.timeout == backend(device).options._timeout


@from_2_14
@pytest.mark.parametrize("device", DEVICES)
def test_a_work_says_its_timeout(pool, device):
    pool.run(has_its_timeout, 2, device)


def has_more_time(rank, n, device):
    group, usual = backend(device), backend(device).options._timeout

    def launch():
        return dist.all_reduce(torch.ones(3, device=device), async_op=True)

    group._add_ephemeral_timeout(timedelta(seconds=5))
    group._add_ephemeral_timeout(timedelta(seconds=2))
    if rank == 1:
        listen()  # what the others launch has not ended
    first, second = launch(), launch()
    assert first.timeout == usual + timedelta(seconds=7)
    if rank == 0:
        assert second.timeout == first.timeout
        tell("launched")
    group._add_ephemeral_timeout(timedelta(seconds=1))
    first.wait()
    second.wait()
    with dist._coalescing_manager(device=torch.device(device), async_ops=True) as joined:
        for _ in range(2):
            dist.all_reduce(torch.ones(3, device=device))
    assert joined.works[0].timeout == usual + timedelta(seconds=1)
    joined.wait()
    last = launch()
    assert last.timeout == usual
    last.wait()


@from_2_14
@pytest.mark.parametrize("device", DEVICES)
def test_time_that_is_added_ends_with_the_first_call(fresh, device):
    run_with_a_late_rank(fresh, has_more_time, device)


# ---- instruments ---------------------------------------------------------------------------------------


def titles(rank, n, device):
    with torch.profiler.profile() as profile, dist.record_comm("the gradients"):
        dist.all_reduce(torch.ones(3, device=device))
    names = [event.name for event in profile.events()]
    assert names.count("the gradients") == 1 and "occl:all_reduce" not in names, names


@from_2_15
@pytest.mark.parametrize("device", DEVICES)
def test_a_program_names_calls_for_the_profiler(pool, device):
    pool.run(titles, 2, device)


def recorded_by_pytorch(rank, n, device):
    """Without a recorder of ours: the program attaches PyTorch's."""
    hook = c10d.FlightRecorderHook.attach(dist.group.WORLD, list(range(n)))
    assert dist.group.WORLD.supports_completion_hooks
    t = torch.ones(1000, device=device)
    if rank == 1:
        listen()  # none of what rank 0 launches has ended
    works = [dist.all_reduce(t, async_op=True) for _ in range(4)]
    if rank == 0:
        tell("launched")
    for work in works:
        work.wait()
    duration = works[3]._get_duration()
    with pytest.raises(dist.DistBackendError, match="rank 0 called all_reduce"):
        dist.all_reduce(torch.ones(1 + rank, device=device))
    entries = pickle.loads(c10d._dump_fr_trace(backend="occl"))["entries"]
    hook.remove()
    dist.all_reduce(t)
    assert len(pickle.loads(c10d._dump_fr_trace(backend="occl"))["entries"]) == len(entries)
    states = [entry["state"] for entry in entries]
    assert states == ["completed"] * 4 + ["scheduled"], entries
    assert entries[3]["duration_ms"] == pytest.approx(duration)
    c10d._reset_fr_trace("occl")


@from_2_15
@pytest.mark.parametrize("device", DEVICES)
def test_pytorchs_flight_recorder_sees_when_calls_end(fresh, device):
    """Failed calls have not."""
    run_with_a_late_rank(fresh, recorded_by_pytorch, device)


# ---- names ---------------------------------------------------------------------------------------------


ASK = """
import torch
import torch.distributed as dist
print("occl" in dist.Backend.backend_list)
dist.init_process_group("occl", store=dist.HashStore(), rank=0, world_size=1)
print(type(dist.group.WORLD._get_backend(torch.device("cpu"))).__name__)
"""


@from_2_14
def test_the_name_is_registered_when_a_program_asks_for_it(tmp_path: Path):
    environment = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OCCL_DEVICE": "", "OMP_NUM_THREADS": "1"}
    lines = run_python("-c", ASK, path=install(tmp_path), **environment).splitlines()
    assert lines[-2:] == ["False", "ProcessGroupOCCL"], lines


def one_for_all(rank, n, device, *, name):
    dist.init_process_group(name, store=dist.HashStore(), rank=0, world_size=1)
    assert backend("cpu") is backend("dev")
    assert_works("cpu")
    assert_works("dev")


@from_2_14
@pytest.mark.skipif("dev" not in DEVICES, reason="needs a second device")
def test_one_backend_serves_all_devices_beside_another_one(fresh):
    with fresh(1) as team:
        team.run(one_for_all, "cpu", name="cpu:occl,cuda:gloo,dev:occl")
