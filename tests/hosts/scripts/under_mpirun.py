"""Under mpirun, on two nodes: ``under_mpirun.py FOLDER BODY``. Each rank leaves a file with its result."""

import json
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

RANK = int(os.environ["OMPI_COMM_WORLD_RANK"])
os.environ["OCCL_NODE"] = "ab"[RANK // 2]
os.environ["LOCAL_RANK"] = str(RANK % 2)
ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "examples" / "mpi_engine"))

import mpi_engine  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import torch_occl  # noqa: E402, F401  (makes the device)
from tests.hosts import test_collectives as collectives  # noqa: E402
from tests.hosts import test_groups as groups  # noqa: E402
from tests.support.references import assert_same_bits  # noqa: E402

folder = Path(sys.argv[1])


def floats(device: str) -> list[torch.Tensor]:
    """Sums of numbers that depend on the order in which they are added, small and large."""
    found = []
    for count in (3, 1000, 100_003, 3 << 20):
        for dtype in (torch.float32, torch.bfloat16):
            generator = torch.Generator().manual_seed(RANK)
            found.append(torch.randn(count, generator=generator).to(device, dtype))
            dist.all_reduce(found[-1])
    return [t.cpu() for t in found]


def operations() -> list[torch.Tensor]:
    """Each operation against its reference, and sums of any floats for the comparison with Gloo."""
    sums = []
    for device in ("cpu", "dev"):
        for dtype in ("float32", "bfloat16"):
            collectives.reducing(RANK, 4, device, kind="all_reduce", dtype=dtype, ops=["SUM", "MAX"])
            for kind in ("all_gather", "all_to_all", "all_to_all_with_splits", "broadcast"):
                collectives.moving(RANK, 4, device, kind=kind, dtype=dtype)
        groups.from_each_to_each(RANK, 4, device)
        groups.all_at_once(RANK, 4, device)
        sums += floats(device)
    return sums


def same_over_gloo() -> str:
    """Everything over MPI, everything over Gloo, and MPI again."""
    results = []
    for turn, name in enumerate(("mpi", "gloo", "mpi")):
        where = f"file://{folder}/store{turn}"
        if name == "mpi":
            mpi_engine.init_process_group(init_method=where)
        else:
            dist.init_process_group("occl", init_method=where, rank=RANK, world_size=4)
        results.append(operations() if turn < 2 else floats("cpu"))
        dist.destroy_process_group()
    for over_mpi, over_gloo in zip(results[0], results[1], strict=True):
        assert_same_bits(over_mpi, over_gloo)
    mpi_engine.finalize()
    return "the same bits"


def mismatch() -> str:
    """Rank 3 reduces more elements than the others. The group works afterwards."""
    mpi_engine.init_process_group(init_method=f"file://{folder}/store")
    try:
        dist.all_reduce(torch.ones(100_001 if RANK == 3 else 100_000))
    except RuntimeError as error:
        raised = str(error)
    floats("cpu")
    dist.destroy_process_group()
    mpi_engine.finalize()
    return raised


def death() -> str:
    """Rank 3 is killed between two operations, of which the others are in the second."""
    mpi_engine.init_process_group(init_method=f"file://{folder}/store")
    floats("cpu")
    if RANK == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            dist.all_reduce(torch.ones(1 << 20))
    except RuntimeError as error:
        raised = str(error)
    dist.destroy_process_group()
    return raised


def stop() -> str:
    """Rank 3 is stopped, so messages to and from it are given up on the way. Ends them and the engine."""
    limit = timedelta(seconds=3)
    mpi_engine.init_process_group(init_method=f"file://{folder}/store", timeout=limit)
    pids = [None] * 4
    dist.all_gather_object(pids, os.getpid())
    store = dist.FileStore(f"{folder}/after", 3)
    if RANK == 3:
        os.kill(os.getpid(), signal.SIGSTOP)
    large = torch.ones(8 << 20)
    if RANK == 1:  # the send has been announced, and its payload waits for the answer of rank 3
        dist.isend(large, 3)
    try:
        while True:
            dist.all_reduce(large)
    except RuntimeError as error:
        raised = str(error)
    dist.destroy_process_group()
    del large
    mpi_engine.close()
    store.set(str(RANK), "ended")
    if RANK == 0:
        store.wait(["0", "1", "2"])
        os.kill(pids[3], signal.SIGKILL)
    return raised


result = globals()[sys.argv[2]]()
(folder / f"{RANK}.json").write_text(json.dumps(result))
