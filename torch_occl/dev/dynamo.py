"""The entries of ``dev`` in torch.compile's tables, made once a program imports them."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch

from torch_occl import dev
from torch_occl.dev import inductor, streams


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function after a module has been imported, without importing it: it is expensive."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self.name, self.then = name, then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is None or spec.loader is None:
            return None
        execute, then = spec.loader.exec_module, self.then

        def exec_module(module: ModuleType) -> None:
            execute(module)
            then(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _register_with_dynamo(module: Any) -> None:
    class DevInterface(module.DeviceInterface):  # type: ignore[misc]
        """``dev`` for the compiler."""

        device = dev.device
        Event = dev.Event
        Stream = dev.Stream

        class Worker:
            set_device = staticmethod(dev.set_device)
            current_device = staticmethod(dev.current_device)
            get_device_properties = staticmethod(dev.get_device_properties)

        current_device = staticmethod(dev.current_device)
        current_stream = staticmethod(dev.current_stream)
        device_count = staticmethod(dev.device_count)
        exchange_device = staticmethod(dev._exchange_device)
        get_compute_capability = staticmethod(dev.get_device_capability)
        is_available = staticmethod(dev.is_available)
        is_bf16_supported = staticmethod(dev.is_bf16_supported)
        maybe_exchange_device = staticmethod(dev._maybe_exchange_device)
        memory_allocated = staticmethod(dev.memory_allocated)
        set_device = staticmethod(dev.set_device)
        set_stream = staticmethod(dev.set_stream)
        _set_stream_by_id = staticmethod(streams._set_stream_by_id)
        stream = staticmethod(dev.stream)
        synchronize = staticmethod(dev.synchronize)

        @staticmethod
        def get_raw_stream(device_idx: int) -> int:
            return dev.current_stream(device_idx).stream_id

        @staticmethod
        def is_dtype_supported(dtype: torch.dtype, including_emulation: bool = False) -> bool:
            return True

    module.register_interface_for_device("dev", DevInterface)
    for index in range(dev.device_count()):
        module.register_interface_for_device(f"dev:{index}", DevInterface)


def _tell_dynamo_about_functions(module: Any) -> None:
    module.assume_constant_result(dev.device_count)
    module.skip(streams._current_stream)
    context = dev.StreamContext
    for function in (dev.set_stream, context.__enter__, context.__exit__):
        module.skip(function)  # a compiled one would set the stream at compile time, not when the graph runs


def install() -> None:
    """Called once, after ``torch.dev`` has been registered."""
    for name, then in (
        ("torch._dynamo.device_interface", _register_with_dynamo),
        ("torch._dynamo.decorators", _tell_dynamo_about_functions),
        ("torch._inductor.compile_fx", inductor.register_with_inductor),
    ):
        if name in sys.modules:
            then(sys.modules[name])
        else:
            sys.meta_path.insert(0, _AfterImport(name, then))
