"""Tensors that exist move into memory that the other ranks can map."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import TypeVar

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from occl import _C
from occl.memory import share_cpu_memory

What = TypeVar("What", torch.Tensor, nn.Module)


def share_(what: What) -> What:
    """Moves a CPU tensor, or the parameters, gradients and buffers of a module, into memory that the other
    ranks of this host can map.

    Collectives then move their bytes directly from tensor to tensor, as they do with `empty_shared`, and the
    process's other tensors stay as they are. Views, optimizers and graphs that have the tensors go on with
    them, because the memory changes below the tensor's storage. No other thread may use them meanwhile.
    Pointers that were read from them before, by ``data_ptr()``, point to memory that is free.

    Of a DistributedDataParallel, the buckets in which gradients are sent are made anew in its second forward
    pass, so call it before that one: then they lie in such memory too. That forward pass, and the first, put
    their other large tensors there as well.

    Tensors on ``dev``, tensors without bytes and those that lie in such memory already stay.

    Args:
        what: a tensor or a module. Of a tensor with parts, such as a DTensor, the parts move.

    Returns:
        The argument.

    Raises:
        TypeError: it is neither a tensor nor a module.
        ValueError: a tensor is on another device than the CPU and ``dev``, is not strided, or its memory is
            used by NumPy, by a file or by another process. What came before it has moved.
        torch.OutOfMemoryError: there is not enough memory; the text has the figures.
        RuntimeError: this process is a forked child of one that has such memory.
    """
    if isinstance(what, torch.Tensor):
        _move(what, "the tensor")
    elif isinstance(what, nn.Module):
        for name, tensor in _tensors_of(what):
            _move(tensor, name)
        for module in what.modules():
            if isinstance(module, DistributedDataParallel):
                _share_buckets(module)
    else:
        raise TypeError(f"share_ takes a tensor or a module, not {type(what).__name__}")
    return what


def _tensors_of(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for name, parameter in module.named_parameters():
        yield name, parameter
        if parameter.grad is not None:
            yield f"{name}.grad", parameter.grad
    yield from module.named_buffers()


def _move(tensor: torch.Tensor, name: str) -> None:
    """``name``: in errors."""
    if is_traceable_wrapper_subclass(tensor):
        for part in tensor.__tensor_flatten__()[0]:
            if isinstance(inner := getattr(tensor, part), torch.Tensor):  # a DTensor's mesh is none
                _move(inner, f"{name}.{part}")
        return
    if tensor.is_cpu and tensor.layout == torch.strided and tensor.untyped_storage().is_shared():
        raise ValueError(
            f"share_: {name} has memory that other processes or a file have too: share a clone of it"
        )
    _C._share_storage(tensor, name)


def _share_buckets(ddp: DistributedDataParallel) -> None:
    """Until it has made its buckets anew, its forward passes allocate shared memory."""
    if ddp._has_rebuilt_buckets or (ddp.find_unused_parameters and not ddp.static_graph):
        warnings.warn(
            "share_: a DistributedDataParallel makes its buckets in its second forward pass, or for "
            "find_unused_parameters when it is made itself, and these buckets stay where they are. Call "
            "share_ before, or make it inside `with occl.share_cpu_memory():`.",
            stacklevel=3,
        )
        return
    scopes = contextlib.ExitStack()

    def before(*_: object) -> None:
        scopes.enter_context(share_cpu_memory())

    def after(*_: object) -> None:
        scopes.close()
        if ddp._has_rebuilt_buckets:
            for hook in hooks:
                hook.remove()

    hooks = [
        ddp.register_forward_pre_hook(before),
        ddp.register_forward_hook(after, always_call=True),
    ]
