"""The doctor where PyTorch or the extension cannot be loaded."""

import json
import shutil
import sysconfig
from pathlib import Path

import pytest

from occl import versions
from tests.doctor.running import CLEAN, document
from tests.support.interpreter import PACKAGE, install, run_python

FAKE_TORCH = """
from types import SimpleNamespace as Anything
from . import distributed
__version__ = {version!r}
version = Anything(debug=False)
backends = Anything(cpu=Anything(get_cpu_capability=lambda: "none"))
compiled_with_cxx11_abi = get_num_threads = lambda: 1
_C = Anything(_get_privateuse1_backend_name=lambda: "privateuseone")
{statement}
"""


HIDE = "import sys; sys.meta_path[:] = [it for it in sys.meta_path if 'editable' not in repr(it)]\n"
"""Python runs this first. The finder of an editable installation would find its extension."""


def with_torch(
    folder: Path,
    version: str = "2.13.0",
    statement: str = "",
    library: str | None = None,
    built_for: str = "",
) -> Path:
    """A folder with Python's part of torch_occl and what stands in for PyTorch.

    ``library`` is what the file of the extension contains, which was built for the PyTorch ``built_for``, or
    for this version; None for no file.
    """
    ignored = shutil.ignore_patterns("__pycache__", "extensions")
    for name in ("occl", "torch_occl"):
        shutil.copytree(PACKAGE / name, folder / name, ignore=ignored)
    if library is not None:
        home = folder / versions.extension_of(built_for or version).relative_to(PACKAGE)
        home.mkdir(parents=True)
        (home / f"_C{sysconfig.get_config_var('EXT_SUFFIX')}").write_text(library)
    (folder / "sitecustomize.py").write_text(HIDE)
    (folder / "torch" / "distributed").mkdir(parents=True)
    text = FAKE_TORCH.format(version=version, statement=statement)
    (folder / "torch" / "__init__.py").write_text(text)
    (folder / "torch" / "distributed" / "__init__.py").write_text("is_available = lambda: False\n")
    return folder


@pytest.mark.parametrize(
    ("torch_is", "name", "text", "remedy"),
    [
        ({"version": "2.10.1"}, "torch_occl", "and this is torch 2.10.1", "Install a supported PyTorch"),
        ({"version": "2.16.0"}, "torch_occl", "and this is torch 2.16.0", "Install a supported PyTorch"),
        ({}, "torch_occl", "torch_2_13 has no extension for this Python", "Build the extension"),
        ({"library": "no library"}, "torch_occl", ".so: file too short", "Build torch_occl again"),
        (
            {"library": "no library", "built_for": "2.12"},
            "torch_occl",
            "was built for torch 2.12, and this is torch 2.13.0. ",
            "Build torch_occl again",
        ),
        (
            {"statement": "raise ModuleNotFoundError(\"No module named 'torch'\")"},
            "PyTorch",
            "No module named 'torch'",
            'Install PyTorch: pip install "torch>=2.11,<2.16"',
        ),
        ({"statement": "raise OSError('libgomp.so.1')"}, "PyTorch", "OSError: libgomp", "Repair PyTorch"),
        (
            {"statement": "import os; os.kill(os.getpid(), 11)"},
            "PyTorch",
            "it was ended by SIGSEGV",
            "Repair PyTorch",
        ),
    ],
)
def test_what_cannot_be_loaded_is_a_problem_with_its_remedy(tmp_path, torch_is, name, text, remedy):
    found = document(status=1, path=with_torch(tmp_path, **torch_is))
    assert found["problems"] == [f"software: {name}"]
    line = found["sections"]["software"][name]
    assert text in line["text"] and line["remedy"].startswith(remedy)
    assert "self-test" not in found["sections"]  # there is nothing to test


def test_the_help_needs_neither_pytorch_nor_the_extension(tmp_path):
    path = with_torch(tmp_path, statement="raise ImportError")
    assert "usage: occl" in run_python("-m", "occl", path=path)


@pytest.mark.parametrize(
    ("torch_is", "text"),
    [
        ({"statement": "raise ModuleNotFoundError('none')"}, "torch_occl needs PyTorch, which cannot be "),
        ({"statement": "raise OSError('libgomp.so.1')"}, "cannot be imported (libgomp.so.1). "),
        ({"version": "2.16.0"}, "torch_occl supports torch>=2.11,<2.16, and this is torch 2.16.0. "),
        ({}, "The extension of torch_occl cannot be loaded (/"),
        ({"library": "no library"}, "The extension of torch_occl cannot be loaded ("),
        (
            {"library": "no library", "built_for": "2.12"},
            'built for torch 2.12, and this is torch 2.13.0. Install "torch>=2.12,<2.13", or build ',
        ),
    ],
)
def test_the_command_of_the_package_that_cannot_be_imported_names_the_one_that_works(
    tmp_path, torch_is, text
):
    said = run_python("-m", "torch_occl", "doctor", status=1, path=with_torch(tmp_path, **torch_is))
    last = said.splitlines()[-1]
    assert text in last and last.endswith(" Run occl doctor, which works without it.")


@pytest.mark.full
def test_sources_that_hide_what_is_installed_are_named_and_the_doctor_looks_past_them(tmp_path):
    """As in a checkout into which nothing was built, and from which the package was installed."""
    installed, checkout = install(tmp_path / "installed"), tmp_path / "checkout"
    shutil.copytree(PACKAGE / "occl", checkout / "occl", ignore=shutil.ignore_patterns("extensions"))
    there = f"import os, sys\nos.chdir({str(checkout)!r})\n"
    loaded = HIDE + there + "import torch\nfrom occl import _C\n"
    said = run_python("-c", loaded, path=installed, status=1, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert said.splitlines()[-1] == (
        f"ImportError: {checkout} is the source of torch_occl, and hides the one that is installed in "
        f"{installed}: start the program in another folder"
    )
    command = HIDE + "from occl.cli import main\n" + there + "sys.argv = ['occl', 'doctor', '--json']\nmain()"
    found = json.loads(run_python("-c", command, path=installed, stderr=False, **CLEAN))
    assert found["problems"] == []
