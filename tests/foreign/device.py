"""Loads the device that stands in for another package's accelerator (``device.cpp``), as such a package does:
its library, its name, and its module.

    from tests.foreign import device  # torch.device("foreign:0")
"""

from __future__ import annotations

import atexit
import os
import shlex
import subprocess
import sysconfig
import types
from pathlib import Path

import torch
from torch.utils.cpp_extension import include_paths

from tests.support import cpp_build

LIBRARY = cpp_build.ROOT / "build" / "foreign" / "device.so"
NAME = "foreign"


def build() -> Path:
    """Brings the library up to date."""
    LIBRARY.parent.mkdir(parents=True, exist_ok=True)
    includes = [f"-isystem{path}" for path in [*include_paths(), sysconfig.get_path("include")]]
    flags = ["-O1", "-fPIC", "-std=c++20", "-Wall", "-Wextra", "-Wno-unused-parameter", *includes]
    compiler = shlex.split(cpp_build.compiler())
    source, made = Path(__file__).with_suffix(".cpp"), LIBRARY.with_suffix(f".{os.getpid()}.o")
    subprocess.run([*compiler, *flags, "-c", source, "-o", made], check=True)
    linked = made.with_suffix(".so")
    subprocess.run([*compiler, "-shared", made, *cpp_build.torch_libraries(), "-o", linked], check=True)
    made.unlink()
    linked.rename(LIBRARY)  # another process may be loading the one that was there
    return LIBRARY


def load() -> None:
    """Makes the device that of this process."""
    torch.ops.load_library(str(LIBRARY))
    torch.utils.rename_privateuse1_backend(NAME)
    module = types.ModuleType(f"torch.{NAME}")
    module.is_available = torch.accelerator.is_available  # type: ignore[attr-defined]
    module.device_count = torch.accelerator.device_count  # type: ignore[attr-defined]
    module.current_device = torch.accelerator.current_device_index  # type: ignore[attr-defined]
    module.set_device = torch.accelerator.set_device_index  # type: ignore[attr-defined]
    module.synchronize = torch.accelerator.synchronize  # type: ignore[attr-defined]
    module._is_in_bad_fork = lambda: False  # type: ignore[attr-defined]
    torch._register_device_module(NAME, module)
    torch.utils.generate_methods_for_privateuse1_backend()
    atexit.register(lambda: [torch.accelerator.synchronize(index) for index in range(2)])
