"""Builds wheels that need no compiler where they are installed, and tries each in a clean environment.

    python tools/wheels.py build [PYTHON...]     all that is below, for each interpreter (make wheels)
    python tools/wheels.py prepare               installs what a build needs for this interpreter
    python tools/wheels.py repair WHEEL FOLDER   puts a wheel with the tag manylinux into FOLDER

``[tool.cibuildwheel]`` in pyproject.toml uses ``prepare`` and ``repair``. ``build`` is for a machine without
containers: a wheel then runs on systems whose C library is at least as new as that of this machine.

A wheel has an extension for each PyTorch of TORCHES, and is tried with each. pip's own variables say where
these come from (PIP_INDEX_URL, PIP_FIND_LINKS, ...). They take 15 GB while a wheel is built.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHONS = range(10, 15)
"""Minor versions of CPython 3."""
TORCHES = ("2.13.0", "2.14.1", "2.15.0")
"""The oldest patch of each minor version of PyTorch that pip offers: an extension needs no later symbol. The
first one runs the build, so it should be small."""
WORK = Path("build", "wheels")
DIST = Path("dist")

FROM_TORCH = ("libc10.so", "libtorch.so", "libtorch_cpu.so", "libtorch_python.so")
"""What the extension finds in the process, because PyTorch has loaded it: auditwheel must leave it out."""


def tools() -> list[str]:
    """What builds a wheel beside PyTorch: the others of ``[build-system] requires``."""
    (listed,) = re.findall(r"^requires = \[(.*)\]$", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    return [name for name in re.findall(r'"([^"]*)"', listed) if not name.startswith("torch")]


def run(*command: str | Path, **options) -> None:
    print("+", *command, flush=True)
    subprocess.run([str(part) for part in command], check=True, **options)


def pip(python: Path | str, *arguments: str | Path, **options) -> None:
    run(python, "-m", "pip", "--disable-pip-version-check", *arguments, **options)


def repair(wheel: Path, folder: Path) -> None:
    """Tags a wheel for the oldest system it runs on. No library is copied into it."""
    run(
        *("auditwheel", "repair", "--strip", "--wheel-dir", folder, wheel),
        *(part for name in FROM_TORCH for part in ("--exclude", name)),
    )


def version_of(python: Path) -> int | None:
    """The minor version of an interpreter of CPython 3; None for others."""
    code = "import sys; print(*sys.version_info[:2], sys.implementation.name)"
    result = subprocess.run([str(python), "-c", code], capture_output=True, text=True)
    major, minor, name = result.stdout.split() or ("0", "0", "")
    return int(minor) if (major, name) == ("3", "cpython") else None


def interpreters() -> dict[int, Path]:
    """Those that are installed, by minor version: on PATH, and pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    found = {}
    for minor in PYTHONS:
        candidates = [shutil.which(f"python3.{minor}"), *sorted(pyenv.glob(f"3.{minor}.*/bin/python"))]
        usable = [Path(path) for path in candidates if path and version_of(Path(path)) == minor]
        if usable:
            found[minor] = usable[0]
    return found


def make_source() -> Path:
    """Builds and unpacks the source distribution: wheels come from what is distributed, not the checkout."""
    run(sys.executable, "-m", "build", "--quiet", "--sdist", "--no-isolation", "--outdir", DIST)
    (archive,) = DIST.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(WORK)
    return WORK / archive.name.removesuffix(".tar.gz")


def make_environment(python: Path, home: Path) -> Path:
    """An empty environment of an interpreter; returns its own interpreter."""
    run(python, "-m", "venv", home)
    return home / "bin" / "python"


def prepare(others: bool) -> None:
    """Installs the tools and the first PyTorch.

    Args:
        others: Whether the others are put where pyproject.toml names them to setup.py.
    """
    pip(sys.executable, "install", *tools(), f"torch=={TORCHES[0]}")
    for version in TORCHES[1:] if others else ():  # of these only headers and libraries are used
        target = ROOT / WORK / f"torch-{version}"
        shutil.rmtree(target, ignore_errors=True)  # another interpreter's
        pip(sys.executable, "install", "--quiet", "--no-deps", "--target", target, f"torch=={version}")


def site_packages(environment: Path, minor: int) -> Path:
    return (environment / "lib" / f"python3.{minor}" / "site-packages").absolute()


def try_wheel(wheel: Path, environment: Path) -> None:
    """Installs it beside the PyTorch that is there, which stays as it is, and runs two ranks."""
    python = (environment / "bin" / "python").absolute()
    pip(python, "install", "--quiet", "--no-deps", "--no-index", wheel)
    pip(python, "check")
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "CC", "CXX"))}
    run(
        *(python, ROOT.absolute() / "tools" / "smoke_test.py"),
        cwd=environment,  # not the repository, whose package would be found first
        env=bare | {"PATH": str((environment / "bin").absolute())},
    )


def build_one(minor: int, python: Path, source: Path) -> str:
    """Builds, repairs, installs and tries the wheel for one interpreter; returns a line for the report."""
    begin = time.monotonic()
    users, builder = [WORK / f"with-{version}" for version in TORCHES], WORK / "builder"
    for home in (*users, builder):
        shutil.rmtree(home, ignore_errors=True)
    for home, version in zip(users, TORCHES, strict=True):
        pip(make_environment(python, home), "install", "--quiet", f"torch=={version}")

    # The environment that builds sees the first PyTorch of those in which the wheel is tried, by a path that
    # is the same for every interpreter: ccache then knows what it has compiled for the previous one.
    site = WORK / "packages"
    site.unlink(missing_ok=True)
    site.symlink_to(site_packages(users[0], minor))
    maker = make_environment(python, builder)
    pip(maker, "install", "--quiet", *tools())
    (site_packages(builder, minor) / "torch.pth").write_text(str(site.absolute()))
    others = [str(site_packages(home, minor) / "torch") for home in users[1:]]

    raw = WORK / "raw"
    shutil.rmtree(raw, ignore_errors=True)
    pip(
        *(maker, "wheel", "--quiet", "--no-build-isolation", "--no-deps", "--wheel-dir", raw, source),
        env=os.environ | {"OCCL_BUILD_ALSO_FOR": ":".join(others)},
    )
    (wheel,) = raw.glob("*.whl")
    for old in DIST.glob(f"*-cp3{minor}-*.whl"):
        old.unlink()
    repair(wheel, DIST)
    (wheel,) = DIST.glob(f"*-cp3{minor}-*.whl")
    for home in users:
        try_wheel(wheel, home)
        shutil.rmtree(home)
    shutil.rmtree(builder)
    with zipfile.ZipFile(wheel) as file:
        unpacked = sum(entry.file_size for entry in file.infolist())
    size = f"{wheel.stat().st_size / 2**20:.2f} MiB, {unpacked / 2**20:.1f} MiB unpacked"
    return f"{wheel.name}: {size}, {time.monotonic() - begin:.0f} s"


def build(chosen: list[Path]) -> None:
    os.chdir(ROOT)
    pythons = {version_of(path): path for path in chosen} if chosen else interpreters()
    if not pythons or None in pythons:
        sys.exit(f"wheels: no CPython 3.{PYTHONS[0]} to 3.{PYTHONS[-1]} among: {chosen or 'PATH, pyenv'}")
    shutil.rmtree(WORK, ignore_errors=True)
    for old in DIST.glob("*.tar.gz"):
        old.unlink()
    WORK.mkdir(parents=True)
    source = make_source()
    lines = [build_one(minor, python, source) for minor, python in pythons.items()]
    print("\n".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    preparing = commands.add_parser("prepare")
    preparing.add_argument("--source", action="store_true", help="what makes the source distribution only")
    repairing = commands.add_parser("repair")
    repairing.add_argument("wheel", type=Path)
    repairing.add_argument("folder", type=Path)
    building = commands.add_parser("build")
    building.add_argument("python", nargs="*", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "prepare":
        prepare(not arguments.source)
    elif arguments.command == "repair":
        repair(arguments.wheel, arguments.folder)
    else:
        build(arguments.python)


if __name__ == "__main__":
    main()
