"""Functions of torch.distributed that serve one device type only, for all types of a group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import SHRINK_DEFAULT, _world

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Backend as C10dBackend


def shrink_group(
    ranks_to_exclude: list[int],
    group: dist.ProcessGroup | None = None,
    shrink_flags: int = SHRINK_DEFAULT,
    pg_options: C10dBackend.Options | None = None,
) -> dist.ProcessGroup:
    """`torch.distributed.shrink_group`, for every device type of the group.

    PyTorch's function gives the smaller group a backend for one device type, that of ``device_id`` or the
    CPU. Here the new backend also serves the other types that the old one served. And where PyTorch notes the
    ranks of the smaller group, it takes ``ranks_to_exclude``, which are ranks of the group, for ranks of the
    default group. Here `torch.distributed.get_process_group_ranks` says the right ones.

    The ranks that stay call it. Excluded ranks need not be alive, and no store is needed. With
    ``SHRINK_ABORT``, operations in flight end with an error first.

    Raises:
        DistBackendError: a rank that should stay has exited, did not call it, or excludes other ranks.
        ValueError, TypeError: `torch.distributed.shrink_group` refuses the arguments.
    """
    old = group or dist.group.WORLD
    if old is None:
        raise ValueError("shrink_group: there is no default group; call init_process_group first")
    shrinking = old._get_backend(old.bound_device_id or torch.device("cpu"))
    served = [device for device in old._device_types if old._get_backend(device) is shrinking]
    ranks = dist.get_process_group_ranks(old)
    new = dist.shrink_group(ranks_to_exclude, group, shrink_flags, pg_options)
    stay = [rank for in_old, rank in enumerate(ranks) if in_old not in ranks_to_exclude]
    _world.pg_group_ranks[new] = {rank: in_new for in_new, rank in enumerate(stay)}
    (first,) = new._device_types
    backend = new._get_backend(first)
    for device in served:
        if device.type != first.type:
            new._register_backend(device, dist.ProcessGroup.BackendType.CUSTOM, backend)
    return new
