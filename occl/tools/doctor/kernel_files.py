"""Reads what the kernel writes about itself. A file that is missing or forbidden reads as empty."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from pathlib import Path

from occl.tools.text import ranges


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
    return ",".join(text for _, text in ranges(cores))


def parse_size(text: str) -> int | None:
    """Bytes: "32768K" of /sys, "16384 kB" of /proc/meminfo, "4096"; None for anything else."""
    match = re.fullmatch(r"(\d+)\s*([KMG]?)B?", text.strip(), re.IGNORECASE)
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2].upper()] if match else None


def chosen(text: str) -> str:
    """The word in brackets, which holds: "inherit" of "always [inherit] never"; "" without brackets."""
    match = re.search(r"\[(\S+)\]", text)
    return match[1] if match else ""
