"""A process group for torchft whose collectives are occl's (package ``torchft-nightly``).

torchft makes the group anew each time a replica dies or comes back::

    from torch_occl.integrations.torchft import ProcessGroupOCCL

    manager = torchft.Manager(pg=ProcessGroupOCCL(timeout=timedelta(seconds=10)), ...)

It serves CPU tensors, and those on ``dev`` if the process has that device. The same for the groups of a
Manager in a process without the device: ``OCCL_DEVICE=0`` in the environment.
"""

from __future__ import annotations

import importlib.util
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import GroupName

import torch_occl

if not importlib.util.find_spec("torchft"):
    raise ImportError(
        "torch_occl.integrations.torchft needs torchft, which is not installed: pip install torchft-nightly"
    )
from torchft.process_group import ProcessGroupWrapper

from torch_occl.dev import _registration

__all__ = ["ProcessGroupOCCL"]


class ProcessGroupOCCL(ProcessGroupWrapper):  # type: ignore[misc]
    """A group of occl that torchft can make anew with other ranks.

    Args:
        timeout: for making a group, and for each operation. torchft notices that a replica is gone after
            its heartbeats stop; an operation that needs the replica fails at once if it runs on this host.
    """

    def __init__(self, timeout: timedelta = timedelta(seconds=60)) -> None:
        super().__init__(timeout)

    def _create_pg(self, store: dist.Store, rank: int, world_size: int) -> dist.ProcessGroup:
        options = torch_occl.ProcessGroupOCCL.Options(self._timeout)
        options.group_name = GroupName(f"torchft {self._uuid}")
        backend = torch_occl.ProcessGroupOCCL(store, rank, world_size, options)
        group = dist.ProcessGroup(store, rank, world_size)
        group._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
        for device in ["cpu", *(["dev"] if _registration.registered() else [])]:
            group._register_backend(torch.device(device), dist.ProcessGroup.BackendType.CUSTOM, backend)
        return group

    def abort(self, errored: bool = True) -> None:
        """Ends the group's operations in flight with an error; the next ``reconfigure`` makes a new group."""
        group = self._pg
        super().abort(errored)
        if group is not None:
            group._get_backend(torch.device("cpu")).abort()

    def getBackendName(self) -> str:
        """The name that torchft and PyTorch print."""
        return "torchft-occl"
