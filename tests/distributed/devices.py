"""Which devices the tests run on."""

from __future__ import annotations

import os
from pathlib import Path

import torch

import torch_occl  # noqa: F401

HAS_DEVICE_LAYER = (Path(__file__).parents[2] / "csrc" / "device").is_dir()


def devices() -> list[str]:
    """"cpu", and "dev" as soon as this tree has the device layer. Raises if it has, and `dev` is not registered."""
    if not HAS_DEVICE_LAYER or os.environ.get("OCCL_DEVICE") == "0":
        return ["cpu"]
    registered = torch._C._get_privateuse1_backend_name()
    if registered != "dev":
        raise RuntimeError(f"torch_occl should have registered the device 'dev', but PrivateUse1 is {registered!r}")
    return ["cpu", "dev"]


DEVICES = devices()
