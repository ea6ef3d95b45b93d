"""Collective communication for PyTorch on one host, over shared memory, and the device ``dev`` to run it on.

Importing this package (or, through autoload, just ``import torch``) registers

* the PrivateUse1 device ``dev`` (``torch.device("dev:0")``, ``torch.dev``), and
* the ``torch.distributed`` backend ``occl`` for ``dev`` and CPU tensors.
"""

import torch

from torch_occl import _versions

_versions.check(torch.__version__)

from torch_occl import _backend, _device  # noqa: E402

if _device.register():
    _backend.register(["dev", "cpu"])
else:
    _backend.register(["cpu"])
