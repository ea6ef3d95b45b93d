"""Loads the device of examples/backend_template (``my_device``) as another package's accelerator.

from tests.foreign import device  # torch.device("foreign:0")
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import shlex
import subprocess
import sysconfig

import torch
from torch.utils.cpp_extension import include_paths

from tests.support import cpp_build

PACKAGE = cpp_build.ROOT / "examples" / "backend_template" / "my_device"
SOURCES = sorted(PACKAGE.glob("*.[ch]*"))
_KEY = hashlib.sha256(
    b"".join(path.read_bytes() for path in SOURCES) + torch.__version__.encode()
).hexdigest()[:16]
LIBRARY = cpp_build.ROOT / "build" / "foreign" / f"device-{_KEY}.so"
NAME = "foreign"


def build() -> None:
    """Makes the library, which stays under ``build`` until the sources change."""
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
    subprocess.run([*compiler, *flags, "-c", PACKAGE / "device.cpp", "-o", made], check=True)
    subprocess.run([*compiler, "-shared", made, *cpp_build.torch_libraries(), "-o", linked], check=True)
    made.unlink()
    linked.rename(LIBRARY)


def load() -> None:
    """Makes the device that of this process."""
    spec = importlib.util.spec_from_file_location("my_device_loading", PACKAGE / "loading.py")
    assert spec is not None and spec.loader is not None
    loading = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loading)
    loading.load(LIBRARY, NAME)
