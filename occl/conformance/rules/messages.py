"""Rules of messages between two ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist

from occl.conformance.catalog import over, python, rule
from occl.conformance.rank_api import Rank, finish

SIZES = {"small": 5, "large": 200_000}


def _numbered(rank: Rank, source: int, number: int, count: int) -> torch.Tensor:
    return torch.full((count,), float(100 * source + number)) + torch.arange(count) % 7


@rule(
    "send_recv", "tags", "A receive takes the message with its tag, in whatever order messages were sent.",
    python("recv"), cases=over(size=SIZES), methods=("send", "recv"),
)  # fmt: skip
def tags(rank: Rank, *, size: str) -> None:
    count = SIZES[size]
    if rank.rank == 0:
        works = [dist.isend(_numbered(rank, 0, tag, count).to(rank.device), 1, tag=tag) for tag in range(4)]
        finish(works)
    elif rank.rank == 1:
        for tag in (2, 0, 3, 1):
            t = torch.zeros(count, device=rank.device)
            dist.recv(t, 0, tag=tag)
            rank.same(t, _numbered(rank, 0, tag, count), f"the message with tag {tag}")


@rule(
    "send_recv", "order", "Messages of one tag arrive in the order in which they were sent.",
    python("isend"), methods=("send", "recv"),
)  # fmt: skip
def order(rank: Rank) -> None:
    counts = [3, 50_000, 1, 9000]
    if rank.rank == 0:
        finish([dist.isend(_numbered(rank, 0, i, n).to(rank.device), 1) for i, n in enumerate(counts)])
    elif rank.rank == 1:
        got = [torch.zeros(n, device=rank.device) for n in counts]
        finish([dist.irecv(t, 0) for t in got])
        for i, t in enumerate(got):
            rank.same(t, _numbered(rank, 0, i, counts[i]), f"message {i}")


@rule(
    "send_recv", "batch", "batch_isend_irecv exchanges messages of any size in both directions.",
    python("batch_isend_irecv"), cases=over(size=SIZES), methods=("send", "recv"),
)  # fmt: skip
def batch(rank: Rank, *, size: str) -> None:
    count, ops, got = SIZES[size], [], {}
    for peer in range(rank.size):
        if peer != rank.rank:
            sent = _numbered(rank, rank.rank, peer, count).to(rank.device)
            got[peer] = torch.zeros(count, device=rank.device)
            ops += [dist.P2POp(dist.isend, sent, peer), dist.P2POp(dist.irecv, got[peer], peer)]
    finish(dist.batch_isend_irecv(ops))
    for peer, t in got.items():
        rank.same(t, _numbered(rank, peer, rank.rank, count), f"the message of rank {peer}")


@rule(
    "recv_any_source", "source",
    "recv without a source takes a message of any rank, and returns the rank that sent it.",
    python("recv"), cases=over(size=SIZES), methods=("recvAnysource",),
)  # fmt: skip
def any_source(rank: Rank, *, size: str) -> None:
    count = SIZES[size]
    if rank.rank:
        dist.send(_numbered(rank, rank.rank, 0, count).to(rank.device), 0)
        return
    seen = []
    for _ in range(rank.size - 1):
        t = torch.zeros(count, device=rank.device)
        source = dist.recv(t)
        seen.append(source)
        rank.same(
            t, _numbered(rank, source, 0, count), f"the message that rank {source} is said to have sent"
        )
    rank.equal(sorted(seen), list(range(1, rank.size)), "the senders")


@rule(
    "send_recv", "beside_collectives", "Messages and collectives do not wait for each other's calls.",
    python("irecv"), methods=("send", "recv"),
)  # fmt: skip
def beside(rank: Rank) -> None:
    """The receives are issued before a collective, the sends after it."""
    to, source = (rank.rank + 1) % rank.size, (rank.rank - 1) % rank.size
    t = torch.zeros(10, device=rank.device)
    work = dist.irecv(t, source)
    rank.still_works()
    finish(dist.isend(_numbered(rank, rank.rank, 0, 10).to(rank.device), to))
    finish(work)
    rank.same(t, _numbered(rank, source, 0, 10), "the message")
