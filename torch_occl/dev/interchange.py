"""``dev`` memory used from outside: as CPU tensors, by NumPy and DLPack, in other processes.

Part of `torch.dev`. Device memory is host memory, so nothing is copied unless the function says so.
"""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

from occl import _C
from torch_occl.dev import streams
from torch_occl.dev._index import Device, device_index

__all__ = ["as_cpu", "from_cpu"]


def as_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """A CPU tensor over the memory of a ``dev`` tensor, without a copy and without autograd.

    Waits for the current stream of the tensor's device first, so that the values are there. Neither tensor
    may be resized, or moved with ``share_memory_``, while the other is in use.

    Args:
        tensor: dense, on ``dev``, of any shape, strides and dtype.

    Returns:
        A CPU tensor with the same shape, strides and dtype.

    Raises:
        ValueError: the tensor is not on ``dev``.
        RuntimeError: the tensor is not dense.
    """
    if tensor.device.type != "dev":
        raise ValueError(f"expected a tensor on dev, got one on {tensor.device}")
    streams.current_stream(tensor.device).synchronize()
    return _C._device_share_memory(tensor.detach(), torch.device("cpu"))


def from_cpu(tensor: torch.Tensor, device: Device = None) -> torch.Tensor:
    """A ``dev`` tensor over the memory of a CPU tensor, without a copy and without autograd.

    Its memory lies outside the regions that peers map: collectives copy it once, as they do CPU tensors.
    Neither tensor may be resized, or moved with ``share_memory_``, while the other is in use.

    Args:
        tensor: dense, on the CPU, of any shape, strides and dtype.
        device: the device that the new tensor says; the current one if not given.

    Returns:
        A tensor on ``device`` with the same shape, strides and dtype.

    Raises:
        ValueError: the tensor is not on the CPU.
        RuntimeError: the tensor is not dense.
    """
    if tensor.device.type != "cpu":
        raise ValueError(f"expected a tensor on the CPU, got one on {tensor.device}")
    return _C._device_share_memory(tensor.detach(), torch.device("dev", device_index(device)))


# ---- DLPack: `dev` memory is exported as CPU memory ----------------------------------------------------

_dlpack = torch.Tensor.__dlpack__
_dlpack_device = torch.Tensor.__dlpack_device__


def _tensor_dlpack(self: torch.Tensor, **kwargs: Any) -> Any:
    if self.device.type != "dev":
        return _dlpack(self, **kwargs)
    if self.requires_grad:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
    kwargs.pop("stream", None)
    return _dlpack(as_cpu(self), **kwargs)


def _tensor_dlpack_device(self: torch.Tensor) -> Any:
    if self.device.type != "dev":
        return _dlpack_device(self)
    from torch.utils.dlpack import DLDeviceType

    return (DLDeviceType.kDLCPU, 0)


# ---- torch.multiprocessing -----------------------------------------------------------------------------


def _rebuild_storage(memory: torch.UntypedStorage, index: int) -> torch.UntypedStorage:
    bytes_ = torch.empty(0, dtype=torch.uint8).set_(memory)
    storage = from_cpu(bytes_, index).untyped_storage()
    storage._occl_shared = memory  # type: ignore[attr-defined]  # a receiver that sends it on uses the same memory
    return storage


def _reduce_storage(storage: torch.UntypedStorage) -> Any:
    """Moves the storage, the first time, to shared memory of its own, as PyTorch does with CPU storages.

    Both processes keep that memory alive. A block of the heap could be reused while the other process still
    reads it.
    """
    from torch.multiprocessing.reductions import reduce_storage

    if storage.device.type != "dev":
        return reduce_storage(storage)
    memory = getattr(storage, "_occl_shared", None)
    if memory is None or memory.nbytes() != storage.nbytes():
        memory = torch.UntypedStorage(storage.nbytes()).share_memory_()
        if storage.nbytes():
            mine = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
            _C._device_move_storage(mine, torch.empty(0, dtype=torch.uint8).set_(memory))
        storage._occl_shared = memory  # type: ignore[attr-defined]
    return (_rebuild_storage, (memory, storage.device.index))


def install() -> None:
    """Called once, after ``torch.dev`` has been registered."""
    torch.Tensor.__dlpack__ = _tensor_dlpack  # type: ignore[method-assign]
    torch.Tensor.__dlpack_device__ = _tensor_dlpack_device  # type: ignore[method-assign]
    ForkingPickler.register(torch.UntypedStorage, _reduce_storage)
