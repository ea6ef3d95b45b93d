"""``make headers`` names what does not compile, and what is new, for headers that differ as newer ones do."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
INCLUDE = Path(torch.__file__).parent / "include"
BACKEND = "torch/csrc/distributed/c10d/Backend.hpp"
VERSIONS = ROOT / "csrc" / "pg" / "compat"

headers = runpy.run_path(str(ROOT / "tools" / "headers.py"))


def changed(folder: Path, header: str, *pairs: tuple[str, str]) -> Path:
    """PyTorch's headers in links, one of them with other text."""
    folder.mkdir()
    part = folder
    for name in Path(header).parts[:-1]:
        known = INCLUDE / part.relative_to(folder)
        for path in known.iterdir():
            if path.name != name:
                (part / path.name).symlink_to(path)
        part = part / name
        part.mkdir()
    for path in (INCLUDE / header).parent.iterdir():
        (part / path.name).symlink_to(path)
    (folder / header).unlink()
    text = (INCLUDE / header).read_text()
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new, 1)
    (folder / header).write_text(text)
    return folder


def test_the_running_version_has_nothing_new():
    assert headers["compare"](INCLUDE, INCLUDE) == []


def test_what_is_new_and_what_is_gone_is_named(tmp_path):
    include = changed(
        tmp_path / "include",
        BACKEND,
        (
            "virtual bool supportsSplitting",
            "virtual bool supportsFlying() const;\n  virtual bool supportsSplitting",
        ),
        ("virtual void startCoalescing", "void startCoalescing"),
    )
    assert headers["compare"](include, INCLUDE) == [
        "Backend: new, and not overridden: supportsFlying",
        "Backend: gone, but overridden: startCoalescing",
    ]


def test_every_method_that_is_overridden_is_found():
    """Also where a comment before it contains parentheses."""
    assert {"endTimeEstimate", "allreduce", "getMemoryStats", "recordStream"} <= headers["overridden"]()


@pytest.mark.full
def test_a_source_that_does_not_compile_is_named(tmp_path):
    gone = changed(tmp_path / "include", BACKEND, ("virtual void startCoalescing", "void startCoalescing"))
    source = ROOT / "csrc" / "pg" / "backend" / "process_group.cpp"
    for include, status in ((INCLUDE, 0), (gone, 1)):
        command = [sys.executable, "tools/headers.py", str(include), str(source)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == status, done.stdout + done.stderr
    assert "csrc/pg/backend/process_group.cpp does not compile:\n" in done.stdout
    assert re.search(r"startCoalescing.*marked .override.*, but does not override", done.stdout)


def test_only_the_folder_compat_knows_versions_in_cpp():
    asks = re.compile(r"TORCH_VERSION|C10D_BACKEND_HAS|OCCL_TORCH_AT_LEAST")
    sources = [path for path in (ROOT / "csrc").rglob("*") if path.suffix in (".h", ".cpp")]
    found = [path for path in sources if asks.search(path.read_text())]
    assert found and {path.parent for path in found} == {VERSIONS}


def test_no_module_compares_the_running_version_with_a_number():
    """``occl/compat.py`` asks for attributes, and ``occl/versions.py`` knows what is supported."""
    compares = re.compile(r"torch\.__version__.*[<>]|TorchVersion|torch\.version\.__version__")
    modules = [path for name in ("occl", "torch_occl") for path in (ROOT / name).rglob("*.py")]
    assert [path for path in modules if compares.search(path.read_text())] == []


@pytest.mark.full
def test_the_stand_in_for_gloo_has_the_layout_of_gloo():
    with headers["no_gloo"]() as gloo:
        assert headers["failure"](headers["LAYOUT"], INCLUDE, gloo) == ""
