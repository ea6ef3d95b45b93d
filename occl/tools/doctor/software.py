"""PyTorch and torch_occl as a new process finds them, and what occl chooses on this machine."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import re
import sys
from pathlib import Path
from typing import Any

from occl import versions
from occl.tools.doctor import subprocesses
from occl.tools.doctor.report import HINT, PROBLEM, WARNING, Line, Section
from occl.tools.doctor.subprocesses import Ended
from occl.tools.doctor.system import remedy
from occl.tools.text import size
from occl.variables import NAMES
from occl.versions import REQUIREMENT

SECONDS = 120.0
"""How long importing PyTorch may take: a minute from a cold network disk."""

BUILD = "pip install --no-build-isolation . (make setup in a checkout)"
KITS = "torch_occl_kits"
MOST_RANKS = 256
COMPILER = re.compile(rb"(?:GCC: \([^)\0]*\) |clang version )[\d.]+")


def probe(seconds: float = SECONDS) -> Ended:
    """What a new process says about PyTorch and torch_occl. Raises OSError if there can be none."""
    return subprocesses.run([["-m", f"{__package__}.probe"]], seconds)[0]


def compiler(library: Path) -> str:
    """Which compiler built it, as it says in the library itself."""
    with contextlib.suppress(OSError):
        if match := COMPILER.search(library.read_bytes()):
            return match[0].decode()
    return "an unknown compiler"


def supported(version: str) -> bool:
    """Whether torch_occl works with this version of PyTorch."""
    try:
        versions.check(version)
    except ImportError:
        return False
    return True


def wrong_variable(reason: str) -> str:
    """What to do if an error names one of our environment variables; else ""."""
    named = [name for name in NAMES if re.search(rf"\b{name}\b", reason)]
    return f"Correct or unset the environment variable {named[0]}." if named else ""


def advice(said: dict[str, Any], reason: str) -> str:
    """What to do if the probe has said only this, and failed for this reason."""
    if remedy := wrong_variable(reason):
        return remedy
    if "torch" not in said:
        if "No module named 'torch'" in reason:
            return f'Install PyTorch: pip install "{REQUIREMENT}".'
        return 'Repair PyTorch: python -c "import torch" must work before anything else does.'
    if not supported(said["torch"]):
        return f'Install a supported PyTorch (pip install "{REQUIREMENT}"), or a torch_occl for this one.'
    if re.search(
        r"\.so\b|was built for torch", reason
    ):  # a library is missing, broken, or another one than it was built with
        return f"Build torch_occl again with the PyTorch that is installed now: {BUILD}."
    if "hides the one that is installed" in reason:
        return "Start programs, and this command, in another folder than the sources: cd .."
    if "has no extension for this Python" in reason:
        return f"Build the extension for this Python: {BUILD}."
    return 'Run python -X faulthandler -c "import torch_occl" to see where it fails.'


def torch_lines(said: dict[str, Any]) -> list[Line]:
    """The parts of `said` that are about PyTorch; those that are missing are left out."""
    lines = [Line("PyTorch", f"{said['torch']} ({Path(said['torch_file']).parent})", said["torch"])]
    if "capability" not in said:
        return lines
    words = [
        f"CPU capability {said['capability']}",
        "debug" if said["debug"] else "release",
        f"cxx11 ABI {'yes' if said['cxx11_abi'] else 'no'}",
    ]
    build = ("capability", "debug", "cxx11_abi")
    lines.append(Line("PyTorch build", ", ".join(words), {name: said[name] for name in build}))
    lines.append(threads_line(said["threads"], "OMP_NUM_THREADS" in os.environ))
    offered = [name for name in ("distributed", "gloo") if said[name]]
    line = Line("PyTorch offers", ", ".join(offered) or "neither torch.distributed nor Gloo", offered)
    if not said["distributed"]:
        hint = (
            "Install a PyTorch with torch.distributed if you want the backend: this one has the device only."
        )
        line = Line(line.name, line.text, offered, WARNING, hint)
    lines.append(line)
    names, owner = said["autoload"], said["owner_of_name"]
    automatic = f"registers the names {' and '.join(names)}" if names else "registers no name"
    line = Line("import torch", automatic, names)
    if owner not in ("", "occl"):
        remedy = f'{owner} has the name occl: make groups with init_process_group("torch_occl").'
        line = Line(line.name, automatic, names, HINT, remedy)
    lines.append(line)
    return lines


def threads_line(threads: int, chosen: bool) -> Line:
    """The threads of PyTorch's operators in each rank.

    Args:
        chosen: whether OMP_NUM_THREADS is set.
    """
    name, text = "threads", f"{threads} for PyTorch's operators in each process"
    if chosen or threads == 1:
        return Line(name, text, threads)
    remedy = (
        "Ranks that torchrun does not start have as many: set OMP_NUM_THREADS to cores / ranks for them, so "
        "that the threads of one rank do not slow down the others. torchrun sets 1."
    )
    return Line(name, text, threads, HINT, remedy)


def package_lines(said: dict[str, Any]) -> list[Line]:
    """The parts of `said` that are about torch_occl."""
    library = Path(said["extension"])
    built = compiler(library)
    facts = {"library": str(library), "compiler": built, "commit": said["commit"]}
    of = f"commit {said['commit']}" if said["commit"] else "an unknown commit"
    lines = [
        Line("torch_occl", f"{said['package']} ({Path(said['package_file']).parent})", said["package"]),
        Line("torch_occl build", f"{library.name}, {built}, from {of}", facts),
        owner_line(said, os.environ.get("OCCL_DEVICE") == "0"),
    ]
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        lines.append(kits_line(importlib.metadata.version(KITS)))
    return lines


def kits_line(version: str) -> Line:
    """The distribution of the kits, where torch_occl has the same files."""
    remedy = (
        f"Each overwrites files of the other: pip uninstall {KITS} torch_occl, and install torch_occl alone, "
        "which has the kits too."
    )
    return Line(KITS, version, version, WARNING, remedy)


def owner_line(said: dict[str, Any], unwanted: bool) -> Line:
    """Which package has PrivateUse1.

    Args:
        unwanted: Whether OCCL_DEVICE=0 is set.
    """
    name, before = "PrivateUse1", said["before"]
    if said["device"]:
        when = " (import torch alone makes it)" if before["name"] == said["after"]["name"] else ""
        count = f", {said['devices']} devices" if "devices" in said else ""
        return Line(name, f"torch_occl: {said['after']['name']}{count}{when}", "torch_occl")
    if said["after"]["name"] == "privateuseone" and not said["taken"]:
        return Line(name, "no package (OCCL_DEVICE=0)" if unwanted else "no package", "")
    module = said["after"]["module"] or "another package"
    text = f"{module}: {said['after']['name']}"
    if unwanted:
        return Line(name, text, module)
    hint = (
        f"Uninstall that package, or set TORCH_DEVICE_BACKEND_AUTOLOAD=0, if you want dev instead of {text}."
    )
    return Line(name, text, module, WARNING, hint)


def choice_lines(said: dict[str, Any], capability: str, cores: int) -> list[Line]:
    """What occl makes of all this.

    Args:
        capability: PyTorch's word for what the processor has.
        cores: those that this process may use.
    """
    lines = []
    if "isa" in said:
        wish = os.environ.get("OCCL_ISA")
        lines.append(Line("instruction set", said["isa"] + (" (OCCL_ISA)" if wish else ""), said["isa"]))
        if said["isa"] == "baseline" and not wish and platform.machine() == "x86_64":
            hint = (
                f"Let the virtual machine pass AVX2 on if the processor has it (PyTorch uses {capability})."
            )
            lines[-1] = Line("instruction set", said["isa"], said["isa"], HINT, hint)
    if "memory" in said:
        lines.append(Line("memory", f"at most {size(said['memory'])} a process", said["memory"]))
    if "ucx" in said:
        lines.append(between_line(said["ucx"]["version"], said["ucx"]["why_not"]))
    number = min(cores, MOST_RANKS)
    text = (
        f"groups of up to {number} ranks spin for a moment, then sleep; larger ones yield instead of "
        "spinning, because they have no core for each rank"
    )
    if number < 2:
        text = "ranks yield for a moment, then sleep: there is one core for all of them"
    lines.append(Line("waiting", text, {"ranks_that_spin": number}))
    return lines


def between_line(version: str, why_not: str) -> Line:
    """What carries messages between nodes.

    Args:
        version: of UCX, or "".
        why_not: why UCX is not used, if it is not.
    """
    wish = os.environ.get("OCCL_INTER_NODE")
    text = f"TCP: {why_not}" if why_not else f"UCX {version} where all ranks have it, else TCP"
    if wish:
        text = f"{wish} (OCCL_INTER_NODE)" + (f"; {why_not}" if wish == "ucx" and not version else "")
    return Line("between nodes", text, {"ucx": version})


def huge_pages_choice(used: bool) -> Line:
    """What follows from `machine.huge_pages_line`."""
    return Line("huge pages", "used for tensors that ranks map" if used else "not used", used)


def failure_line(ended: Ended) -> Line:
    """Why the probe failed, and where."""
    reached = "torch_occl" if "torch" in ended.said else "PyTorch"
    if "package" in ended.said:
        reached = "settings"
    reason = ended.reason()
    return Line(reached, f"failed: {reason}", False, PROBLEM, advice(ended.said, reason))


def sections(ended: Ended, huge_pages: bool) -> list[Section]:
    """Of what the probe said."""
    said = ended.said
    python = Line("Python", f"{platform.python_version()} ({sys.executable})", platform.python_version())
    found = Section("software", [python])
    if "torch" in said:
        found.lines.extend(torch_lines(said))
    if "package" in said:
        found.lines.extend(package_lines(said))
    if "done" not in said or ended.status != 0:
        found.lines.append(failure_line(ended))
    if "package" not in said:
        return [found]
    cores = len(os.sched_getaffinity(0))
    choices = [*choice_lines(said, said["capability"], cores), huge_pages_choice(huge_pages)]
    return [found, Section("choices of occl", choices)]


def not_started(name: str, error: OSError) -> Line:
    """No process could be started."""
    text = f"no process can be started: {error.strerror or error}"
    if isinstance(error, FileNotFoundError):  # of `tempfile`
        return Line(name, text, False, PROBLEM, "Set TMPDIR to a folder in which files can be written.")
    return Line(name, text, False, PROBLEM, remedy(error))
