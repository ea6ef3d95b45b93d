"""The device ``dev`` for DeepSpeed, through its accelerator interface (package ``deepspeed``).

Before anything else of DeepSpeed is used::

    from torch_occl.integrations import deepspeed as dev_for_deepspeed

    dev_for_deepspeed.use()
    deepspeed.initialize(...)           # on dev, over occl

For CPU tensors DeepSpeed needs nothing of this module, but ``OCCL_IN_PLACE_OF=gloo`` in the environment.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch

import torch_occl  # noqa: F401  (makes the device)

if not importlib.util.find_spec("deepspeed"):
    raise ImportError(
        "torch_occl.integrations.deepspeed needs DeepSpeed, which is not installed: "
        "DS_BUILD_OPS=0 pip install --no-build-isolation deepspeed"
    )
from deepspeed.accelerator import set_accelerator
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

from torch_occl import dev

__all__ = ["DevAccelerator", "use"]


def use() -> None:
    """Makes ``dev`` DeepSpeed's accelerator, and occl its backend."""
    set_accelerator(DevAccelerator())


class DevAccelerator(CPU_Accelerator):  # type: ignore[misc]
    """``dev`` as a DeepSpeed accelerator. Operators that DeepSpeed compiles are those for the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self._name = "dev"
        self._communication_backend_name = "occl"

    def is_synchronized_device(self) -> bool:
        """False: work is queued in streams."""
        return False

    # Devices

    def is_available(self) -> bool:
        return dev.is_available()

    def device_name(self, device_index: int | None = None) -> str:
        return "dev" if device_index is None else f"dev:{device_index}"

    def device(self, device_index: int | None = None) -> dev.device:
        return dev.device(device_index)

    def set_device(self, device_index: int) -> None:
        dev.set_device(device_index)

    def current_device(self) -> int:
        return dev.current_device()

    def current_device_name(self) -> str:
        return f"dev:{dev.current_device()}"

    def device_count(self) -> int:
        return dev.device_count()

    def synchronize(self, device_index: int | None = None) -> None:
        dev.synchronize(device_index)

    def on_accelerator(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == "dev"

    # Random numbers

    def random(self) -> Any:
        return torch.random

    def set_rng_state(self, new_state: torch.Tensor, device_index: int | None = None) -> None:
        dev.set_rng_state(new_state, dev.current_device() if device_index is None else device_index)

    def get_rng_state(self, device_index: int | None = None) -> torch.Tensor:
        return dev.get_rng_state(dev.current_device() if device_index is None else device_index)

    def manual_seed(self, seed: int) -> None:
        dev.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        dev.manual_seed_all(seed)

    def initial_seed(self) -> int:
        return dev.initial_seed()

    def default_generator(self, device_index: int) -> torch.Generator:
        generator: torch.Generator = dev.default_generators[device_index]
        return generator

    # Streams and events

    @property
    def Stream(self) -> Any:
        return dev.Stream

    def stream(self, stream: Any) -> Any:
        return dev.stream(stream)

    def current_stream(self, device_index: int | None = None) -> Any:
        return dev.current_stream(device_index)

    def default_stream(self, device_index: int | None = None) -> Any:
        return dev.default_stream(device_index)

    @property
    def Event(self) -> Any:
        return dev.Event

    # Memory

    def empty_cache(self) -> None:
        dev.empty_cache()

    def memory_allocated(self, device_index: int | None = None) -> int:
        return dev.memory_allocated(device_index)

    def max_memory_allocated(self, device_index: int | None = None) -> int:
        return dev.max_memory_allocated(device_index)

    def reset_max_memory_allocated(self, device_index: int | None = None) -> None:
        dev.reset_peak_memory_stats(device_index)

    def memory_cached(self, device_index: int | None = None) -> int:
        return dev.memory_reserved(device_index)

    def max_memory_cached(self, device_index: int | None = None) -> int:
        return dev.max_memory_reserved(device_index)

    def reset_max_memory_cached(self, device_index: int | None = None) -> None:
        dev.reset_peak_memory_stats(device_index)

    def memory_stats(self, device_index: int | None = None) -> dict[str, Any]:
        return dict(dev.memory_stats(device_index))

    def reset_peak_memory_stats(self, device_index: int | None = None) -> None:
        dev.reset_peak_memory_stats(device_index)

    def memory_reserved(self, device_index: int | None = None) -> int:
        return dev.memory_reserved(device_index)

    def max_memory_reserved(self, device_index: int | None = None) -> int:
        return dev.max_memory_reserved(device_index)

    def total_memory(self, device_index: int | None = None) -> int:
        return dev.mem_get_info(device_index)[1]

    def available_memory(self, device_index: int | None = None) -> int:
        return dev.mem_get_info(device_index)[0]

    # Types of data

    def is_bf16_supported(self) -> bool:
        return True

    def is_fp16_supported(self) -> bool:
        return True

    def supported_dtypes(self) -> list[torch.dtype]:
        return [torch.float, torch.bfloat16, torch.float16]

    def create_op_builder(self, op_name: str) -> Any:
        """The CPU's, but for DeepSpeed's own communication in shared memory, which takes CPU tensors only."""
        return None if op_name == "ShareMemCommBuilder" else super().create_op_builder(op_name)

    def visible_devices_envs(self) -> list[str]:
        """None: each process sees all devices."""
        return []
