"""Collective communication for PyTorch on one host, over shared memory, and the device ``dev`` to run it on.

Importing this package (or, through autoload, just ``import torch``) registers

* the PrivateUse1 device ``dev`` (``torch.device("dev:0")``, ``torch.dev``), and
* the ``torch.distributed`` backend ``occl`` for ``dev`` and CPU tensors.
"""

import torch

from torch_occl import _versions

_versions.check(torch.__version__)

from torch_occl import _backend, _device  # noqa: E402

_backend.register(_device.register())

from torch_occl._C import ProcessGroupOCCL, WorkOCCL  # noqa: E402
from torch_occl._groups import shrink_group  # noqa: E402
from torch_occl._memory import empty_shared  # noqa: E402

__all__ = ["ProcessGroupOCCL", "WorkOCCL", "empty_shared", "shrink_group"]
__version__ = "0.1.0"
