"""The limits that a container or a service sets: control groups of version 1 and of version 2."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from occl.tools.doctor.kernel_files import read

UNLIMITED = 1 << 62
"""Version 1 writes a number near 2**63 for no limit."""


@dataclass(frozen=True)
class Mount:
    """One line of /proc/self/mountinfo that is about control groups."""

    controllers: frozenset[str]
    """Version 1's; version 2 has none here, and is written as ""."""
    root: str
    """Which group is mounted."""
    point: str


@dataclass(frozen=True)
class Limits:
    versions: tuple[str, ...]
    """Those that are mounted: "v1", "v2", both or none."""
    cores: float | None
    """How many cores' time all processes of the group get; None for no limit."""
    memory: int | None


def parse_mounts(mountinfo: str) -> list[Mount]:
    mounts = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        places, about = before.split(), after.split()
        if len(places) >= 5 and len(about) >= 3 and about[0] in ("cgroup", "cgroup2"):
            controllers = {""} if about[0] == "cgroup2" else set(about[2].split(","))
            mounts.append(Mount(frozenset(controllers), places[3], places[4]))
    return mounts


def parse_membership(cgroup: str) -> dict[str, str]:
    """From /proc/self/cgroup: this process's group, by controller; version 2's has the name ""."""
    groups = {}
    for line in cgroup.splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        groups.update(dict.fromkeys(controllers.split(","), path))
    return groups


def parse_memory(text: str) -> int | None:
    """Of memory.max or memory.limit_in_bytes: the limit, or None."""
    return int(text) if text.isdecimal() and int(text) < UNLIMITED else None


def parse_cpu_max(text: str) -> float | None:
    """Of cpu.max: "150000 100000" is a core and a half."""
    match = re.fullmatch(r"(\d+) (\d+)", text)
    return int(match[1]) / int(match[2]) if match and int(match[2]) else None


def folders(mount: Mount, group: str, root: Path) -> list[Path]:
    """Of a group and of those around it, as far as they are mounted: the limits of all of them hold."""
    top = root / mount.point.lstrip("/")
    path = PurePosixPath(group or "/")
    if ".." in path.parts:  # outside of the namespace of control groups
        return [top]
    if path.is_relative_to(mount.root):
        path = path.relative_to(mount.root)
    inside = top.joinpath(*(part for part in path.parts if part != "/"))
    return [inside, *(folder for folder in inside.parents if folder.is_relative_to(top))]


def limits(root: Path = Path("/")) -> Limits:
    """Those of this process. Tests give another root, in which files of /proc and /sys lie."""
    mounts = parse_mounts(read(root / "proc/self/mountinfo"))
    groups = parse_membership(read(root / "proc/self/cgroup"))
    cores: list[float] = []
    memory: list[int] = []
    for mount in mounts:
        for controller in mount.controllers & groups.keys():
            for folder in folders(mount, groups[controller], root):
                texts = [read(folder / name) for name in ("memory.max", "memory.limit_in_bytes")]
                memory += [limit for limit in map(parse_memory, texts) if limit is not None]
                quota = f"{read(folder / 'cpu.cfs_quota_us')} {read(folder / 'cpu.cfs_period_us')}"
                shares = [parse_cpu_max(text) for text in (read(folder / "cpu.max"), quota)]
                cores += [share for share in shares if share is not None]
    versions = sorted({"v2" if "" in mount.controllers else "v1" for mount in mounts})
    return Limits(tuple(versions), min(cores, default=None), min(memory, default=None))
