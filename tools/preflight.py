"""Checks, before anything is installed, what the machine must bring: Python, its headers, a C++20 compiler.

Runs on any Python 3, so that an old one gets a sentence and not a syntax error.
"""

import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile

OLDEST = (3, 10)
PROGRAM = "#include <Python.h>\n#include <span>\n#include <version>\nint main() { return std::span<int>().size(); }\n"


def fail(sentence):
    sys.exit("make: " + sentence)


def check_python():
    if sys.version_info < OLDEST:
        fail(
            "torch_occl needs Python %d.%d or newer, and %s is %s. Choose another with PYTHON=python3.N."
            % (OLDEST + (sys.executable, sys.version.split()[0]))
        )
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError as error:
        fail("%s cannot make virtual environments (%s). Debian and Ubuntu: python3-venv." % (sys.executable, error))


def check_compiler():
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    include = sysconfig.get_paths()["include"]
    with tempfile.TemporaryDirectory() as folder:
        source = os.path.join(folder, "preflight.cpp")
        with open(source, "w") as file:
            file.write(PROGRAM)
        command = compiler + ["-std=c++20", "-I" + include, "-c", source, "-o", source + ".o"]
        try:
            result = subprocess.run(command, stderr=subprocess.PIPE, universal_newlines=True)
        except FileNotFoundError:
            fail("no C++ compiler: %s was not found. Install g++ or clang++, or set CXX." % compiler[0])
    if result.returncode:
        advice = "Python.h is missing. Debian and Ubuntu: python3-dev."
        if "Python.h" not in result.stderr:
            advice = "it needs C++20: g++ 11, clang++ 14 or newer."
        fail("%s cannot compile extensions: %s\n%s" % (compiler[0], advice, result.stderr))


if __name__ == "__main__":
    check_python()
    check_compiler()
