"""The device ``dev`` for Lightning's Trainer and Fabric (package ``lightning`` or ``pytorch-lightning``).

Importing this module registers the accelerator ``dev`` and the strategies ``ddp_dev`` of both::

    import torch_occl.integrations.lightning

    Trainer(accelerator="dev", strategy="ddp_dev", devices=2)
    Fabric(accelerator="dev", strategy="ddp_dev", devices=2)

Lightning's DDP wants CUDA's streams for each device but the CPU, so ``ddp_dev`` takes its place. Its other
strategies were not tried with this accelerator.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch

import torch_occl  # noqa: F401  (makes the device)

if importlib.util.find_spec("lightning"):
    from lightning.fabric.accelerators import ACCELERATOR_REGISTRY
    from lightning.fabric.strategies import STRATEGY_REGISTRY
    from lightning.fabric.strategies import DDPStrategy as FabricDDPStrategy
    from lightning.pytorch.accelerators import Accelerator, AcceleratorRegistry
    from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry
elif importlib.util.find_spec("pytorch_lightning"):
    from lightning_fabric.accelerators import ACCELERATOR_REGISTRY
    from lightning_fabric.strategies import STRATEGY_REGISTRY
    from lightning_fabric.strategies import DDPStrategy as FabricDDPStrategy
    from pytorch_lightning.accelerators import Accelerator, AcceleratorRegistry
    from pytorch_lightning.strategies import DDPStrategy, StrategyRegistry
else:
    raise ImportError(
        "torch_occl.integrations.lightning needs Lightning, which is not installed: pip install lightning"
    )

__all__ = ["DevAccelerator", "DevDDPStrategy", "DevFabricDDPStrategy"]


class DevAccelerator(Accelerator):  # type: ignore[misc]
    """``dev`` as a Lightning accelerator. Process number n of a host computes on ``dev:n``."""

    def setup_device(self, device: torch.device) -> None:
        """Makes the device current.

        Raises:
            ValueError: it is no ``dev`` device.
        """
        if device.type != "dev":
            raise ValueError(f"DevAccelerator: the device must be of the type dev, not {device}")
        torch.accelerator.set_device_index(device)

    def get_device_stats(self, device: torch.device) -> dict[str, Any]:
        """Statistics of the allocator of ``dev``, by name."""
        return torch.accelerator.memory_stats(device)

    def teardown(self) -> None:
        """Gives unused memory back."""
        torch.accelerator.empty_cache()

    @staticmethod
    def parse_devices(devices: int | str | list[int]) -> list[int]:
        """The numbers of devices: 2 and "2" are [0, 1], "1,3" is [1, 3], -1 and "-1" are all.

        Raises:
            ValueError: there is no such device.
        """
        count = torch.accelerator.device_count()
        if isinstance(devices, str):
            numbers = [int(number) for number in devices.split(",") if number.strip()]
            devices = numbers if "," in devices else numbers[0]
        if isinstance(devices, int):
            devices = list(range(count if devices == -1 else devices))
        if not devices or any(number not in range(count) for number in devices):
            raise ValueError(
                f"DevAccelerator: devices={devices} names a device that does not exist: there are {count}, "
                "numbered from 0 (OCCL_DEVICE_COUNT sets their number)"
            )
        return list(devices)

    @staticmethod
    def get_parallel_devices(devices: list[int]) -> list[torch.device]:
        """The device of each process of this host."""
        return [torch.device("dev", number) for number in devices]

    @staticmethod
    def auto_device_count() -> int:
        """What ``devices="auto"`` means: one, because all devices are the same processor and memory."""
        return 1

    @staticmethod
    def is_available() -> bool:
        """Whether ``dev`` is this process's accelerator."""
        return torch.accelerator.is_available() and torch._C._get_privateuse1_backend_name() == "dev"

    @staticmethod
    def name() -> str:
        """The name by which Trainer and Fabric know it."""
        return "dev"


class DevDDPStrategy(DDPStrategy):  # type: ignore[misc]
    """DistributedDataParallel on ``dev``, for the Trainer."""

    def determine_ddp_device_ids(self) -> None:
        """None: with ids, Lightning makes a stream of CUDA, on any device but the CPU."""
        return None


class DevFabricDDPStrategy(FabricDDPStrategy):  # type: ignore[misc]
    """DistributedDataParallel on ``dev``, for Fabric."""

    def _determine_ddp_device_ids(self) -> None:
        return None


for _registry in {id(each): each for each in (ACCELERATOR_REGISTRY, AcceleratorRegistry)}.values():
    _registry.register("dev", DevAccelerator, description="torch_occl's device dev", override=True)
for _registry, _strategy in (
    (StrategyRegistry, DevDDPStrategy),
    (STRATEGY_REGISTRY, DevFabricDDPStrategy),
):
    _registry.register("ddp_dev", _strategy, description="DistributedDataParallel on dev", override=True)
