"""Collectives over a list of tensors, one for each device of this process."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, Union, overload

import torch

from occl import _C
from torch_occl import dev
from torch_occl.dev import _registration
from torch_occl.dev._index import Device
from torch_occl.replicas._batch import check_chunks
from torch_occl.replicas._checks import (
    check_alike,
    check_apart,
    check_list,
    check_op,
    check_root,
    check_tensors,
)
from torch_occl.replicas._forms import also_named

Op = Literal["sum", "mean"]
Place = Union[Device, torch.Stream]  # noqa: UP007
"""A place for a tensor: a device, or a queue (a stream), which stands for its device."""

STAGING_BYTES, STAGING_ELEMENTS = 128 << 10, 32768
"""Limits of the host tensor through which the host form goes, so that it stays in a core's cache, and PyTorch
does not share a piece among threads: on a busy machine, threads that wait for each other at each of many
pieces were seen to take a hundred times longer."""


class Pending:
    """A reduction that runs on a stream. Until it ends, the caller must not use the tensors."""

    def __init__(self, tensors: list[torch.Tensor], event: torch.Event) -> None:
        self._tensors = tensors
        self._event = event

    def is_completed(self) -> bool:
        """Whether the tensors hold the result."""
        return self._event.query()

    def wait(self) -> list[torch.Tensor]:
        """Makes the current stream of each device wait for the result, and returns the tensors.

        Where the current stream is the default stream, the host waits.
        """
        for device in _devices(self._tensors):
            stream = dev.current_stream(device)
            if stream.stream_id == 0:
                self._event.synchronize()  # raises the error of the reduction, if it failed
            else:
                stream.wait_event(self._event)
        return self._tensors


def all_reduce(
    tensors: Sequence[torch.Tensor], op: Op = "sum", overlap: bool = False
) -> list[torch.Tensor] | Pending:
    """Replaces every tensor by the sum or the mean of all, through a tensor on the host.

    It works between any devices. Where the host can read their memory, `all_reduce_p2p` is faster; the
    result is the same bits.

    Args:
        tensors: of one shape and dtype, one on each device (``dev``, CPU, or any other). Changed in place.
        op: ``"sum"`` or ``"mean"``. The mean of integers is truncated toward zero.
        overlap: return before the result is there. A stream of ``dev`` computes it, after the work that is
            in the current streams of the devices now.

    Returns:
        The tensors, in their order; with ``overlap``, a `Pending` that gives them.

    Raises:
        TypeError: something in the list is no tensor.
        ValueError: the list is empty, tensors differ in shape or dtype, share memory or are expanded, the
            operation has no meaning for the dtype, or ``overlap`` is set and no tensor is on ``dev``.
    """
    return _all_reduce("all_reduce", tensors, op, overlap, direct=False)


def all_reduce_p2p(
    tensors: Sequence[torch.Tensor], op: Op = "sum", overlap: bool = False
) -> list[torch.Tensor] | Pending:
    """As `all_reduce`, but directly between the memories of the devices.

    Each element is read once from every device, combined, and written to every device; nothing is copied
    before or after. Where the host cannot reach a device's memory, or tensors differ in their strides or have
    gaps, this is `all_reduce`, and a warning says so. Arguments, results and errors are the same.
    """
    return _all_reduce("all_reduce_p2p", tensors, op, overlap, direct=True)


@overload
def broadcast(tensors: Sequence[torch.Tensor], root: int = 0) -> list[torch.Tensor]: ...
@overload
def broadcast(tensor_list: Sequence[torch.Tensor], root: int = 0) -> list[torch.Tensor]: ...
@overload
def broadcast(tensor: Sequence[torch.Tensor], root: int = 0) -> list[torch.Tensor]: ...
@also_named(tensor_list="tensors", tensor="tensors")
@torch.no_grad()
def broadcast(tensors: Sequence[torch.Tensor], root: int = 0) -> list[torch.Tensor]:
    """Copies tensor ``root`` of the list into all others, in place.

    Args:
        tensors: of one shape and dtype, one on each device. May be given as ``tensor_list`` or ``tensor``.
        root: the position in the list of the one to copy.

    Returns:
        The tensors, in their order.

    Raises:
        TypeError: something in the list is no tensor, or the root is no integer.
        ValueError: the list is empty, tensors differ in shape or dtype or share memory, one to be written to
            is expanded, or there is no such root.
    """
    tensors = check_tensors("broadcast", tensors)
    check_alike("broadcast", tensors)
    check_root("broadcast", root, len(tensors))
    check_apart("broadcast", tensors, root)
    settle(tensors)
    for i, tensor in enumerate(tensors):
        if i != root:
            tensor.copy_(tensors[root])
    return tensors


def scatter(tensor: torch.Tensor, chunks: int, devices: Sequence[Place] | None = None) -> list[torch.Tensor]:
    """Cuts a tensor along dimension 0, as `numpy.array_split` does, and moves each chunk to a device.

    Gradients flow back. A chunk whose device is the tensor's own is a view of it.

    Args:
        tensor: of at least ``chunks`` rows.
        chunks: how many.
        devices: where to, one device or queue for each chunk; ``dev:0``, ``dev:1``, ... by default. None in
            the list is the current ``dev`` device.

    Returns:
        The chunks; the first ``len(tensor) % chunks`` have one row more than the others.

    Raises:
        TypeError: ``tensor`` is no tensor, ``chunks`` no integer, or ``devices`` no list of devices.
        ValueError: ``chunks`` is below 1 or above the number of rows or devices, or the tensor has no
            dimensions.
    """
    (tensor,) = check_tensors("scatter", [tensor])
    if tensor.dim() == 0:
        raise ValueError("scatter: the tensor has no dimensions, so nothing to cut along")
    check_chunks("scatter", chunks, len(tensor), "the tensor")
    where = places("scatter", range(dev.device_count()) if devices is None else devices)
    if len(where) < chunks:
        raise ValueError(f"scatter: {chunks} chunks, but {len(where)} devices")
    settle([tensor])
    return [part.to(device) for part, device in zip(tensor.tensor_split(int(chunks)), where, strict=False)]


def gather(tensors: Sequence[torch.Tensor], device: Place = None) -> torch.Tensor:
    """Joins tensors along dimension 0 on one device. Gradients flow back.

    Args:
        tensors: of one dtype, and of one shape except for dimension 0.
        device: where to (a queue stands for its device); the device of the first tensor by default.

    Raises:
        TypeError: something in the list is no tensor.
        ValueError: the list is empty, a tensor has no dimensions, or they differ in dtype or in the shape
            behind dimension 0.
    """
    tensors = check_tensors("gather", tensors)
    for i, tensor in enumerate(tensors):
        if tensor.dim() == 0:
            raise ValueError(f"gather: tensor {i} has no dimensions, so nothing to join along")
    check_alike("gather (but for dimension 0)", tensors, dims_from=1)
    (where,) = [tensors[0].device] if device is None else places("gather", [device])
    settle(tensors)
    return torch.cat([tensor.to(where) for tensor in tensors])


# ---- implementation -------------------------------------------------------------------------------------


def in_host_memory(tensor: torch.Tensor) -> bool:
    """Whether the host can read and write the tensor's memory.

    The type ``dev`` is not enough: it may be another package's device.
    """
    return tensor.is_cpu or (tensor.device.type == "dev" and _registration.registered())


def reachable(tensor: torch.Tensor) -> bool:
    """Whether the kernels can work on the tensor where it is."""
    return in_host_memory(tensor) and _dense(tensor) and not tensor.is_conj() and not tensor.is_neg()


def _dense(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous() or torch.ops.aten.is_non_overlapping_and_dense(tensor)


def obstacle(tensors: Sequence[torch.Tensor]) -> str:
    """Why the kernels cannot combine these tensors in place; empty if they can."""
    for tensor in tensors:
        if not in_host_memory(tensor):
            return f"the host cannot reach the memory of {tensor.device}"
        if not reachable(tensor):
            return "a tensor has gaps, or is lazily conjugated or negated"
        if tensor.stride() != tensors[0].stride():
            return "the tensors differ in their strides"
    return ""


def warn_of_host_form(call: str, reason: str) -> None:
    """Warns, at the line that called this package, that the host form runs in place of the direct one."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__package__") == __package__:
        level, frame = level + 1, frame.f_back
    warnings.warn(
        f"{call}: {reason}, so this goes through a tensor on the host, which is slower", stacklevel=level
    )


def places(call: str, devices: Any) -> list[torch.device]:
    """The devices of a list of devices and queues. An int is a ``dev`` device, None the current one.

    Raises:
        TypeError: this is no list, or something in it neither a device nor a queue.
        ValueError: the list is empty.
    """
    found: list[torch.device] = []
    for i, place in enumerate(check_list(call, devices, "devices or queues")):
        if not isinstance(place, (torch.device, torch.Stream, str, int, type(None))):
            raise TypeError(f"{call}: device {i} is neither a device nor a queue but {type(place).__name__}")
        if isinstance(place, torch.Stream):
            found.append(place.device)
        else:
            found.append(
                torch.device("dev", place) if isinstance(place, int) else torch.device(place or "dev")
            )
    if not found:
        raise ValueError(f"{call}: the list of devices is empty")
    return found


def settle(tensors: Sequence[torch.Tensor]) -> None:
    """Waits for the current streams of the tensors' devices: the kernels run outside of any stream."""
    for device in _devices(tensors):
        dev.current_stream(device).synchronize()


def staging_for(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The tensor on the host that `reduce_staged` needs."""
    if all(tensor.is_contiguous() for tensor in tensors):
        most = min(STAGING_ELEMENTS, STAGING_BYTES // tensors[0].element_size())
        return torch.empty(min(tensors[0].numel(), most), dtype=tensors[0].dtype)
    return torch.empty(tensors[0].shape, dtype=tensors[0].dtype)


@torch.no_grad()
def reduce_staged(
    tensors: Sequence[torch.Tensor], mean: bool, factors: Sequence[float], staging: torch.Tensor
) -> None:
    """The host form: combines the tensors piece by piece in ``staging``, and copies each piece to all."""
    pieces: Iterator[tuple[torch.Tensor, ...]]
    if all(tensor.is_contiguous() for tensor in tensors):
        pieces = zip(*(tensor.detach().view(-1).split(len(staging) or 1) for tensor in tensors), strict=True)
    else:
        pieces = iter([tuple(tensor.detach() for tensor in tensors)])
    for piece in pieces:
        sources = [part if reachable(part) and part.is_contiguous() else _on_host(part) for part in piece]
        result = staging[: len(piece[0])] if staging.dim() else staging
        _C._replicas_reduce([[result]], [sources], mean, list(factors))
        for part in piece:
            part.copy_(result)


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.cpu().contiguous().resolve_conj().resolve_neg()


def _devices(tensors: Sequence[torch.Tensor]) -> list[torch.device]:
    """The ``dev`` devices among those of the tensors, each once."""
    return list(dict.fromkeys(tensor.device for tensor in tensors if tensor.device.type == "dev"))


@functools.cache
def _stream_of(device: torch.device) -> dev.Stream:
    """The stream for overlapped reductions that begin with a tensor of this device."""
    return dev.Stream(device)


def _all_reduce(
    call: str, tensors: Sequence[torch.Tensor], op: Op, overlap: bool, direct: bool
) -> list[torch.Tensor] | Pending:
    tensors = check_tensors(call, tensors)
    check_op(call, op)
    check_alike(call, tensors)
    check_apart(call, tensors)
    mean = op == "mean"
    reduce: Callable[[], None]
    reason = obstacle(tensors) if direct else ""
    if reason:
        warn_of_host_form(call, reason)
    if direct and not reason:
        reduce = functools.partial(_C._replicas_reduce, [tensors], [tensors], mean, [])
    else:
        reduce = functools.partial(reduce_staged, tensors, mean, [], staging_for(tensors))
    if not overlap:
        settle(tensors)
        reduce()
        return tensors
    devices = _devices(tensors)
    if not devices:
        raise ValueError(f"{call}: overlap needs a stream, and no tensor is on dev")
    # An error of a task of a stream appears only when the caller waits: check the dtype and operation now.
    _C._replicas_reduce([[tensors[0].new_empty(0)]], [[tensors[0].new_empty(0)]], mean, [])
    stream = _stream_of(devices[0])
    for device in devices:
        stream.wait_event(dev.current_stream(device).record_event())
    _C._device_enqueue(stream, reduce)
    return Pending(tensors, stream.record_event())
