"""The kits alone: the pytest plugin and the conformance suite, installed without torch_occl, serve Gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from occl import versions
from occl.conformance import badge
from tests.support.cpp_build import ROOT

OURS = ("torch_occl", "__editable__", "occl")
"""How what torch_occl has installed begins, beside torch itself."""


@pytest.fixture(scope="module")
def kits(tmp_path_factory) -> Path:
    """The interpreter of an environment with the wheel, and with links to all other packages of this one."""
    folder = tmp_path_factory.mktemp("kits")
    pip = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", folder]
    done = subprocess.run([*map(str, pip), str(ROOT / "kits")], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = folder.glob("*.whl")
    assert wheel.name == f"torch_occl_kits-{versions.VERSION}-py3-none-any.whl"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "home")], check=True)
    site = folder / "home" / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    with zipfile.ZipFile(wheel) as file:
        file.extractall(site)
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.startswith(OURS) and path.suffix != ".pth":
            (site / path.name).symlink_to(path)
    return folder / "home" / "bin" / "python"


def run(kits: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A module of that environment."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PY")}
    command = [str(kits), "-m", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


SAMPLE = """
import importlib.util, pkgutil, sys
import pytest, torch
import occl.conformance, occl.testing
import torch.distributed as dist

def test_it_is_alone():
    assert importlib.util.find_spec("torch_occl") is None
    assert importlib.util.find_spec("occl.distributed") is None
    for package in (occl.testing, occl.conformance):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.endswith((".__main__", "gpu.names")):  # the second is of occl's names
                importlib.import_module(found.name)
    assert "occl._C" not in sys.modules

@pytest.mark.ranks(2)
def test_ranks(rank, world_size):
    x = torch.tensor([rank + 1.0])
    dist.all_reduce(x)
    assert x.item() == 3.0 and dist.get_backend() == "gloo"
    assert not any(name.startswith(("torch_occl", "occl.distributed", "occl._C")) for name in sys.modules)

@pytest.mark.ranks(2)
def test_a_death(rank, faults):
    faults.kill(rank=1, at="all_reduce#1")
    with pytest.raises(RuntimeError):
        dist.all_reduce(torch.ones(1))
"""


@pytest.mark.full
def test_tests_of_ranks_run_over_gloo(kits, tmp_path):
    (tmp_path / "test_sample.py").write_text(SAMPLE)
    done = run(kits, tmp_path, "pytest", "-q", "-p", "no:cacheprovider", "test_sample.py")
    assert "3 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.full
def test_the_suite_runs_over_gloo_and_makes_a_table_and_a_badge(kits, tmp_path):
    suite = ("pytest", "-q", "-p", "no:cacheprovider", "--pyargs", "occl.conformance", "--backend", "gloo")
    chosen = ("--world-size", "2", "-k", "broadcast", "--report", "report.json")
    done = run(kits, tmp_path, *suite, *chosen)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    done = run(kits, tmp_path, "occl.conformance", "report.json", "--badge", "badge.json")
    assert done.returncode == 0 and "| operation or feature | gloo, cpu |" in done.stdout, done.stderr
    made = json.loads((tmp_path / "badge.json").read_text())
    number = sum(each["verdict"] != "untested" for each in report["cases"])
    assert number > 10 and made["message"] == f"{number} of {number}" and made["color"] == "brightgreen"


@pytest.mark.full
@pytest.mark.parametrize(
    ("wish", "says"),
    [
        ("backend='occl'", "the backend occl is of torch_occl, and only torch_occl_kits is installed"),
        (
            "device='dev', backend='gloo'",
            'device="dev" is the device of torch_occl, which is not installed here',
        ),
    ],
)
def test_what_needs_torch_occl_says_so(kits, tmp_path, wish, says):
    (tmp_path / "test_sample.py").write_text(
        f"import pytest\n\n@pytest.mark.ranks(2, {wish})\ndef test_ranks(): pass\n"
    )
    done = run(kits, tmp_path, "pytest", "-q", "-p", "no:cacheprovider", "test_sample.py")
    assert done.returncode == 1 and says in done.stdout, done.stdout
    assert len(done.stdout.splitlines()) < 80


@pytest.mark.full
@pytest.mark.parametrize("command", ["doctor", "top", "report", "bench"])
def test_a_command_of_torch_occl_says_what_is_installed(kits, tmp_path, command):
    done = run(kits, tmp_path, "occl", command)
    said = (
        f"occl {command} cannot run: occl {command} is of torch_occl, and only torch_occl_kits is installed"
    )
    assert done.returncode == 1 and done.stderr.startswith(said) and done.stderr.count("\n") == 1, done.stderr


@pytest.mark.full
def test_a_function_of_torch_occl_says_what_is_installed(kits, tmp_path):
    (tmp_path / "program.py").write_text(
        "import occl\n\nassert occl.launch(lambda: 3, 2, backend='gloo') == [3, 3]\noccl.replace_gloo()\n"
    )
    done = run(kits, tmp_path, "program")
    assert "ImportError: occl.replace_gloo is of torch_occl, and only torch_occl_kits is" in done.stderr, done


def case(verdict: str, known: str = "") -> dict[str, str]:
    return {"verdict": verdict, "expected": "works", "known": known}


@pytest.mark.parametrize(
    ("cases", "message", "color"),
    [
        ([case("works"), case("hangs", "an issue")], "2 of 2", "brightgreen"),
        ([case("works"), case("wrong")], "1 of 2", "red"),
        ([case("works"), case("untested")], "1 of 1", "brightgreen"),
        ([], "0 of 0", "red"),
    ],
)
def test_a_badge_counts_what_ends_as_it_should(cases, message, color):
    made = badge.badge([{"cases": cases[:1]}, {"cases": cases[1:]}])
    assert (made["message"], made["color"], made["schemaVersion"]) == (message, color, 1)
