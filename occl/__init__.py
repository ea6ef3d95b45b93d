"""All of torch_occl but the device ``dev``: importing it imports no PyTorch.

| package | what it holds |
|---|---|
| ``distributed`` | the backend ``occl``, the place of Gloo, groups, statistics, traces |
| ``testing`` | tests of several ranks with pytest |
| ``conformance`` | a suite for backends of ``torch.distributed`` |
| ``bench`` | measurements of collectives |
| ``tools`` | ``occl doctor``, ``occl top``, ``occl report``: they run without PyTorch |

``import torch_occl`` makes the device, and offers the functions that programs use. Programs that have no use
for the device find those that need none here, and PyTorch is imported when the first of them is asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from occl.versions import VERSION as __version__
from occl.versions import check_backend

if TYPE_CHECKING:
    from occl.deprecated import memory_stats as memory_stats
    from occl.deprecated import replace as replace
    from occl.deprecated import serves as serves
    from occl.distributed.gloo import replace_gloo, uses_occl
    from occl.distributed.groups import shrink_group
    from occl.distributed.stats import OperationStats, stats
    from occl.distributed.tracing import trace
    from occl.distributed.windows import new_window, supports_window
    from occl.memory import empty_shared, share_cpu_memory, shared_cpu_memory_stats
    from occl.notebook import launch
    from occl.sharing import share_

_FROM = {
    "OperationStats": "distributed.stats",
    "empty_shared": "memory",
    "launch": "notebook",
    "memory_stats": "deprecated",
    "new_window": "distributed.windows",
    "replace": "deprecated",
    "replace_gloo": "distributed.gloo",
    "serves": "deprecated",
    "share_": "sharing",
    "share_cpu_memory": "memory",
    "shared_cpu_memory_stats": "memory",
    "shrink_group": "distributed.groups",
    "stats": "distributed.stats",
    "supports_window": "distributed.windows",
    "trace": "distributed.tracing",
    "uses_occl": "distributed.gloo",
}
"""The module of each function, below this package."""

__all__ = [
    "OperationStats",
    "__version__",
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


def __getattr__(name: str) -> Any:
    if name in _FROM:
        if name != "launch":
            check_backend(f"occl.{name}")
        return getattr(importlib.import_module(f"occl.{_FROM[name]}"), name)
    raise AttributeError(f"module 'occl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_FROM])
