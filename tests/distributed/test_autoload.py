"""`import torch` alone makes the backend available, and never fails because of it."""

from __future__ import annotations

from pathlib import Path

import pytest

import occl
import torch_occl
from tests.support.devices import DEVICES
from tests.support.interpreter import PACKAGE, entry_point_beside_ours, install, run_python
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


@pytest.mark.full
def test_without_autoload_the_package_has_to_be_imported(installed):
    code = f"import torch{REPORT}import torch_occl{REPORT}"
    lines = python(code, installed, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert lines == ["False privateuseone", REGISTERED]


def test_a_misspelt_variable_is_a_warning_with_the_right_name(installed):
    lines = python("import torch, torch_occl", installed, OCCL_IN_PLACE="gloo", OCCL_X="1")
    said = [line for line in lines if "does not know" in line]
    assert len(said) == 2
    assert "OCCL_IN_PLACE, and ignores it: did you mean OCCL_IN_PLACE_OF?" in said[0]
    assert "OCCL_X, and ignores it: there are OCCL_DEVICE, " in said[1]


LEGAL = {
    "OCCL_DEVICE": "='on': it must be 0, 1 or empty",
    "OCCL_SHARE_CPU": "='on': it must be 0, 1, or the least number of",
    "OCCL_STUCK_AFTER": "='on': it must be a number of seconds, or 0 for no notice",
    "OCCL_DEVICE_COUNT": ' must be a number from 1 to 64, not "on"',
    "OCCL_MEMORY_FRACTION": ' must be a number above 0 and at most 1, not "on"',
    "OCCL_INTER_NODE": ' is "on": it must be ucx, tcp or gloo',
}


def test_wrong_values_are_warnings_with_the_legal_ones(installed):
    lines = python(f"import torch{REPORT}", installed, **dict.fromkeys(LEGAL, "on"))
    assert lines[-1] == NAME_ONLY
    said = [line for line in lines if "Warning" in line]
    assert len(said) == len(LEGAL), said
    for name, legal in LEGAL.items():
        assert any(f"import torch_occl will fail: {name}{legal}" in line for line in said), said
    lines = python(f"import torch{REPORT}", installed, OCCL_DEVICE="1", OCCL_QUIET="2")
    assert lines[-1] == NAME_ONLY and sum("Warning" in line for line in lines) == 1, lines


ASKED = """
import occl, sys
assert "torch" not in sys.modules and "uses_occl" in dir(occl)
import torch, torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
print(occl.uses_occl(), occl.shared_cpu_memory_stats()["allocated_bytes.all.current"])
print(torch._C._get_privateuse1_backend_name(), "torch_occl" in sys.modules)
dist.destroy_process_group()
"""


@pytest.mark.full
def test_what_serves_a_group_is_asked_without_making_the_device(installed):
    lines = python(ASKED, installed, OCCL_IN_PLACE_OF="gloo", OCCL_QUIET="1")
    assert lines == ["True 0", "privateuseone False"]


def test_every_function_without_the_device_is_the_one_of_the_other_package():
    present = {name for name, module in occl._FROM.items() if module != "deprecated"}
    assert {name for name in occl.__all__ if name in torch_occl.__all__} == present
    assert all(getattr(occl, name) is getattr(torch_occl, name) for name in occl._FROM)
    with pytest.raises(AttributeError, match="no attribute 'serve'"):
        occl.serve  # noqa: B018


BEFORE_THE_DEVICE = """
import os, torch, torch.distributed as dist

child = os.fork() if {ranks} > 1 else 0
rank = 1 if child else 0
dist.init_process_group("occl", store=dist.FileStore("{store}", {ranks}), rank=rank, world_size={ranks})
dist.all_reduce(torch.ones(3))
group, cpu = dist.new_group(), dist.new_group(backend="cpu:occl")
import torch_occl

def moves(group, *shape):
    x = torch.full(shape, rank + 1.0, device="dev")
    dist.all_reduce(x, group=group)
    dist.barrier(group=group)
    return bool((x == sum(range({ranks} + 1))).all())

later = dist.new_group()
for each in (None, group, later):
    assert moves(each, 1) and moves(each, 70_000) and moves(each, 3_000_000)
    assert torch_occl.uses_occl(each, "dev") and torch_occl.uses_occl(each)
    assert dist.get_backend(each) == "occl"
    assert dist.get_backend_config(each) == dist.get_backend_config(later)
mesh = dist.device_mesh.init_device_mesh("dev", ({ranks},))
assert moves(mesh.get_group(), 5)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3).to("dev"))
model(torch.ones(2, 3, device="dev")).sum().backward()
try:
    moves(cpu, 3)
except RuntimeError as error:
    os.write(1, f"{{error}}\\n".encode())  # at once: the ranks share this pipe
dist.all_reduce(torch.ones(3), group=cpu)
del model
dist.destroy_process_group()
if child:
    assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.full
@pytest.mark.skipif("dev" not in DEVICES, reason="there is no device")
@pytest.mark.parametrize("ranks", [1, 2])
def test_groups_that_are_older_than_the_device_serve_it(ranks, installed, tmp_path):
    said = python(BEFORE_THE_DEVICE.format(ranks=ranks, store=tmp_path / "store"), installed)
    assert said == ["No backend type associated with device type dev"] * ranks  # asked for as cpu:occl


GLOO_BEFORE_THE_DEVICE = """
import torch, torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
before = dist.get_backend_config()
import torch_occl
print(torch_occl.uses_occl(), torch.device("dev") in dist.group.WORLD._device_types)
print(dist.get_backend_config() == before)
dist.destroy_process_group()
"""


@pytest.mark.full
def test_groups_in_the_place_of_gloo_serve_what_gloo_does(installed):
    said = python(GLOO_BEFORE_THE_DEVICE, installed, OCCL_IN_PLACE_OF="gloo", OCCL_QUIET="1")
    assert said == ["True False", "True"]


USE = """
import torch.distributed as dist
try:
    dist.init_process_group("occl", store=dist.HashStore(), rank=0, world_size=1)
except Exception as error:
    print(str(error).splitlines()[0])
"""


@pytest.mark.full
def test_an_unsupported_torch_does_not_break_import_torch_and_is_explained_on_use(installed):
    versions = installed / "occl" / "versions.py"
    text = versions.read_text()
    versions.write_text(text.replace("SUPPORTED = ((2, 11), (2, 16))", "SUPPORTED = ((99, 0), (99, 1))"))
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
    for library in (installed / "occl").rglob("_C*.so"):
        library.write_bytes(b"this is not a shared library")
    *said, error = python("import torch; print(torch.ones(3).sum().item())" + USE, installed)
    assert said[-1] == "3.0" and "_C" in error and ("too short" in error or "invalid ELF" in error), error


OTHER = """
import torch.distributed as dist

def create(*args):
    raise NotImplementedError("theirs")

def autoload():
    dist.Backend.register_backend("occl", create, devices=["cpu"])
"""

BOTH_NAMES = """
try:
    dist.init_process_group("occl", store=dist.HashStore(), rank=0, world_size=1)
except NotImplementedError as error:
    print(error)
dist.init_process_group("torch_occl", store=dist.HashStore(), rank=0, world_size=1)
from occl import uses_occl
print(dist.get_backend(), uses_occl())
dist.destroy_process_group()
"""
TAKEN = (
    "the package other has registered a torch.distributed backend named 'occl', which stays; "
    "the one of torch_occl is named 'torch_occl'"
)


@pytest.mark.parametrize("before", first([True, False]))
def test_another_package_keeps_the_name_and_ours_has_a_second_one(installed, before):
    """``before``: whether PyTorch loads the other package before this one."""
    (installed / "other.py").write_text(OTHER)
    entry_point_beside_ours(installed, "other = other:autoload", before)
    code = f"import torch, torch.distributed as dist{BOTH_NAMES}"
    lines = [line for line in python(code, installed) if not line.startswith("  ")]
    assert [line for line in lines if TAKEN not in line] == ["theirs", "torch_occl True"]
    assert len(lines) == 2 + before, lines
    code = f"import torch_occl, torch.distributed as dist{BOTH_NAMES}"
    lines = python(code, installed)
    assert sum(TAKEN in line for line in lines) == 1 + before and lines[-2:] == ["theirs", "torch_occl True"]


def test_the_package_under_test_is_the_one_that_was_built_here():
    assert Path(torch_occl.__file__).parents[1] == PACKAGE
