"""The entry points that PyTorch calls if torch_occl is installed.

``autoload`` (group ``torch.backends``) is called by ``import torch``. It registers the backend's names for
CPU tensors and nothing else: the device, and all that it changes, comes with ``import torch_occl``. An
exception of this entry point would end ``import torch``, so each becomes a warning, and the library is loaded
when the first group is made.

The backend is called ``occl``, and ``torch_occl`` too: another package may have taken the first name, as
PyTorch's test package torch_openreg does.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from occl import variables, versions

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Backend as C10dBackend

NAMES = ("occl", "torch_occl")
"""Of the backend."""


def autoload() -> None:
    """Registers the backend's names and does what variables ask for, or with ``OCCL_DEVICE=1`` imports
    torch_occl."""
    import torch.distributed as dist

    variables.warn()
    wanted = False
    with or_warn("torch_occl makes no device:"):
        wanted = variables.device() == "1" and not variables.wrong(os.environ) and comes_last()
    if wanted:
        with or_warn("torch_occl could not be loaded, and is not available:"):
            import torch_occl  # noqa: F401
    elif dist.is_available():
        with or_warn("torch_occl could not be registered, and is not available:"):
            if not names():
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


def comes_last() -> bool:
    """Whether PyTorch loads no other package after this one. Such a package may have a device of its own, and
    would end ``import torch`` if PrivateUse1 were taken. Warns where ``OCCL_DEVICE=1`` makes no device."""
    import torch

    modules = [point.module for point in entry_points(group="torch.backends")]
    later = modules[modules.index(__name__) + 1 :] if __name__ in modules else []
    device = torch._C._get_privateuse1_backend_name()
    why = ""
    if later:
        packages = " and ".join(sorted({module.partition(".")[0] for module in later}))
        why = f"PyTorch loads {packages} after this package, and that may make one; import torch_occl then"
    elif device != "privateuseone":
        why = f"PrivateUse1 is the device {device} of another package"
    if why:
        warnings.warn(f"OCCL_DEVICE=1 makes no device: {why}", RuntimeWarning, stacklevel=3)
    return not later


def register_name() -> None:
    """Registers the backend's names when a program asks for one, where autoload is off (group
    ``torch.distributed.backends``, which PyTorch reads from 2.14 on)."""
    register(create, ["cpu"])


@contextlib.contextmanager
def or_warn(failure: str) -> Iterator[None]:
    """Makes a warning of any exception."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  (everything: see above)
        warnings.warn(f"{failure} {error}", RuntimeWarning, stacklevel=4)  # 4: of `import torch`


def create(opts: Any, options: Any = None) -> C10dBackend:
    """The factory that makes the first group of a process that has not imported torch_occl."""
    versions.check_backend("the backend occl")
    from occl.distributed import backend

    return backend.create(opts, options)


def register(factory: Callable[..., C10dBackend], devices: list[str]) -> None:
    """Registers the backend for these device types, and replaces an earlier registration of this package.

    Warns if another package has the name ``occl``, which it keeps.
    """
    import torch.distributed as dist

    from occl import compat

    for name in NAMES:
        if owner(name) in ("", __package__):
            dist.Backend.register_backend(name, factory, extended_api=True, devices=list(devices))
            compat.records_itself(name)
    compat.name_by_default_backend(names()[0])
    if NAMES[0] not in names():
        warnings.warn(
            f"the package {owner(NAMES[0])} has registered a torch.distributed backend named {NAMES[0]!r}, "
            f"which stays; the one of torch_occl is named {NAMES[1]!r}",
            RuntimeWarning,
            stacklevel=4,  # of `import torch` or `import torch_occl`
        )


def owner(name: str) -> str:
    """The package that has registered a backend of this name; "" if there is none."""
    import torch.distributed as dist

    plugin = dist.Backend._plugins.get(name.upper())
    module = getattr(plugin.creator_fn, "__module__", None) or "<unknown>" if plugin else ""
    return module.partition(".")[0]


def of_packages(backends: Iterable[str]) -> list[str]:
    """Those of these backends that packages other than PyTorch and this one have registered. Of them, and of
    ours, PyTorch keeps one in a group: the first."""
    import torch.distributed as dist

    kinds, custom = dist.Backend.backend_type_map, dist.ProcessGroup.BackendType.CUSTOM
    return sorted({name for name in backends if kinds.get(name) == custom} - {*names()})


def names() -> list[str]:
    """Those under which this package's backend is registered."""
    return [name for name in NAMES if owner(name) == __package__]


def of_ours(backends: Iterable[str]) -> list[str]:
    """Those of these backends that are names of this package's."""
    return [name for name in names() if name in backends]
