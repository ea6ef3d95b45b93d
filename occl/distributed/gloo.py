"""Groups of occl for programs that ask for Gloo.

From 2.14 on PyTorch has a registered factory for Gloo, and `replace_gloo` registers one in its place. Before,
it builds Gloo in one function, in an ``if`` that compares the backend's name, and `replace_gloo` wraps that
function. Before a group with Gloo is made, its ranks agree (`occl.distributed.place_agreement`), and then all
of them get occl or all get Gloo.

`occl.registration` imports this module together with PyTorch, so nothing here loads the extension before a
group is made.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from occl import compat, registration, variables, versions
from occl.distributed import place_agreement as agreement
from occl.distributed import place_notices, program

if TYPE_CHECKING:
    from types import TracebackType

_on = False
_making = threading.local()
_originals: dict[str, Callable[..., Any]] = {}
_signatures: dict[str, inspect.Signature] = {}


class replace_gloo:
    """Makes groups with the backend "gloo" groups of occl, without a change to the program.

    It holds from the call on, for all threads and for every group that is made from then on with
    ``init_process_group`` or ``new_group``, directly or through a library, also for one device type of
    several, as in ``"cpu:gloo,cuda:nccl"``. ``get_backend`` still returns what the program asked for. Groups
    that exist do not change. `uses_occl` says which backend a group got.

    A group is Gloo's, with a warning of one rank that says why, if a rank has not called this or cannot use
    occl, or if the group spans several nodes and a rank cannot listen for the others. All ranks of a group
    come to the same choice. Code that makes Gloo itself (``torch.distributed.rpc``,
    ``TORCH_DISTRIBUTED_DEBUG=DETAIL``, ``ProcessGroupGloo(...)``) gets Gloo.

    In a ``with`` statement, the previous setting holds again at the end; such statements can be nested.
    ``replace_gloo(False)`` switches it off. The environment variable ``OCCL_IN_PLACE_OF=gloo`` switches it on
    when PyTorch is imported.

    Args:
        on: whether groups of Gloo become occl's from now on.

    Raises:
        TypeError: ``on`` is no bool.
    """

    def __init__(self, on: bool = True) -> None:
        global _on
        if not isinstance(on, bool):
            raise TypeError(f"replace_gloo: on must be True or False, not {on!r}")
        _install()
        self._before, _on = _on, on

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        global _on
        _on = self._before


def replace_as_environment_says() -> None:
    """Switches it on if ``OCCL_IN_PLACE_OF`` is gloo."""
    if variables.in_place_of():
        replace_gloo()


def uses_occl(group: dist.ProcessGroup | None = None, device: torch.device | str = "cpu") -> bool:
    """Whether occl moves this group's tensors on this device, whatever name ``get_backend`` says.

    Args:
        group: the default group if not given.
        device: a device type that the group serves.

    Raises:
        ValueError: there is no default group, and none was given.
    """
    group = group or dist.group.WORLD
    if group is None:
        raise ValueError("uses_occl: there is no default group; call init_process_group first")
    return is_occl(group, torch.device(device))


def ignores_options() -> bool:
    """Whether this thread makes a group in the place of Gloo, which accepts any ``pg_options``."""
    return getattr(_making, "for_gloo", False)


def _install() -> None:
    """Puts ours in the place of PyTorch's. It stays, and passes every call on while replacing is off."""
    if factory := compat.factory_of_gloo():
        if "gloo" not in _originals:
            _originals["gloo"] = factory
            compat.register_gloo(_create)
    else:
        _wrap()


# ---- From PyTorch 2.14 on: the registered factory ----------------------------------------------------------


def _create(opts: Any, options: Any = None) -> Any:
    """The factory that PyTorch calls for "gloo": makes a backend of occl if all ranks can, or else Gloo."""
    original = _originals["gloo"]
    if not _on:
        return original(opts, options)
    asked = program.backends_of_caller() or {"cpu": "gloo"}
    name, size = opts.group_id, opts.group_size
    choice = _choose(asked, opts.group_rank, size, name, opts.store, opts.store, opts.timeout)
    if not choice["occl"]:
        return original(opts, options)
    from occl import _C
    from occl.distributed import backend

    made = backend.create(opts, options if isinstance(options, _C.ProcessGroupOCCL.Options) else None)
    if not choice["kept"]:
        return made
    # PyTorch registers what a factory makes for all devices of "gloo", except a whole group.
    kinds, group = dist.ProcessGroup.BackendType, opts.process_group
    opts.store = dist.PrefixStore("kept/", opts.store)
    gloo = original(opts, options)
    for device in asked:
        if device in choice["kept"]:
            group._register_backend(torch.device(device), kinds.CUSTOM, gloo)
        else:
            group._register_backend(torch.device(device), kinds.GLOO, made)
    return group


# ---- Up to PyTorch 2.13: the functions that are wrapped (docs/pytorch.md). Remove with 2.13 ---------------


def _wrap() -> None:
    for name, ours in {
        "_new_process_group_helper": _make_group,  # makes Gloo by its name
        "_set_pg_timeout": _set_timeout,  # looks for ProcessGroupGloo by its type
    }.items():
        if name not in _originals:
            original = _originals[name] = getattr(distributed_c10d, name)
            _signatures[name] = inspect.signature(original)
            setattr(distributed_c10d, name, functools.wraps(original)(ours))


def _make_group(*args: Any, **kwargs: Any) -> Any:
    """For ``_new_process_group_helper``: replaces "gloo" in its argument ``backend`` if all ranks can."""
    original = _originals["_new_process_group_helper"]
    if not _on:
        return original(*args, **kwargs)
    call = _signatures["_new_process_group_helper"].bind(*args, **kwargs)
    call.apply_defaults()
    given = call.arguments
    asked = _backends_asked_for(given)
    devices = [device for device, backend in asked.items() if backend == "gloo"]
    if not devices:
        return original(*args, **kwargs)
    rank, size, group_name = given["group_rank"], given["group_size"], given["group_name"]
    votes = dist.PrefixStore(f"{group_name}/", given["store"])
    addresses = dist.PrefixStore(f"{devices[0]}/", votes)
    choice = _choose(asked, rank, size, group_name, votes, addresses, given["timeout"])
    if not choice["occl"]:
        return original(*args, **kwargs)
    taken = [
        device for device, backend in asked.items() if backend == "gloo" and device not in choice["kept"]
    ]
    name, made = given["backend"], None
    beside = {device: backend for device, backend in asked.items() if device not in taken}
    if registration.of_packages(beside.values()):
        given["backend"] = config(beside)
        group, store = original(*call.args, **call.kwargs)
        made = _backend_for(given, dist.PrefixStore(f"{taken[0]}/", votes))
    else:
        ours = registration.of_ours(asked.values()) or registration.names()
        given["backend"] = config(asked | dict.fromkeys(taken, ours[0]))
        with _without_options(asked):
            group, store = original(*call.args, **call.kwargs)
    # PyTorch reports for the group what the program asked for.
    distributed_c10d._world.pg_map[group] = (name, store)
    distributed_c10d._world.pg_backend_config[group] = config(asked)
    if not choice["kept"]:
        gloo = dist.ProcessGroup.BackendType.GLOO
        for device in map(torch.device, taken):
            group._register_backend(device, gloo, made or group._get_backend(device))
        if set(asked.values()) == {"gloo"}:
            group._set_default_backend(gloo)
    if made:
        group._set_group_name(group.group_name)  # of the new backend too
        group._set_group_desc(group.group_desc)
    return group, store


def _backend_for(given: Mapping[str, Any], store: dist.Store) -> Any:
    """A backend of occl for the group that these arguments describe.

    PyTorch would drop this one, or the other, if it made both as backends of packages.
    """
    from occl.distributed import backend

    opts = distributed_c10d._DistributedBackendOptions()
    opts.store, opts.timeout, opts.group_id = store, given["timeout"], given["group_name"]
    opts.group_rank, opts.group_size = given["group_rank"], given["group_size"]
    opts.global_ranks_in_group = given["global_ranks_in_group"]
    return backend.create(opts)


def _set_timeout(timeout: timedelta, group: dist.ProcessGroup | None = None) -> None:
    """For ``_set_pg_timeout``, which would only warn about a group of occl."""
    served = group or dist.group.WORLD
    if (
        isinstance(served, dist.ProcessGroup)
        and "gloo" in str(distributed_c10d._world.pg_backend_config.get(served))
        and torch.device("cpu") in served._device_types
        and is_occl(served, torch.device("cpu"))
    ):
        served.set_timeout(timeout)
    else:
        _originals["_set_pg_timeout"](timeout, group)


# ---- What a call asks for ----------------------------------------------------------------------------------


def backend_of(group: dist.ProcessGroup, device: torch.device) -> Any:
    """The group's backend for a device type, without the wrapper of TORCH_DISTRIBUTED_DEBUG=DETAIL."""
    backend = group._get_backend(device)
    return getattr(backend, "wrapped_pg", backend)


def is_occl(group: dist.ProcessGroup, device: torch.device) -> bool:
    extension = sys.modules.get("occl._C")  # not loaded: no group is of occl
    return extension is not None and isinstance(backend_of(group, device), extension.ProcessGroupOCCL)


def config(backends: Mapping[str, str]) -> str:
    """As ``init_process_group`` takes it."""
    return ",".join(f"{device}:{backend}" for device, backend in backends.items())


def _backends_asked_for(given: Mapping[str, Any]) -> dict[str, str]:
    """The backend by device type; empty if this call makes no backend, or fails."""
    name = str(given["backend"]).lower()
    ranks, tag, world = given["global_ranks_in_group"], given["pg_tag"], distributed_c10d._world
    if (
        ("gloo" not in name and name != dist.Backend.UNDEFINED)
        or distributed_c10d._use_torchcomms_enabled()
        or not isinstance(given["timeout"], timedelta)
        or given["group_name"] in world.pg_names.values()
        or (ranks and dist.get_rank() not in ranks)
        or (tag and distributed_c10d._find_pg_by_ranks_and_tag(tag, ranks))
    ):
        return {}
    return dict(dist.BackendConfig(dist.Backend(name)).get_device_backend_map())


@contextmanager
def _without_options(asked: Mapping[str, str]) -> Iterator[None]:
    """Gloo ignores ``pg_options``, which are for another backend of the group, so occl does too."""
    _making.for_gloo = not registration.of_ours(asked.values())
    try:
        yield
    finally:
        _making.for_gloo = False


# ---- How the ranks agree -----------------------------------------------------------------------------------


def _choose(
    asked: Mapping[str, str],
    rank: int,
    size: int,
    name: str,
    store: dist.Store,
    gloo: dist.Store,
    timeout: timedelta,
) -> dict[str, Any]:
    """What all ranks of the new group make: occl or not, why not, the devices that stay Gloo's, and the first
    rank that asked for occl.

    Args:
        asked: the backend by device type.
        gloo: the store in which the group's Gloo would store addresses.
    """
    kept = ["cuda"] if asked.get("cuda") == "gloo" and torch.cuda.is_available() else []
    mixed = kept and "gloo" in _originals and set(asked.values()) != {"gloo"}
    vote = {
        "cannot": f"Gloo serves CUDA tensors too in {config(asked)}" if mixed else agreement.why_not(size),
        "place": agreement.place(),
        "version": versions.name_of_build(torch.__version__),
        "kept": kept,
    }
    if size == 1:
        choice = agreement.outcome([vote])
    else:
        with nullcontext() if vote["cannot"] else _watched(rank, size, name, timeout):
            choice = agreement.agree(store, gloo, vote, rank, size, name, timeout)
    if choice["occl"] and choice["places"]:
        # On one host nothing asks for the address of its name, so it is a question of its own.
        between, vote = dist.PrefixStore("between nodes/", store), agreement.vote_between(choice["places"])
        choice |= agreement.agree(
            between, gloo, vote, rank, size, name, timeout, follows=agreement.outcome_between
        )
    place_notices.tell(name, rank, size, choice)
    return choice


def _watched(rank: int, size: int, name: str, timeout: timedelta) -> AbstractContextManager[None]:
    """While ranks agree, a long wait is noticed, as it is while they make a group of occl."""
    from occl.distributed import long_waits  # loads the extension, which this process can

    return long_waits.joining(rank, size, name, timeout.total_seconds())
