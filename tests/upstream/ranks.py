"""Runs one of PyTorch's tests in the processes of `tests.support.ranks`."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
import tempfile
import types
import unittest
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from torch.testing._internal import common_utils
from torch.testing._internal.common_distributed import TEST_SKIPS

import torch_occl

from . import rewriting, stand_ins


@functools.cache
def code(device: str, backend: str) -> types.CodeType:
    """The rewritten module, compiled: in the warm process, so that no rank needs to."""
    tree, path = rewriting.rewrite(device, backend), rewriting.source()[1]
    return compile(tree, path, "exec", dont_inherit=True)  # not our annotations from the future


def warm_up() -> None:
    """Called in the warm process: what all ranks would have to do, above all the module's imports."""
    before = dict(os.environ)
    os.environ.update(environment("nowhere", "occl", 1))
    for device in ("cpu", "dev"):
        load(device, "occl", 1)
    os.environ.clear()
    os.environ.update(before)


def warm_up_gloo() -> None:
    """The same for tests with Gloo, or with occl in its place."""
    code("cpu", "gloo")


def load(device: str, backend: str, world_size: int, *, barrier: bool = True) -> types.ModuleType:
    """The module. The environment must be as `environment` says. ``barrier``: with our barrier."""
    module = types.ModuleType("rewritten_distributed_test")
    sys.modules[module.__name__] = module
    exec(code(device, backend), vars(module))
    vars(module).update(stand_ins.names(device, world_size))
    if barrier:
        module.Barrier = stand_ins.Barrier
    return module


def environment(directory: str, backend: str, world_size: int) -> dict[str, str]:
    """What PyTorch's runner sets."""
    return {
        "BACKEND": backend,
        "WORLD_SIZE": str(world_size),
        "TEMP_DIR": directory,
        "INIT_METHOD": f"file://{directory}/init_dir/shared_init_file",
        "MASTER_ADDR": "127.0.0.1",
    }


@contextlib.contextmanager
def failing(words: str) -> Iterator[None]:
    """Wants an error that begins, type first, as this regular expression says. Skips pass through."""
    try:
        yield
    except unittest.SkipTest:
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        if not re.match(words, said, re.MULTILINE):
            raise AssertionError(f"expected to fail with {words!r}") from error
    else:
        raise AssertionError(f"it passes now: expected to fail with {words!r}")


def run(
    rank: int,
    world_size: int,
    device: str,
    *,
    name: str,
    directory: str,
    backend: str,
    errors: dict[int, str],
    in_place: bool = False,
    nodes: str = "",
) -> str:
    """One test in one rank, as ``TestDistBackend._run`` does it. Returns why it was skipped, or "".

    ``errors``: the ranks that must fail, with the words of each. The test goes on in the other ranks.
    ``in_place``: occl takes the place of the backend, which is "gloo".
    ``nodes``: a letter for each rank, its node; "": all ranks share memory.
    """
    if nodes:
        os.environ["OCCL_NODE"] = nodes[rank]
    os.environ.update(environment(directory, backend, world_size))
    tempfile.tempdir = directory  # a test writes to one file of all ranks there
    module = load(device, backend, world_size)
    if in_place:
        torch_occl.replace_gloo()
        vars(module).update(stand_ins.in_place_of_gloo(module))
    barrier = os.open(Path(directory) / "barrier", os.O_RDWR)
    module.Barrier.place(barrier, rank, world_size)

    class Case(module.TestDistBackend, module.DistributedTest._DistTestBase):
        pass

    method = getattr(Case, name)
    if getattr(method, "__unittest_skip__", False):  # for unittest, which is not here
        return method.__unittest_skip_why__
    test = Case(name)
    test.rank = rank
    test.file_name = f"{directory}/store"
    dist.init_process_group(
        backend,
        init_method=test.init_method,
        world_size=world_size,
        rank=rank,
        timeout=timedelta(seconds=module.CUSTOM_PG_TIMEOUT.get(name, module.default_pg_timeout)),
    )
    assert torch_occl.uses_occl(device=device) == (in_place or backend == "occl")
    test._barrier()
    common_utils.set_rng_seed()
    skipped = ""
    try:
        with failing(errors[rank]) if rank in errors else contextlib.nullcontext():
            getattr(test, name)()
    except unittest.SkipTest as skip:
        skipped = str(skip)
    except SystemExit as end:
        skipped = {skip.exit_code: skip.message for skip in TEST_SKIPS.values()}[end.code]
    if rank in errors and not skipped:
        module.Barrier.leave()
        return ""
    test._barrier(timeout=60)
    dist.destroy_process_group()
    return skipped
