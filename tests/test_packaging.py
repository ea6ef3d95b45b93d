"""What an installation promises: which PyTorch it works with, how it is found, that a wheel stands alone."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PYPROJECT = (ROOT / "pyproject.toml").read_text()


def load_versions():
    """``torch_occl/_versions.py`` alone, which must not need the rest of the package."""
    spec = importlib.util.spec_from_file_location("occl_versions", ROOT / "torch_occl" / "_versions.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def python(*arguments: str, executable: str = sys.executable, cwd: Path = ROOT) -> str:
    """The output of a fresh interpreter, which must succeed."""
    result = subprocess.run(
        [executable, *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=500,
    )
    assert result.returncode == 0, result.stdout
    return result.stdout


versions = load_versions()


@pytest.mark.parametrize("version", ["2.13.0", "2.13.0+cpu", "2.13.1", "2.13.0a0+git123", "2.13.0rc1"])
def test_a_supported_torch_is_accepted(version):
    versions.check(version)


@pytest.mark.parametrize(
    "version", ["2.12.0", "2.12.9+cu130", "2.14.0", "2.14.0a0+git123", "3.0.0", "1.13.1"]
)
def test_another_torch_is_refused_with_the_supported_versions(version):
    with pytest.raises(ImportError, match=re.escape("torch>=2.13,<2.14")) as error:
        versions.check(version)
    assert f"this is torch {version}." in str(error.value)


def test_the_build_requires_the_torch_that_the_code_checks_for():
    assert versions.REQUIREMENT == "torch>=2.13,<2.14"
    assert re.findall(r'"(torch[<>=][^"]*)"', PYPROJECT) == [versions.REQUIREMENT]


def test_make_installs_the_torch_that_the_build_requires():
    shown = subprocess.run(
        ["make", "-pn", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    (command,) = re.findall(r"^TORCH = \$\(shell (.*)\)$", shown, re.MULTILINE)
    torch = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert torch.strip() == versions.REQUIREMENT


def test_the_metadata_has_the_version_and_the_torch_of_the_code(tmp_path):
    python("setup.py", "--quiet", "egg_info", "--egg-base", str(tmp_path))
    lines = (tmp_path / "torch_occl.egg-info" / "PKG-INFO").read_text().splitlines()
    assert f"Version: {versions.VERSION}" in lines
    required = [
        line.partition(": ")[2] for line in lines if line.startswith("Requires-Dist") and "extra" not in line
    ]
    (torch,) = required
    assert set(torch.removeprefix("torch").split(",")) == set(
        versions.REQUIREMENT.removeprefix("torch").split(",")
    )


def test_the_wheel_has_the_package_and_nothing_of_the_repository():
    """Programs of other libraries are built from ``benchmarks/peers`` of a checkout."""
    code = "from setuptools import find_packages; print(*sorted(find_packages(include=['torch_occl*'])))"
    packages = python("-c", code).split()
    assert packages == [
        "torch_occl",
        "torch_occl.bench",
        "torch_occl.conformance",
        "torch_occl.conformance.rules",
        "torch_occl.dev",
        "torch_occl.doctor",
        "torch_occl.replicas",
        "torch_occl.testing",
    ]
    sources = (ROOT / "torch_occl").rglob("*.py")
    assert [
        path
        for path in sources
        if re.search(r"parents\[2\]|import benchmarks|from benchmarks", path.read_text())
    ] == []


def test_autoload_has_its_entry_point():
    assert '[project.entry-points."torch.backends"]\noccl = "_torch_occl_autoload:autoload"\n' in PYPROJECT


def test_ci_runs_what_make_offers_and_nothing_else():
    """It may install a Debian package before that."""
    script = (ROOT / ".ci" / "run").read_text().replace("\\\n", "")
    commands = re.findall(r"^\s*make.*$", script, re.M)
    assert [command.split()[1] for command in commands] == ["test", "docs", "test", "sanitize"]
    assert commands[0] == "make test" and 'ARGS="-m full ' in commands[2] and "pytest" not in script
    for path in re.findall(r"tests/\S+", commands[2].rstrip('"')):
        assert list(ROOT.glob(path)), path
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_importing_torch_alone_makes_the_backend_available():
    code = "import torch, torch.distributed as dist; print('occl' in dist.Backend.backend_list)"
    assert python("-c", code).strip() == "True"


def test_the_package_can_be_imported_before_torch():
    assert python("-c", "import torch_occl, torch; print(torch.device('dev:0'))").strip() == "dev:0"


@pytest.mark.full
def test_a_wheel_works_in_another_environment(tmp_path):
    pip = ["-m", "pip", "--disable-pip-version-check"]
    wheels = tmp_path / "wheels"
    python(*pip, "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", str(wheels), str(ROOT))
    (wheel,) = wheels.glob("torch_occl-*.whl")

    # A virtual environment with no packages of its own, which sees those of this one (torch) by path: but not
    # this one's torch_occl, which is an editable installation and not in the folder itself.
    home = tmp_path / "other environment"
    python("-m", "venv", str(home))
    other = str(home / "bin" / "python")
    python(*pip, "install", "--no-deps", "--no-index", str(wheel), executable=other)
    site = Path(
        python("-c", "import sysconfig; print(sysconfig.get_path('purelib'))", executable=other).strip()
    )
    (site / "first.pth").write_text(str(Path(importlib.util.find_spec("torch").origin).parents[1]))

    code = "import torch, torch_occl, torch_occl._C; print(torch_occl.__file__, torch.device('dev:0'))"
    file, device = python("-c", code, executable=other, cwd=tmp_path).strip().rsplit(" ", 1)
    assert Path(file).is_relative_to(site)
    assert device == "dev:0"
    assert {"_C.pyi", "py.typed"} <= {path.name for path in (site / "torch_occl").iterdir()}
    metadata = next(site.glob("torch_occl-*.dist-info"))
    assert (metadata / "licenses" / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    assert "_torch_occl_autoload:autoload" in (metadata / "entry_points.txt").read_text()
