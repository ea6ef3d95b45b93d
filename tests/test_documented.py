"""The tables in docs/ against the code that they are about."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from occl import versions
from occl.conformance import catalog
from tests import everything
from tests.test_layers import ROOMS
from tools import compatibility

ROOT = Path(__file__).parents[1]
PACKAGES = ("occl", "torch_occl")


def python_files() -> list[Path]:
    return [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]


def test_every_virtual_method_of_a_backend_is_in_the_table_with_what_we_do():
    virtuals = catalog.virtual_methods()
    ours = "".join(path.read_text() for path in (ROOT / "csrc/pg").rglob("*.h"))
    overridden = {
        name for name in virtuals if re.search(rf"\b{name}\s*\([^;{{]*\)\s*(const\s*)?override", ours)
    }
    page = (ROOT / "docs/backend.md").read_text()
    table = dict(re.findall(r"^\| `(\w+)` \| (yes|no) \|", page, re.M))
    running = versions.minor(torch.__version__)
    for name, since, offered in re.findall(r"^\| `(\w+)` \| ([\d.]+) \| (yes|no) \|", page, re.M):
        assert name not in table and versions.SUPPORTED[0] < versions.minor(since) < versions.SUPPORTED[1]
        if versions.minor(since) <= running:
            table[name] = offered
    assert len(virtuals) > 40
    assert set(table) == virtuals
    assert {name for name, offered in table.items() if offered == "yes"} == overridden


def test_every_threshold_is_in_the_table_with_its_default():
    header = (ROOT / "csrc/coll/plan/tuning.h").read_text()
    defaults = re.findall(r"^  std::uint(?:32|64)_t (\w+_bytes) = (.+);", header, re.M)
    table = dict(re.findall(r"^\| `(\w+_bytes)` \| (\d+)", (ROOT / "docs/tuning.md").read_text(), re.M))
    assert len(defaults) == len(table) == 10
    for name, default in defaults:
        value = table[name]
        if default != "kByCores":
            assert eval(re.sub(r"std::uint64_t\{(\d+)\}", r"\1", default)) == int(value), name


def test_every_environment_variable_that_is_read_is_in_the_table():
    sources = [*(ROOT / "csrc").rglob("*.[ch]*"), *python_files()]
    read = {name for path in sources for name in re.findall(r"\"(OCCL_[A-Z_]*[A-Z])\"", path.read_text())}
    table = set(re.findall(r"^\| `(OCCL_\w+)` \|", (ROOT / "docs/environment.md").read_text(), re.M))
    assert table == read


def test_no_text_tells_pip_to_look_for_the_package_on_an_index():
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    texts = [*pages, *(ROOT / "csrc").rglob("*.[ch]*"), *python_files()]
    wish = re.compile(
        r"torch_occl\[\w+\]|pip install '?torch_occl(?!-)"
    )  # a wheel's name goes on with a dash
    assert [path for path in texts if wish.search(path.read_text())] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_every_folder_of_a_package_is_in_the_table_of_layers(package):
    (row,) = re.findall(rf"^\| `{package}` \| (.*) \|$", (ROOT / "docs/architecture.md").read_text(), re.M)
    folders = {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}
    thin = {path.name for path in (ROOT / "occl").iterdir()} if package == "torch_occl" else set()
    assert len(folders) >= 3 and folders - thin <= set(re.findall(r"`(\w+)`", row))


def test_every_room_is_in_the_table_of_rooms():
    rooms = re.findall(r"^\| `(coll|pg|device)/(\w+)` \|", (ROOT / "docs/architecture.md").read_text(), re.M)
    assert rooms == [(layer, room) for layer in ROOMS for room in ROOMS[layer]]


def test_every_file_that_a_docstring_names_exists():
    sources = python_files()
    named = {name for path in sources for name in re.findall(r"`(\w+\.py)`", path.read_text())}
    assert len(named) >= 4 and named - {path.name for path in sources} == {"conftest.py"}  # the user's


def test_what_is_not_overridden_has_a_reason():
    page = (ROOT / "docs/backend.md").read_text()
    reasons = dict(re.findall(r"^\| `(\w+)` (?:\| 2\.\d+ )?\| no \| *(\S+ \S+.*\S) *\|$", page, re.M))
    assert list(reasons) == re.findall(r"^\| `(\w+)` (?:\| 2\.\d+ )?\| no\b", page, re.M) != []
    assert len(set(reasons.values())) == len(reasons)


@pytest.mark.full
def test_make_test_all_leaves_no_test_out():
    assert (
        "\ntest-all: setup\n\t@$(VENV_PYTHON) -m tests.everything $(ARGS)\n"
        in (ROOT / "Makefile").read_text()
    )
    paths = ["tests/distributed/test_reductions.py", "tests/test_cpp.py"]

    def collected(*options: str) -> set[str]:
        command = [sys.executable, "-m", "pytest", *options, "--collect-only", "-q", *paths]
        lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        return {line for line in lines.splitlines() if line.startswith("tests/")}

    parts = [collected(*everything.PARTS[name][1:]) for name in ("tests", "matrices")]
    assert parts[0] and parts[1] and not parts[0] & parts[1]
    assert parts[0] | parts[1] == collected("-m", "")


def test_the_manifest_for_kubernetes_names_the_pod_that_the_ranks_meet_at():
    yaml = pytest.importorskip("yaml")
    text = (ROOT / "docs/hosts.md").read_text()
    (manifest,) = re.findall(r"^```yaml\n(.*?)^```", text, re.M | re.S)
    service, job = yaml.safe_load_all(manifest)
    assert (service["apiVersion"], service["kind"]) == ("v1", "Service")
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    spec = job["spec"]
    assert spec["completionMode"] == "Indexed" and spec["completions"] == spec["parallelism"]
    pod = spec["template"]["spec"]
    assert pod["restartPolicy"] == "Never" and pod["subdomain"] == service["metadata"]["name"]
    (container,) = pod["containers"]
    assert container["name"] and container["image"] and container["env"]
    assert f"--nnodes={spec['completions']}" in container["command"]
    meeting = f"--rdzv-endpoint={job['metadata']['name']}-0.{pod['subdomain']}:29500"
    assert meeting in container["command"]


def test_compatibility_tables_are_written_from_results(tmp_path):
    cases = "".join(
        f'<testcase classname="tests.upstream.test_fsdp" name="{name}">{inner}</testcase>'
        for name, inner in (
            ("test_fsdp_trains_like_ddp[cpu-plain]", ""),
            ("test_fsdp_trains_like_ddp[cpu-bfloat16]", '<skipped type="pytest.skip"/>'),
            ("test_fully_shard_shares_parameters[dev]", ""),
        )
    )
    (tmp_path / "upstream.xml").write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    page = compatibility.PYTORCH.read_text()
    written = compatibility.with_numbers(page, compatibility.results(tmp_path / "upstream.xml"))
    changed = [line for line in written.split("\n") if line not in page.split("\n")]
    assert [re.findall(r"^\| (FSDP2?)|\| (\d+) \| (\d+) \|", line) for line in changed] == [
        [("FSDP", "", ""), ("", "2", "1")],
        [("FSDP2", "", ""), ("", "1", "1")],
    ]
    conformance = compatibility.CONFORMANCE.read_text()
    assert compatibility.between_marks(conformance, "backends", "new").count("\nnew\n") == 1
