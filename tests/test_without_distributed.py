"""PyTorch may be built without torch.distributed: then the package is the device alone."""

import os
import runpy
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch

from tests.support.interpreter import PACKAGE, run_python
from tests.support.thinning import first

WITHOUT_DISTRIBUTED = """
import importlib.machinery, sys

class Finder:
    '''Takes out of torch._C what a build without torch.distributed lacks.'''

    def find_spec(self, name, path, target=None):
        if name != "torch._C":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            for part in ("_c10d_init", "_rpc_init", "_dist_autograd_init", "_faulty_agent_init"):
                vars(module).pop(part, None)

        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Finder())
import torch
assert not torch.distributed.is_available()
"""

USE = """
import torch_occl
x = torch.ones(3, device="dev", requires_grad=True)
(x * x).sum().backward()
assert x.grad.tolist() == [2.0, 2.0, 2.0] and torch.dev.is_initialized()
assert not hasattr(torch_occl, "ProcessGroupOCCL")
before = set(globals())
from torch_occl import *
assert set(globals()) - before == {"before"}, set(globals()) - before
print("the device works")
"""


@pytest.mark.parametrize("autoload", first(["1", "0"]))
def test_the_package_is_imported_and_serves_the_device(autoload):
    said = run_python("-c", WITHOUT_DISTRIBUTED + USE, TORCH_DEVICE_BACKEND_AUTOLOAD=autoload)
    assert said.splitlines()[-1] == "the device works" and "Warning" not in said, said


def sources_without_distributed(monkeypatch):
    """What setup.py compiles for a PyTorch without torch.distributed."""
    monkeypatch.chdir(PACKAGE)
    for name in ("TORCH_DEVICE_BACKEND_AUTOLOAD", "PATH"):  # which setup.py changes
        monkeypatch.setenv(name, os.environ.get(name, ""))
    monkeypatch.setattr(torch.distributed, "is_available", lambda: False)
    monkeypatch.setattr("setuptools.setup", lambda **_: None)
    return runpy.run_path("setup.py")["SOURCES"]


@pytest.mark.full
def test_the_library_is_linked_without_the_backend(tmp_path, monkeypatch):
    """As setup.py builds it for such a PyTorch: what is left needs nothing of what is left out."""
    objects = PACKAGE / "build" / f"objects-{sys.implementation.cache_tag}"
    if not objects.exists():
        pytest.skip("the extension was not built in this checkout")
    sources = sources_without_distributed(monkeypatch)
    assert "csrc/bind/device.cpp" in sources and "csrc/bind/group.cpp" not in sources
    (tmp_path / "occl").symlink_to(PACKAGE / "occl")
    library = tmp_path / f"_C{sysconfig.get_config_var('EXT_SUFFIX')}"
    libraries = Path(torch.__file__).parent / "lib"
    parts = [str((objects / source).with_suffix(".o")) for source in sources]
    linked = [f"-L{libraries}", "-lc10", "-ltorch", "-ltorch_cpu", "-ltorch_python"]
    subprocess.run(["c++", "-shared", "-o", str(library), *parts, *linked], check=True)
    script = f"""
import importlib.util, sys, occl.versions
spec = importlib.util.spec_from_file_location("occl._C", {str(library)!r})
sys.modules["occl._C"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
assert not hasattr(module, "ProcessGroupOCCL")
print("loaded")
"""
    prelude = WITHOUT_DISTRIBUTED
    said = run_python("-c", prelude + script, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert said.splitlines()[-1] == "loaded"
