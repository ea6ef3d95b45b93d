"""Under mpirun: MPI and a group, both over UCX, in the same processes: ``beside_mpi.py STORE ORDER``.

ORDER: which of the two opens UCX first, and which one closes it first: "mpi, mpi", "mpi, occl", and so on.
"""

import os
import sys

import numpy as np
import torch
import torch.distributed as dist

RANK, SIZE = int(os.environ["OMPI_COMM_WORLD_RANK"]), int(os.environ["OMPI_COMM_WORLD_SIZE"])
COUNTS = (1, 1000, 1 << 20)
os.environ |= {"OCCL_NODE": f"node {RANK}", "GLOO_SOCKET_IFNAME": "lo", "OCCL_INTER_NODE": "ucx"}
store, order = sys.argv[1:]
opens, closes = order.split(", ")


def meet() -> None:
    dist.init_process_group("occl", init_method=f"file://{store}", rank=RANK, world_size=SIZE)


if opens == "occl":
    meet()
from mpi4py import MPI  # noqa: E402  (starts MPI)

if opens == "mpi":
    meet()

total = SIZE * (SIZE + 1) / 2
world = MPI.COMM_WORLD
for count in COUNTS * 3:
    mine, theirs, summed = np.full(count, RANK + 1.0), np.empty(count), np.empty(count)
    t = torch.full((count,), RANK + 1.0)
    world.Allreduce(mine, summed)
    assert (summed == total).all()
    dist.all_reduce(t)
    assert (t == total).all()
    # Each while messages of the other are on their way.
    receiving = world.Irecv(theirs, (RANK - 1) % SIZE)
    work = dist.all_reduce(t, async_op=True)
    sending = world.Isend(mine, (RANK + 1) % SIZE)
    MPI.Request.Waitall([sending, receiving])
    assert (theirs == (RANK - 1) % SIZE + 1.0).all()
    world.Allreduce(mine, summed)
    work.wait()
    assert (t == total * SIZE).all()

if closes == "mpi":
    MPI.Finalize()
    dist.all_reduce(torch.ones(1000))
dist.destroy_process_group()
if closes == "occl":
    world.Allreduce(mine, summed)
    assert (summed == total).all()
print("both have worked")
