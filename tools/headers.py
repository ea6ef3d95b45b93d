"""Compiles what includes PyTorch against the headers of another version, and names what is new in these.

    python tools/headers.py 2.15.0        a version, whose wheel pip downloads; 2.16 is its newest patch
    python tools/headers.py FOLDER        a folder of headers, such as .../site-packages/torch/include

Nothing of that version is installed or run. The headers stay in build/headers. Exits with 1 if a source does
not compile. Virtual methods are compared with those of the PyTorch that is installed here.
"""

import argparse
import contextlib
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
LAYERS = ("pg", "device", "bind")
"""The folders of csrc that include PyTorch."""

INTERFACES = {
    "Backend": "torch/csrc/distributed/c10d/Backend.hpp",
    "Work": "torch/csrc/distributed/c10d/Work.hpp",
    "DeviceGuardImplInterface": "c10/core/impl/DeviceGuardImplInterface.h",
    "AcceleratorHooksInterface": "ATen/detail/AcceleratorHooksInterface.h",
    "PrivateUse1HooksInterface": "ATen/detail/PrivateUse1HooksInterface.h",
    "Allocator": "c10/core/Allocator.h",
    "DeviceAllocator": "c10/core/CachingDeviceAllocator.h",
    "CachingHostAllocator": "ATen/core/CachingHostAllocator.h",
    "GeneratorImpl": "c10/core/GeneratorImpl.h",
    "ProfilerStubs": "torch/csrc/profiler/stubs/base.h",
}
"""The classes that csrc derives from, and the headers that have them."""

LAYOUT = ROOT / "tools" / "gloo_layout.cpp"
"""Compiles if the stand-in for Gloo's class has the layout of that class."""

VIRTUAL = re.compile(r"^\s*virtual\s+[^;{}]*?(\w+)\s*\(", re.MULTILINE)


def download(version: str) -> Path:
    """The folder of headers of the newest wheel of this version, for the running Python."""
    target = ROOT / "build" / "headers" / version
    include = target / "torch" / "include"
    if include.is_dir():
        return include
    wanted = version if version.count(".") > 1 else f"{version}.*"
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download"]
        done = subprocess.run([*pip, "--no-deps", "--only-binary=:all:", "-d", folder, f"torch=={wanted}"])
        if done.returncode:
            python = sysconfig.get_python_version()
            sys.exit(f"headers: pip finds no wheel of torch {version} for Python {python}")
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as file:
            names = [name for name in file.namelist() if name.startswith("torch/include/")]
            file.extractall(target, names)
    return include


def virtuals(include: Path, header: str) -> set[str]:
    """The virtual methods that a header declares; none if there is no such header."""
    file = include / header
    return set(VIRTUAL.findall(file.read_text())) if file.exists() else set()


def overridden() -> set[str]:
    """The methods that csrc overrides."""
    found: set[str] = set()
    for layer in LAYERS:
        for path in (ROOT / "csrc" / layer).rglob("*"):
            if path.suffix in (".h", ".cpp"):
                text = re.sub(r"//.*", "", path.read_text())
                found |= set(re.findall(r"(\w+)\s*\([^;{}]*\)[\w\s]*\boverride\b", text))
    return found


def compare(new: Path, known: Path) -> list[str]:
    """A line for each interface that differs."""
    ours, lines = overridden(), []
    for name, header in INTERFACES.items():
        before, now = virtuals(known, header), virtuals(new, header)
        if before and not now:
            lines.append(f"{name}: has no virtual methods in {header}")
            continue
        if added := sorted(now - before - ours):
            lines.append(f"{name}: new, and not overridden: {', '.join(added)}")
        if gone := sorted((before - now) & ours):
            lines.append(f"{name}: gone, but overridden: {', '.join(gone)}")
    return lines


@contextlib.contextmanager
def no_gloo() -> Iterator[Path]:
    """A folder with empty headers of Gloo, which do not come with PyTorch."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("algorithm", "common/error", "context", "rendezvous/store", "transport/device"):
            header = Path(folder, "gloo", f"{name}.h")
            header.parent.mkdir(parents=True, exist_ok=True)
            header.touch()
        yield Path(folder)


def failure(source: Path, include: Path, *more: Path) -> str:
    """What the compiler says about a source that it does not accept.

    Args:
        include: PyTorch's headers.
        more: folders with other headers.
    """
    folders = [ROOT / "csrc", sysconfig.get_path("include"), *more]
    system = [include, include / "torch" / "csrc" / "api" / "include"]
    command = [*shlex.split(os.environ.get("CXX", "g++")), "-std=c++20", "-fsyntax-only", "-w"]
    command += ["-DTORCH_EXTENSION_NAME=_C", "-DTORCH_API_INCLUDE_EXTENSION_H"]
    command += [f"-I{path}" for path in folders]
    command += [part for path in system for part in ("-isystem", str(path))]
    done = subprocess.run([*command, str(source)], stderr=subprocess.PIPE, text=True)
    errors = [line for line in done.stderr.splitlines() if "error:" in line]
    return "" if done.returncode == 0 else "\n".join(errors[:5] or [done.stderr[-2000:]])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("torch", help="a version, or a folder of headers")
    parser.add_argument("sources", nargs="*", type=Path, help="what is compiled (default: csrc)")
    arguments = parser.parse_args()
    given = arguments.torch.removeprefix("torch==")
    include = Path(given) if Path(given, "torch").is_dir() else download(given)

    import torch  # its headers are what is known

    print(f"{given} beside {torch.__version__}:", flush=True)
    for line in compare(include, Path(torch.__file__).parent / "include"):
        print(f"  {line}", flush=True)
    layers = [path for layer in LAYERS for path in sorted((ROOT / "csrc" / layer).rglob("*.cpp"))]
    sources = [path.resolve() for path in arguments.sources] or [LAYOUT, *layers]
    jobs = int(os.environ.get("MAX_JOBS", os.cpu_count() or 1))
    with ThreadPoolExecutor(jobs) as pool, no_gloo() as gloo:
        failures = list(pool.map(lambda source: failure(source, include, gloo), sources))
    for source, said in zip(sources, failures, strict=True):
        if said:
            print(f"{source.relative_to(ROOT)} does not compile:\n{said}", flush=True)
    bad = sum(map(bool, failures))
    print(f"{len(sources) - bad} of {len(sources)} sources compile with the headers of torch {given}")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
