"""Modules of the pytest process, imported by the same names from the same files in another process.

pytest can import a test module in ways that a plain ``import`` does not repeat (import mode ``importlib``,
two ``conftest.py``), and rewrites its assertions. So each module is sent as a `Source`: its file, and
whether its assertions are rewritten.
"""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType

from _pytest.assertion.rewrite import AssertionRewritingHook, rewrite_asserts


@dataclass(frozen=True)
class Source:
    """Where a module comes from."""

    name: str
    file: str | None
    """None for a package that is only a folder."""
    folders: tuple[str, ...] | None
    """Where a package looks for its modules; None for a module that is no package."""
    rewritten: bool
    """Whether pytest has rewritten its assertions, so that they say what was compared."""


class _Loader(importlib.machinery.SourceFileLoader):
    """Rewrites assertions as pytest does. Reads and writes no cache: both kinds would have one name."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        source = self.get_data(path)
        tree = ast.parse(source, path)
        rewrite_asserts(tree, source, path)
        return compile(tree, path, "exec", dont_inherit=True)


def sources(module: ModuleType) -> list[Source]:
    """A module of this process, after the packages that it lies in."""
    parts = module.__name__.split(".")
    names = [".".join(parts[: i + 1]) for i in range(len(parts))]
    chain = [sys.modules[name] for name in names[:-1] if name in sys.modules]
    return [_source(each) for each in (*chain, module)]


def _source(module: ModuleType) -> Source:
    file = getattr(module, "__file__", None)
    folders = getattr(module, "__path__", None)
    return Source(
        module.__name__,
        str(Path(file).absolute()) if file else None,
        None if folders is None else tuple(folders),
        isinstance(getattr(module, "__loader__", None), AssertionRewritingHook),
    )


def load(source: Source) -> None:
    """Imports the module, unless it is there. One of the same name from another file gives way."""
    there = sys.modules.get(source.name)
    if there is not None and _same_file(getattr(there, "__file__", None), source.file):
        return
    module = _made(source)
    sys.modules[source.name] = module
    try:
        if module.__spec__ is not None and module.__spec__.loader is not None:
            module.__spec__.loader.exec_module(module)
    except BaseException:
        del sys.modules[source.name]
        raise
    parent, _, name = source.name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], name, module)


def _same_file(one: str | None, other: str | None) -> bool:
    return one == other or (one is not None and other is not None and str(Path(one).absolute()) == other)


def _made(source: Source) -> ModuleType:
    folders = None if source.folders is None else list(source.folders)
    if source.file is None:
        module = ModuleType(source.name)
        module.__path__ = folders or []
        return module
    spec = importlib.util.spec_from_file_location(
        source.name,
        source.file,
        loader=_Loader(source.name, source.file) if source.rewritten else None,
        submodule_search_locations=folders,
    )
    if spec is None:
        raise ImportError(f"cannot import {source.name} from {source.file}")
    return importlib.util.module_from_spec(spec)
