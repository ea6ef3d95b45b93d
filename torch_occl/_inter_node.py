"""The backend that carries messages between nodes: Gloo, over the interface that users name for it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch.distributed as dist

if TYPE_CHECKING:
    from datetime import timedelta


def make(store: dist.Store, rank: int, size: int, timeout: timedelta) -> dist.ProcessGroupGloo:
    """Makes Gloo for all ranks of a group, and connects each of them to all others.

    (With connections at first use, Gloo's destructor can hang: its loop ends only when a tick brings no
    event, and a peer that closes its connection at that moment brings events for ever.)

    Args:
        timeout: how long a rank waits for the others.

    Raises:
        RuntimeError: this PyTorch was built without Gloo, or there is no interface of the name that
            ``GLOO_SOCKET_IFNAME`` gives.
    """
    if not dist.is_gloo_available():
        raise RuntimeError(
            "the ranks of this group do not all share memory, and this PyTorch was built without Gloo: pass "
            "ProcessGroupOCCL.Options(inter_node=...) with a backend that sends and receives CPU tensors"
        )
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = timeout
    names = os.environ.get("GLOO_SOCKET_IFNAME", "")
    devices = [dist.ProcessGroupGloo.create_device(interface=name) for name in names.split(",") if name]
    options._devices = devices or [dist.ProcessGroupGloo.create_default_device()]
    options._threads = 1
    return dist.ProcessGroupGloo(store, rank, size, options)
