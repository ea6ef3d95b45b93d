"""Makes backends, and registers their names with torch.distributed for all devices."""

from __future__ import annotations

import copy
import logging
import warnings
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

import occl.distributed.exit  # noqa: F401  (the extension calls it)
from occl import compat, registration, versions
from occl._C import (
    ProcessGroupOCCL,
    _records,
    _set_build,
    _set_prepare_inter_node,
    _set_prepare_tcp,
    _set_prepare_ucx,
)
from occl.distributed import (
    alone,
    flight_recorder,
    gloo,
    inter_node,
    long_waits,
    program,
    symmetric_memory,
    tcp,
    threads,
    ucx,
)

if TYPE_CHECKING:
    from datetime import timedelta


_set_build(
    f"{versions.name_of_build(torch.__version__)} for PyTorch {'.'.join(torch.__version__.split('.')[:2])}"
)
_set_prepare_inter_node(inter_node.prepare)
_set_prepare_ucx(ucx.prepare)
_set_prepare_tcp(tcp.prepare)
long_waits.watch_as_environment_says()
alone.watch()


_log = logging.getLogger("torch_occl")  # which TORCH_LOGS=torch_occl switches on


def _made(backend: ProcessGroupOCCL) -> ProcessGroupOCCL:
    """Tells PyTorch's logs and its flight recorder of a new group, and looks at the threads of its ranks.

    Of a group that its first ``reconfigure`` makes, ranks and cores are not known yet.
    """
    if _log.isEnabledFor(logging.INFO):
        _log.info("%s", backend._describe())
    if _records():
        flight_recorder.answer_for_pytorch()
    if not compat.made_by_reconfigure(backend.options):
        threads.check(backend)
    long_waits.show_stack()
    symmetric_memory.serve_workspaces()
    return backend


def _made_for(group: dist.ProcessGroup | None) -> ProcessGroupOCCL | None:
    """The backend ``occl`` of a group that has one."""
    backends = [gloo.backend_of(group, device) for device in group._device_types] if group else []
    return next((backend for backend in backends if isinstance(backend, ProcessGroupOCCL)), None)


def create(opts: Any, options: ProcessGroupOCCL.Options | None = None) -> ProcessGroupOCCL:
    """The factory that ``init_process_group`` and ``new_group`` call (PyTorch's extended backend API).

    PyTorch calls it for each device type of a group that has other backends too. One backend serves them all.

    Args:
        opts: store, group_rank, group_size, timeout, group_id, global_ranks_in_group.
        options: what the user passed as ``pg_options``, which is copied; None for the defaults. Those of
            another backend are ignored for a group in the place of Gloo, which ignores them.

    Raises:
        TypeError: ``pg_options`` is not ``ProcessGroupOCCL.Options``.
        ValueError: the group is to have a backend of another package too.
        torch.distributed.DistBackendError: a rank did not make the group in time, exited, or shares no memory
            with this one.
    """
    asked = program.backends_of_caller()
    others, ours = registration.of_packages(asked.values()), registration.of_ours(asked.values())
    if others and ours:  # not ours: made in the place of Gloo, which is no backend of a package
        mine = {device: name for device, name in asked.items() if name in ours}
        theirs = {device: name for device, name in asked.items() if name not in ours}
        raise ValueError(
            f"group {opts.group_id} is to have backends of {' and '.join([*ours, *others])}, and PyTorch "
            f'keeps one backend of packages in a group: make this group with "{gloo.config(theirs)}", and '
            f'one for the other devices with new_group(backend="{gloo.config(mine)}")'
        )
    if options is not None and gloo.ignores_options():
        options = options if isinstance(options, ProcessGroupOCCL.Options) else None
    if options is None:
        options = ProcessGroupOCCL.Options()
    elif not isinstance(options, ProcessGroupOCCL.Options):
        raise TypeError(
            f"pg_options must be torch_occl.ProcessGroupOCCL.Options, got {type(options).__name__}"
        )
    else:
        options = copy.copy(options)
        if options._timeout not in (opts.timeout, ProcessGroupOCCL.Options()._timeout):
            warnings.warn(
                f"pg_options._timeout is {options._timeout}, but timeout= (or its default) overrides it: "
                f"operations of group {opts.group_id} time out after {opts.timeout}",
                stacklevel=program.stacklevel(),
            )
    options._timeout = opts.timeout
    options.group_name = opts.group_id
    options.global_ranks_in_group = opts.global_ranks_in_group
    compat.let_reconfigure_make(options, opts)
    alone.watch()  # a launcher in this process, such as Ray's, may have set WORLD_SIZE by now
    if made := _made_for(getattr(opts, "process_group", None)):
        return made
    members = opts.global_ranks_in_group
    parent = _made_for(dist.group.WORLD) if members else None  # in whose ranks the members are counted
    with long_waits.joining(opts.group_rank, opts.group_size, opts.group_id, opts.timeout.total_seconds()):
        backend = ProcessGroupOCCL(opts.store, opts.group_rank, opts.group_size, options, parent, members)
    return _made(backend)


def create_experimental(
    store: dist.Store, rank: int, size: int, timeout: timedelta, device: torch.device, **options: Any
) -> dist.ProcessGroup:
    """The factory that ``torch.distributed._dist2.new_group`` calls.

    Args:
        device: the device type that the group serves, beside the CPU.
        options: arguments of ``ProcessGroupOCCL.Options``.

    Raises:
        KeyError: there is no such option.
        torch.distributed.DistBackendError: a rank did not make the group in time, or shares no memory with
            this one.
    """
    made = ProcessGroupOCCL.Options(timeout)
    for name, value in options.items():
        if not hasattr(made, name):
            raise KeyError(f"ProcessGroupOCCL.Options has no {name!r}")
        setattr(made, name, value)
    backend = _made(ProcessGroupOCCL(store, rank, size, made))
    group = dist.ProcessGroup(store, rank, size)
    group._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
    for served in {device.type, "cpu"}:
        group._register_backend(torch.device(served), dist.ProcessGroup.BackendType.CUSTOM, backend)
    return group


def register(device: str | None, ours: bool) -> None:
    """Registers the backend for CPU tensors and for the PrivateUse1 device of this name, if there is one.

    It becomes the default backend of ``dev``, and not of another package's device.
    """
    registration.register(create, [device, "cpu"] if device and ours else ["cpu"])
    names = registration.names()
    if device is not None:
        if ours:
            _let_gloo_stand_beside(device)
        else:  # registered for it, occl would be its default backend for good
            for name in names:
                dist.Backend.backend_capability[name].insert(0, device)
        _serve_in_existing_groups(device)
    for name in names:
        compat.register_in_dist2(name, create_experimental)


def _serve_in_existing_groups(device: str) -> None:
    """Makes the backend's groups serve the device, if they are older than it and serve CPU tensors only.

    A group that was asked for as ``cpu:occl`` stays as it is, and so does one in the place of Gloo.
    """
    world = distributed_c10d._world
    for group, (name, _) in list(world.pg_map.items()):
        if name in registration.names() and torch.device(device) not in group._device_types:
            backend = group._get_backend(torch.device("cpu"))
            group._register_backend(torch.device(device), dist.ProcessGroup.BackendType.CUSTOM, backend)
            world.pg_backend_config[group] = repr(dist.BackendConfig(dist.Backend(name)))


def _let_gloo_stand_beside(device: str) -> None:
    """Makes ``new_group(backend="gloo")`` work if the default group was bound with ``device_id=``.

    PyTorch asks every new group for its backend of the bound device, and Gloo lists only the CPU and CUDA.
    Gloo still refuses tensors on this device.
    """
    served = dist.Backend.backend_capability[dist.Backend.GLOO]
    if device not in served:
        dist.Backend.backend_capability[dist.Backend.GLOO] = [*served, device]
