"""Checks, before anything is installed, what the machine must bring: Python, its headers, a C++20 compiler.

Runs on any Python 3, so that an old one gets a sentence and not a syntax error.
"""

import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

OLDEST = (3, 10)
PROGRAM = """
#include <Python.h>
#include <span>
#include <version>
int main() { return std::span<int>().size(); }
"""


def fail(sentence):
    sys.exit(f"make: {sentence}")


def check_python():
    version = sys.version.split()[0]
    if sys.version_info < OLDEST:
        fail(f"Python 3.10 or newer is needed, and {sys.executable} is {version}. Choose: PYTHON=python3.N.")
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError as error:
        fail(f"{sys.executable} makes no virtual environments ({error}). Debian and Ubuntu: python3-venv.")


def check_compiler():
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    include = sysconfig.get_paths()["include"]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "preflight.cpp")
        source.write_text(PROGRAM)
        command = [*compiler, "-std=c++20", f"-I{include}", "-c", str(source), "-o", f"{source}.o"]
        try:
            result = subprocess.run(command, stderr=subprocess.PIPE, text=True)
        except FileNotFoundError:
            fail(f"no C++ compiler: {compiler[0]} was not found. Install g++ or clang++, or set CXX.")
    if result.returncode:
        advice = "C++20 is needed: g++ 11, clang++ 14 or newer."
        if "Python.h" in result.stderr:
            advice = "Python.h is missing. Debian and Ubuntu: python3-dev."
        fail(f"{compiler[0]} cannot compile extensions. {advice}\n{result.stderr}")


if __name__ == "__main__":
    check_python()
    check_compiler()
