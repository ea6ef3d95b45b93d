"""More ranks than cores: up to 64 on one host."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from tests.support.devices import DEVICES
from tests.support.references import assert_same_bits, contribution, ops_for, place, reduce_op, reduced, room
from tests.support.thinning import first

DTYPES = ["float32", "bfloat16", "float16", "float8_e4m3fn", "int8", "complex64"]


def all_reductions(rank, n, device, *, counts):
    """Compared on one rank; on the others through the sum of their bytes, which all must have."""
    combinations = 0
    for dtype in DTYPES:
        for op in ops_for(dtype):
            for count in counts:
                t = place(contribution(dtype, rank, count), device, 1)
                dist.all_reduce(t, reduce_op(op, rank))
                if combinations % n == rank:
                    inputs = [contribution(dtype, r, count) for r in range(n)]
                    assert_same_bits(t.cpu(), reduced(inputs, op), dtype, op, count)
                everybody = [torch.empty_like(t) for _ in range(n)]
                dist.all_gather(everybody, t)
                assert_same_bits(everybody[combinations % n].cpu(), t.cpu(), dtype, op, count)
                combinations += 1
    return combinations


def exchanges(rank, n, device, *, count):
    out = room("int32", count * n, device)
    dist.all_to_all_single(out, place(contribution("int32", rank, count * n), device))
    for r, block in enumerate(out.cpu().split(count)):
        assert_same_bits(block.clone(), contribution("int32", r, count * n).split(count)[rank].clone())
    mine = room("int32", count, device)
    dist.reduce_scatter_tensor(mine, place(contribution("int32", rank, count * n), device))
    parts = [contribution("int32", r, count * n).split(count)[rank] for r in range(n)]
    assert_same_bits(mine.cpu(), reduced(parts, "SUM"))
    for root in (0, n - 1):
        t = place(contribution("int32", rank, count), device)
        dist.broadcast(t, root)
        assert_same_bits(t.cpu(), contribution("int32", root, count))
    source = room("int32", count, device)
    sending = dist.isend(place(contribution("int32", rank, count), device), (rank + 1) % n)
    dist.recv(source, (rank - 1) % n)
    sending.wait()
    assert_same_bits(source.cpu(), contribution("int32", (rank - 1) % n, count))
    dist.barrier()


@pytest.mark.parametrize(
    ("world_size", "device"), first([(16, "cpu"), (64, "dev"), (16, "dev"), (64, "cpu")], stay=1)
)
def test_many_ranks_get_the_same_bits(pool, count, world_size, device):
    counts = [1, 1000] if world_size == 64 else [1, 1000, 70_000]
    results = pool.run(all_reductions, world_size, device, limit=300, counts=counts)
    count(f"all_reduce of {world_size} ranks on {device}", results[0])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("world_size", first([16, 64]))
@pytest.mark.parametrize("elements", [1, 500])
def test_many_ranks_exchange_data(pool, elements, world_size, device):
    pool.run(exchanges, world_size, device, limit=300, count=elements)
