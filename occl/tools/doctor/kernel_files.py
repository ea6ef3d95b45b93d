"""Reads what the kernel writes about itself. A file that is missing or forbidden reads as empty."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from pathlib import Path


def read(path: Path) -> str:
    """The text of a file without the white space around it, or "" if there is none to be had."""
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace").strip()
    return ""


def field(text: str, name: str) -> str:
    """The rest of the first line that begins with ``name:``, as in /proc/self/status; "" if there is none."""
    match = re.search(rf"^{re.escape(name)}[ \t]*:[ \t]*(.*)$", text, re.MULTILINE)
    return match[1].strip() if match else ""


def parse_cores(text: str) -> set[int]:
    """A list of the kernel's: "0-3,8" has five members."""
    cores: set[int] = set()
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        cores.update(range(int(first), int(last or first) + 1))
    return cores


def write_cores(cores: Iterable[int]) -> str:
    """The reverse of `parse_cores`."""
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][1] + 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def parse_size(text: str) -> int | None:
    """Bytes: "32768K" of /sys, "16384 kB" of /proc/meminfo, "4096"; None for anything else."""
    match = re.fullmatch(r"(\d+)\s*([KMG]?)B?", text.strip(), re.IGNORECASE)
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2].upper()] if match else None


def write_size(size: float) -> str:
    """With the largest unit that leaves a number of at least 1: "1.5 GiB"."""
    units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:.1f}".removesuffix(".0") + f" {units[0]}"


def chosen(text: str) -> str:
    """The word in brackets, which holds: "inherit" of "always [inherit] never"; "" without brackets."""
    match = re.search(r"\[(\S+)\]", text)
    return match[1] if match else ""
