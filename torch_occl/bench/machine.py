"""Describes the machine that a result was measured on."""

import datetime
import importlib.metadata
import os
import platform
from pathlib import Path

import torch

from torch_occl.bench.contenders import occl_variables
from torch_occl.doctor.machine import processor

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def caches() -> str:
    """Level, kind and size of each cache of the first core."""
    found = []
    for index in sorted(CACHES.glob("index*")):
        level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
        found.append(f"L{level}{'' if kind == 'Unified' else kind[0].lower()} {size}")
    return ", ".join(found) or "unknown"


def describe() -> dict[str, str]:
    """Everything about this machine that a reader of results needs, by name, in order."""
    try:
        version = importlib.metadata.version("torch_occl")
    except importlib.metadata.PackageNotFoundError:
        version = "not installed"
    variables = " ".join(f"{name}={value}" for name, value in occl_variables().items())
    return {
        "cpu": processor(),
        "cores": f"{len(os.sched_getaffinity(0))} of {os.cpu_count()}",
        "caches": caches(),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB",
        "kernel": platform.release(),
        "load before": f"{os.getloadavg()[0]:.2f}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_occl": version,
        "environment": variables or "no OCCL_ variable set",
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }
