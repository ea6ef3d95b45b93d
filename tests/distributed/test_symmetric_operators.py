"""The operators of torch.ops.symm_mem, beside the collectives that they stand for."""

from __future__ import annotations

import itertools
import random
import unittest.mock
import warnings

import pytest
import torch
import torch._inductor.config as inductor
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed._symmetric_memory as symm_mem

from tests.support.checks import assert_works
from tests.support.devices import DEVICES
from tests.support.gates import gate

on_devices = pytest.mark.parametrize("device", DEVICES)
ops = torch.ops.symm_mem
REDUCTIONS = {
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.AVG,
    "product": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
}
SIZES = ((1,), (3, 7), (1 << 18,))


def name():
    return dist.group.WORLD.group_name


def symmetric(tensor):
    """A copy in symmetric memory."""
    return symm_mem.empty(tuple(tensor.shape), dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def values(rank, sizes, dtype, device):
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(sizes, generator=generator).mul_(3).to(dtype).to(device)


def same(left, right):
    assert left.shape == right.shape and left.dtype == right.dtype and left.device == right.device
    assert torch.equal(left.cpu().view(torch.uint8), right.cpu().view(torch.uint8))


def reductions(rank, n, device):
    for (op, reduction), sizes, dtype in itertools.product(
        REDUCTIONS.items(), SIZES, (torch.float32, torch.bfloat16)
    ):
        mine = values(rank, sizes, dtype, device)
        expected = mine.clone()
        dist.all_reduce(expected, reduction)
        given = symmetric(mine)
        same(ops.one_shot_all_reduce(given, op, name()), expected)
        same(ops.multimem_one_shot_all_reduce(given, op, name()), expected)
        for out_of_place in (
            ops.one_shot_all_reduce_out,
            ops.multimem_one_shot_all_reduce_out,
            ops.two_shot_all_reduce_out,
        ):
            out = torch.empty_like(mine)
            assert out_of_place(given, op, name(), out) is out
            same(out, expected)
        same(given, mine)
        room = symmetric(torch.zeros(2 * mine.numel(), dtype=dtype, device=device))
        same(ops.one_shot_all_reduce_copy(room, mine, op, name()), expected)
        out = torch.empty_like(mine)
        ops.one_shot_all_reduce_copy_out(room, mine, op, name(), out)
        same(out, expected)
        for in_place in (ops.two_shot_all_reduce_, ops.multimem_all_reduce_):
            given = symmetric(mine)
            assert in_place(given, op, name()) is given
            same(given, expected)


@on_devices
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_reductions_have_the_bits_of_all_reduce(pool, world_size, device):
    pool.run(reductions, world_size, device)


def strided(rank, n, device):
    mine = values(rank, (6, 4), torch.float32, device)
    expected = mine.clone()
    dist.all_reduce(expected)
    given = symmetric(mine)
    same(ops.one_shot_all_reduce(given.t(), "sum", name()), expected.t().contiguous())
    same(ops.one_shot_all_reduce(given[::2, 1:3], "sum", name()), expected[::2, 1:3].contiguous())
    ops.two_shot_all_reduce_(given[1:3], "sum", name())
    same(given[1:3], expected[1:3])
    same(given[3:], mine[3:])
    with pytest.raises(ValueError, match="overlap"):
        ops.one_shot_all_reduce_out(given.view(-1)[:8], "sum", name(), given.view(-1)[4:12])


@on_devices
def test_views_of_symmetric_memory_are_reduced(pool, device):
    pool.run(strided, 2, device)


def movement(rank, n, device):
    mine = values(rank, (2 * n, 3 * n), torch.float32, device)
    gathered = torch.empty(2 * n * n, 3 * n, device=device)
    dist.all_gather_into_tensor(gathered, mine)
    out = symmetric(torch.zeros_like(gathered))
    same(ops.multimem_all_gather_out(mine, name(), out), gathered)
    same(ops._low_contention_all_gather(mine, name()), gathered)

    total = mine.clone()
    dist.all_reduce(total)
    part = torch.empty(2, 3 * n, device=device)
    same(ops.reduce_scatter_out(symmetric(mine), name(), False, part), total.chunk(n)[rank])
    part = torch.empty(2 * n, 3, device=device)
    same(ops.reduce_scatter_out(symmetric(mine), name(), True, part), total.chunk(n, 1)[rank].contiguous())
    same(ops._low_contention_reduce_scatter(mine, "sum", name()), total.chunk(n)[rank])
    same(ops._low_contention_reduce_scatter(mine, "avg", name()), (total / n).chunk(n)[rank])

    given = symmetric(mine)
    for root in range(n):
        out = torch.zeros_like(mine)
        ops.multimem_one_shot_reduce_out(given, "sum", root, name(), out)
        same(out, total if rank == root else torch.zeros_like(mine))
        tile = torch.zeros(2, 2, device=device)
        ops.tile_reduce(given[:2, 1:3], tile, root, name())
        same(tile, total[:2, 1:3].contiguous() if rank == root else torch.zeros_like(tile))
    tile = torch.zeros(2, 3, device=device)
    tiles = [given[2 * root : 2 * root + 2, :3] for root in range(n)]
    ops.multi_root_tile_reduce(tiles, tile, list(range(n)), name())
    same(tile, total[2 * rank : 2 * rank + 2, :3].contiguous())
    same(given, mine)
    given.fill_(rank)
    dist.barrier()
    remote = ops.get_remote_tensors(given[1:], name())
    assert [int(tensor.unique().cpu()) for tensor in remote] == list(range(n))
    assert remote[rank].data_ptr() == given[1:].data_ptr()
    dist.barrier()


@on_devices
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_gathering_scattering_and_tiles(pool, world_size, device):
    pool.run(movement, world_size, device)


# ---- rows


def blocks_of(splits, offsets, rows):
    return [rows[begin : begin + count] for count, begin in zip(splits, offsets, strict=True)]


def begins(splits):
    return [sum(splits[:i]) for i in range(len(splits))]


def expert_begins(splits, together, align):
    """Where blocks begin of which ``together`` follow each other and then an aligned one."""
    result, at = [], 0
    for first in range(0, len(splits), together):
        begin = at
        for count in splits[first : first + together]:
            result.append(at)
            at += count
        at = begin + max(-(-(at - begin) // align), 1) * align if align else at
    return result


def rows_of(rank, index, count):
    return [[rank, index, row] for row in range(count)]


def on(device, numbers):
    return symmetric(torch.tensor(numbers, dtype=torch.int64, device=device))


def shuffles(rank, n, device):
    """There and back, against the definition, by random sizes that all ranks draw alike."""
    draw = random.Random(7)
    for experts, align in ((1, 1), (2, 1), (3, 4), (3, 16)):
        counts = [[draw.choice((0, 0, 1, 5, 9)) for _ in range(n * experts)] for _ in range(n)]
        mine = counts[rank]
        rows = [row for index, count in enumerate(mine) for row in rows_of(rank, index, count)]
        given = symmetric(torch.full((400, 3), -2, device=device))
        given[: len(rows)] = torch.tensor(rows, device=device).reshape(-1, 3)
        out = symmetric(torch.full((400, 3), -1, dtype=given.dtype, device=device))
        places = on(device, [[0] * n * experts] * 2)
        ops.all_to_all_vdev_2d(given, out, on(device, mine), places, name(), align)

        expected = [counts[s][rank * experts + e] for e in range(experts) for s in range(n)]
        at = expert_begins(expected, n, align)
        assert places.tolist() == [expected, at]
        found = blocks_of(expected, at, out.tolist())
        for e, s in itertools.product(range(experts), range(n)):
            assert found[e * n + s] == rows_of(s, rank * experts + e, counts[s][rank * experts + e])

        back = symmetric(torch.full((400, 3), -1, dtype=given.dtype, device=device))
        home = on(device, [[0] * n * experts] * 2)
        ops.all_to_all_vdev_2d_offset(out, back, places, home, name())
        assert home.tolist() == [mine, begins(mine)]
        assert torch.equal(back[: len(rows)], given[: len(rows)]) and (back[len(rows) :] == -1).all()

        if experts == 1:
            ops.all_to_all_vdev(given, out, on(device, mine), places, name())
            assert places.tolist() == [expected, begins(expected)]
            assert out.tolist()[: sum(expected)] == [
                row for s in range(n) for row in rows_of(s, rank, counts[s][rank])
            ]


@on_devices
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_rows_go_to_the_experts_and_back(pool, world_size, device):
    pool.run(shuffles, world_size, device)


def bad_rows(rank, n, device):
    given = symmetric(torch.zeros(8, 2, device=device))
    out, places = symmetric(torch.zeros(8, 2, device=device)), on(device, [[0] * n] * 2)

    def refused(match, *arguments, call=ops.all_to_all_vdev):
        with pytest.raises(ValueError, match=match):
            call(*arguments, name())

    good = on(device, [2] * n)
    refused(
        "the splits must have one dimension with the group's 2 ranks", given, out, on(device, [1]), places
    )
    refused(r"out_splits_offsets must be of \[2, 2\]", given, out, good, places[:1])
    refused("must be of int64", given, out, good.to(torch.int32), places)
    refused("the same type and the same sizes", given, out.to(torch.float64), good, places)
    refused("not in symmetric memory", torch.zeros(8, 2, device=device), out, good, places)
    with pytest.raises(ValueError, match="major_align must be positive, got 0"):
        ops.all_to_all_vdev_2d(given, out, good, places, name(), 0)
    assert_works(device)
    for bad in ([9, 0], [5, 5], [-1, 1]):  # on one rank: the other learns of it
        match = "do not lie in the input's 8" if rank == 0 else "the splits of rank 0 do not lie in its input"
        refused(match, given, out, on(device, bad if rank == 0 else [1, 1]), places)
    if rank == 0:
        refused("the output has 1 rows, and 2 are for this rank", given, out[:1], on(device, [1, 1]), places)
    else:
        ops.all_to_all_vdev(given, out, on(device, [1, 1]), places, name())
        assert places.tolist() == [[1, 1], [0, 1]]
    assert_works(device)


@on_devices
def test_rows_outside_of_a_tensor_are_refused_on_all_ranks(pool, device):
    pool.run(bad_rows, 2, device)


# ---- words


def words(rank, n, device):
    pad = symm_mem.rendezvous(symm_mem.empty(4, device=device), dist.group.WORLD).get_signal_pad(rank)
    ops.memset32_(pad, 3, 0xFFFFFFFF, 2)
    ops.stream_write_value32_(pad, 7, 8)
    assert pad[:8].tolist() == [0, 0, 0, 0xFFFFFFFF, 0xFFFFFFFF, 0, 0, 8]
    ops.memset32_(pad, 0, 0, 8)
    assert not pad.cpu().any()
    for call, match in (
        (lambda: ops.memset32_(pad, pad.numel(), 1, 1), "do not lie in the tensor's"),
        (lambda: ops.memset32_(pad, -1, 1, 1), "do not lie"),
        (lambda: ops.memset32_(pad, 0, 1, -1), "do not lie"),
        (lambda: ops.stream_write_value32_(pad, 1 << 40, 1), "do not lie"),
        (lambda: ops.stream_write_value32_(pad, 0, 1 << 32), "does not fit into uint32"),
        (lambda: ops.stream_write_value32_(pad, 0, -1), "does not fit into uint32"),
        (lambda: ops.memset32_(pad.view(torch.int32), 0, 1, 1), "and of uint32, got Int"),
        (lambda: ops.memset32_(pad[::2], 0, 1, 1), "must be contiguous"),
    ):
        with pytest.raises(ValueError, match=match):
            call()


@on_devices
def test_words_are_written(pool, device):
    pool.run(words, 1, device)


def on_a_side_stream(rank, n, device):
    mine, stream = symmetric(torch.full((1000,), rank + 1.0, device="dev")), torch.dev.Stream()
    pad = symm_mem.rendezvous(mine, dist.group.WORLD).get_signal_pad(rank)
    with gate(stream), torch.dev.stream(stream):
        out = ops.one_shot_all_reduce(mine, "sum", name())
        ops.stream_write_value32_(pad, 0, 5)
        assert not stream.query()
        with torch.dev.stream(torch.dev.default_stream()):
            assert pad[:1].tolist() == [0]
    stream.synchronize()
    assert (out == 3).all() and pad[:1].tolist() == [5]


@pytest.mark.skipif("dev" not in DEVICES, reason="only the device has streams")
def test_operators_queue_on_side_streams(pool):
    pool.run(on_a_side_stream, 2, "dev")


# ---- matrices


def matrices(rank, n, device):
    shard, weights = values(rank, (4, 6), torch.float32, device), values(9, (6, 5), torch.float32, device)
    whole = funcol.all_gather_tensor(shard, 0, dist.group.WORLD)
    gathered, products = ops.fused_all_gather_matmul(shard, [weights, 2 * weights], 0, name())
    same(gathered.contiguous(), whole + 0)
    for product, factor in zip(products, (1, 2), strict=True):
        torch.testing.assert_close(product, whole @ (factor * weights))
    nothing, _ = ops.fused_all_gather_matmul(shard, [weights], 0, name(), return_A=False)
    assert nothing is None
    mine = values(rank, (4 * n, 6), torch.float32, device)
    expected = funcol.reduce_scatter_tensor(mine @ weights, "sum", 0, dist.group.WORLD) + 0
    torch.testing.assert_close(ops.fused_matmul_reduce_scatter(mine, weights, "sum", 0, name()), expected)


@on_devices
def test_matrix_products_with_gathering_and_scattering(pool, device):
    pool.run(matrices, 2, device)


def scaled(rank, n, device):
    narrow = torch.float8_e4m3fn
    shard, mine = values(rank, (16, 32), narrow, "cpu"), values(rank, (16 * n, 32), narrow, "cpu")
    weights = values(9, (16, 32), narrow, "cpu").t()
    one, half = torch.tensor(1.0), torch.tensor(0.5)

    def product(left):
        return torch._scaled_mm(left, weights, one, half, out_dtype=torch.bfloat16)

    whole = torch.empty(16 * n, 32, dtype=narrow)
    dist.all_gather_into_tensor(whole, shard)
    _, products = ops.fused_all_gather_scaled_matmul(
        shard, [weights], one, [half], 0, name(), [None], [None], [torch.bfloat16], [False]
    )
    same(products[0], product(whole))
    found = ops.fused_scaled_matmul_reduce_scatter(
        mine, weights, one, half, "sum", 0, 0, name(), [16 * n, 16], out_dtype=torch.bfloat16
    )
    same(found, funcol.reduce_scatter_tensor(product(mine), "sum", 0, dist.group.WORLD) + 0)


def test_scaled_matrix_products(pool):
    pool.run(scaled, 2)


# ---- errors


def wrong(rank, n, device):
    plain, given = torch.ones(4, device=device), symmetric(torch.ones(4, device=device))
    for call in (
        lambda: ops.one_shot_all_reduce(plain, "sum", name()),
        lambda: ops.two_shot_all_reduce_(plain, "sum", name()),
        lambda: ops.multimem_all_reduce_(plain, "sum", name()),
        lambda: ops.multimem_all_gather_out(plain, name(), torch.empty(8, device=device)),
        lambda: ops.reduce_scatter_out(plain, name(), False, torch.empty(2, device=device)),
        lambda: ops.tile_reduce(plain.view(2, 2), torch.empty(2, 2, device=device), 0, name()),
        lambda: ops.get_remote_tensors(plain, name()),
    ):
        with pytest.raises(
            ValueError, match=r"not in symmetric memory: allocate it with torch\.distributed\._sy"
        ):
            call()
    with pytest.raises(ValueError, match='one_shot_all_reduce: unknown reduction "mean": sum, avg, product'):
        ops.one_shot_all_reduce(given, "mean", name())
    with pytest.raises(ValueError, match="must have as many elements as the input"):
        ops.one_shot_all_reduce_out(given, "sum", name(), torch.empty(3, device=device))
    with pytest.raises(ValueError, match="the symmetric buffer has 4 elements, and the input 5"):
        ops.one_shot_all_reduce_copy(given, torch.ones(5, device=device), "sum", name())
    with pytest.raises(ValueError, match="must be a multiple of the group's 2 ranks"):
        ops.reduce_scatter_out(given[:3], name(), True, torch.empty(2, device=device))
    with pytest.raises(ValueError, match="a rank is the root of at most one tile"):
        ops.multi_root_tile_reduce([given.view(2, 2)] * 2, torch.empty(2, 2, device=device), [1, 1], name())
    with pytest.raises(ValueError, match="invalid root"):
        ops.tile_reduce(given.view(2, 2), torch.empty(2, 2, device=device), 5, name())
    with pytest.raises(RuntimeError, match="no such group"):
        ops.one_shot_all_reduce(given, "sum", "no such group")
    assert_works(device)


@on_devices
def test_wrong_arguments_are_refused(pool, device):
    pool.run(wrong, 2, device)


# ---- asynchronous tensor parallelism


def compiled(rank, n, device):
    group = dist.group.WORLD
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # the compiler's pass still asks for it
        symm_mem.enable_symm_mem_for_group(group.group_name)
    first, second = (values(seed, (64, 64), torch.float32, device) for seed in (7, 8))

    def layers(x):
        hidden = torch.relu(funcol.all_gather_tensor(x, 0, group) @ first)
        return funcol.reduce_scatter_tensor(hidden @ second, "sum", 0, group)

    x = values(rank, (16, 64), torch.float32, device)
    expected = layers(x) + 0
    settings = {"_micro_pipeline_tp": True, "force_disable_caches": True}
    with (
        torch.no_grad(),
        inductor.patch(settings),
        # The pass leaves graphs as they are in builds without NCCL, which the operators here do not need.
        unittest.mock.patch.object(dist, "is_nccl_available", return_value=True),
        torch.profiler.profile() as profile,
    ):
        found = torch.compile(layers, fullgraph=True)(x)
    torch.testing.assert_close(found, expected)
    called = {event.name for event in profile.events()}
    assert {"symm_mem::fused_all_gather_matmul", "symm_mem::fused_matmul_reduce_scatter"} <= called


@pytest.mark.full
@on_devices
def test_asynchronous_tensor_parallelism_equals_tensor_parallelism(fresh, device):
    with fresh(2) as team:
        team.join().run(compiled, device)
