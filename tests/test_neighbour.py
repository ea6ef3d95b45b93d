"""Installing torch_occl changes nothing for programs that do not ask for it; other devices stay theirs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.cpp_build import build_library
from tests.support.interpreter import PACKAGE, entry_point_beside_ours, install, run_python
from tests.support.thinning import first


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A folder in which torch_occl is installed."""
    return install(tmp_path_factory.mktemp("installed"))


def python(code: str, path: Path, status: int = 0, **environment: str) -> str:
    """Output of a Python process that finds what is installed in `path`, and no other torch_occl."""
    hidden = "import sys; sys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in repr(f)]\n"
    site = hidden + f"sys.path[:] = [p for p in sys.path if p != {str(PACKAGE)!r}]\n"
    return run_python("-c", site + code, path=path, status=status, **{"OCCL_DEVICE": ""} | environment)


ANSWERS = """
import json, os, re, sys, threading
import torch
import torch.distributed as dist
from multiprocessing.reduction import ForkingPickler

OURS = re.compile(r"/occl/extensions/|/memfd:occl")  # below a checkout called torch_occl lies PyTorch, too

NAME = {"occl", *(f"occl.{it}" for it in ("compat", "registration", "variables", "versions"))}

def answer(ask):
    try:
        return repr(ask())
    except Exception as error:
        return f"{type(error).__name__}: {error}"

capability = dist.Backend.backend_capability
print(json.dumps({
    "device type": answer(torch._C._get_privateuse1_backend_name),
    "accelerator": answer(torch.accelerator.is_available),
    "current accelerator": answer(torch.accelerator.current_accelerator),
    "default backends": answer(lambda: dist.Backend.default_device_backend_map),
    "capabilities": answer(lambda: {k: v for k, v in capability.items() if "occl" not in k}),
    "no backend named": answer(lambda: dist.BackendConfig(dist.Backend("undefined")).device_backend_map),
    "autograd threads": answer(torch.autograd.is_multithreading_enabled),
    "pinning": answer(lambda: torch.empty(1).pin_memory().is_pinned()),
    "DLPack": answer(lambda: (torch.Tensor.__dlpack__.__module__, torch.Tensor.__dlpack_device__.__module__)),
    "tensor": answer(lambda: sorted(dir(torch.Tensor))),
    "torch": answer(lambda: sorted(n for n in dir(torch) if n != "dev")),
    "has dev": answer(lambda: hasattr(torch, "dev")),
    "finders": answer(lambda: [type(f).__name__ for f in sys.meta_path]),
    "threads": answer(lambda: len(os.listdir("/proc/self/task"))),
    "pickling": answer(lambda: sorted(str(k) for k in ForkingPickler._extra_reducers)),
    "modules": answer(lambda: sorted(m for m in sys.modules if "occl" in m and m not in NAME)),
    "libraries": answer(lambda: [l for l in open("/proc/self/maps") if OURS.search(l)]),
    "optimizer hooks": answer(lambda: len(sys.modules["torch.optim.optimizer"]._global_optimizer_pre_hooks)),
    "recorder": answer(lambda: torch._C._distributed_c10d._dump_fr_trace.__module__),
    "autocast": answer(lambda: torch.get_autocast_dtype("cpu")),
    "compilers": answer(lambda: "torch._dynamo" in sys.modules),
}))
"""


@pytest.mark.full
def test_a_process_with_the_package_installed_answers_like_one_without(installed, tmp_path):
    def answers(code: str, path: Path, **environment: str) -> dict[str, str]:
        shown = python(
            code, path, WORLD_SIZE="2", **environment
        )  # as a launcher of several processes sets it
        return json.loads(shown.splitlines()[-1])

    without = answers(ANSWERS, tmp_path, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert answers(ANSWERS, installed) == without
    imported = answers("import torch_occl\n" + ANSWERS, installed)
    changed = {name for name in without if imported[name] != without[name]}  # what these facts can show
    assert len(changed) >= 8 and {"libraries", "optimizer hooks"} <= changed, imported


CPU_PROGRAM = """
import torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
t = torch.ones(3)
dist.all_reduce(t)
model = DistributedDataParallel(torch.nn.Linear(3, 3))
model(t).sum().backward()
dist.barrier()
dist.destroy_process_group()
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.barrier(device_ids=[0])
model = torch.nn.Linear(4, 4)
fully_shard(model)
model(torch.ones(2, 4)).sum().backward()
dist.destroy_process_group()
print("done")
"""


@pytest.mark.full
def test_programs_for_the_cpu_go_on_as_before(installed):
    assert python(CPU_PROGRAM, installed).splitlines()[-1] == "done"


OCCL_FOR_THE_CPU = """
import sys, torch, torch.distributed as dist
for backend in ("occl", "cpu:occl"):
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    t = torch.ones(3)
    dist.all_reduce(t)
    dist.all_reduce(t, group=dist.new_group([0]))
    q = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    dist.broadcast(q, 0)
    assert [str(d) for d in dist.group.WORLD._device_types] == ["cpu"]
    dist.destroy_process_group()
assert torch._C._get_privateuse1_backend_name() == "privateuseone" and not torch.accelerator.is_available()
assert "torch_occl" not in sys.modules
"""


def test_the_backend_serves_cpu_tensors_without_making_the_device(installed):
    then = """
import torch_occl
dist.init_process_group("occl", store=dist.HashStore(), rank=0, world_size=1)
x = torch.ones(3, device="dev:0")
dist.all_reduce(x)
print(torch_occl.ProcessGroupOCCL.__name__, x.device)
"""
    said = python(OCCL_FOR_THE_CPU + then, installed).splitlines()[-1]
    assert said == "ProcessGroupOCCL dev:0"


@pytest.mark.parametrize(
    ("package", "wish", "answers"),
    first(
        [
            ("torch", "", ["privateuseone", "dev"]),
            ("torch", "0", ["privateuseone", "privateuseone"]),
            ("torch", "1", ["dev", "dev"]),
            ("torch_occl", "", ["dev", "dev"]),
            ("torch_occl", "1", ["dev", "dev"]),
        ]
    ),
)
def test_what_makes_the_device(installed, package, wish, answers):
    """``answers``: after the first import, and after that of both packages. Each registers the backend."""
    name = """
import torch
print("occl" in torch.distributed.Backend.backend_list, torch._C._get_privateuse1_backend_name())
"""
    said = python(f"import {package}{name}import torch_occl{name}", installed, OCCL_DEVICE=wish)
    assert said.splitlines() == [f"True {answer}" for answer in answers]


@pytest.mark.full
def test_a_wish_that_is_neither_is_an_error_of_the_import(installed):
    said = python("import torch\nimport torch_occl", installed, status=1, OCCL_DEVICE="yes")
    assert said.splitlines()[-1] == "ValueError: OCCL_DEVICE='yes': it must be 0, 1 or empty"


OTHER_DEVICE = """
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>
#include <torch/library.h>

#include <cstdlib>
#include <cstring>

namespace c10d {
struct OtherTimer final : Timer {
  explicit OtherTimer(c10::Device) {}
  std::optional<int64_t> measureDifference(Event, Event) override { return 4711; }
};
}  // namespace c10d

struct Hooks final : at::PrivateUse1HooksInterface {
  bool hasPrimaryContext(c10::DeviceIndex) const override { return false; }
};

using Guard = c10::impl::NoOpDeviceGuardImpl<c10::kPrivateUse1>;

torch::Library& library(const char* name, c10::DispatchKey key) {
  return *new torch::Library(torch::Library::IMPL, name, key, __FILE__, __LINE__);
}

// What another package registers when it is loaded, as C10_REGISTER_TYPED_CLASS does.
__attribute__((constructor)) static void load() {
  const char* what = std::getenv("OTHER_DEVICE");
  if (std::strstr(what, "timer"))
    c10d::TimerRegistry()->Register(
        c10::kPrivateUse1, [](c10::Device d) { return std::make_unique<c10d::OtherTimer>(d); });
  if (std::strstr(what, "hooks")) at::RegisterPrivateUse1HooksInterface(new Hooks);
  if (std::strstr(what, "guard"))
    c10::impl::device_guard_impl_registry[static_cast<int>(c10::kPrivateUse1)].store(new Guard);
  if (std::strstr(what, "allocator"))
    c10::SetAllocator(c10::kPrivateUse1, c10::GetAllocator(c10::kCPU));
  const auto nothing = [] { return torch::CppFunction::makeFallthrough(); };
  if (std::strstr(what, "kernel")) library("aten", c10::DispatchKey::PrivateUse1).impl("relu", nothing());
  if (std::strstr(what, "fallback")) library("_", c10::DispatchKey::PrivateUse1).fallback(nothing());
  if (std::strstr(what, "casts"))
    library("aten", c10::DispatchKey::AutocastPrivateUse1).impl("mm", nothing());
}
"""


@pytest.fixture(scope="module")
def other_device(tmp_path_factory) -> Path:
    """A library of another package for PrivateUse1."""
    return build_library(OTHER_DEVICE, tmp_path_factory.mktemp("other") / "other.so")


@pytest.mark.full
@pytest.mark.parametrize("order", ["before", "after"])
def test_another_packages_timer_neither_ends_the_process_nor_is_lost(installed, other_device, order):
    load = f"import ctypes; ctypes.CDLL({str(other_device)!r})\n"
    ours = "import torch_occl\n"
    code = "import torch\n" + (load + ours if order == "before" else ours + load)
    code += "print(torch.ones(2, device='dev').sum().item())"
    assert python(code, installed, OTHER_DEVICE="timer").splitlines()[-1] == "2.0"


@pytest.mark.full
def test_a_device_of_another_package_stays_its_own(installed, other_device):
    code = f"""
import ctypes, torch
ctypes.CDLL({str(other_device)!r})
torch.utils.rename_privateuse1_backend("other")
import torch_occl
import torch.distributed as dist
dist.init_process_group("cpu:occl", store=dist.HashStore(), rank=0, world_size=1)
t = torch.ones(3)
dist.all_reduce(t)
print(torch._C._get_privateuse1_backend_name(), hasattr(torch, "dev"), torch.Tensor.__dlpack__.__module__)
"""
    assert (
        python(code, installed, OTHER_DEVICE="hooks and timer").splitlines()[-1]
        == "other False torch._tensor"
    )


OTHER_PACKAGE = """
import torch

def autoload():
    torch.utils.rename_privateuse1_backend("npu")
"""


@pytest.mark.parametrize("before", first([True, False]))
def test_a_device_that_import_torch_is_to_make_gives_way_in_every_order(tmp_path, before):
    """``before``: whether PyTorch loads the other package before this one."""
    install(tmp_path)
    (tmp_path / "other.py").write_text(OTHER_PACKAGE)
    entry_point_beside_ours(tmp_path, "other = other:autoload", before)
    code = "import torch\nprint(torch._C._get_privateuse1_backend_name(), hasattr(torch, 'dev'))"
    said = python(code, tmp_path, OCCL_DEVICE="1").splitlines()
    assert said[-1] == "npu False"
    (warning,) = [line for line in said if "RuntimeWarning" in line]
    why = "PrivateUse1 is the device npu" if before else "PyTorch loads other after this package"
    assert f"OCCL_DEVICE=1 makes no device: {why}" in warning


@pytest.mark.full
def test_a_device_of_another_package_comes_after_groups_on_cpu_tensors(installed, other_device):
    code = (
        OCCL_FOR_THE_CPU
        + f"""
import ctypes
ctypes.CDLL({str(other_device)!r})
torch.utils.rename_privateuse1_backend("other")
print(torch._C._get_privateuse1_backend_name())
"""
    )
    assert python(code, installed, OTHER_DEVICE="hooks and timer").splitlines()[-1] == "other"


@pytest.mark.full
@pytest.mark.parametrize("part", ["hooks", "guard", "allocator", "kernel", "fallback", "casts"])
def test_a_package_with_a_part_of_a_device_keeps_it(installed, other_device, part):
    code = f"""
import ctypes, torch
ctypes.CDLL({str(other_device)!r})
import torch_occl
import torch.distributed as dist
dist.init_process_group("cpu:occl", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(3))
print(torch._C._get_privateuse1_backend_name(), hasattr(torch, "dev"))
"""
    said = python(code, installed, OTHER_DEVICE=part)
    assert said.splitlines()[-1] == "privateuseone False"
