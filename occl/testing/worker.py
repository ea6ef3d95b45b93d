"""A test in one rank: from what the pytest process has sent to how the test's function ends."""

from __future__ import annotations

import importlib
import os
import pickle
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from occl.testing import coverage, debugger, inject, leftovers, modules, serialize
from occl.testing.child import Described, find
from occl.testing.faults import Fault
from occl.testing.options import Options
from occl.testing.outcomes import WrongUse
from occl.testing.rank import make_group, set_variables
from occl.testing.tcp_cut import Meeting

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Place:
    """What a process must have before it can run a function: the same wherever the function is found."""

    sources: tuple[modules.Source, ...]
    path: tuple[str, ...]
    folder: str
    environment: tuple[tuple[str, str], ...]
    dev: bool
    """Whether the device ``dev`` is made."""


@dataclass(frozen=True)
class Call:
    """A function with its arguments, as it travels to the ranks."""

    place: Place
    module: str
    function: str
    arguments: Mapping[str, bytes]
    wanted: tuple[str, ...]
    """The names of arguments that each rank has its own of."""
    options: Options
    store: str
    style: str
    """How tracebacks are shown: pytest's ``--tb``."""
    locals: bool
    debugged: int | None
    """The rank that gets the terminal."""
    coverage: coverage.Settings | None
    faults: tuple[Fault, ...]
    """Those that the pytest process has planned."""


def prepare(place: Place) -> None:
    """In the warm process, once for all tests of a module: imports it.

    Raises:
        WrongUse: the module, or a ``conftest.py``, cannot be imported here.
    """
    settle(place)
    for source in place.sources:
        try:
            modules.load(source)
        except BaseException as error:  # noqa: BLE001 the user sees it, and a module may also skip itself
            where = shown(error, "short")
            raise WrongUse(
                f"The processes of the ranks cannot import {source.file or source.name}, which pytest could. "
                "Let the import depend on nothing that only the pytest process has, or use start='spawn' if "
                f"it must not happen in a process that is forked later.\n{where}"
            ) from None


def settle(place: Place) -> None:
    """The working directory, the path and the variables of the pytest process; the device, if asked for.

    Raises:
        WrongUse: there is no such device.
    """
    sys.path[:] = place.path
    os.environ.clear()
    os.environ.update(place.environment)
    os.chdir(place.folder)
    if place.dev:
        try:
            importlib.import_module("torch_occl")
        except ModuleNotFoundError as error:
            raise WrongUse(
                f'device="dev" is the device of torch_occl, which is not installed here ({error}): install '
                "it in the place of torch_occl_kits, or use another device"
            ) from None


def run(rank: int, world_size: int, device: str, *, sent: bytes) -> tuple[bytes, str]:
    """Runs the function; returns what it returned, pickled, and what it has left behind in a kept rank.

    Raises:
        Described: it raised.
    """
    call: Call = pickle.loads(sent)
    try:
        prepare(call.place)
        debugger.take(call.debugged, rank)
        with coverage.measured(call.coverage, serialize.tell), inject.told():
            result, left = _call(rank, device, call)
        return pickle.dumps(result), left
    except BaseException as error:  # noqa: BLE001 KeyboardInterrupt and SystemExit are the test's business too
        if call.debugged == rank and not isinstance(error, pytest.skip.Exception):
            debugger.post_mortem(error)
        raise Described(
            raised=f"{type(error).__name__}: {error}",
            traceback="" if isinstance(error, WrongUse) else shown(error, call.style, call.locals),
            skipped=getattr(error, "msg", "") if isinstance(error, pytest.skip.Exception) else None,
            xfailed=getattr(error, "msg", "") if isinstance(error, pytest.xfail.Exception) else None,
        ) from None


def _call(rank: int, device_name: str, call: Call) -> tuple[Any, str]:
    options = call.options
    set_variables(rank, options.world_size)
    device = device_of(device_name, rank)
    meeting = Meeting(rank, options.world_size, f"{call.store}-faults", options.group_timeout)
    serialize.here.update(rank=rank, world_size=options.world_size, device=device, meeting=meeting)
    arguments = serialize.unpacked(call.arguments)
    arguments |= {name: serialize.here[name] for name in call.wanted}
    if options.group and not (options.keep and _has_group()):
        make_group(rank, options, device, call.store)
    for fault in call.faults:
        inject.plan(fault)
    before = leftovers.state() if options.keep else None
    result = bound(call, arguments)(**arguments)
    return result, before.changes(leftovers.state()) if before else ""


def _has_group() -> bool:
    """Whether an earlier test of this rank has made the default group."""
    import torch.distributed as dist

    return dist.is_initialized()


def bound(call: Call, arguments: dict[str, Any]) -> Callable[..., Any]:
    """The function; of a method's ``self`` the pytest process has sent a copy, as another argument."""
    function = find(call.module, call.function)
    if "self" in arguments:
        method: Callable[..., Any] = function.__get__(arguments.pop("self"))
        return method
    return function


def device_of(name: str, rank: int) -> torch.device:
    """The device of this rank, made current: of an accelerator, the rank's own as far as there are enough."""
    import torch

    device = torch.device(name)
    if device.type in ("cpu", "meta"):
        return device
    module = getattr(torch, device.type, None)  # some packages' have not all of this
    if device.index is None:
        count = getattr(module, "device_count", torch.accelerator.device_count)()
        if not count:
            raise WrongUse(f"There is no device of type {device.type!r} here.")
        device = torch.device(device.type, rank % count)
    set_device = getattr(module, "set_device", torch.accelerator.set_device_index)
    set_device(device.index)  # some take only a number
    return device


def shown(error: BaseException, style: str, show_locals: bool = False) -> str:
    """As pytest shows it, without the frames of this package and of the import that lead to the test's."""
    trace = error.__traceback__
    while trace is not None and (
        trace.tb_frame.f_globals.get("__package__") == __package__
        or trace.tb_frame.f_code.co_filename.startswith("<frozen importlib")
    ):
        trace = trace.tb_next
    info = pytest.ExceptionInfo.from_exception(error.with_traceback(trace or error.__traceback__))
    chosen: Any = style if style in ("long", "native") else "short"
    return str(info.getrepr(style=chosen, showlocals=show_locals))
