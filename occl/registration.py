"""The entry point that ``import torch`` calls if torch_occl is installed (group ``torch.backends``).

It registers the name ``occl`` for CPU tensors and nothing else: the device, and all that it changes, comes
with ``import torch_occl``. An exception of an entry point would end ``import torch``, so each becomes a
warning, and the library is loaded when the first group is made.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from occl import variables, versions

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Backend as C10dBackend


def autoload() -> None:
    """Registers the backend's name and does what variables ask for, or with ``OCCL_DEVICE=1`` imports
    torch_occl."""
    import torch.distributed as dist

    variables.warn_of_unknown()
    device = ""
    with or_warn("torch_occl makes no device:"):
        device = variables.device()
    if device == "1":
        with or_warn("torch_occl could not be loaded, and is not available:"):
            import torch_occl  # noqa: F401
    elif dist.is_available():
        with or_warn("torch_occl could not be registered, and is not available:"):
            if "occl" not in dist.Backend.backend_list:
                register(create, ["cpu"])
        with or_warn("torch_occl does not share CPU tensors:"):
            if variables.least_shared():
                versions.check_running()
                from occl.memory import share_as_environment_says

                share_as_environment_says()
        with or_warn("torch_occl does not take the place of Gloo:"):
            if variables.in_place_of():
                from occl.distributed import alone, gloo

                gloo.replace_as_environment_says()
                alone.watch()


@contextlib.contextmanager
def or_warn(failure: str) -> Iterator[None]:
    """Makes a warning of any exception."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  (everything: see above)
        warnings.warn(f"{failure} {error}", RuntimeWarning, stacklevel=4)  # 4: of `import torch`


def create(opts: Any, options: Any = None) -> C10dBackend:
    """The factory that makes the first group of a process that has not imported torch_occl."""
    from occl.distributed import backend

    return backend.create(opts, options)


def register(factory: Callable[..., C10dBackend], devices: list[str]) -> None:
    """Registers ``occl`` for these device types, and replaces an earlier registration of this package."""
    import torch.distributed as dist

    from occl import compat

    dist.Backend.register_backend("occl", factory, extended_api=True, devices=devices)
    compat.name_by_default_backend("occl")
    compat.records_itself("occl")


def registered() -> bool:
    """Whether the backend named ``occl`` is torch_occl's."""
    import torch.distributed as dist

    plugin = dist.Backend._plugins.get("OCCL")
    return plugin is not None and plugin.creator_fn.__module__ in (__name__, "occl.distributed.backend")
