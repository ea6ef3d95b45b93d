"""What differs between versions of PyTorch in Python. No other module asks for it.

Each function says from which version on PyTorch does without it. Attributes are asked for, not numbers.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from torch._C import _distributed_c10d
from torch.distributed import distributed_c10d

_c10d: Any = distributed_c10d


def all_gather_single() -> Callable[..., Any]:
    """The function of this name. There is none up to 2.12; later its old name warns at every call."""
    found: Callable[..., Any] = getattr(_c10d, "all_gather_single", None) or _c10d.all_gather_into_tensor
    return found


def reduce_scatter_single() -> Callable[..., Any]:
    """The function of this name. There is none up to 2.12; later its old name warns at every call."""
    found: Callable[..., Any] = getattr(_c10d, "reduce_scatter_single", None) or _c10d.reduce_scatter_tensor
    return found


def name_by_default_backend(name: str) -> None:
    """A group such as "cpu:gloo,dev:occl" gets a default backend. Not needed from 2.14 on.

    Before, `_new_process_group_helper` makes CUSTOM the default backend of such a group if the first
    registered name, in upper case, is among its backends, in lower case. They never match; the group then has
    no default backend, and PyTorch warns "No backend of type 0 found" when it ends. So the name is entered in
    lower case as well, as the first one.
    """
    if hasattr(distributed_c10d, "_get_default_backend_type_for_backend_config"):
        return
    plugins = _c10d.Backend._plugins
    plugin = plugins[name.upper()]
    _c10d.Backend._plugins = {name: plugin} | {k: v for k, v in plugins.items() if k != name}


def records_itself(name: str) -> None:
    """PyTorch attaches no flight recorder of its own to groups of the backend, which has one.

    From 2.15 on it does so for each backend that it does not know, and every call would be recorded twice.
    """
    if hasattr(distributed_c10d, "_FR_SELF_RECORDING_BACKENDS"):
        _c10d._FR_SELF_RECORDING_BACKENDS.add(name)


def factory_of_gloo() -> Callable[..., Any] | None:
    """The registered factory of Gloo, with PyTorch's extended interface. There is none up to 2.13."""
    if hasattr(_c10d.Backend, "_ensure_backend_registered"):
        _c10d.Backend._ensure_backend_registered("gloo")  # otherwise only when a group asks for it
    plugin = _c10d.Backend._plugins.get("GLOO")
    if plugin is None:
        return None
    create: Callable[..., Any] = plugin.creator_fn
    if plugin.extended_api:
        return create
    return lambda opts, _: create(opts.store, opts.group_rank, opts.group_size, opts.timeout)


def register_gloo(factory: Callable[..., Any]) -> None:
    """Registers another factory for the name "gloo", where there is one."""
    backend = _c10d.Backend
    kind = backend.backend_type_map["gloo"]
    devices = backend.backend_capability["gloo"]
    backend.register_backend("gloo", factory, extended_api=True, devices=devices, _backend_type=kind)


def made_by_reconfigure(options: Any) -> bool:
    """Whether a group with these options is made by its first ``reconfigure``. There are none up to 2.13."""
    return getattr(options, "enable_reconfigure", False)


def let_reconfigure_make(options: Any, as_asked: Any) -> None:
    """If others ask for such a group, these options do too."""
    if made_by_reconfigure(as_asked):
        options.enable_reconfigure = True


def register_in_dist2(name: str, factory: Callable[..., Any]) -> None:
    """The backend serves ``torch.distributed._dist2.new_group``, which 2.14 has removed."""
    try:
        dist2: Any = importlib.import_module("torch.distributed._dist2")
    except ImportError:
        return
    dist2.register_backend(name, factory)


def recorder_of(backend: str) -> dict[str, str]:
    """What chooses a backend's flight recorder in ``_dump_fr_trace``. Before 2.15 there is one for all."""
    return {"backend": backend} if hasattr(_distributed_c10d, "_reset_fr_trace") else {}
