"""Fresh interpreters, and folders in which torch_occl is installed, for tests of what an import does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

import torch_occl
from occl.testing.launch import ForkServer
from occl.testing.team import Team
from tests.support import script

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest brings it

PACKAGE = Path(torch_occl.__file__).parents[1]
"""The folder in which the torch_occl under test lies."""
PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def run_python(
    *arguments: object,
    path: Path = PACKAGE,
    status: int = 0,
    stderr: bool = True,
    timeout: float = 180.0,
    **environment: str,
) -> str:
    """The output of ``python ARGUMENTS``, which must end with this status.

    The process starts in ``/``, because Python looks for modules where it starts, and finds those in
    ``path``. Its environment is that of the tests and ``environment``. ``stderr``: whether the output has
    what it wrote there.
    """
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": str(path)} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if stderr else subprocess.PIPE,
        text=True,
        timeout=timeout,
        cwd="/",
    )
    assert done.returncode == status, done.stdout + (done.stderr or "")
    return done.stdout


class Scripts:
    """Runs scripts in processes that are forked from one that has imported torch, which takes a second.

    They are as fresh interpreters for whatever comes after ``import torch``. What that itself does, and
    options of the interpreter, are for `run_python`.
    """

    def __init__(self) -> None:
        with mock.patch.dict(os.environ, TORCH_DEVICE_BACKEND_AUTOLOAD="0"):
            self.source = ForkServer(["torch", "tests.support.script"])

    def run(self, text: str, *arguments: str, **environment: str) -> str:
        """What a script, which must end well, has printed to stdout. Takes variables as `run_python` does."""
        output = self.source.new_file()
        with Team(self.source, 1) as team:
            environment = os.environ | environment
            team.start(
                script.run,
                text=text,
                arguments=arguments,
                environment=environment,
                output=output,
                limit=180.0,
            )
            (outcome,) = team.finish()
            said = team.members[0].output()
        printed = Path(output).read_text()
        assert outcome.died == "exited with status 0", f"{printed}{said}{outcome.traceback or outcome.died}"
        return printed


def write_metadata(folder: Path, name: str, pyproject: Path) -> None:
    """Makes a folder look as if a package were installed there, with its entry points."""
    groups = tomllib.loads(pyproject.read_text())["project"]["entry-points"]
    info = folder / f"{name}-0.0.dist-info"
    info.mkdir(exist_ok=True)
    info.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.0\n")
    lines = [
        f"[{name}]\n" + "".join(f"{k} = {v}\n" for k, v in points.items()) for name, points in groups.items()
    ]
    info.joinpath("entry_points.txt").write_text("\n".join(lines))


def install(folder: Path) -> Path:
    """Makes a folder look as if torch_occl were installed there."""
    unfinished = shutil.ignore_patterns("*.pyc.*")  # other processes may be compiling
    for name in ("occl", "torch_occl"):
        shutil.copytree(PACKAGE / name, folder / name, ignore=unfinished)
    write_metadata(folder, "torch_occl", PYPROJECT)
    return folder


def entry_point_beside_ours(folder: Path, point: str, first: bool) -> None:
    """Adds an entry point of the group ``torch.backends`` to those that `install` has put into a folder.

    Args:
        first: whether PyTorch calls it before ours.
    """
    (points,) = folder.glob("torch_occl-*/entry_points.txt")
    ours, text = "occl = occl.registration:autoload\n", points.read_text()
    assert ours in text
    points.write_text(text.replace(ours, f"{point}\n{ours}" if first else f"{ours}{point}\n", 1))
