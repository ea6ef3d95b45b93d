"""Loads the device that stands in for another package's accelerator (``device.cpp``), as such a package does:
its library, its name, and its module.

    from tests.foreign import device  # torch.device("foreign:0")
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import shlex
import subprocess
import sysconfig
import types
from pathlib import Path

import torch
from torch.utils.cpp_extension import include_paths

from tests.support import cpp_build

SOURCE = Path(__file__).with_suffix(".cpp")
_KEY = hashlib.sha256(SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:16]
LIBRARY = cpp_build.ROOT / "build" / "foreign" / f"device-{_KEY}.so"
NAME = "foreign"
DEVICES = 2


def _set_device(number: int) -> None:
    if not isinstance(number, int):
        raise TypeError("torch.foreign.set_device takes a number")
    torch.accelerator.set_device_index(number)


OFFERED = {
    "is_available": lambda: True,
    "is_initialized": lambda: True,
    "device_count": lambda: DEVICES,
    "current_device": torch.accelerator.current_device_index,
    "set_device": _set_device,
    "current_stream": torch.accelerator.current_stream,
    "stream": lambda stream: stream,  # a stream is its own context manager
    "Stream": lambda priority=0: torch.Stream(NAME),
    "Event": lambda: torch.Event(NAME),
    "_is_in_bad_fork": lambda: False,
    "manual_seed_all": lambda seed: None,
}
"""The device's module: no more than programs need, as of some packages. It has no ``synchronize``."""


def build() -> None:
    """Makes the library, which stays under ``build`` until the source changes."""
    LIBRARY.parent.mkdir(parents=True, exist_ok=True)
    with open(LIBRARY.parent / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other processes of the tests want it too
        if not LIBRARY.exists():
            _compile()


def _compile() -> None:
    includes = [f"-isystem{path}" for path in [*include_paths(), sysconfig.get_path("include")]]
    flags = ["-O1", "-fPIC", "-std=c++20", "-Wall", "-Wextra", "-Wno-unused-parameter", *includes]
    compiler = shlex.split(cpp_build.compiler())
    made, linked = LIBRARY.with_suffix(".o"), LIBRARY.with_suffix(".new")
    subprocess.run([*compiler, *flags, "-c", SOURCE, "-o", made], check=True)
    subprocess.run([*compiler, "-shared", made, *cpp_build.torch_libraries(), "-o", linked], check=True)
    made.unlink()
    linked.rename(LIBRARY)


def load() -> None:
    """Makes the device that of this process."""
    torch.ops.load_library(str(LIBRARY))
    torch.utils.rename_privateuse1_backend(NAME)
    module = types.ModuleType(f"torch.{NAME}")
    vars(module).update(OFFERED)
    torch._register_device_module(NAME, module)
    torch.utils.generate_methods_for_privateuse1_backend()
    atexit.register(lambda: [torch.accelerator.synchronize(index) for index in range(DEVICES)])
