"""Runs tests that are written for GPUs and NCCL on ``dev`` and occl, as they are: ``install`` in a conftest.

Modules are rewritten when they are imported (`gpu_rewriting`): in pytest's process, and in processes that the
tests spawn, such as the ranks of ``MultiProcessTestCase``.
"""

from __future__ import annotations

import ast
import importlib
import importlib.machinery
import multiprocessing.spawn
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from occl.testing.gpu import rewriting


@dataclass(frozen=True)
class Settings:
    """What is rewritten and how, as it travels to spawned processes."""

    folder: str
    modules: tuple[str, ...]
    device: str
    backend: str
    opened: frozenset[str]

    def __reduce__(self) -> Any:
        # A spawned process unpickles what `get_preparation_data` returns before it imports any test.
        return _installed, tuple(vars(self).values())


def install(
    folder: str | Path,
    *,
    modules: Collection[str] = (),
    device: str = "dev",
    backend: str = "occl",
    opened: Collection[str] = (),
) -> None:
    """Rewrites the tests of a folder from now on. Call it in its ``conftest.py``, before they are imported.

    Args:
        folder: the tests; all modules in it, and in its folders, are rewritten.
        modules: names of installed modules that are rewritten too, such as a project's helpers for tests.
        device: what "cuda" becomes: "dev", or "cpu".
        backend: what "nccl" becomes (on "cpu": what "gloo" becomes).
        opened: names of further decorators that are dropped, beside `rewriting.OPENED`.

    Raises:
        ValueError: the folder does not exist, the device is another one, or a module of the folder has been
            imported already.
    """
    path = Path(folder).absolute()
    if not path.is_dir():
        raise ValueError(f"gpu_suites.install: there is no folder {path}: pass Path(__file__).parent")
    if device not in ("dev", "cpu"):
        raise ValueError(f'gpu_suites.install: device must be "dev" or "cpu", not {device!r}')
    settings = Settings(str(path), tuple(modules), device, backend, rewriting.OPENED | frozenset(opened))
    early = [name for name, module in sys.modules.items() if _is_rewritten(settings, name, _file(module))]
    if early:
        raise ValueError(
            f"gpu_suites.install: {', '.join(early)} has been imported already and cannot be rewritten: call "
            "install at the beginning of the outermost conftest.py"
        )
    _install(settings)


def _file(module: ModuleType) -> str | None:
    return getattr(module, "__file__", None)


def _is_rewritten(settings: Settings, name: str, file: str | None) -> bool:
    if name in settings.modules:
        return True
    inside = file is not None and file.endswith(".py") and Path(file).is_relative_to(settings.folder)
    return inside and Path(file or "").name != "conftest.py"


def _installed(*values: Any) -> Settings:
    """In a spawned process."""
    settings = Settings(*values)
    _install(settings)
    return settings


def _install(settings: Settings) -> None:
    importlib.import_module("torch_occl")
    sys.meta_path.insert(0, _Finder(settings))
    original = multiprocessing.spawn.get_preparation_data

    def get_preparation_data(name: str) -> dict[str, Any]:
        return {f"torch_occl {len(sys.meta_path)}": settings} | original(name)

    multiprocessing.spawn.get_preparation_data = get_preparation_data
    if settings.device == "dev":
        _set_device_of_fsdp(settings.device, settings.backend)


def _set_device_of_fsdp(device: str, backend: str) -> None:
    """``common_fsdp`` knows CUDA, HPU and XPU by name, and takes the CPU for everything else."""
    import torch
    from torch.testing._internal import common_fsdp

    common_fsdp.DEVICE_TYPE = device
    common_fsdp.DISTRIBUTED_BACKEND = backend
    common_fsdp.DEVICE_COUNT = torch.accelerator.device_count()
    common_fsdp.TEST_CUDA = True  # devices have numbers, and each rank makes its own the current one


class _Finder:
    """Finds modules as Python does, and gives those of the tests another loader."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.origin is None or not _is_rewritten(self.settings, name, spec.origin):
            return None
        spec.loader = _Loader(self.settings, name, spec.origin)
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    """Reads and writes no cache, whose name would be that of the module as it is."""

    def __init__(self, settings: Settings, name: str, path: str) -> None:
        super().__init__(name, path)
        self.settings = settings

    def get_code(self, fullname: str) -> CodeType:
        settings = self.settings
        path = self.get_filename(fullname)
        source = self.get_data(path)
        tree = rewriting.Rewriter(settings.device, settings.backend, settings.opened).visit(
            ast.parse(source, path)
        )
        ast.fix_missing_locations(tree)
        if "_pytest.assertion.rewrite" in sys.modules:  # assertions say what they compared, as always
            from _pytest.assertion.rewrite import rewrite_asserts

            rewrite_asserts(tree, source, path)
        return compile(tree, path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        import torch

        from occl.testing.gpu import names

        count = torch.accelerator.device_count()
        vars(module).update(names.names(self.settings.device, count))
        super().exec_module(module)
