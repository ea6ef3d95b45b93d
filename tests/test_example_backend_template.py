"""The template of a backend for vendors, built and tested as its README says."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.support.interpreter import PACKAGE, run_python, write_metadata

TEMPLATE = PACKAGE / "examples" / "backend_template"


@pytest.fixture(scope="module")
def built() -> Path:
    """A copy with the extension built, installed for whatever has it in its path.

    It stays under ``build`` until the sources change.
    """
    sources = [TEMPLATE / "setup.py", *sorted(TEMPLATE.glob("my_*/*.[ch]*"))]
    key = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    place = PACKAGE / "build" / f"backend_template-{sys.implementation.cache_tag}-{key}"
    shutil.copytree(TEMPLATE, place, dirs_exist_ok=True)
    write_metadata(place, "my_backend", TEMPLATE / "pyproject.toml")
    if len(list(place.glob("my_*/_C.*.so"))) < 2:
        path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
        command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
        environment = os.environ | {"PATH": path}
        done = subprocess.run(
            command, cwd=place, env=environment, capture_output=True, text=True, timeout=550
        )
        assert done.returncode == 0, done.stdout + done.stderr
    return place


def run(place: Path, *options: str) -> None:
    """pytest in the template's folder, which must end well."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "pytest", "-p", "pytest_torch_occl", "-q", *options],
        cwd=place,
        env=os.environ | {"PYTHONPATH": f"{PACKAGE}{os.pathsep}{place}"},
        capture_output=True,
        text=True,
        timeout=550,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr


@pytest.mark.full
def test_the_tests_of_the_template_pass(built):
    run(built, "tests")


@pytest.mark.full
@pytest.mark.parametrize("imported", ["torch", "my_backend", "my_device"])
def test_whichever_module_comes_first_the_backend_serves_the_device(built, imported):
    code = f"import {imported}, torch; print(torch.distributed.Backend.backend_capability['my_backend'])"
    said = run_python("-c", code, path=built)
    assert said.splitlines()[-1] == "['cpu', 'my_device']"


@pytest.mark.full
def test_the_first_program_runs(built):
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    said = run_python(*launch, built / "first.py", path=built, stderr=False)
    places = [f"rank {rank} on {device}" for rank in range(2) for device in ("cpu", "my_device")]
    assert sorted(said.splitlines()) == [f"{place}: [3.0, 3.0, 3.0, 3.0]" for place in places]


def test_the_lines_that_rename_it_leave_no_old_name(tmp_path):
    copy = tmp_path / "project"
    shutil.copytree(TEMPLATE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (script,) = re.findall(r"```sh\n(for name.*?)```", (TEMPLATE / "README.md").read_text(), re.DOTALL)
    subprocess.run(["bash", "-euc", script], cwd=copy, check=True)
    old = re.compile("my_backend|my_device|mybackend", re.IGNORECASE)
    files = [path for path in copy.rglob("*") if path.is_file()]
    assert (copy / "zccl" / "__init__.py") in files and (copy / "tests" / "test_zap.py") in files
    assert [path for path in files if old.search(path.name) or old.search(path.read_text())] == []


@pytest.mark.matrix
@pytest.mark.full
@pytest.mark.parametrize("device", ["cpu", "my_device"])
def test_the_template_has_what_it_does_not_declare_as_missing(built, tmp_path, device):
    """On the CPU, and on a device whose memory the host may not touch."""
    path = tmp_path / "report.json"
    run(
        built,
        *("--pyargs", "occl.conformance", "--backend=my_backend", f"--device={device}", "--quick"),
        *("--capabilities=capabilities.toml", f"--report={path}"),
    )
    report = json.loads(path.read_text())
    assert report["device_defects"] == [] and report["backend_class"].endswith(".MyBackend")
    found = report["cases"]
    works = {case["operation"] for case in found if case["verdict"] == "works"}
    assert {"all_reduce", "broadcast", "all_gather", "barrier"} <= works
    untested = {case["name"] for case in found if case["verdict"] == "untested"}
    blocking = ("all_reduce", "broadcast", "all_gather")
    assert untested == {f"{name}:in_flight" for name in blocking} | {"ends:pending"}
    assert all(case["verdict"] in (case["expected"], "untested") or case["known"] for case in found)
