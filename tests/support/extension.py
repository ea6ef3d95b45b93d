"""Builds the extension once more where a source differs, from the objects that ``make setup`` has left."""

import functools
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from occl import versions
from tests.support import cpp_build

OBJECTS = cpp_build.ROOT / "build" / f"objects-{sys.implementation.cache_tag}"
LIBRARY = versions.extension_of(torch.__version__).relative_to(cpp_build.ROOT) / (
    f"_C{sysconfig.get_config_var('EXT_SUFFIX')}"
)


def is_built() -> bool:
    """Whether there is something to begin with."""
    return (OBJECTS / "build.ninja").exists() and (cpp_build.ROOT / LIBRARY).exists()


def put_back(root: Path) -> None:
    """The extension as it is, in a copy of the tree."""
    (root / LIBRARY).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(cpp_build.ROOT / LIBRARY, root / LIBRARY)


def _ask_ninja(*question: str) -> str:
    command = [cpp_build.ninja_command(), "-C", str(OBJECTS), "-t", *question]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@functools.cache
def _needs() -> dict[Path, set[Path]]:
    """By object: all files that it was made from."""
    needs: dict[Path, set[Path]] = {}
    files: set[Path] = set()
    for line in _ask_ninja("deps").splitlines():
        if line.startswith(" "):
            files.add((OBJECTS / line.strip()).resolve())
        elif line:
            files = needs[Path(line.rpartition(": #deps")[0])] = set()
    return needs


def _run(command: list[str] | str, root: Path) -> None:
    done = subprocess.run(
        command,
        cwd=root,
        shell=isinstance(command, str),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(done.stdout)


def build(root: Path, changed: Path) -> None:
    """Puts the extension into a copy of the tree, where one file of ``csrc`` differs. Raises RuntimeError."""
    csrc, commands, objects = cpp_build.ROOT / "csrc", [], []
    for source in sorted(csrc.rglob("*.cpp")):
        made = OBJECTS / source.relative_to(cpp_build.ROOT).with_suffix(".o")
        if cpp_build.ROOT / changed in _needs()[made]:
            ours = root / "build" / made.relative_to(OBJECTS)
            ours.parent.mkdir(parents=True, exist_ok=True)
            command = _ask_ninja("commands", str(made)).strip()
            commands.append(command.replace(str(csrc), str(root / "csrc")).replace(str(made), str(ours)))
            made = ours
        objects.append(str(made))
    with ThreadPoolExecutor(int(os.environ.get("MAX_JOBS", os.cpu_count() or 1))) as compilers:
        list(compilers.map(lambda command: _run(command, root), commands))
    link = [*shlex.split(cpp_build.compiler()), "-shared", *objects, *cpp_build.torch_libraries()]
    (root / LIBRARY).unlink(missing_ok=True)
    _run([*link, "-o", str(root / LIBRARY)], root)
