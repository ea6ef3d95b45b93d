"""Builds occl._C. The metadata is in pyproject.toml, the versions in occl/versions.py."""

import os
import runpy
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import setup

# Importing torch would load the installed package, which may be an older one that this build replaces.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

import torch.distributed
from torch.utils.cpp_extension import BuildExtension, CppExtension

VERSIONS = runpy.run_path(str(Path("occl", "versions.py")))
VERSIONS["check"](torch.__version__)
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


class BuildInOnePlace(BuildExtension):
    """Keeps objects between builds of every kind; an editable installation would throw them away."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.build_temp = str(Path("build", f"objects-{sys.implementation.cache_tag}"))

    def run(self) -> None:
        super().run()
        built_for = Path(self.get_ext_fullpath("occl._C")).with_name(VERSIONS["BUILT_FOR"].name)
        built_for.write_text("{}.{}\n".format(*VERSIONS["minor"](torch.__version__)))
        if (tool := Path("tools", "compile_commands.py")).exists():  # for clangd and clang-tidy
            subprocess.run([sys.executable, str(tool)], check=True)


setup(
    version=VERSIONS["VERSION"],
    install_requires=[VERSIONS["requirement_of_build"](torch.__version__)],
    ext_modules=[
        CppExtension(
            "occl._C",
            SOURCES,
            depends=HEADERS,
            include_dirs=[str(Path("csrc").resolve())],
            extra_compile_args=[
                "-std=c++20",
                "-O3",
                "-g0",
                "-Wall",
                "-Wextra",
                "-Wno-unused-parameter",  # PyTorch's own headers
                "-fvisibility=hidden",
                # One rounding per operation on every instruction set: results are the same bits everywhere.
                "-ffp-contract=off",
            ],
        )
    ],
    cmdclass={"build_ext": BuildInOnePlace},
)
