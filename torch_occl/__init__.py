"""Collective communication for PyTorch on one host, over shared memory, and the device ``dev`` to run it on.

Importing this package registers

* the PrivateUse1 device ``dev`` (``torch.device("dev:0")``, ``torch.dev``), unless ``OCCL_DEVICE=0`` is set
  or another package has that device type, and
* the ``torch.distributed`` backend ``occl`` for ``dev`` and CPU tensors.

Where the package is installed, ``import torch`` alone registers the backend for CPU tensors.

``python -m torch_occl`` imports it too, and registers nothing: ``doctor`` must run where PyTorch or the
extension cannot be loaded.
"""

import sys

from torch_occl import _command, _versions

__all__ = []
if not _command.starting():
    import torch.distributed

    _versions.check_running()

    from torch_occl import _C, _privateuse1  # noqa: F401  (_C may have been loaded before the package)

    _name = _privateuse1.register()

    if torch.distributed.is_available():  # some PyTorch is built without it, and has only the device then
        from torch_occl import _backend

        _backend.register(_name)

        from torch_occl._C import ArgumentError, ProcessGroupOCCL, WorkOCCL
        from torch_occl._groups import shrink_group
        from torch_occl._in_place_of import replace, replace_as_environment_says, serves
        from torch_occl._shared import (
            empty_shared,
            memory_stats,
            share_as_environment_says,
            share_cpu_memory,
        )
        from torch_occl._stats import OperationStats, stats
        from torch_occl._tracing import trace

        share_as_environment_says()
        replace_as_environment_says()
        __all__ += ["ArgumentError", "ProcessGroupOCCL", "WorkOCCL", "empty_shared", "memory_stats"]
        __all__ += [
            "OperationStats",
            "replace",
            "serves",
            "share_cpu_memory",
            "shrink_group",
            "stats",
            "trace",
        ]
    if (_loaded := sys.modules.get("torch_occl.testing")) is not None:  # by pytest, without this package
        testing = _loaded
__version__ = _versions.VERSION
