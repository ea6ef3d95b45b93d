"""What the bodies of our tests call in their ranks."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist

from occl.testing.child import EndInterpreter, listen, tell

__all__ = ["EndInterpreter", "join", "listen", "tell"]


def join(rank: int, world_size: int, device: str, *, store: str, timeout: float) -> None:
    """The body that every other one runs after: makes the default group."""
    dist.init_process_group(
        "occl",
        store=dist.FileStore(store, world_size),
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=timeout),
    )
