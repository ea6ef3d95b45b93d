"""Tests with the fixture ``faults``, good and bad: `tests/test_testing_faults.py` looks how each ends."""

import os
import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

BACKENDS = pytest.mark.parametrize("backend", ["gloo", "occl"])


# ---- each kind -----------------------------------------------------------------------------------------


@BACKENDS
@pytest.mark.ranks(3)
def test_kill(rank, backend, faults):
    faults.kill(rank=1, at="all_reduce#3")
    tensor, made = torch.ones(3), 0
    with pytest.raises(RuntimeError) as error:
        for made in range(5):  # noqa: B007
            dist.all_reduce(tensor)
    assert made == 2
    assert backend == "gloo" or "rank 1 (pid" in str(error.value)


@pytest.mark.ranks(2, backend="occl", group=False, limit=20)
def test_survivors_have_the_time_that_they_need(rank, faults, tmp_path):
    """More than ranks have after a failure."""
    dist.init_process_group("occl", store=dist.FileStore(str(tmp_path / "1"), 2), rank=rank, world_size=2)
    faults.kill(rank=1, at="barrier#1")
    with pytest.raises(dist.DistBackendError, match=r"rank 1 .* exited"):
        dist.barrier()
    with pytest.raises(RuntimeError, match="timeout"):
        dist.FileStore(str(tmp_path / "2"), 2).wait(["nothing"], timedelta(seconds=6))


@pytest.mark.ranks(3, backend="occl", timeout=1)
def test_stop(rank, faults, tmp_path):
    (tmp_path.parent / f"stopped {rank}").write_text(str(os.getpid()))
    faults.stop(rank=2, at="barrier#2")
    dist.barrier()
    with pytest.raises(dist.DistBackendError, match="rank 2"):
        dist.barrier()


@BACKENDS
@pytest.mark.ranks(2)
def test_late(rank, backend, faults):
    fault = faults.late(rank=1, seconds=0.25, at="all_reduce#2")
    tensor = torch.ones(1)
    for _ in range(3):
        dist.all_reduce(tensor)
    assert tensor.item() == 8
    assert str(fault) == 'faults.late(rank=1, seconds=0.25, at="all_reduce#2")'


@pytest.mark.ranks(2)
def test_delay(rank, faults):
    faults.delay(rank=0, seconds=0.01)
    faults.delay(rank=1, seconds=0.01, of="broadcast")
    dist.broadcast(torch.ones(1), src=0)
    dist.barrier()


@pytest.mark.parametrize("device", ["cpu", "dev"])
@pytest.mark.ranks(2, backend="occl")
def test_oom(rank, device, faults):
    faults.oom(rank=1, at="all_reduce#1")
    kinds = {("cpu", 1): RuntimeError, ("dev", 1): torch.OutOfMemoryError}
    words = "left the group" if rank == 0 else "can't allocate memory" if device == "cpu" else "out of memory"
    with pytest.raises(kinds.get((device, rank), dist.DistBackendError), match=words):
        dist.all_reduce(torch.ones(3, device=device))
    dist.destroy_process_group()


@pytest.mark.ranks(4, backend="gloo", timeout=1)
def test_cut(rank, faults):
    """Between the two halves nothing arrives; inside of them everything does."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    faults.cut([2, 3], at="all_reduce#2")
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    with pytest.raises(RuntimeError, match=r"Timed out|Connection closed|Connection reset"):
        dist.all_reduce(tensor)
    dist.all_reduce(tensor := torch.ones(1), group=pairs[rank // 2])
    assert tensor.item() == 2


@pytest.mark.ranks(4, group=False)
def test_cut_of_nodes(rank, faults, tmp_path):
    os.environ["OCCL_NODE"] = "aabb"[rank]
    store, timeout = dist.FileStore(str(tmp_path / "store"), 4), timedelta(seconds=1)
    dist.init_process_group("occl", store=store, rank=rank, world_size=4, timeout=timeout)
    faults.cut([0, 1], at="all_reduce#1")
    with pytest.raises(dist.DistBackendError, match="it waits for the other nodes"):
        dist.all_reduce(torch.ones(1))


@pytest.mark.ranks(3)
def test_random(rank, faults):
    """All ranks draw the same; a seed says what is drawn."""
    drawn = faults.random(within=3, kinds=["late"], seed=4)
    assert drawn == faults.random(within=3, kinds=["late"], seed=4)
    mine = [faults.random(within=3, kinds=["late"]) for _ in range(3)]
    everyone = [None] * 3
    dist.all_gather_object(everyone, [str(fault) for fault in mine])
    assert everyone[0] == everyone[1] == everyone[2]
    assert len({str(fault) for fault in mine}) > 1
    for _ in range(3):
        dist.barrier()


# ---- where calls come from -----------------------------------------------------------------------------


def of_ddp(device):
    model = DistributedDataParallel(torch.nn.Linear(2, 2).to(device))
    yield
    model(torch.ones(2, device=device)).sum().backward()


def of_fsdp(device):
    model = fully_shard(torch.nn.Linear(4, 4).to(device), mesh=init_device_mesh(device, (2,)))
    yield
    model(torch.ones(2, 4, device=device)).sum().backward()


def of_a_functional_collective(device):
    yield
    functional.all_reduce(torch.ones(2, device=device), "sum", dist.group.WORLD) + 1


def of_compiled_code(device):
    def both(tensor):
        return functional.all_reduce(tensor, "sum", dist.group.WORLD) * 2

    compiled = torch.compile(both, backend="aot_eager")
    yield
    compiled(torch.ones(2, device=device))


def of_another_thread(device):
    tensor = torch.ones(2, device=device)
    errors = []

    def call():
        try:
            with torch.inference_mode():
                dist.all_reduce(tensor)
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    yield
    thread.start()
    thread.join()
    raise errors[0]


def of_messages(device):
    tensors = [torch.ones(2, device=device) for _ in range(2)]
    other = 1 - dist.get_rank()
    calls = [dist.P2POp(dist.isend, tensors[0], other), dist.P2POp(dist.irecv, tensors[1], other)]
    yield
    for work in dist.batch_isend_irecv(calls):
        work.wait()


WAYS = {
    "of_ddp": (of_ddp, "all_reduce#1"),
    "of_fsdp": (of_fsdp, "reduce_scatter_tensor#1"),
    "of_a_functional_collective": (of_a_functional_collective, "all_reduce#1"),
    "of_compiled_code": (of_compiled_code, "all_reduce#1"),
    "of_another_thread": (of_another_thread, "all_reduce#1"),
    "of_messages": (of_messages, "any#2"),
}


@pytest.mark.parametrize(("device", "backend"), [("cpu", "gloo"), ("cpu", "occl"), ("dev", "occl")])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.ranks(2)
def test_it_is_seen(rank, device, backend, way, faults):
    make, at = WAYS[way]
    steps = make(device)
    next(steps)
    faults.kill(rank=1, at=at)
    with pytest.raises(RuntimeError):
        next(steps, None)
        dist.barrier()  # an operation in a stream of the device fails later than its call


def waits(rank):
    dist.barrier()


def test_planned_before_ranks_run(run_ranks, faults):
    faults.kill(rank=1, at="barrier#1")
    outcomes = run_ranks(waits, 3, backend="occl", check=False)
    assert outcomes[1].died == "killed by SIGKILL" and not outcomes[1].failed
    assert outcomes[1].intended == 'faults.kill(rank=1, at="barrier#1")'
    assert all("rank 1 (pid" in outcomes[rank].raised for rank in (0, 2))
    run_ranks(waits, 2)  # a plan is for one run


# ---- what fails ----------------------------------------------------------------------------------------


@pytest.mark.ranks(2)
def test_bad_never(rank, faults):
    faults.kill(rank=1, at="all_reduce#2")
    dist.all_reduce(torch.ones(1))


def test_bad_never_in_run(run_ranks, faults):
    faults.kill(rank=1, at="all_reduce#2")
    run_ranks(waits, 2, check=False)


def test_bad_no_run(faults):
    faults.kill(rank=1, at="barrier#1")


@pytest.mark.ranks(2)
def test_bad_planned_elsewhere(rank, faults):
    if rank == 0:
        faults.kill(rank=1, at="barrier#1")
    dist.barrier()


@pytest.mark.ranks(2, backend="occl")
def test_bad_cut_without_a_cable(rank, faults):
    faults.cut([1], at="barrier#1")
    dist.barrier()


@pytest.mark.ranks(2, backend="gloo", timeout=1)
def test_bad_cut_without_all(rank, faults):
    faults.cut([1], at="all_reduce#1")
    if rank == 0:
        dist.all_reduce(torch.ones(1), group=dist.new_group([0], use_local_synchronization=True))


@pytest.mark.ranks(2, backend="occl")
def test_bad_survivor(rank, faults):
    faults.kill(rank=1, at="barrier#1")
    dist.barrier()


@pytest.mark.ranks(2)
def test_bad_seed(rank, faults):
    faults.random(within=2, kinds=["late"])
    for _ in range(2):
        dist.barrier()
    raise ArithmeticError("something else")


@pytest.mark.ranks(2)
def test_bad_other_death(rank, faults):
    """Not the one that is planned."""
    faults.kill(rank=1, at="barrier#1")
    if rank == 1:
        os._exit(3)


@pytest.mark.parametrize(
    "wrong",
    [
        'kill(rank=0, at="allreduce#3")',
        'kill(rank=0, at="isend#1")',
        'kill(rank=0, at="step#1")',
        'kill(rank=0, at="all_reduce#0")',
        'kill(rank=0, at="all_reduce")',
        "kill(rank=0, at=3)",
        'stop(rank=2, at="barrier#1")',
        'stop(rank=-1, at="barrier#1")',
        'late(rank=0, seconds=0, at="barrier#1")',
        'delay(rank=0, seconds=1, of="barrier#1")',
        'delay(rank=0, seconds="1")',
        'cut([], at="barrier#1")',
        'cut(1, at="barrier#1")',
        'cut([0, 1], at="barrier#1")',
        "random(within=0)",
        'random(within=1, kinds=["fire"])',
        "random(within=1, ranks=[])",
    ],
)
@pytest.mark.ranks(2, group=False)
def test_bad_input(rank, faults, wrong):
    eval(f"faults.{wrong}")


def test_bad_ranks_of_random(run_ranks, faults):
    faults.random(within=1)


def test_bad_rank_of_run(run_ranks, faults):
    faults.kill(rank=4, at="barrier#1")
    run_ranks(waits, 3)
