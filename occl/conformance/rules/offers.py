"""Rules of what a backend says about itself, and of its memory."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist

from occl.conformance.catalog import BACKEND, Source, backend, rule
from occl.conformance.rank_api import Rank


@rule(
    "identity", "name", "The backend has its name, its rank and the size of the group.",
    backend("getBackendName"), methods=("getBackendName",),
)  # fmt: skip
def name(rank: Rank) -> None:
    wanted = rank.backend_name.rpartition(":")[2]
    rank.equal(rank.backend.name().lower(), wanted.lower(), "name()")
    rank.equal((rank.backend.rank(), rank.backend.size()), (rank.rank, rank.size), "rank() and size()")


@rule(
    "identity", "group_name", "The backend's group has the name that PyTorch has given it.",
    Source(BACKEND, "void setGroupUid("), methods=("setGroupUid",),
)  # fmt: skip
def group_name(rank: Rank) -> None:
    name = rank.group.group_name
    rank.equal(rank.of_all(name), [name] * rank.size, "the group's name on each rank")


@rule(
    "options", "timeout", "The backend's options have the timeout that the group was made with.",
    backend("getBackendOptions"), methods=("getBackendOptions",),
)  # fmt: skip
def options(rank: Rank) -> None:
    if not hasattr(rank.backend, "options"):
        raise NotImplementedError("the backend has no attribute options, which getBackendOptions gives")
    rank.equal(rank.backend.options._timeout, timedelta(seconds=rank.timeout), "the timeout of the options")


@rule(
    "memory", "allocate", "Tensors that the backend allocates serve in collectives.",
    backend("allocateTensor"), methods=("supportsTensorAlloc", "allocateTensor"),
)  # fmt: skip
def allocate(rank: Rank) -> None:
    if not rank.backend.supports_tensor_alloc(rank.device):
        raise NotImplementedError("supports_tensor_alloc is false")
    t = rank.backend.allocate_tensor(1000, dtype=torch.float32, device=rank.device)
    t.fill_(1.0)
    dist.all_reduce(t)
    rank.same(t, torch.full((1000,), float(rank.size)), "the sum")


@rule(
    "memory", "statistics", "The backend says how much memory it has.",
    backend("getMemoryStats"), methods=("getMemoryStats",),
)  # fmt: skip
def statistics(rank: Rank) -> None:
    found = rank.backend.memory_stats()
    rank.check(
        bool(found) and all(isinstance(value, int) for value in found.values()),
        f"memory_stats() is {found!r}, and not numbers by name",
    )


@rule(
    "memory", "suspend", "After suspend and resume the group works.",
    backend("suspend"), own=True, methods=("suspend", "resume"),
)  # fmt: skip
def suspend(rank: Rank) -> None:
    rank.backend.suspend()
    rank.backend.resume()
    rank.still_works()


@rule(
    "connecting", "eager", "Connecting to the device early changes nothing that comes later.",
    backend("eagerConnectSingleDevice"), methods=("eagerConnectSingleDevice",), accelerator=True,
)  # fmt: skip
def eager(rank: Rank) -> None:
    rank.backend.eager_connect_single_device(rank.device)
    rank.still_works()
