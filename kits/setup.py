"""Builds a wheel of the parts of ``occl`` that need neither the backend nor the device."""

import os
import runpy
from pathlib import Path

from setuptools import setup

OCCL = Path(os.path.relpath(Path(__file__).resolve().parents[1] / "occl"))
PACKAGES = ["testing", "testing.gpu", "conformance", "conformance.rules", "tools"]

setup(
    version=runpy.run_path(str(OCCL / "versions.py"))["VERSION"],
    packages=["occl", *(f"occl.{name}" for name in PACKAGES)],
    package_dir={"occl": str(OCCL)},
    package_data={"occl": ["py.typed", "conformance/declared/*.toml"]},
)
