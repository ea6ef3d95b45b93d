"""Rules of windows: one-sided access to memory of other ranks, which PyTorch has from 2.14 on."""

from __future__ import annotations

from typing import Any

import torch

from occl.conformance.catalog import Source, backend, rule
from occl.conformance.rank_api import Rank

WINDOW = "include/torch/csrc/distributed/c10d/Window.hpp"
METHODS = ("supportsWindow", "new_window")


def _memory(rank: Rank, elements: int) -> torch.Tensor:
    """Zeros, from the backend's own allocator if it has one: a window may need its memory."""
    if not rank.backend.supports_tensor_alloc(rank.device):
        return torch.zeros(elements, device=rank.device)
    tensor: torch.Tensor = rank.backend.allocate_tensor(elements, dtype=torch.float32, device=rank.device)
    return tensor.zero_()


def _window(rank: Rank, tensor: torch.Tensor | None) -> Any:
    if not rank.group.supports_window:
        raise NotImplementedError("supports_window is false")
    return rank.group.new_window(tensor)


@rule(
    "windows", "put", "What a rank puts before a signal is there for the rank that has waited for it.",
    Source(WINDOW, "Write tensor into the window of dstRank"), methods=METHODS,
)  # fmt: skip
def put(rank: Rank) -> None:
    memory = _memory(rank, 4 * rank.size)
    window = _window(rank, memory)
    mine = rank.tensor(*[10.0 * rank.rank + i for i in range(4)])
    for peer in range(rank.size):
        window.put(mine, peer, 4 * rank.rank, False).wait()
        window.signal(peer, False).wait()
    for peer in range(rank.size):
        window.wait_signal(peer, False).wait()
    expected = torch.tensor([10.0 * peer + i for peer in range(rank.size) for i in range(4)])
    rank.same(memory.cpu(), expected, "the window's tensor")
    window.tensor_deregister()


@rule(
    "windows", "signals", "Signals count: as many waits end as there were signals.",
    Source(WINDOW, "implement point-to-point synchronization"), methods=METHODS,
)  # fmt: skip
def signals(rank: Rank) -> None:
    window = _window(rank, _memory(rank, 4))
    to, from_ = (rank.rank + 1) % rank.size, (rank.rank - 1) % rank.size
    for _ in range(3):
        window.signal(to, False).wait()
    for _ in range(3):
        window.wait_signal(from_, False).wait()
    late = window.wait_signal(from_, True)
    rank.check(not late.is_completed(), "a wait for a signal that nobody sent has ended")
    rank.still_works()
    window.signal(to, False).wait()
    late.wait()
    window.tensor_deregister()


@rule(
    "windows", "map", "map_remote_tensor is the tensor that the other rank has registered.",
    Source(WINDOW, "tensor view of a peer rank's window memory"), methods=METHODS,
)  # fmt: skip
def map_remote(rank: Rank) -> None:
    memory = _memory(rank, 6)
    memory.copy_(rank.tensor(*[100.0 * rank.rank + i for i in range(6)]))
    window = _window(rank, None)
    window.tensor_register(memory)
    rank.still_works()
    peer = (rank.rank + 1) % rank.size
    expected = torch.tensor([100.0 * peer + i for i in range(6)])
    rank.same(window.map_remote_tensor(peer).cpu(), expected, "the peer's tensor")
    window.tensor_deregister()


@rule(
    "windows", "refused", "A rank outside of the group, and elements outside of the tensor, raise.",
    backend("new_window"), refuses=True, methods=METHODS,
)  # fmt: skip
def refused(rank: Rank) -> None:
    window = _window(rank, _memory(rank, 4))
    one = rank.tensor(1.0)
    rank.refuses(lambda: window.put(one, rank.size, 0, False), "put to a rank that does not exist")
    rank.refuses(lambda: window.put(one, 0, 4, False), "put behind the last element")
    rank.refuses(lambda: window.signal(-1, False), "signal to rank -1")
    rank.still_works()
    window.tensor_deregister()
