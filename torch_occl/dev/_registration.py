"""Makes the device ``dev`` known to PyTorch, unless PrivateUse1 belongs to another package."""

from __future__ import annotations

import sys

import torch
import torch.distributed

from occl import variables

NAME = "dev"
"""What PrivateUse1 is called: ``torch.device("dev:0")``, ``torch.dev``, ``tensor.dev()``."""

_registered = False


def register() -> str | None:
    """Registers the device and returns the name of the PrivateUse1 device of this process.

    That is ``"dev"``; or the name that another package gave to PrivateUse1 before, in which case nothing is
    registered; or None if ``OCCL_DEVICE=0`` and no other package has claimed PrivateUse1. A process
    has one PrivateUse1 device: the first package to claim it keeps it.

    Raises:
        ValueError: ``OCCL_DEVICE_COUNT`` is not a number from 1 to 64, or ``OCCL_MEMORY_FRACTION`` not one
            above 0 and at most 1.
    """
    global _registered
    if _registered:
        return NAME
    current = torch._C._get_privateuse1_backend_name()
    from occl import _C

    if current != "privateuseone" or _C._device_taken():
        return current
    if variables.device() == "0":
        return None
    _C._init_device(_C._init_device_groups if torch.distributed.is_available() else lambda: None)
    torch.utils.rename_privateuse1_backend(NAME)
    from torch_occl import dev
    from torch_occl.dev import dynamo

    torch._register_device_module(NAME, dev)
    # PyTorch's function enters the package into sys.modules as "torch.dev" (torch/__init__.py: `sys.modules[
    # torch_module_name] = module`). `import torch.dev.memory` would find its file through the package's
    # __path__ and run it a second time under that name. With these entries both names are one module.
    for name in [name for name in sys.modules if name.startswith("torch_occl.dev.")]:
        sys.modules[name.replace("torch_occl", "torch", 1)] = sys.modules[name]
    torch.utils.generate_methods_for_privateuse1_backend(for_tensor=True, for_module=True, for_storage=True)
    dev.interchange.install()
    dynamo.install()
    _registered = True
    return NAME


def registered() -> bool:
    """Whether ``dev`` is the PrivateUse1 device of this process."""
    return _registered
