"""What a rank has before its function runs: variables, and the default group."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING

from occl.registration import autoload
from occl.testing.options import Options

if TYPE_CHECKING:
    import torch


def set_variables(rank: int, world_size: int) -> None:
    """Those that torchrun sets, and that do not depend on how ranks meet."""
    for name in ("RANK", "LOCAL_RANK"):
        os.environ[name] = str(rank)
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        os.environ[name] = str(world_size)


def make_group(rank: int, options: Options, device: torch.device, store: str) -> None:
    """The default group, which meets at a file."""
    import torch.distributed as dist

    backend = options.backend or dist.get_default_backend_for_device(device)
    if "occl" in backend:
        autoload()  # which `import torch` calls where the package is installed
    dist.init_process_group(
        backend,
        store=dist.FileStore(store, options.world_size),
        rank=rank,
        world_size=options.world_size,
        timeout=timedelta(seconds=options.group_timeout),
    )
