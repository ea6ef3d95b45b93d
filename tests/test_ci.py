"""What the workflows run exists, and works: targets of make, shards of tests, what a release checks."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest
import yaml

from occl import versions
from tests.support import shards
from tests.support.cpp_build import ROOT
from tools import changed, release

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
JOBS = {
    f"{path.stem}: {name}": job
    for path in WORKFLOWS
    for name, job in yaml.safe_load(path.read_text())["jobs"].items()
}
PIP = r"-m pip install [\w.=-]+|-m pip wheel .* \./kits"
SCRIPTS = rf"python3? ({PIP}|-m build .*|-m cibuildwheel .*|tools/\w+\.py .*)"
OTHERS = r"gh release create .*|sudo sysctl .*"


def commands() -> list[str]:
    """What steps run, with the values of a matrix where it names targets."""
    found = []
    for job in JOBS.values():
        targets = job.get("strategy", {}).get("matrix", {}).get("target", [""])
        for step in job["steps"]:
            for line in step.get("run", "").splitlines():
                found += [line.replace("${{ matrix.target }}", target) for target in targets]
    return found


def test_each_step_is_a_target_of_make_or_a_script_of_the_repository():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    made = [line.split()[1] for line in commands() if line.startswith("make ")]
    assert len(made) > 12 and {*made} <= targets
    others = {line for line in commands() if not line.startswith("make ")}
    assert [line for line in others if not re.fullmatch(f"{SCRIPTS}|{OTHERS}", line)] == []
    named = {path for line in others for path in re.findall(r"tools/\w+\.py", line)}
    assert named and all((ROOT / path).exists() for path in named)


def test_no_workflow_names_a_host_and_only_what_publishes_may_write():
    for path in WORKFLOWS:
        assert not re.search(r"https?://|index-url (?!\$)", path.read_text()), path
        assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}
    writers = {name for name, job in JOBS.items() if "write" in str(job.get("permissions"))}
    assert writers == {"tests: pages", "wheels: publish"}


def test_every_supported_pytorch_is_run_and_compiled():
    for name in ("tests: versions", "nightly: headers"):
        named = JOBS[name]["strategy"]["matrix"]["torch"]
        minors = {versions.minor(version) for version in (*named, versions.DEFAULT)}
        first, end = versions.SUPPORTED
        assert minors == {(first[0], minor) for minor in range(first[1], end[1])}


def test_the_kits_are_tried_with_what_they_support_beyond_the_package():
    least = re.search(r'"torch>=([\d.]+)"', (ROOT / "kits/pyproject.toml").read_text())
    named = {versions.minor(version) for version in JOBS["tests: kits"]["strategy"]["matrix"]["torch"]}
    first = versions.SUPPORTED[0]
    assert named == {(first[0], each) for each in range(versions.minor(least[1])[1], first[1])}


def test_what_a_page_says_ci_leaves_out_is_left_out():
    run = {line.split()[1] for line in commands() if line.startswith("make ")}
    pages = "".join(path.read_text() for path in (ROOT / "docs").rglob("*.md"))
    assert run.isdisjoint(re.findall(r"`make ([\w-]+)` is not a part of\sCI", pages))


def test_the_placeholder_of_the_address_is_replaced_before_the_first_release():
    pages = [ROOT / "README.md", ROOT / "kits/README.md", *(ROOT / "docs").rglob("*.md")]
    if any(re.search(r"\bADDRESS\b", page.read_text()) for page in pages):
        once = (ROOT / "RELEASING.md").read_text().split("For each version")[0]
        assert "`git grep -lw ADDRESS README.md docs kits`" in once


def test_shards_have_every_file_once_and_are_about_equal():
    cases = Counter({f"test_{number}.py": number % 17 + 1 for number in range(100)})
    parts = shards.parts(cases, 3)
    assert sorted(file for part in parts for file in part) == sorted(cases)
    sizes = [sum(cases[file] for file in part) for part in parts]
    assert max(sizes) - min(sizes) <= 17 and shards.parts(cases, 3) == parts
    assert shards.shard("2/3") == (2, 3)


@pytest.mark.parametrize("value", ["0/3", "4/3", "1", "a/b", "/"])
def test_a_shard_that_is_none_is_refused(value):
    with pytest.raises(ValueError, match=re.escape(f"such as 2/3, not '{value}'")):
        shards.shard(value)


def test_pytest_runs_the_files_of_a_shard(pytester: pytest.Pytester):
    for name in "abc":
        pytester.makepyfile(**{f"test_{name}": "def test_one(): pass\ndef test_two(): pass"})
    pytester.makeconftest("pytest_plugins = ['tests.support.shards']")
    for number in range(1, 4):
        result = pytester.runpytest_inprocess("-p", "no:cacheprovider", f"--shard={number}/3")
        result.assert_outcomes(passed=2, deselected=4)


CHANGES = (
    "# Changelog\n\n## [Unreleased]\n\n## [0.2.0] - 2027-01-31\n\n### Added\n\n- A thing.\n\n## [0.1.0]\n"
)


def test_a_release_needs_its_version_and_its_section():
    assert release.section(CHANGES, "0.2.0") == "### Added\n\n- A thing."
    assert release.check("v0.2.0", "0.2.0", CHANGES) == ""
    assert "the tag v0.2.0 is not of version 0.2.0.dev0" in release.check("v0.2.0", "0.2.0.dev0", CHANGES)
    assert "the tag v0.3.0 is not of version 0.2.0" in release.check("v0.3.0", "0.2.0", CHANGES)
    assert 'no section "## [0.1.0] - YYYY' in release.check("v0.1.0", "0.1.0", CHANGES)  # without a date


@pytest.fixture
def tagged(tmp_path, monkeypatch):
    """A repository with one version; `commit` changes the interface."""
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]

    def commit(text: str) -> None:
        for package in release.PACKAGES:
            (tmp_path / package).mkdir(exist_ok=True)
            (tmp_path / package / "__init__.py").write_text(text)
        changed.git("add", "-A", root=tmp_path)
        changed.git(*identity, "commit", "-qm", "a change", root=tmp_path)

    changed.git("init", "-q", "-b", "main", root=tmp_path)
    commit("def offered(a): pass\n")
    monkeypatch.setattr(release, "ROOT", tmp_path)
    return tmp_path, commit


GRIFFE = next((path for path in (shutil.which("griffe"), ROOT / "build/docs-venv/bin/griffe") if path), "")


@pytest.mark.parametrize(
    ("line", "counts"),
    [
        ("occl/notebook.py:0: launch: Public object was removed", True),
        ("occl/distributed/stats.py:7: OperationStats.failed: Public object was removed", True),
        ("torch_occl/replicas/__init__.py:9: scatter(x): Parameter was removed", True),
        ("occl/tools/top/stuck.py:0: DEBUGGERS: Public object was removed", False),
        ("griffe: cannot load the package", True),
    ],
)
def test_only_what_the_pages_of_the_interface_have_counts(line, counts):
    names = release.offered()
    assert "torch_occl.launch" in names and "torch_occl.replicas" in names
    assert release.is_offered(line, names) == counts


@pytest.mark.skipif(
    not Path(GRIFFE).exists(), reason="the interface is compared by griffe: run make api once"
)
def test_what_the_interface_lost_is_an_error_within_a_minor_version(tagged, monkeypatch):
    root, commit = tagged
    (root / "docs" / "api").mkdir(parents=True)
    (root / "docs" / "api" / "page.md").write_text("::: occl.offered\n")
    version = ["0.1.1"]
    monkeypatch.setattr(release, "version", lambda: version[0])
    assert release.last_tag() == "" and release.api(str(GRIFFE))
    subprocess.run(["git", "tag", "v0.1.0"], cwd=root, check=True)
    commit("def offered(a, b=1): pass\ndef inside(): pass\n")
    assert release.last_tag() == "v0.1.0" and release.api(str(GRIFFE))
    subprocess.run(["git", "tag", "v0.1.1"], cwd=root, check=True)
    commit("def offered(a, b=1): pass\n")
    assert release.last_tag() == "v0.1.1" and release.api(str(GRIFFE)), "no page of docs/api has it"
    commit("def other(a): pass\n")
    assert not release.api(str(GRIFFE))
    version[0] = "0.2.0.dev0"
    assert release.api(str(GRIFFE))
