"""What `make` asks of the interpreter before it installs anything.

    preflight.py check          ends with a sentence if this is not Linux, or if Python, its headers or a
                                C++20 compiler is missing
    preflight.py torch ORIGIN   prints the option of venv that lets .venv see this interpreter's PyTorch

The second prints nothing if that is none that is supported, or if the caller names one: ORIGIN, the origin of
make's variable TORCH, is then not `file`. Runs on any Python 3, so that an old one gets a sentence and not a
syntax error.
"""

import os
import runpy
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[1]
OLDEST = (3, 10)
PROGRAM = """
#include <Python.h>
#include <span>
#include <version>
int main() { return std::span<int>().size(); }
"""


def fail(sentence):
    sys.exit(f"make: {sentence}")


def check_system():
    if sys.platform != "linux":
        fail(
            f"torch_occl runs on Linux only, and this is {sys.platform}: on Windows use WSL 2, and on macOS "
            "a Linux container (docs/installing.md)."
        )


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
    import tempfile  # only here: the check of the system comes before it

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


def supported_torch():
    """The version of this interpreter's PyTorch; "" if it is none that is supported, or if the interpreter is
    of a virtual environment, whose packages another one cannot see."""
    from importlib import metadata

    if sys.prefix != sys.base_prefix:
        return ""
    try:
        version = metadata.version("torch")
        runpy.run_path(str(ROOT / "occl" / "versions.py"))["check"](version)
    except ImportError:  # of the package, or of a version
        return ""
    return version


def main():
    if sys.argv[1] == "check":
        check_system()
        check_python()
        check_compiler()
    elif sys.argv[2] == "file" and supported_torch():
        print(f"make: .venv uses torch {supported_torch()} of {sys.executable}", file=sys.stderr)
        print("--system-site-packages")


if __name__ == "__main__":
    main()
