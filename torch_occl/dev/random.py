"""Random numbers on ``dev``; part of `torch.dev`.

The state of a generator is 16 bytes: the seed, then the offset, each a native 64-bit integer. Every random
operation advances the offset by 4.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from occl import _C
from torch_occl.dev._index import Device, device_index, unused_index

__all__ = [
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "set_rng_state",
    "set_rng_state_all",
]


def _generator(device: Device = None) -> torch.Generator:
    """The generator of a device. Seeding it, or setting its state, does not initialize the device."""
    return _C._device_generator(unused_index(device))


def manual_seed(seed: int) -> None:
    """Seeds the current device with an integer of 64 bits."""
    _generator().manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seeds every device. `torch.manual_seed` calls this."""
    for index in range(_C._device_count()):
        _generator(index).manual_seed(int(seed))


def seed() -> None:
    """Seeds the current device with a number from the system."""
    _generator().seed()


def seed_all() -> None:
    """Seeds every device with the same number from the system."""
    manual_seed_all(_generator(0).seed())


def initial_seed() -> int:
    """The seed of the current device."""
    return _generator(device_index(None)).initial_seed()


def get_rng_state(device: Device = None) -> torch.Tensor:
    """The state of ``device``: a CPU tensor ``uint8[16]``."""
    return _generator(device_index(device)).get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """The states of all devices: a CPU tensor ``uint8[16]`` for each."""
    return [get_rng_state(index) for index in range(_C._device_count())]


def set_rng_state(new_state: torch.Tensor, device: Device = None) -> None:
    """Sets the state of ``device``.

    Args:
        new_state: ``uint8[16]`` on the CPU, as `get_rng_state` returns it.

    Raises:
        RuntimeError: the tensor is of another size.
        TypeError: it is of another dtype or on another device.
    """
    _generator(device).set_state(new_state)


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Sets the states of all devices, as `get_rng_state_all` returns them.

    Raises:
        RuntimeError: a tensor is of another size, or there are more than devices.
        TypeError: a tensor is of another dtype or on another device.
    """
    for index, state in enumerate(new_states):
        set_rng_state(state, index)
