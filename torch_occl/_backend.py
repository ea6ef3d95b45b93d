"""Registers the backend ``occl`` with torch.distributed."""

from __future__ import annotations

import contextlib
import warnings
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from datetime import timedelta

    from torch_occl._C import ProcessGroupOCCL


def _world() -> ProcessGroupOCCL | None:
    """The backend whose ranks ``global_ranks_in_group`` are, where it is ours."""
    from torch_occl._C import ProcessGroupOCCL

    if not dist.is_initialized():
        return None
    world = dist.group.WORLD
    backends = [world._get_backend(device) for device in world._device_types]
    return next((backend for backend in backends if isinstance(backend, ProcessGroupOCCL)), None)


def create(opts, options: ProcessGroupOCCL.Options | None = None) -> ProcessGroupOCCL:
    """The factory that ``init_process_group`` and ``new_group`` call (PyTorch's extended backend API).

    Args:
        opts: store, group_rank, group_size, timeout, group_id, global_ranks_in_group.
        options: what the user passed as ``pg_options``; None for the defaults.

    Raises:
        TypeError: ``pg_options`` is not ``ProcessGroupOCCL.Options``.
        torch.distributed.DistBackendError: a rank did not come, exited, or shares no memory with this one.
    """
    from torch_occl import _ending
    from torch_occl._C import ProcessGroupOCCL

    if options is None:
        options = ProcessGroupOCCL.Options()
    elif not isinstance(options, ProcessGroupOCCL.Options):
        raise TypeError(
            f"pg_options must be torch_occl.ProcessGroupOCCL.Options, got {type(options).__name__}"
        )
    options._timeout = opts.timeout
    options.group_name = opts.group_id
    options.global_ranks_in_group = opts.global_ranks_in_group
    _ending.watch()
    return ProcessGroupOCCL(
        opts.store, opts.group_rank, opts.group_size, options, _world(), opts.global_ranks_in_group
    )


def create_experimental(
    store: dist.Store, rank: int, size: int, timeout: timedelta, device: torch.device, **options: Any
) -> dist.ProcessGroup:
    """The factory that ``torch.distributed._dist2.new_group`` calls.

    Args:
        device: what the group is for, beside the CPU.
        options: attributes of ``ProcessGroupOCCL.Options``.

    Raises:
        KeyError: there is no such option.
        torch.distributed.DistBackendError: a rank did not come, or shares no memory with this one.
    """
    from torch_occl import _ending
    from torch_occl._C import ProcessGroupOCCL

    made = ProcessGroupOCCL.Options(timeout)
    for name, value in options.items():
        if not hasattr(made, name):
            raise KeyError(f"ProcessGroupOCCL.Options has no {name!r}")
        setattr(made, name, value)
    _ending.watch()
    backend = ProcessGroupOCCL(store, rank, size, made)
    group = dist.ProcessGroup(store, rank, size)
    group._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
    for served in {device.type, "cpu"}:
        group._register_backend(torch.device(served), dist.ProcessGroup.BackendType.CUSTOM, backend)
    return group


def register(device: str | None) -> bool:
    """Registers ``occl`` for CPU tensors and for the PrivateUse1 device of this name, if there is one.

    Returns False, with a warning, if another package has taken the name ``occl``.
    """
    if not dist.is_available():
        return False
    if "occl" in dist.Backend.backend_list:
        warnings.warn(
            "another package has already registered a torch.distributed backend named 'occl' "
            "(PyTorch's test package torch_openreg does); torch_occl leaves it in place and does not "
            "register its own",
            stacklevel=3,
        )
        return False
    devices = ["cpu"] if device is None else [device, "cpu"]
    dist.Backend.register_backend("occl", create, extended_api=True, devices=devices)
    with contextlib.suppress(ImportError):  # PyTorch says that this interface may go again
        from torch.distributed import _dist2

        _dist2.register_backend("occl", create_experimental)
    return True
