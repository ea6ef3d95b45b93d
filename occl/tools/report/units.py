"""Times, sizes and operations in words, for every kind of report."""

from __future__ import annotations

from occl.tools.report.merge import Job, Operation


def duration(ns: float) -> str:
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if ns >= size:
            return f"{ns / size:.3g} {unit}" if ns < 999.5 * size else f"{ns / size:.0f} {unit}"
    return f"{ns:.0f} ns"


def size(number: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.3g} {unit}" if number < 999.5 else f"{number:.0f} {unit}"
        number /= 1024
    return f"{number:.3g} TiB"


def title(operation: Operation) -> str:
    return f"{operation.kind} #{operation.number}"


def where(job: Job, operation: Operation) -> str:
    return job.groups[operation.group].label if operation.group >= 0 else "a group that is not known"


def describe(job: Job, operation: Operation) -> str:
    """ "all_reduce #12 of group 0 (4 ranks), 4 KiB of float32, SUM" """
    text = f"{title(operation)} of {where(job, operation)}"
    if operation.bytes:
        text += f", {size(operation.bytes)} of {operation.dtype}"
    return text + (f", {operation.reduction}" if operation.reduction else "")
