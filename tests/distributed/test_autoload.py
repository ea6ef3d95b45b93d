"""`import torch` alone makes the backend available, and never fails because of it."""

from __future__ import annotations

from pathlib import Path

import pytest

import torch_occl
from tests.support.devices import DEVICES
from tests.support.interpreter import PACKAGE, install, run_python
from tests.support.thinning import first

REPORT = """
import torch.distributed as dist
print("occl" in dist.Backend.backend_list, torch._C._get_privateuse1_backend_name())
"""
NAME_ONLY = "True privateuseone"
REGISTERED = f"True {'dev' if 'dev' in DEVICES else 'privateuseone'}"


@pytest.fixture
def installed(tmp_path) -> Path:
    return install(tmp_path)


def python(code: str, path: Path, **env: str) -> list[str]:
    environment = {"OCCL_DEVICE": "", "OMP_NUM_THREADS": "1"} | env
    return run_python("-W", "always", "-c", code, path=path, **environment).splitlines()


def test_import_torch_alone_registers_the_name_of_the_backend(installed):
    assert python(f"import torch{REPORT}", installed) == [NAME_ONLY]


def test_import_torch_makes_the_device_where_the_environment_says_so(installed):
    assert python(f"import torch{REPORT}", installed, OCCL_DEVICE="1") == [REGISTERED]


def test_importing_the_package_first_does_the_same_once(installed):
    assert python(f"import torch_occl, torch{REPORT}", installed) == [REGISTERED]


def test_without_autoload_the_package_has_to_be_imported(installed):
    code = f"import torch{REPORT}import torch_occl{REPORT}"
    lines = python(code, installed, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert lines == ["False privateuseone", REGISTERED]


USE = """
import torch.distributed as dist
try:
    dist.init_process_group("occl", store=dist.HashStore(), rank=0, world_size=1)
except Exception as error:
    print(str(error).splitlines()[0])
"""


def test_an_unsupported_torch_does_not_break_import_torch_and_is_explained_on_use(installed):
    versions = installed / "torch_occl" / "_versions.py"
    text = versions.read_text()
    versions.write_text(text.replace("SUPPORTED = ((2, 13), (2, 14))", "SUPPORTED = ((99, 0), (99, 1))"))
    code = f"""
import torch
{REPORT}
{USE}
try:
    import torch_occl
except ImportError as error:
    print(error)
"""
    registered, *errors = python(code, installed)
    assert registered == NAME_ONLY and len(errors) == 2
    assert all(it.startswith("torch_occl supports torch>=99.0,<99.1, and this is torch") for it in errors)


WARNED = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import torch
    print(sum("torch_occl" in str(w.message) for w in caught), torch.ones(3).sum().item())
"""


@pytest.mark.parametrize(
    "broken", first(["raise RuntimeError('boom')", "import no_such_module", "1 / 0", "def ("])
)
def test_whatever_is_wrong_with_the_package_import_torch_works(installed, broken):
    (installed / "torch_occl" / "__init__.py").write_text(broken)
    assert python(WARNED + REPORT, installed) == ["0 3.0", NAME_ONLY]
    assert python(WARNED + REPORT, installed, OCCL_DEVICE="1") == ["1 3.0", "False privateuseone"]


def test_an_extension_that_cannot_be_loaded_does_not_break_import_torch(installed):
    for library in (installed / "torch_occl").glob("_C*.so"):
        library.write_bytes(b"this is not a shared library")
    *said, error = python("import torch; print(torch.ones(3).sum().item())" + USE, installed)
    assert said[-1] == "3.0" and "_C" in error and ("too short" in error or "invalid ELF" in error), error


def test_a_backend_of_another_package_stays_in_place(installed):
    code = """
import warnings
import torch
import torch.distributed as dist

def theirs(*args):
    raise NotImplementedError("theirs")

dist.Backend.register_backend("occl", theirs, devices=["cpu"])
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import torch_occl
    print([str(w.message) for w in caught])
try:
    dist.init_process_group("occl", store=dist.HashStore(), rank=0, world_size=1)
except NotImplementedError as error:
    print(error)
"""
    warned, used = python(code, installed, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert "already registered a torch.distributed backend named 'occl'" in warned
    assert used == "theirs"


def test_the_package_under_test_is_the_one_that_was_built_here():
    assert Path(torch_occl.__file__).parents[1] == PACKAGE
