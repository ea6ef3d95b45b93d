"""More ranks than cores: up to 64 on one host."""

from __future__ import annotations

import os

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


def exchanges(rank, n, device, *, count, group=None):
    out = room("int32", count * n, device)
    dist.all_to_all_single(out, place(contribution("int32", rank, count * n), device), group=group)
    for r, block in enumerate(out.cpu().split(count)):
        assert_same_bits(block.clone(), contribution("int32", r, count * n).split(count)[rank].clone())
    mine = room("int32", count, device)
    dist.reduce_scatter_tensor(mine, place(contribution("int32", rank, count * n), device), group=group)
    parts = [contribution("int32", r, count * n).split(count)[rank] for r in range(n)]
    assert_same_bits(mine.cpu(), reduced(parts, "SUM"))
    for root in (0, n - 1):
        t = place(contribution("int32", rank, count), device)
        dist.broadcast(t, root, group=group)
        assert_same_bits(t.cpu(), contribution("int32", root, count))
    every = room("int32", count * n, device)
    dist.all_gather_into_tensor(every, place(contribution("int32", rank, count), device), group=group)
    for r, block in enumerate(every.cpu().split(count)):
        assert_same_bits(block.clone(), contribution("int32", r, count))
    source = room("int32", count, device)
    sending = dist.isend(place(contribution("int32", rank, count), device), (rank + 1) % n)
    dist.recv(source, (rank - 1) % n)
    sending.wait()
    assert_same_bits(source.cpu(), contribution("int32", (rank - 1) % n, count))
    dist.barrier()


def sums(rank, n, device, group, count):
    """The results of every call that reduces, for a few types, as bytes."""
    found = []
    for dtype in ("float32", "bfloat16", "float8_e4m3fn", "int8"):
        for op in [op for op in ops_for(dtype) if op in ("SUM", "AVG", "PREMUL_SUM", "MAX")]:
            t = place(contribution(dtype, rank, count), device)
            dist.all_reduce(t, reduce_op(op, rank), group=group)
            found.append(t.cpu().view(torch.uint8))
            t = place(contribution(dtype, rank, count), device)
            dist.reduce(t, n - 1, reduce_op(op, rank), group=group)
            if rank == n - 1:
                found.append(t.cpu().view(torch.uint8))
            mine = room(dtype, count, device)
            whole = place(contribution(dtype, rank, count * n), device)
            dist.reduce_scatter_tensor(mine, whole, reduce_op(op, rank), group=group)
            found.append(mine.cpu().view(torch.uint8))
    return torch.cat(found)


def two_levels(rank, n, device, *, topology, counts):
    """In a group whose ranks seem to be on several sockets: the same bits as in the default group."""
    os.environ["OCCL_TOPOLOGY"] = topology
    os.environ["OCCL_TUNING"] = "one_shot_bytes=0,two_level_bytes=0,slot_bytes=16384"
    group = dist.new_group()
    del os.environ["OCCL_TOPOLOGY"], os.environ["OCCL_TUNING"]
    for count in counts:
        assert torch.equal(sums(rank, n, device, group, count), sums(rank, n, device, None, count)), count
        exchanges(rank, n, device, count=count, group=group)
    dist.destroy_process_group(group)


@pytest.mark.parametrize(
    ("world_size", "topology", "device"),
    [
        *first(
            [
                (4, "0-1,2-3", "dev"),
                (4, "0-1,2-3", "cpu"),
                (8, "0-2,3-7", "dev"),
                (8, "0-1,2-3,4-7", "cpu"),
                (64, "0-31,32-63", "cpu"),
            ],
            stay=2,
        ),
        pytest.param(64, "0-31,32-63", "dev", marks=[pytest.mark.full, pytest.mark.matrix]),
    ],
)
def test_ranks_on_several_sockets_get_the_bits_of_one_socket(pool, world_size, topology, device):
    counts = [1, 500] if world_size == 64 else [1, 1000, 30_000]
    pool.run(two_levels, world_size, device, limit=300, topology=topology, counts=counts)


def wrong_topology(rank, n, device):
    text = r'OCCL_TOPOLOGY is "0-1;2-3", but must list the ranks of each domain'
    if rank == 0:
        os.environ["OCCL_TOPOLOGY"] = "0-1;2-3"
        with pytest.raises(ValueError, match="^(?!rank 0)[^,]*" + text):
            dist.new_group()
        del os.environ["OCCL_TOPOLOGY"]
    else:
        with pytest.raises(dist.DistBackendError, match=f"rank 0 .* could not take part in .*: .*{text}"):
            dist.new_group()


def test_a_topology_that_is_none_is_an_error(pool):
    pool.run(wrong_topology, 2)


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
