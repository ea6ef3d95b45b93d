"""Loads the device's library, and gives it a name and a module."""

from __future__ import annotations

import atexit
import types
from pathlib import Path

import torch

DEVICES = 2


def _set_device(number: int) -> None:
    if not isinstance(number, int):
        raise TypeError("set_device takes a number")
    torch.accelerator.set_device_index(number)


def _offered(name: str) -> dict[str, object]:
    """The device's module: no more than programs need, as of some packages. It has no ``synchronize``."""
    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: DEVICES,
        "current_device": torch.accelerator.current_device_index,
        "set_device": _set_device,
        "current_stream": torch.accelerator.current_stream,
        "stream": lambda stream: stream,  # a stream is its own context manager
        "Stream": lambda priority=0: torch.Stream(name),
        "Event": lambda: torch.Event(name),
        "_is_in_bad_fork": lambda: False,
        "manual_seed_all": lambda seed: None,
    }


def load(library: Path, name: str) -> None:
    """Makes the device that of this process.

    Raises:
        RuntimeError: the process has another package's device.
    """
    taken = torch._C._get_privateuse1_backend_name()
    if taken not in ("privateuseone", name):
        raise RuntimeError(
            f"This process has a device of another package, {taken!r}, and PyTorch has one place for such "
            f"devices. Import one of the two packages only."
        )
    torch.ops.load_library(str(library))
    torch.utils.rename_privateuse1_backend(name)
    module = types.ModuleType(f"torch.{name}")
    vars(module).update(_offered(name))
    torch._register_device_module(name, module)
    torch.utils.generate_methods_for_privateuse1_backend()
    atexit.register(lambda: [torch.accelerator.synchronize(index) for index in range(DEVICES)])


def make() -> None:
    """Makes this package's device, once in a process.

    Raises:
        ImportError: the extension has not been built.
    """
    if hasattr(torch, "my_device"):
        return
    library = next(Path(__file__).parent.glob("_C.*.so"), None)
    if library is None:
        raise ImportError("my_device has no extension yet: run `pip install --no-build-isolation -e .`")
    load(library, "my_device")
