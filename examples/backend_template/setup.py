"""Builds my_backend._C. The metadata is in pyproject.toml."""

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

setup(
    ext_modules=[
        CppExtension("my_backend._C", ["my_backend/backend.cpp"], extra_compile_args=["-std=c++20", "-O0"])
    ],
    cmdclass={"build_ext": BuildExtension},
)
