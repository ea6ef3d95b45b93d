"""Collective communication for PyTorch over shared memory, and the device ``dev`` to run it on.

Importing this package registers

* the PrivateUse1 device ``dev`` (``torch.device("dev:0")``, ``torch.dev``), unless ``OCCL_DEVICE=0`` is set
  or another package has that device type, and
* the ``torch.distributed`` backend ``occl`` for ``dev`` and CPU tensors.

Where the package is installed, ``import torch`` alone registers the backend for CPU tensors. What must not
make the device is in the package ``occl``.
"""

import sys

from occl import variables, versions

try:
    import torch.distributed
except (ImportError, OSError) as error:
    raise ImportError(
        f"torch_occl needs PyTorch, which cannot be imported ({error}). "
        "Run occl doctor, which works without it."
    ) from error

try:
    versions.check_running()
except ImportError as error:
    raise ImportError(f"{error} Run occl doctor, which works without it.") from None

variables.check()

try:
    from occl import _C
except (ImportError, OSError) as error:
    raise ImportError(
        f"The extension of torch_occl cannot be loaded ({error}). Run occl doctor, which works without it."
    ) from error

sys.modules[f"{__name__}._C"] = _C  # the name under which programs and pickles know it

from torch_occl.dev import _registration  # noqa: E402

_name = _registration.register()

if torch.distributed.is_available():  # some PyTorch is built without it, and has only the device then
    from occl import (
        OperationStats,
        empty_shared,
        launch,
        new_window,
        replace_gloo,
        share_,
        share_cpu_memory,
        shared_cpu_memory_stats,
        shrink_group,
        stats,
        supports_window,
        trace,
        uses_occl,
    )
    from occl._C import ArgumentError, ProcessGroupOCCL, WorkOCCL
    from occl.deprecated import memory_stats, replace, serves  # noqa: F401
    from occl.distributed import backend, flight_recorder  # noqa: F401
    from occl.distributed.gloo import replace_as_environment_says
    from occl.memory import share_as_environment_says

    backend.register(_name, _registration.registered())
    share_as_environment_says()
    replace_as_environment_says()

__version__ = versions.VERSION
__all__ = [
    "ArgumentError",
    "OperationStats",
    "ProcessGroupOCCL",
    "WorkOCCL",
    "empty_shared",
    "launch",
    "new_window",
    "replace_gloo",
    "share_",
    "share_cpu_memory",
    "shared_cpu_memory_stats",
    "shrink_group",
    "stats",
    "supports_window",
    "trace",
    "uses_occl",
]
if not torch.distributed.is_available():
    __all__.clear()  # so that `from torch_occl import *` works there, too
