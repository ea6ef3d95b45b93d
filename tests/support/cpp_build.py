"""Builds what is free of PyTorch and its C++ tests, once for each way of checking them, with ninja.

For each mode a static archive of the core and one program for each ``tests/cpp/test_*.cpp``, under
``build/cpp/<mode>/``, and where asked for the whole extension. Ninja and the compiler's own dependency files
decide what is out of date.
"""

import fcntl
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[2]
CORE = ("base", "kernels", "shm", "memory", "coll", "hosts", "ucx", "tcp")
FLAGS = "-std=c++20 -ffp-contract=off -Wall -Wextra -pthread -fPIC -Icsrc -Itests -Itests/cpp"
MODES = {
    "plain": "-O2 -DOCCL_FAULT_POINTS",
    "asan": "-O2 -g1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all",
    "tsan": "-O2 -g1 -fno-omit-frame-pointer -fsanitize=thread",
    # Atomics, mutexes and threads are those of tests/cpp/explore, whose headers come before csrc's.
    "explore": "-O1 -Itests/cpp/explore",
    # For aarch64, with everything in the program, so that an emulator needs no libraries of that system.
    "aarch64": "-O2 -static -DOCCL_FAULT_POINTS",
    # libFuzzer: needs clang.
    "fuzz": "-O1 -g -fno-omit-frame-pointer -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all "
    "-DOCCL_LIBFUZZER",
}
COMPILERS = {"fuzz": "clang++", "aarch64": "aarch64-linux-gnu-g++"}
"""Of modes that need one of their own."""
USUAL_MODES = ("plain", "asan", "tsan")
"""The others are for tests that name them."""
KERNEL_MODES = {
    "asan": "-O1 -g1 -fno-omit-frame-pointer -fsanitize=address",
    "explore": "-O0",
    "fuzz": "-O1",
}
"""Other flags for csrc/kernels, where a mode's own would take minutes: its vectors are most of what there is
to compile, and their lanes say little to UBSan, to the explorer and to a fuzzer."""
EXTENSION = "_C.so"
EXTENSION_MODES = {
    mode: f"-O1 -g1 -fno-omit-frame-pointer {sanitizers} -Wno-unused-parameter -fvisibility=hidden "
    "-DTORCH_EXTENSION_NAME=_C -DTORCH_API_INCLUDE_EXTENSION_H"
    for mode, sanitizers in {
        "asan": "-fsanitize=address,undefined -fno-sanitize-recover=all",
        "tsan": "-fsanitize=thread",
    }.items()
}
"""The modes the extension can be built in, and the flags of what includes PyTorch: its headers take long."""

STANDARD = Path("tests", "cpp", "std.h")
"""Standard headers, precompiled for each mode that g++ compiles."""
TORCH = Path("tests", "cpp", "torch.h")
"""PyTorch's headers, precompiled for the extension: reading them is most of what its files take."""

RULES = """\
ninja_required_version = 1.5
builddir = {out}
rule copy
  command = cp $in $out
rule precompile
  command = {compiler} $flags -x c++-header -c $in -o $out
  description = $out
rule compile
  command = {compiler} $flags $standard -MMD -MF $out.d -c $in -o $out
  depfile = $out.d
  deps = gcc
  description = $out
rule archive
  command = rm -f $out && ar rcs $out $in
  description = $out
rule link
  command = {compiler} $flags $in -o $out $libraries
  description = $out
"""


def core_sources(root: Path = ROOT, mode: str = "plain") -> list[Path]:
    """Every source file that is built without PyTorch in a mode, relative to the root of the repository."""
    csrc = root / "csrc"
    found = [path for layer in CORE for path in (csrc / layer).rglob("*.cpp")]
    sources = sorted(path.relative_to(root) for path in found)
    return sources + ([Path("tests/cpp/explore/explore.cpp")] if mode == "explore" else [])


def test_sources(root: Path = ROOT) -> list[Path]:
    """Every C++ test, relative to the root of the repository."""
    return sorted(path.relative_to(root) for path in (root / "tests" / "cpp").glob("test_*.cpp"))


def fuzz_sources(root: Path = ROOT) -> list[Path]:
    """Every fuzz target, relative to the root of the repository. But for mode ``fuzz`` it replays inputs."""
    return sorted(path.relative_to(root) for path in (root / "tests" / "fuzz").glob("*.cpp"))


def modes_of(text: str) -> list[str]:
    """The modes a test runs in: the usual ones, unless a line ``// modes: plain asan`` in it names some."""
    if not (line := re.search(r"^// modes:(.*)$", text, re.MULTILINE)):
        if "modes:" in text:
            raise ValueError("'modes:' must begin a line of its own: // modes: plain asan")
        return list(USUAL_MODES)
    modes = line[1].split()
    if not modes or not set(modes) <= set(MODES):
        raise ValueError(f"'{line[0]}' must name some of {', '.join(MODES)}")
    return modes


def extension_sources(root: Path = ROOT) -> list[Path]:
    """Every source file that includes PyTorch, relative to the root of the repository."""
    everything = {path.relative_to(root) for path in (root / "csrc").rglob("*.cpp")}
    return sorted(everything - set(core_sources(root)))


def ninja_file(
    mode: str, core: list[Path], tests: list[Path], out: Path, compiler: str, standard: bool
) -> str:
    """The build of one mode. All paths are relative to the root, so that none needs quoting.

    Args:
        standard: Whether STANDARD is to be precompiled.
    """
    lines = [RULES.format(out=out, compiler=compiler), f"flags = {MODES[mode]} {FLAGS}", ""]
    header, precompiled = out / STANDARD.name, f"{out / STANDARD.name}.gch"
    if standard:
        lines += [
            f"build {header}: copy {STANDARD}",
            f"build {precompiled}: precompile {header}",
            f"standard = -include {header}",
        ]

    def compile_(source: Path) -> str:
        lines.append(f"build {out / source}.o: compile {source}" + f" | {precompiled}" * standard)
        if mode in KERNEL_MODES and source.is_relative_to("csrc/kernels"):
            lines.extend([f"  flags = {KERNEL_MODES[mode]} {FLAGS}", "  standard ="])
        return f"{out / source}.o"

    archive = out / "core.a"
    lines.append(f"build {archive}: archive {' '.join([compile_(source) for source in core])}")
    lines.extend(f"build {out / test.stem}: link {compile_(test)} {archive}" for test in tests)
    return "\n".join(lines) + "\n"


def extension_rules(mode: str, out: Path) -> str:
    """What `ninja_file` lacks for the extension."""
    from torch.utils.cpp_extension import include_paths

    includes = " ".join(
        f"-isystem {shlex.quote(path)}" for path in [*include_paths(), sysconfig.get_path("include")]
    )
    flags = f"{EXTENSION_MODES[mode]} {FLAGS}"
    header = out / TORCH.name
    lines = [
        f"build {header}: copy {TORCH}",
        f"build {header}.gch: precompile {header}",
        f"  flags = {flags} {includes}",
    ]
    objects = []
    for source in extension_sources():
        objects.append(f"{out / source}.o")
        lines += [
            f"build {objects[-1]}: compile {source} | {header}.gch",
            f"  flags = {flags} {includes}",
            f"  standard = -include {header}",
        ]
    lines += [
        f"build {out / EXTENSION}: link {' '.join(objects)} {out / 'core.a'}",
        f"  flags = -shared {flags}",
        f"  libraries = {shlex.join(torch_libraries())}",
    ]
    return "\n".join(lines) + "\n"


def torch_libraries() -> list[str]:
    """What the extension is linked with."""
    from torch.utils.cpp_extension import library_paths

    return [*(f"-L{path}" for path in library_paths()), "-lc10", "-ltorch", "-ltorch_cpu", "-ltorch_python"]


def build_library(source: str, library: Path) -> Path:
    """Makes a library of C++ code that uses PyTorch, as another package would, and returns its path."""
    from torch.utils.cpp_extension import include_paths

    code = library.with_suffix(".cpp")
    code.write_text(source)
    includes = [f"-I{path}" for path in include_paths()]
    command = [*shlex.split(compiler()), "-std=c++20", "-O0", "-shared", "-fPIC", *includes, str(code)]
    subprocess.run([*command, *torch_libraries(), "-o", str(library)], check=True)
    return library


def compiler(mode: str = "plain") -> str:
    """The compiler's command, through ccache where that is installed."""
    command = COMPILERS.get(mode) or os.environ.get("CXX", "c++")
    return f"ccache {command}" if shutil.which("ccache") and "ccache" not in command else command


def build(mode: str, source: Path, root: Path = ROOT) -> Path:
    """Brings the program of one test up to date and returns its path. Raises RuntimeError with the output."""
    return ninja(mode, [source.stem], root)


def build_extension(mode: str) -> Path:
    """Brings the extension up to date in one of EXTENSION_MODES and returns its path, as `build` does."""
    return ninja(mode, [EXTENSION], ROOT)


def ninja_command() -> str:
    """That of this environment, whether or not that is activated."""
    command = shutil.which("ninja", path=f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}")
    if not command:
        raise RuntimeError("ninja is not installed: pip install ninja")
    return command


def ninja(mode: str, targets: list[str], root: Path) -> Path:
    """Brings targets of a mode up to date; returns the path of the first."""
    out = Path("build", "cpp", mode)
    (root / out).mkdir(parents=True, exist_ok=True)
    programs = test_sources(root) + fuzz_sources(root)
    standard = mode != "fuzz" and (root / STANDARD).exists()
    rules = ninja_file(mode, core_sources(root, mode), programs, out, compiler(mode), standard)
    if EXTENSION in targets:
        rules += extension_rules(mode, out)
    command = ninja_command()
    jobs = os.environ.get("MAX_JOBS", str(os.cpu_count()))
    with (root / out / "build.ninja").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # another run of the tests may be building here
        file.seek(0)
        news = file.read() != rules
        file.truncate(0)
        file.write(rules)
        file.flush()
        result = subprocess.run(
            [command, "-f", file.name, "-j", jobs, *(str(out / target) for target in targets)],
            cwd=root,
            # Without this ccache takes no file that includes a precompiled header.
            env={"CCACHE_SLOPPINESS": "pch_defines,time_macros"} | os.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    if news and mode == "plain" and root == ROOT:
        subprocess.run([sys.executable, str(ROOT / "tools" / "compile_commands.py")], check=True)
    if result.returncode:
        raise RuntimeError(result.stdout)
    return root / out / targets[0]
