"""The backend compiles for a PyTorch whose c10d asks for capabilities in the newer way. There is none to
build with, so the headers of the one that is here are rewritten to look like that."""

import re
import shlex
import subprocess
import sysconfig
from pathlib import Path

import pytest
import torch
from torch.utils.cpp_extension import include_paths

from tests.support import cpp_build

BACKEND = Path("torch/csrc/distributed/c10d/Backend.hpp")
VERSION = Path("torch/headeronly/version.h")
METHODS = {
    "supportsSplitting": "SPLITTING",
    "supportsCoalescing": "COALESCING",
    "supportsTimeEstimation": "TIME_ESTIMATION",
    "supportsShrinking": "SHRINKING",
}
ASKED = "  virtual BackendCapabilities capabilities() const { return {}; }\\n"
CAPABILITIES = """\
namespace c10d {
enum class BackendCapability { SPLITTING, COALESCING, TIME_ESTIMATION, SHRINKING, COUNT };
struct BackendCapabilities {
  bool has[static_cast<int>(BackendCapability::COUNT)] = {};
  BackendCapabilities(std::initializer_list<BackendCapability> given) {
    for (const auto one : given) has[static_cast<int>(one)] = true;
  }
};
"""
PROGRAM = """\
#include "pg/backend/process_group.h"
using occl::pg::ProcessGroupOCCL;
static_assert(!std::is_abstract_v<ProcessGroupOCCL>);
bool splits(const ProcessGroupOCCL& group) { return group.supportsSplitting(); }
const auto capabilities = &occl::pg::BackendBase::capabilities;
"""


def rewritten(folder: Path) -> None:
    """The two headers that differ, below ``folder``."""
    include = Path(torch.__file__).parent / "include"
    text = (include / BACKEND).read_text()
    changes = {
        r"^namespace c10d \{\n": CAPABILITIES,
        r"(?=  virtual bool supportsSplitting)": ASKED,
    }
    for method, constant in METHODS.items():
        answer = f"return capabilities().has[static_cast<int>(BackendCapability::{constant})];"
        changes[rf"virtual (bool {method}\(\) const \{{)\s*return false;"] = rf"\1 {answer}"
    for pattern, change in changes.items():
        text, found = re.subn(pattern, change, text, count=1, flags=re.M)
        assert found == 1, f"{BACKEND} is not as expected: no {pattern}"
    version = re.sub(r"(TORCH_VERSION_MINOR) \d+", r"\1 99", (include / VERSION).read_text())
    for path, content in ((BACKEND, text), (VERSION, version)):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)


@pytest.mark.full
def test_the_backend_compiles_where_capabilities_are_asked_for_at_once(tmp_path):
    rewritten(tmp_path)
    program = tmp_path / "program.cpp"
    program.write_text(PROGRAM)
    includes = [str(tmp_path), str(cpp_build.ROOT / "csrc"), *include_paths(), sysconfig.get_path("include")]
    command = [*shlex.split(cpp_build.compiler()), "-std=c++20", "-fsyntax-only", "-w"]
    done = subprocess.run(
        [*command, *(f"-I{path}" for path in includes), str(program)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
