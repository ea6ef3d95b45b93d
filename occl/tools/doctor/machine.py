"""The machine and the container: cores, caches, sockets, memory, limits of control groups, huge pages."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path

from occl.tools.doctor import cgroups
from occl.tools.doctor.kernel_files import (
    chosen,
    field,
    parse_cores,
    parse_size,
    read,
    write_cores,
)
from occl.tools.doctor.report import HINT, PROBLEM, WARNING, Line, Section
from occl.tools.text import size

CPUS = Path("/sys/devices/system/cpu")
NODES = Path("/sys/devices/system/node")
THP = Path("/sys/kernel/mm/transparent_hugepage")

OLDEST_KERNEL = (5, 3)
"""For pidfd_open."""


def processor() -> str:
    """Its name, or the architecture where the kernel tells no name."""
    return field(read(Path("/proc/cpuinfo")), "model name") or platform.machine()


def caches_of(core: int) -> Iterator[tuple[str, str, str]]:
    """The name ("L1d") of each cache, and its size and the cores that share it as the kernel writes them."""
    for index in sorted((CPUS / f"cpu{core}" / "cache").glob("index*")):
        kind = read(index / "type")
        name = f"L{read(index / 'level')}{'' if kind == 'Unified' else kind[:1].lower()}"
        yield name, read(index / "size"), read(index / "shared_cpu_list")


def caches(core: int) -> list[str]:
    """Level, kind and size of each cache of a core, and which cores share the last one."""
    found, sharers = [], ""
    for name, written, sharers in caches_of(core):  # noqa: B007  (those of the last one)
        largest = parse_size(written)
        found.append(f"{name} {size(largest) if largest else 'of unknown size'}")
    if found and sharers:
        found[-1] += f" shared by cores {sharers}"
    return found


def sockets(cores: set[int]) -> set[str]:
    """The processor packages in which these cores lie."""
    return {read(CPUS / f"cpu{core}" / "topology" / "physical_package_id") or "0" for core in cores}


def nodes() -> dict[int, set[int]]:
    """The cores of each NUMA node."""
    found = {}
    for folder in NODES.glob("node*"):
        if match := re.fullmatch(r"node(\d+)", folder.name):
            found[int(match[1])] = parse_cores(read(folder / "cpulist"))
    return dict(sorted(found.items()))


def kernel_line(release: str) -> Line:
    version = tuple(int(part) for part in re.findall(r"\d+", release)[:2])
    if version and version < OLDEST_KERNEL:
        remedy = "Use Linux {}.{} or newer, which has pidfd_open.".format(*OLDEST_KERNEL)
        return Line("kernel", release, level=PROBLEM, remedy=remedy)
    return Line("kernel", release)


def cores_line(cores: set[int], number: int) -> Line:
    text = f"{len(cores)} of {number} (affinity {write_cores(cores)})"
    if len(cores) < 2:
        remedy = "Give the ranks a core each (taskset, cpuset): on one core they only take turns."
        return Line("cores", text, len(cores), HINT, remedy)
    return Line("cores", text, len(cores))


def topology_lines(cores: set[int]) -> list[Line]:
    packages = sockets(cores)
    parts = [f"node {node}: cores {write_cores(on)}" for node, on in nodes().items()]
    lines = [
        Line("caches", ", ".join(caches(min(cores))) or "unknown"),
        Line("sockets", f"{len(packages)} with usable cores", len(packages)),
        Line("NUMA nodes", "; ".join(parts) or "unknown", {str(k): sorted(v) for k, v in nodes().items()}),
    ]
    if len(packages) > 1:
        remedy = "Keep the ranks of a group on one socket (numactl, taskset) if they fit there."
        lines[1] = Line("sockets", lines[1].text, len(packages), HINT, remedy)
    return lines


def quota_line(found: cgroups.Limits, cores: int) -> Line:
    name = "cpu quota"
    if found.cores is None:
        return Line(name, "none", "none")
    text = f"{found.cores:g} cores' time"
    if found.cores < cores:
        remedy = (
            "Set OMP_NUM_THREADS to the quota divided by the number of ranks, and to 1 at least. Without it "
            f"(torchrun sets it) PyTorch starts {cores} threads in each rank, which use the quota up and "
            "then stand still."
        )
        return Line(name, text, found.cores, WARNING, remedy)
    return Line(name, text, found.cores)


def memory_limit_line(limit: int | None, total: int) -> Line:
    """The lowest limit of this process's control groups, which occl counts as the machine's memory.

    Args:
        total: of the machine.
    """
    if limit is None or limit >= total:
        return Line("memory limit", "none", "none")
    return Line("memory limit", size(limit), limit)


def shared_huge_pages(top: str, largest: str) -> bool:
    """Whether shared memory gets huge pages where a program asks for them, as occl does.

    Args:
        top: the text of .../transparent_hugepage/shmem_enabled.
        largest: the text of hugepages-2048kB/shmem_enabled, which newer kernels have.
    """
    own = chosen(largest)
    if chosen(top) in ("deny", "force"):
        return chosen(top) == "force"
    return (chosen(top) if own in ("", "inherit") else own) in ("always", "within_size", "advise")


def huge_pages_line() -> Line:
    top = read(THP / "shmem_enabled")
    size = parse_size(read(THP / "hpage_pmd_size")) or 2 << 20
    largest = read(THP / f"hugepages-{size >> 10}kB" / "shmem_enabled")
    used = shared_huge_pages(top, largest)
    text = f"for shared memory: {chosen(top) or 'not offered by this kernel'}"
    if used or not top:
        return Line("huge pages", text, used)
    remedy = (
        f'For large tensors, let root write "advise" into {THP}/shmem_enabled: occl asks for huge pages, '
        "and shared memory gets none."
    )
    return Line("huge pages", text, used, HINT, remedy)


def section() -> Section:
    cores = os.sched_getaffinity(0)
    meminfo = read(Path("/proc/meminfo"))
    total, free = (parse_size(field(meminfo, name)) or 0 for name in ("MemTotal", "MemAvailable"))
    groups = cgroups.limits()
    return Section(
        "machine",
        [
            Line("processor", processor()),
            kernel_line(platform.release()),
            cores_line(cores, os.cpu_count() or len(cores)),
            *topology_lines(cores),
            Line(
                "memory", f"{size(total)}, of which {size(free)} are available" if total else "unknown", total
            ),
            Line("control groups", " and ".join(groups.versions) or "none", list(groups.versions)),
            quota_line(groups, len(cores)),
            memory_limit_line(groups.memory, total or 1 << 62),
            huge_pages_line(),
        ],
    )
