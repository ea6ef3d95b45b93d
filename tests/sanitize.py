"""Runs Python tests with a sanitizer in the whole extension: ``python -m tests.sanitize asan ARGUMENT...``

The arguments are pytest's, or ``--all``. Python and PyTorch are as ever, and the sanitizer's runtime is
loaded before them. A process that it finds something in writes a report and ends; any report fails the run,
whatever the tests say.
"""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support import cpp_build, extension

OPTIONS = {
    # Python and PyTorch leave memory behind on purpose. Allocations that cannot be, and ranks that end
    # themselves by SIGSEGV, are tested too.
    "asan": {
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:handle_segv=0:quarantine_size_mb=8",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    },
    # What PyTorch does between its own threads cannot be seen, so nothing that it calls is judged.
    "tsan": {
        "TSAN_OPTIONS": "ignore_noninstrumented_modules=1:die_after_fork=0:handle_segv=0:halt_on_error=1:"
        "suppressions='{root}/suppressions'"
    },
}
SUPPRESSIONS = """\
# Two threads may use the same memory of a peer in turns that only the peer knows of. The C++ tests, where
# ranks are threads, judge the kernels.
race:occl::kernels::
# PyTorch may drop the last reference to a work, by a counter that is in its own code and cannot be seen. What
# another thread did before it dropped its own reference then looks unordered.
race:occl::pg::WorkOCCL::~WorkOCCL
"""
TESTS = [
    *("tests/device/test_memory.py", "tests/device/test_streams.py"),
    *(
        f"tests/distributed/test_{name}.py"
        for name in ("groups", "point_to_point", "futures", "capabilities", "errors_death", "errors_timeouts")
    ),
]
"""Unless others are given: those with threads, and with ends that are not planned."""
MOST_CASES = 2
"""Of each of their functions, the first and the last: sanitizers judge the code, whatever the values."""
ALL = [
    *("tests/device", "tests/distributed", "tests/faults/test_faults.py", "tests/faults/test_shutdown.py"),
    "--ignore=tests/distributed/test_many_ranks.py",  # 64 processes do not fit into memory
    # What these look at is in the kernels, whose tests have sanitizers of their own.
    *("--ignore=tests/distributed/test_reductions.py", "--ignore=tests/distributed/test_same_bits.py"),
]
"""With ``--all``."""
NOT_HERE = {"asan": [], "tsan": ["-k", "not data_loader"]}
"""TSan does not survive that a process with threads forks one that makes threads."""

PACKAGE = "occl"
"""The import package that the extension lies in."""
FOLDER = extension.LIBRARY.parent
"""The folder that the extension lies in, relative to the root of a checkout."""

RUNTIMES = {"asan": ("libasan.so", "libstdc++.so.6"), "tsan": ("libtsan.so",)}


def tree(mode: str) -> Path:
    """A second checkout made of links, but with the extension that has the sanitizer."""
    built = cpp_build.build_extension(mode)
    root = cpp_build.ROOT / "build" / f"sanitize-{mode}"
    shutil.rmtree(root, ignore_errors=True)
    package = root / PACKAGE
    package.mkdir(parents=True)
    for entry in cpp_build.ROOT.iterdir():
        if entry.name not in ("build", PACKAGE) and not entry.name.startswith("."):
            (root / entry.name).symlink_to(entry)
    for entry in (cpp_build.ROOT / PACKAGE).iterdir():
        if entry.name != FOLDER.parent.name:
            (package / entry.name).symlink_to(entry)
    (root / FOLDER).mkdir(parents=True)
    (root / FOLDER / "_C.so").symlink_to(built)
    return root


def runtime(name: str) -> str:
    """The path of a library as the compiler would link it."""
    command = [*shlex.split(cpp_build.compiler()), f"-print-file-name={name}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] not in OPTIONS:
        sys.exit(f"{__doc__}\nOne of {', '.join(OPTIONS)} must come first.")
    mode, arguments = sys.argv[1], sys.argv[2:] or ["-n2", f"--most-cases={MOST_CASES}", *TESTS]
    if arguments == ["--all"]:
        arguments = ALL + NOT_HERE[mode]
    root = tree(mode)
    reports = root / "reports"
    reports.mkdir()
    (root / "suppressions").write_text(SUPPRESSIONS)
    settings = {
        name: f"{value.format(root=root)}:log_path='{reports}/report'"
        for name, value in OPTIONS[mode].items()
    }
    settings["LD_PRELOAD"] = ":".join(runtime(name) for name in RUNTIMES[mode])
    settings["PYTHONPATH"] = str(root)
    prefix = ["env", *(f"{name}={value}" for name, value in settings.items())]
    command = [*prefix, sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    loaded = [*prefix, sys.executable, "-c", "import torch, occl._C; print(occl._C.__file__)"]
    found_at = subprocess.run(loaded, cwd=root, check=True, capture_output=True, text=True).stdout.strip()
    if Path(found_at).parent != root / FOLDER:
        sys.exit(f"The extension with the sanitizer is not loaded, but {found_at}")
    failed = subprocess.run(command, cwd=root).returncode
    found = sorted(reports.iterdir())
    for path in found:
        print(f"{path.name}:\n{path.read_text(errors='replace')}")
    print(f"{len(found)} reports of the sanitizer")
    sys.exit(failed or bool(found))


if __name__ == "__main__":
    main()
