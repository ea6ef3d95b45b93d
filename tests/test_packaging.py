"""What an installation promises: which PyTorch it works with, how it is found, that a wheel stands alone."""

import importlib.metadata
import importlib.util
import os
import re
import runpy
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml

from tests.support import cpp_build

ROOT = Path(__file__).parents[1]
PYPROJECT = (ROOT / "pyproject.toml").read_text()


def load_versions():
    """``occl/versions.py`` alone, which must not need the rest of the package."""
    spec = importlib.util.spec_from_file_location("occl_versions", ROOT / "occl" / "versions.py")
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


@pytest.mark.parametrize("version", ["2.11.0", "2.13.0+cpu", "2.14.1", "2.15.0a0+git123", "2.15.0rc1"])
def test_a_supported_torch_is_accepted(version):
    versions.check(version)


@pytest.mark.parametrize(
    "version", ["2.10.0", "2.10.9+cu130", "2.16.0", "2.16.0a0+git123", "3.0.0", "1.13.1"]
)
def test_another_torch_is_refused_with_the_supported_versions(version):
    with pytest.raises(ImportError, match=re.escape("torch>=2.11,<2.16")) as error:
        versions.check(version)
    assert f"this is torch {version}." in str(error.value)


def test_the_build_requires_the_torch_that_the_code_checks_for():
    assert versions.REQUIREMENT == "torch>=2.11,<2.16"
    assert re.findall(r'"(torch[<>=][^"]*)"', PYPROJECT) == [versions.REQUIREMENT]


def with_extensions(folder: Path, *minors: str) -> None:
    """Makes files that stand for the extensions of an installation."""
    for minor in minors:
        home = folder / versions.extension_of(minor).name
        home.mkdir(parents=True)
        (home / "_C.so").touch()


def test_an_extension_for_another_torch_is_refused_with_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(versions, "EXTENSIONS", tmp_path)
    versions.check_build("2.15.0")  # nothing is known of what was built
    with_extensions(tmp_path, "2.13")
    for version in ("2.13.0", "2.13.1+cpu"):
        versions.check_build(version)
    for version in ("2.12.1", "2.14.0", "2.15.0+cu130", "3.13.0"):
        with pytest.raises(ImportError) as error:
            versions.check_build(version)
        assert f"built for torch 2.13, and this is torch {version}. Install" in str(error.value)
        assert '"torch>=2.13,<2.14"' in str(error.value)
        (command,) = re.findall(r"in a checkout: (pip install .*)$", str(error.value))
        assert command in (ROOT / "README.md").read_text()


def test_one_installation_has_extensions_for_several_versions(tmp_path, monkeypatch):
    monkeypatch.setattr(versions, "EXTENSIONS", tmp_path)
    with_extensions(tmp_path, "2.15", "2.9", "2.13")
    (tmp_path / "torch_2_14").mkdir()  # a build that has failed
    assert versions.built() == [(2, 9), (2, 13), (2, 15)]
    for version in ("2.9.1", "2.13.0", "2.15.0+cu130"):
        versions.check_build(version)
    with pytest.raises(ImportError, match=r"for torch 2\.9 and 2\.13 and 2\.15, and this is torch 2\.14\.1"):
        versions.check_build("2.14.1")


@pytest.mark.parametrize(
    ("minors", "requirement"),
    [
        ([(2, 13)], "torch>=2.13,<2.14"),
        ([(2, 15), (2, 13), (2, 14)], "torch>=2.13,<2.16"),
        ([(2, 15), (2, 12), (2, 13)], "torch>=2.12,<2.16,!=2.14.*"),
    ],
)
def test_a_package_asks_for_the_versions_that_it_has_extensions_for(minors, requirement):
    assert versions.requirement_of_build(minors) == requirement


def test_the_extension_is_the_one_for_this_torch():
    import torch

    from occl import _C

    assert Path(_C.__file__).parent == versions.extension_of(torch.__version__)
    assert versions.minor(torch.__version__) in versions.built()


def test_what_includes_no_pytorch_is_compiled_once_for_all_versions():
    (listed,) = re.findall(r"^WITH_TORCH = \((.*)\)$", (ROOT / "setup.py").read_text(), re.MULTILINE)
    folders = {path.name for path in (ROOT / "csrc").iterdir() if path.is_dir()}
    assert set(re.findall(r'"(\w+)"', listed)) == folders - set(cpp_build.CORE)


def test_make_installs_the_default_torch_which_is_supported():
    shown = subprocess.run(
        ["make", "-pn", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert f"DEFAULT := {versions.DEFAULT}\n" in shown and "\nTORCH = torch==$(DEFAULT)\n" in shown
    versions.check(versions.DEFAULT)


@pytest.mark.parametrize(
    ("version", "origin", "printed"),
    [
        ("2.14.1+cu130", "file", "--system-site-packages\n"),
        ("2.14.1", "environment", ""),
        ("2.14.1", "command line", ""),
        ("2.10.0", "file", ""),
        ("", "file", ""),
    ],
)
def test_make_uses_the_torch_that_its_interpreter_has(tmp_path, version, origin, printed):
    if version:
        (tmp_path / "torch-0.dist-info").mkdir()
        (tmp_path / "torch-0.dist-info" / "METADATA").write_text(f"Name: torch\nVersion: {version}\n")
    base = str(Path(sys.base_prefix, "bin", f"python{sys.version_info[0]}.{sys.version_info[1]}"))
    command = [base, "-S", "tools/preflight.py", "torch", origin]
    done = subprocess.run(
        command, cwd=ROOT, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=True
    )
    assert done.stdout == printed and (f"uses torch {version} of" in done.stderr) == bool(printed)


def test_make_does_not_look_for_torch_in_a_virtual_environment():
    """One that is active, such as .venv itself: what is made from it sees the packages of its base only."""
    assert sys.prefix != sys.base_prefix
    assert python("tools/preflight.py", "torch", "file") == ""


def test_the_metadata_has_the_version_and_the_torch_that_it_was_built_with(tmp_path):
    python("setup.py", "--quiet", "egg_info", "--egg-base", str(tmp_path))
    lines = (tmp_path / "torch_occl.egg-info" / "PKG-INFO").read_text().splitlines()
    assert f"Version: {versions.VERSION}" in lines
    required = [
        line.partition(": ")[2] for line in lines if line.startswith("Requires-Dist") and "extra" not in line
    ]
    (torch,) = required
    of_build = versions.requirement_of_build([versions.minor(importlib.metadata.version("torch"))])
    assert set(torch.removeprefix("torch").split(",")) == set(of_build.removeprefix("torch").split(","))


def test_the_wheel_has_the_package_and_nothing_of_the_repository():
    """Programs of other libraries are built from ``benchmarks/peers`` of a checkout."""
    code = "from setuptools import find_packages; print(*sorted(find_packages(include=['occl*', 'torch_occl*'])))"  # noqa: E501
    packages = python("-c", code).split()
    assert packages == [
        "occl",
        "occl.bench",
        "occl.conformance",
        "occl.conformance.rules",
        "occl.distributed",
        "occl.testing",
        "occl.testing.gpu",
        "occl.tools",
        "occl.tools.doctor",
        "occl.tools.report",
        "occl.tools.top",
        "torch_occl",
        "torch_occl.dev",
        "torch_occl.integrations",
        "torch_occl.replicas",
        "torch_occl.testing",
    ]
    sources = [*(ROOT / "occl").rglob("*.py"), *(ROOT / "torch_occl").rglob("*.py")]
    assert [
        path
        for path in sources
        if re.search(r"parents\[2\]|import benchmarks|from benchmarks", path.read_text())
    ] == []


def test_autoload_has_its_entry_point():
    assert '[project.entry-points."torch.backends"]\noccl = "occl.registration:autoload"\n' in PYPROJECT


def test_ci_runs_what_make_offers_and_nothing_else():
    """It may install a Debian package before that."""
    script = (ROOT / ".ci" / "run").read_text().replace("\\\n", "")
    commands = re.findall(r"^\s*make.*$", script, re.M)
    assert [command.split()[1] for command in commands] == ["lint", "test", "docs", "sanitize"]
    assert commands[1] == """make test ARGS="-m 'not matrix'\""""
    assert "pytest" not in script
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


@pytest.mark.parametrize("script", ["setup.py", "tools/preflight.py"])
@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_a_build_on_another_system_ends_with_what_to_do_there(script, system):
    code = f"import runpy, sys; sys.platform = {system!r}; runpy.run_path({script!r}, run_name='__main__')"
    command = [sys.executable, "-c", code, "check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
    assert f"runs on Linux only, and this is {system}: on Windows use WSL 2, and on macOS a" in done.stderr


def test_importing_torch_alone_makes_the_backend_available():
    code = "import torch, torch.distributed as dist; print('occl' in dist.Backend.backend_list)"
    assert python("-c", code).strip() == "True"


@pytest.mark.full
def test_the_package_can_be_imported_before_torch():
    assert python("-c", "import torch_occl, torch; print(torch.device('dev:0'))").strip() == "dev:0"


def test_the_version_has_one_place_and_the_changelog_leads_up_to_it():
    files = [ROOT / name for name in ("setup.py", "pyproject.toml", "CITATION.cff")]
    files += [path for folder in ("occl", "torch_occl", "tools") for path in (ROOT / folder).rglob("*.py")]
    named = [path for path in files if f'"{versions.VERSION}"' in path.read_text()]
    assert named == [ROOT / "occl" / "versions.py"]
    changelog = (ROOT / "CHANGELOG.md").read_text()
    headings = re.findall(r"^## \[(.*)\]", changelog, re.MULTILINE)
    assert headings[0] == "Unreleased" and versions.VERSION.removesuffix(".dev0") in changelog
    assert headings[1:] == sorted(headings[1:], key=lambda v: tuple(map(int, v.split("."))), reverse=True)
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"^### (.*)$", changelog, re.MULTILINE)) <= kinds


def test_the_build_knows_its_commit():
    """Files have been changed since, or the build is that of a commit before."""
    import torch

    commit = versions.commit_of(torch.__version__)
    assert re.fullmatch(r"[0-9a-f]{12}\+?", commit)
    assert versions.name_of_build(torch.__version__) == f"torch_occl {versions.VERSION} ({commit})"
    assert versions.commit_of("2.99") == "" and versions.name_of_build("2.99").endswith(versions.VERSION)


def test_wheels_have_an_extension_for_each_of_several_torches():
    wheels = runpy.run_path(str(ROOT / "tools" / "wheels.py"))
    (listed,) = re.findall(r"^requires = \[(.*)\]", PYPROJECT, re.M)
    assert {*wheels["tools"](), versions.REQUIREMENT} == set(re.findall(r'"(.*?)"', listed))
    first, *others = wheels["TORCHES"]
    assert first == versions.DEFAULT
    assert sorted({versions.minor(version) for version in (first, *others)}) == [(2, 13), (2, 14), (2, 15)]
    for version in others:
        versions.check(version)
    in_container = ":".join(f"{wheels['WORK']}/torch-{version}/torch" for version in others)
    assert f'environment = {{ OCCL_BUILD_ALSO_FOR = "{in_container}" }}' in PYPROJECT


def test_wheels_are_made_for_every_python_that_the_metadata_names():
    named = [int(minor) for minor in re.findall(r'"Programming Language :: Python :: 3\.(\d+)"', PYPROJECT)]
    assert f'requires-python = ">=3.{named[0]}"' in PYPROJECT
    assert list(runpy.run_path(str(ROOT / "tools" / "wheels.py"))["PYTHONS"]) == named
    (built,) = re.findall(r'^build = "(.*)"$', PYPROJECT, re.MULTILINE)
    assert built.split() == [f"cp3{minor}-*" for minor in named]
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "wheels.yml").read_text())
    assert workflow["jobs"]["wheels"]["strategy"]["matrix"]["python"] == [f"cp3{minor}" for minor in named]


def test_auditwheel_leaves_out_every_library_of_pytorch_that_the_extension_needs():
    from occl import _C

    dynamic = subprocess.run(
        ["readelf", "-d", _C.__file__], capture_output=True, text=True, check=True
    ).stdout
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", dynamic))
    of_pytorch = {name for name in needed if re.match(r"lib(c10|torch|shm)", name)}
    assert of_pytorch and of_pytorch <= set(runpy.run_path(str(ROOT / "tools" / "wheels.py"))["FROM_TORCH"])


def test_the_source_distribution_has_what_builds_the_package_and_no_tests(tmp_path):
    python("setup.py", "--quiet", "sdist", "--dist-dir", str(tmp_path))
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        names = {member.name.partition("/")[2] for member in file if member.isfile()}
    folders = [path for folder in ("csrc", "occl", "torch_occl") for path in (ROOT / folder).rglob("*")]
    sources = {
        str(path.relative_to(ROOT))
        for path in folders
        if path.is_file() and not {"__pycache__", "extensions"} & {*path.parts}
    }
    documents = {"CHANGELOG.md", "CITATION.cff", "LICENSE", "MANIFEST.in", "README.md", "pyproject.toml"}
    modules = {path.name for path in ROOT.glob("*.py")}
    made = {"COMMIT", "PKG-INFO", "setup.cfg"}
    assert {name for name in names if ".egg-info/" not in name} == {*sources, *documents, *modules, *made}


@pytest.mark.full
def test_a_program_in_strict_types_is_accepted_and_runs(tmp_path):
    """It sees the package as in an installation: in site-packages, whose own errors mypy does not show."""
    home = tmp_path / "environment"
    python("-m", "venv", "--without-pip", str(home))
    other = str(home / "bin" / "python")
    site = Path(
        python("-c", "import sysconfig; print(sysconfig.get_path('purelib'))", executable=other).strip()
    )
    (site / "torch.pth").write_text(str(Path(importlib.util.find_spec("torch").origin).parents[1]))
    for name in ("occl", "torch_occl"):
        (site / name).symlink_to(ROOT / name)
    program = tmp_path / "program.py"
    program.write_text((ROOT / "tests" / "support" / "typed_program.py").read_text())
    mypy = ["-m", "mypy", "--strict", "--config-file=", "--python-executable", other]
    assert "Success" in python(*mypy, str(program), cwd=tmp_path)
    assert python(str(program), executable=other, cwd=tmp_path).startswith(versions.VERSION)
    program.write_text(program.read_text().replace("priority=-1", "priority='high'"))
    wrong = subprocess.run(
        [sys.executable, *mypy, str(program)], cwd=tmp_path, capture_output=True, text=True
    )
    assert wrong.returncode == 1 and '"Stream" has incompatible type "str"; expected "int"' in wrong.stdout


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
    assert {"_C.pyi", "py.typed"} <= {path.name for path in (site / "occl").iterdir()}
    metadata = next(site.glob("torch_occl-*.dist-info"))
    assert (metadata / "licenses" / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    assert "occl.registration:autoload" in (metadata / "entry_points.txt").read_text()
