"""Describes the machine that a result was measured on."""

import datetime
import importlib.metadata
import os
import platform

import torch

from occl.bench.contenders import occl_variables
from occl.tools.doctor.machine import caches_of, processor


def lines(about: dict[str, str]) -> list[str]:
    """What `describe` has returned, as results begin with it."""
    return [f"{name + ':':<13}{value}" for name, value in about.items()]


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
        "caches": ", ".join(f"{name} {size}" for name, size, _ in caches_of(0)) or "unknown",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB",
        "kernel": platform.release(),
        "load before": f"{os.getloadavg()[0]:.2f}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_occl": version,
        "environment": variables or "no OCCL_ variable set",
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }
