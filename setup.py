"""Builds the extension. The metadata is in pyproject.toml, the versions in occl/versions.py.

The environment variable OCCL_BUILD_ALSO_FOR names packages of other versions of PyTorch, as
``.../site-packages/torch``, with ``:`` between them. What is built then has an extension for each of them
too. They are not imported, so they may lack what they depend on.
"""

import os
import re
import runpy
import subprocess
import sys
import sysconfig
from pathlib import Path

if sys.platform != "linux":
    sys.exit(
        f"torch_occl runs on Linux only, and this is {sys.platform}: on Windows use WSL 2, and on macOS "
        "a Linux container (docs/installing.md)"
    )

from setuptools import Extension, setup
from setuptools.command.sdist import sdist

# Importing torch would load the installed package, which may be an older one that this build replaces.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

import torch.distributed
from torch.utils.cpp_extension import BuildExtension, CppExtension

VERSIONS = runpy.run_path(str(Path("occl", "versions.py")))
VERSIONS["check"](torch.__version__)


def version_of(package: Path) -> str:
    """Of a package of PyTorch."""
    (version,) = re.findall(r"^__version__ = '(.*)'$", (package / "version.py").read_text(), re.MULTILINE)
    VERSIONS["check"](version)
    return version


NAMED = filter(None, os.environ.get("OCCL_BUILD_ALSO_FOR", "").split(":"))
OTHERS = {version_of(path): path.resolve() for path in map(Path, NAMED)}
# What needs torch.distributed, which a PyTorch may be built without; the device does not.
DISTRIBUTED = {*Path("csrc/pg").rglob("*.cpp"), *Path("csrc/bind").glob("*.cpp")}
DISTRIBUTED -= {Path("csrc/bind/module.cpp"), Path("csrc/bind/device.cpp")}
DISTRIBUTED -= {Path("csrc/pg/process/python_hooks.cpp")}
SOURCES = sorted(
    str(path)
    for path in Path("csrc").rglob("*.cpp")
    if torch.distributed.is_available() or path not in DISTRIBUTED
)
HEADERS = sorted(str(path) for path in Path("csrc").rglob("*.h"))

# The ninja of this environment is found even where the environment is not activated.
os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), sysconfig.get_path("scripts")])


OBJECTS = Path("build", f"objects-{sys.implementation.cache_tag}")
WITH_TORCH = ("bind", "device", "pg")
"""The folders of csrc that include PyTorch. The others are compiled once for all versions."""

FLAGS = [
    "-std=c++20",
    "-O3",
    "-g0",
    "-Wall",
    "-Wextra",
    "-Wno-unused-parameter",  # PyTorch's own headers
    "-fvisibility=hidden",
    # One rounding per operation on every instruction set: results are the same bits everywhere.
    "-ffp-contract=off",
]


def commit() -> str:
    """Of this checkout, with ``+`` if files differ from it; or what the source distribution says; or ""."""
    if Path(".git").exists():
        described = ["git", "describe", "--always", "--exclude=*", "--abbrev=12", "--dirty=+"]
        done = subprocess.run(described, capture_output=True, text=True)  # git may refuse another user's
        return done.stdout.strip()
    return Path("COMMIT").read_text().strip() if Path("COMMIT").exists() else ""


def name_of(version: str) -> str:
    """The module that the extension for this PyTorch is, as setuptools names it."""
    return f"occl.extensions.{VERSIONS['extension_of'](version).name}._C"


def extension_for_other(version: str, package: Path) -> Extension:
    """For a PyTorch that is not the running one. It is built after the one for that, and uses its objects."""
    with_torch = [source for source in SOURCES if Path(source).parts[1] in WITH_TORCH]
    include = package / "include"
    return Extension(
        name_of(version),
        with_torch,
        depends=HEADERS,
        include_dirs=[str(Path("csrc").resolve()), str(include), str(include / "torch/csrc/api/include")],
        extra_compile_args=FLAGS,
        extra_objects=[str((OBJECTS / path).with_suffix(".o")) for path in SOURCES if path not in with_torch],
        library_dirs=[str(package / "lib")],
        libraries=["c10", "torch", "torch_cpu", "torch_python"],
        language="c++",
    )


class BuildInOnePlace(BuildExtension):
    """Keeps objects between builds of every kind; an editable installation would throw them away."""

    def build_extension(self, ext: Extension) -> None:
        own = ext.name == name_of(torch.__version__)
        self.build_temp = str(OBJECTS) if own else f"{OBJECTS}-{ext.name.split('.')[2]}"
        super().build_extension(ext)

    def copy_extensions_to_source(self) -> None:
        for version in (torch.__version__, *OTHERS):
            VERSIONS["extension_of"](version).mkdir(parents=True, exist_ok=True)
        super().copy_extensions_to_source()

    def run(self) -> None:
        super().run()
        for version in (torch.__version__, *OTHERS):
            folder = VERSIONS["extension_of"](version)  # relative, as this script was told where it is
            for root in (Path(self.build_lib), Path())[: 1 + bool(self.inplace)]:
                (root / folder / "commit").write_text(commit())
        if (tool := Path("tools", "compile_commands.py")).exists():  # for clangd and clang-tidy
            subprocess.run([sys.executable, str(tool)], check=True)


class SourceWithCommit(sdist):
    """Says which commit it is made from, where there is no git any more."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        Path(base_dir, "COMMIT").write_text(commit())


setup(
    version=VERSIONS["VERSION"],
    install_requires=[VERSIONS["requirement_of_build"](map(VERSIONS["minor"], [torch.__version__, *OTHERS]))],
    ext_modules=[
        CppExtension(
            name_of(torch.__version__),
            SOURCES,
            depends=HEADERS,
            include_dirs=[str(Path("csrc").resolve())],
            extra_compile_args=FLAGS,
        ),
        *(extension_for_other(version, package) for version, package in OTHERS.items()),
    ],
    cmdclass={"build_ext": BuildInOnePlace, "sdist": SourceWithCommit},
)
