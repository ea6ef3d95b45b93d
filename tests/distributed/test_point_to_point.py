"""send and recv: every size and type, tags, any order, thousands at once."""

from __future__ import annotations

import random

import pytest
import torch
import torch.distributed as dist

from tests.support import matrix
from tests.support.devices import DEVICES
from tests.support.references import MOVABLE, assert_guards, assert_same_bits, contribution, place, room

SIZES = [0, 1, 1000, *(around + k for around in (matrix.EAGER_BYTES, matrix.RING_BYTES) for k in (-1, 0, 1))]
SIZES += [matrix.RING_BYTES // 4 + k for k in (-1, 0, 1)] + [3 * matrix.RING_BYTES + 5]
"""In bytes: what fits into the ring at once, one piece of what does not, and more."""


def backend(device):
    return dist.group.WORLD._get_backend(torch.device(device))


def around_the_ring(rank, n, device, *, dtype, sizes):
    """Each rank sends to the next rank (itself, if alone) and receives from the one before."""
    to, source = (rank + 1) % n, (rank - 1) % n
    for i, size in enumerate(sizes):
        count = size // getattr(torch, dtype).itemsize
        out = room(dtype, count, device, i % 4)
        works = [
            backend(device).send([place(contribution(dtype, rank, count), device, (i + 1) % 4)], to, i),
            backend(device).recv([out], source, i),
        ]
        for work in works:
            work.wait()
        assert_same_bits(out.cpu(), contribution(dtype, source, count), dtype, size)
        assert_guards(out)
    return len(sizes)


def blocking_pairs(rank, n, device):
    """dist.send and dist.recv, which wait."""
    for size in SIZES:
        t = place(contribution("uint8", rank, size), device)
        out = room("uint8", size, device, 1)
        for sender in range(n):
            receiver = (sender + 1) % n
            if rank == sender:
                dist.send(t, receiver)
            elif rank == receiver:
                assert dist.recv(out, sender) == sender
                assert_same_bits(out.cpu(), contribution("uint8", sender, size), size)


def both_ways_at_once(rank, n, device, *, size):
    """Large messages cross: both send before either receives."""
    count = size // 4
    works, outs = [], {}
    for peer in range(n):
        if peer != rank:
            works.append(dist.isend(place(contribution("float32", rank, count, salt=peer), device), peer))
    for peer in range(n):
        if peer != rank:
            outs[peer] = room("float32", count, device)
            works.append(dist.irecv(outs[peer], peer))
    for work in works:
        work.wait()
    for peer, out in outs.items():
        assert_same_bits(out.cpu(), contribution("float32", peer, count, salt=rank), peer)


def in_any_order(rank, n, device, *, messages, seed):
    """Each pair exchanges many messages of all sizes; both sides post and wait in orders of their own."""
    order = random.Random(seed * 100 + rank)
    sizes = [0, 1, 100, 8191, 8193, 50000, 140000]
    posts = []
    for peer in range(n):
        for tag in range(messages):
            size = sizes[(tag + rank + peer) % len(sizes)]  # the same seen from both sides
            posts += [(peer, tag, size, True), (peer, tag, size, False)]
    order.shuffle(posts)
    works, outs = [], []
    for peer, tag, size, is_send in posts:
        if is_send:
            t = place(contribution("uint8", rank, size, salt=peer * 1000 + tag), device)
            works.append(backend(device).send([t], peer, tag))
        else:
            out = room("uint8", size, device)
            works.append(backend(device).recv([out], peer, tag))
            outs.append((peer, tag, size, out))
    order.shuffle(works)
    for work in works:
        work.wait()
    for peer, tag, size, out in outs:
        assert_same_bits(out.cpu(), contribution("uint8", peer, size, salt=rank * 1000 + tag), peer, tag)


def one_tag_keeps_its_order(rank, n, device, *, messages):
    """Messages with the same tag arrive in the order sent, small and large mixed."""
    sizes = [4, 40000, 400, 4000]
    if rank == 0:
        works = [dist.isend(torch.full((sizes[i % 4],), i, device=device), 1, tag=7) for i in range(messages)]
    else:
        outs = [torch.zeros(sizes[i % 4], dtype=torch.int64, device=device) for i in range(messages)]
        works = [dist.irecv(out, 0, tag=7) for out in outs]
    for work in works:
        work.wait()
    if rank == 1:
        assert all((out == i).all() for i, out in enumerate(outs))


def thousands_outstanding(rank, n, device, *, messages, receive_first):
    """All posted before the first is waited for."""
    sends = [torch.tensor([rank, i], device=device) for i in range(messages)]
    outs = [torch.zeros(2, dtype=torch.int64, device=device) for _ in range(messages)]
    peer = n - 1 - rank
    works = []
    for what in ("recv", "send") if receive_first == rank else ("send", "recv"):
        for i in range(messages):
            works.append(
                dist.isend(sends[i], peer, tag=i) if what == "send" else dist.irecv(outs[i], peer, tag=i)
            )
    for work in reversed(works):
        work.wait()
    assert torch.equal(torch.stack(outs).cpu(), torch.tensor([[peer, i] for i in range(messages)]))


def unexpected_before_posted(rank, n, device):
    """All messages have arrived before the first receive is posted: a barrier lies between."""
    works = [
        dist.isend(torch.full((4,), rank * 100 + i, device=device), (rank + 1) % n, tag=i) for i in range(50)
    ]
    dist.barrier()
    for i in reversed(range(50)):
        out = torch.zeros(4, dtype=torch.int64, device=device)
        dist.recv(out, (rank - 1) % n, tag=i)
        assert (out == (rank - 1) % n * 100 + i).all()
    for work in works:
        work.wait()


def batches(rank, n, device):
    """batch_isend_irecv: a ring in both directions, and to itself."""
    for count in (1, 3000, 200000):
        outs = {peer: room("float32", count, device) for peer in {(rank + 1) % n, (rank - 1) % n, rank}}
        ops = [dist.P2POp(dist.irecv, out, peer) for peer, out in outs.items() if peer != rank]
        ops += [
            dist.P2POp(dist.isend, place(contribution("float32", rank, count), device), p)
            for p in outs
            if p != rank
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        for peer, out in outs.items():
            if peer != rank:
                assert_same_bits(out.cpu(), contribution("float32", peer, count), peer, count)


def from_anyone(rank, n, device, *, count):
    """Rank 0 receives from any rank; wait() and recv return the source."""
    if rank != 0:
        for _ in range(3):
            dist.send(place(contribution("float32", rank, count), device), 0)
        return
    sources = []
    for i in range(3 * (n - 1)):
        out = room("float32", count, device)
        if i % 2:
            sources.append(dist.recv(out))
        else:
            work = backend(device).recv_anysource([out], 0)
            work.wait()
            sources.append(work._source_rank())
        assert_same_bits(out.cpu(), contribution("float32", sources[-1], count), sources)
    assert sorted(sources) == sorted([*range(1, n)] * 3)


def anyone_with_a_tag(rank, n, device):
    """A receive from any source takes only its tag."""
    if rank != 0:
        works = [dist.isend(torch.tensor([rank, tag], device=device), 0, tag=tag) for tag in (5, 6)]
        for work in works:
            work.wait()
        return
    for tag in (6, 5):
        seen = set()
        for _ in range(n - 1):
            out = torch.zeros(2, dtype=torch.int64, device=device)
            source = dist.recv(out, tag=tag)
            assert out.tolist() == [source, tag]
            seen.add(source)
        assert seen == set(range(1, n))


def between_collectives(rank, n, device):
    """A message outstanding does not hold up collectives, and they do not hold it up."""
    peer = n - 1 - rank
    out = room("float32", 100000, device)
    receiving = dist.irecv(out, peer)
    for i in range(20):
        t = torch.ones(1000, device=device)
        dist.all_reduce(t)
        assert (t == n).all(), i
    assert not receiving.is_completed()
    dist.barrier()
    sending = dist.isend(place(contribution("float32", rank, 100000), device), peer)
    dist.all_reduce(torch.ones(3, device=device))
    sending.wait()
    receiving.wait()
    assert_same_bits(out.cpu(), contribution("float32", peer, 100000))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("world_size", matrix.WORLD_SIZES)
def test_messages_of_every_size_and_type_arrive(pool, count, world_size, device):
    for dtype in MOVABLE:
        sizes = (
            SIZES if dtype in ("uint8", "float32") else [16, matrix.EAGER_BYTES + 16, matrix.RING_BYTES + 16]
        )
        results = pool.run(around_the_ring, world_size, device, dtype=dtype, sizes=sizes)
        count(f"send and recv on {device}", results[0])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("world_size", [2, 3])
def test_blocking_sends_and_receives(pool, world_size, device):
    pool.run(blocking_pairs, world_size, device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("size", [100_000, 1 << 20, matrix.STREAMING_BYTES // 4 + 4])
@pytest.mark.parametrize("world_size", [2, 4])
def test_large_messages_may_cross(pool, world_size, size, device):
    pool.run(both_ways_at_once, world_size, device, size=size)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_messages_may_be_posted_and_waited_for_in_any_order(pool, world_size, seed, device):
    pool.run(in_any_order, world_size, device, messages=40, seed=seed)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("receive_first", [0, 1, None])
def test_thousands_of_messages_may_be_outstanding(pool, receive_first, device):
    pool.run(thousands_outstanding, 2, device, messages=3000, receive_first=receive_first)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("count", [1, 5000, 500000])
def test_a_receive_may_take_a_message_from_anyone(pool, count, world_size, device):
    pool.run(from_anyone, world_size, device, count=count)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("body", "world_size", "params"),
    [
        (one_tag_keeps_its_order, 2, {"messages": 200}),
        (unexpected_before_posted, 3, {}),
        (batches, 2, {}),
        (batches, 3, {}),
        (anyone_with_a_tag, 4, {}),
        (between_collectives, 2, {}),
    ],
)
def test_special_exchanges(pool, body, world_size, params, device):
    pool.run(body, world_size, device, **params)
