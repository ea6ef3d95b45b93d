"""Sees each collective and each message of this process before its backend does, for any backend.

``ProcessGroup`` sends every call through an operator of the namespace ``c10d``, whether the call comes from
``torch.distributed``, from C++ (DistributedDataParallel's reducer), from a functional collective or from
compiled code. A kernel at the dispatch key BackendSelect runs first: the key is set in every thread, also in
inference mode, and other operators cost nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

NAMES = {
    "all_reduce": ("allreduce_", "allreduce_coalesced_"),
    "broadcast": ("broadcast_",),
    "reduce": ("reduce_",),
    "all_gather": ("allgather_", "allgather_coalesced_"),
    "all_gather_into_tensor": ("_allgather_base_", "allgather_into_tensor_coalesced_"),
    "gather": ("gather_",),
    "gather_single": ("gather_into_tensor_",),  # from PyTorch 2.14 on
    "scatter": ("scatter_",),
    "reduce_scatter": ("reduce_scatter_",),
    "reduce_scatter_tensor": ("_reduce_scatter_base_", "reduce_scatter_tensor_coalesced_"),
    "all_to_all": ("alltoall_",),
    "all_to_all_single": ("alltoall_base_",),
    "barrier": ("barrier",),
    "monitored_barrier": ("monitored_barrier_",),
    "send": ("send",),
    "recv": ("recv_", "recv_any_source_"),
}
"""The functions of ``torch.distributed``, and the operators of ``c10d`` that each of them calls."""

_library: Any = None


def watch(see: Callable[[str, Any], None]) -> None:
    """Calls ``see(name, device)`` before each call of an operation, in the thread that makes it.

    ``name`` is a key of `NAMES`, and ``device`` the `torch.device` of the call's tensors (the CPU for a call
    without any). What ``see`` raises is what the call raises, which then does not reach its backend. There
    is one ``see`` in a process, and it stays.
    """
    global _library
    import torch

    assert _library is None, "watch() is called once in a process"
    _library = torch.library.Library("c10d", "IMPL")
    key = torch._C.DispatchKey.BackendSelect
    below = torch._C._dispatch_keyset_full_after(key)
    for name, operators in NAMES.items():
        for operator in filter(lambda it: hasattr(torch.ops.c10d, it), operators):
            overload = getattr(torch.ops.c10d, operator).default
            kernel = _kernel(see, name, overload, below)
            _library.impl(operator, kernel, "BackendSelect", with_keyset=True)


def _kernel(see: Callable[[str, Any], None], name: str, overload: Any, below: Any) -> Callable[..., Any]:
    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        see(name, _device(args))
        return overload.redispatch(keys & below, *args, **kwargs)

    return kernel


def _device(args: Any) -> Any:
    import torch

    return next((tensor.device for tensor in _tensors(args)), torch.device("cpu"))


def _tensors(values: Any) -> Iterator[Any]:
    import torch

    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)
