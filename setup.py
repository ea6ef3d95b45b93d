"""Builds torch_occl._C. Everything declarative is in pyproject.toml."""

from pathlib import Path

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

SOURCES = sorted(str(path) for path in Path("csrc").rglob("*.cpp"))
HEADERS = sorted(str(path) for path in Path("csrc").rglob("*.h"))

setup(
    ext_modules=[
        CppExtension(
            "torch_occl._C",
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
    cmdclass={"build_ext": BuildExtension.with_options(use_ninja=True)},
)
