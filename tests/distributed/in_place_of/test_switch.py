"""Switching it on and off: in a program, and by a variable."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

import occl
import torch_occl
from occl.distributed import gloo
from tests.distributed.in_place_of.running import ABSENT, assert_occl
from tests.support.devices import DEVICES
from tests.support.groups import begin, run
from tests.support.interpreter import install, run_python
from tests.support.running import PYTORCH


def on_and_off(rank, n, device, *, store):
    begin(rank, n, store, "occl")

    def ours() -> bool:
        return torch_occl.uses_occl(dist.new_group(backend="gloo"))

    assert not ours()
    with torch_occl.replace_gloo():
        assert ours()
        with torch_occl.replace_gloo():
            assert ours()
        assert ours()
        with torch_occl.replace_gloo(False):
            assert not ours()
        stays = dist.new_group(backend="gloo")
        assert ours()
    assert not ours()
    assert_occl(stays)
    with pytest.raises(KeyError), torch_occl.replace_gloo():
        raise KeyError
    assert not ours()
    torch_occl.replace_gloo()
    assert ours()
    torch_occl.replace_gloo(False)
    assert not ours()


def test_it_is_switched_on_and_off_and_nests(fresh):
    run(fresh, on_and_off)


@pytest.mark.parametrize("on", ["gloo", None, 1])
def test_it_is_on_or_off(on):
    before = distributed_c10d._new_process_group_helper
    with pytest.raises(TypeError, match=f"replace_gloo: on must be True or False, not {on!r}"):
        torch_occl.replace_gloo(on)
    assert distributed_c10d._new_process_group_helper is before and not gloo._on


@pytest.mark.parametrize(("name", "error"), [("nccl", ValueError), ("", ValueError), (1, TypeError)])
def test_a_name_that_cannot_be_replaced_is_refused(name, error):
    with pytest.raises(
        error, match=re.escape("'gloo' only, not of 'nccl'") if name == "nccl" else "replace: "
    ):
        torch_occl.replace(name)
    assert not gloo._on


def former_names(rank, n, device, *, store):
    with pytest.warns(DeprecationWarning, match=r"replace\('Gloo'\) is now occl\.replace_gloo\(\)") as caught:
        replaced = torch_occl.replace("Gloo")
    assert caught[0].filename == __file__
    with replaced:
        begin(rank, n, store)
        with pytest.warns(DeprecationWarning, match=r"now occl\.replace_gloo\(False\)"), occl.replace(None):
            assert not gloo._on
        assert gloo._on
    with pytest.warns(DeprecationWarning, match=r"occl\.serves is now occl\.uses_occl"):
        assert occl.serves() and occl.serves(dist.group.WORLD, device)
    with pytest.warns(DeprecationWarning, match=r"is now occl\.shared_cpu_memory_stats\(\)"):
        assert occl.memory_stats("cpu") == occl.shared_cpu_memory_stats()
    if "dev" in DEVICES:
        with pytest.warns(DeprecationWarning, match=r"memory_stats is now torch\.dev\.memory_stats"):
            assert occl.memory_stats("dev:1") == torch.dev.memory_stats(1)


def test_the_former_names_work_and_warn_with_the_present_ones(fresh):
    run(fresh, former_names)


def test_without_a_group_there_is_nothing_to_say_about():
    with pytest.raises(ValueError, match="there is no default group"):
        torch_occl.uses_occl()


ASK = """
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
print(dist.get_backend(), type(dist.group.WORLD._get_backend(torch.device("cpu"))).__name__)
print(torch._C._get_privateuse1_backend_name(), "torch_occl" in sys.modules)
"""
TAKES = "uses occl in the place of Gloo (OCCL_IN_PLACE_OF)"
SAID = f"torch_occl: group 0 (1 rank) {TAKES}"
OCCL, REAL = "gloo ProcessGroupOCCL", "gloo ProcessGroupGloo"
QUIET = {"OCCL_IN_PLACE_OF": "gloo", "OCCL_QUIET": "1"}


@pytest.fixture
def installed(tmp_path) -> Path:
    return install(tmp_path)


def python(code: str, path: Path, **env: str) -> list[str]:
    environment = {"OCCL_DEVICE": "", "OCCL_IN_PLACE_OF": "", "OMP_NUM_THREADS": "1"} | env
    return run_python("-W", "always", "-c", code, path=path, **environment).splitlines()


def test_the_environment_switches_it_on_for_a_program_that_imports_torch_only(installed):
    assert python(ASK, installed, OCCL_IN_PLACE_OF="gloo") == [SAID, OCCL, "privateuseone False"]
    assert python(ASK, installed, **QUIET) == [OCCL, "privateuseone False"]
    warned, _, *rest = python(ASK, installed, **QUIET | {"OCCL_QUIET": "2"})
    assert "OCCL_QUIET='2'" in warned and rest == [SAID, OCCL, "privateuseone False"]
    assert python(ASK, installed) == [REAL, "privateuseone False"]


@pytest.mark.full
def test_the_environment_holds_for_the_package_too(installed):
    """With the device, by whichever way it is made, and after the package has been imported."""
    name = "dev" if "dev" in DEVICES else "privateuseone"
    assert python(ASK, installed, OCCL_DEVICE="1", **QUIET) == [OCCL, f"{name} True"]
    code = "import torch_occl\n" + ASK
    assert python(code, installed, TORCH_DEVICE_BACKEND_AUTOLOAD="0", **QUIET) == [OCCL, f"{name} True"]
    then = ASK.replace("dist.init", "import torch_occl\ntorch_occl.replace_gloo(False)\ndist.init")
    assert python(then, installed, **QUIET) == [REAL, f"{name} True"]


@pytest.mark.full
def test_importing_torch_patches_nothing_and_loads_nothing_unasked(installed):
    code = """
import sys, torch
from torch.distributed import distributed_c10d
makes_groups = distributed_c10d._new_process_group_helper
from occl import compat
makes_gloo = compat.factory_of_gloo() or makes_groups
print(*[it.__code__.co_filename == distributed_c10d.__file__ for it in (makes_groups, makes_gloo)])
print([name for name in sys.modules if name.startswith("torch_occl")])
"""
    assert python(code, installed) == ["True True", "[]"]
    registered = "True False" if PYTORCH >= (2, 14) else "False False"
    assert python(code, installed, OCCL_IN_PLACE_OF="gloo")[0] == registered


@pytest.mark.full
def test_a_program_that_switches_it_on_may_have_a_wrong_value(installed):
    code = ASK.replace("dist.init", "import occl\noccl.replace_gloo()\ndist.init")
    assert OCCL in python(code, installed, OCCL_IN_PLACE_OF="nccl")


@pytest.mark.full
def test_a_value_that_is_none_is_an_error_that_names_the_variable(installed):
    says = "OCCL_IN_PLACE_OF='nccl': it must be gloo, the only backend that occl replaces, or empty"
    said = python(ASK, installed, OCCL_IN_PLACE_OF="nccl")
    assert any(says in line for line in said) and said[-2] == REAL
    error = run_python(
        "-c", "import torch_occl", path=installed, status=1, OCCL_IN_PLACE_OF="nccl", OCCL_DEVICE=""
    )
    assert error.splitlines()[-1] == f"ValueError: {says}" or says in error.splitlines()[-1]


PROGRAM = """
import os
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(3)
dist.all_reduce(x)
kind = type(dist.group.WORLD._get_backend(torch.device("cpu"))).__name__
with open(f"{os.environ['SAID']}/{dist.get_rank()}", "w") as file:
    file.write(f"{dist.get_backend()} {kind} {x.tolist()}")
dist.destroy_process_group()
"""


@pytest.mark.full
def test_torchrun_starts_a_program_that_knows_nothing_of_it(installed, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    python_arguments = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    said = run_python(
        *python_arguments,
        tmp_path / "program.py",
        path=installed,
        OCCL_IN_PLACE_OF="gloo",
        OCCL_DEVICE="",
        OMP_NUM_THREADS="1",
        OCCL_ISSA="avx2",
        OCCL_QUIET="2",
        SAID=str(tmp_path),
    )
    assert said.count(f"torch_occl: group 0 (2 ranks) {TAKES}") == said.count("uses occl") == 1, said
    assert said.count("import torch_occl will fail: OCCL_QUIET='2': it must be 0, 1 or empty") == 1, said
    assert said.count("does not know the variable OCCL_ISSA, and ignores it: did you mean OCCL_ISA?") == 1, (
        said
    )
    assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == [f"{OCCL} [2.0, 2.0, 2.0]"] * 2


MORE_GROUPS = """
import os, sys, torch
torch.set_num_threads(1)
import torch.distributed as dist
if os.fork():
    dist.init_process_group("gloo", store=dist.FileStore(sys.argv[1], 2), rank=1, world_size=2)
    dist.new_group([1])
    dist.new_group()
    dist.barrier()
    os.wait()
else:
    dist.init_process_group("gloo", store=dist.FileStore(sys.argv[1], 2), rank=0, world_size=2)
    dist.new_group([1])
    dist.new_group()
    dist.barrier()
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
"""


@pytest.mark.full
def test_one_line_is_said_however_many_groups_there_are(installed, tmp_path):
    said = run_python("-c", MORE_GROUPS, tmp_path / "store", path=installed, OCCL_IN_PLACE_OF="gloo")
    assert said.splitlines() == [f"torch_occl: group 0 (2 ranks) {TAKES}"]


@pytest.mark.full
def test_nothing_is_said_of_gloo_either_where_it_is_not_wanted(installed):
    """It cannot load the extension, and so stays Gloo."""
    for library in (installed / "occl").rglob("_C*.so"):
        library.write_bytes(b"")
    assert any("uses Gloo, and not occl" in line for line in python(ASK, installed, OCCL_IN_PLACE_OF="gloo"))
    assert python(ASK, installed, **QUIET) == [REAL, "privateuseone False"]


@pytest.mark.full
def test_one_process_of_two_has_the_variable(installed):
    """By autoload, over a TCPStore, with a rank that has no torch_occl at all."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    code = """
import os, torch
import torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(3)
dist.all_reduce(x)
print(type(dist.group.WORLD._get_backend(torch.device("cpu"))).__name__, x.tolist())
"""
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    settings = [{"OCCL_IN_PLACE_OF": "gloo"}, {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env=os.environ
            | common
            | {"PYTHONPATH": str(installed), "RANK": str(rank), "OCCL_DEVICE": ""}
            | own,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd="/",
        )
        for rank, own in enumerate(settings)
    ]
    said = [process.communicate(timeout=180) for process in processes]
    assert [out for out, _ in said] == ["ProcessGroupGloo [2.0, 2.0, 2.0]\n"] * 2, said
    assert f"rank 1 {ABSENT}" in said[0][1] and "uses Gloo" not in said[1][1]
