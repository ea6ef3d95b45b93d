"""Which devices the tests run on."""

from __future__ import annotations

import os
from pathlib import Path

import torch

import torch_occl

HAS_DEVICE_LAYER = Path(torch_occl.__file__).with_name("dev").exists()


def devices() -> list[str]:
    """CPU, and `dev` as soon as torch_occl has it. Raises if it does, but `dev` is not registered."""
    if not HAS_DEVICE_LAYER or os.environ.get("OCCL_DEVICE") == "0":
        return ["cpu"]
    registered = torch._C._get_privateuse1_backend_name()
    if registered != "dev":
        raise RuntimeError(
            f"{torch_occl.__file__} should have registered the device 'dev'; PrivateUse1 is {registered!r}"
        )
    return ["cpu", "dev"]


DEVICES = devices()
