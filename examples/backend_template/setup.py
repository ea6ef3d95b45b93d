"""Builds my_backend._C. The metadata is in pyproject.toml."""

import os

from setuptools import setup

# Importing torch would import the installed package, which may have no extension yet.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

from torch.utils.cpp_extension import BuildExtension, CppExtension

setup(
    ext_modules=[
        CppExtension(
            "my_backend._C",
            ["my_backend/backend.cpp"],
            depends=["my_backend/staging.h"],
            extra_compile_args=["-std=c++20", "-O0"],  # PyTorch's headers compile in half the time
        ),
        CppExtension(
            "my_device._C",
            ["my_device/device.cpp"],
            depends=[f"my_device/{name}.h" for name in ("faults", "memory", "runtime", "streams")],
            extra_compile_args=["-std=c++20", "-O1", "-Wno-unused-parameter"],
        ),
    ],
    cmdclass={"build_ext": BuildExtension},
)
