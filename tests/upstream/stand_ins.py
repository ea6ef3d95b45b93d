"""What PyTorch's tests need beside `occl.testing.gpu.names`: above all their barrier of processes."""

from __future__ import annotations

import functools
import mmap
import time
from collections import OrderedDict
from types import ModuleType, SimpleNamespace

import torch
import torch.distributed as dist

from occl.testing.gpu import names as gpu_names


def names(device: str, world_size: int) -> dict[str, object]:
    """Globals for the module of the tests: a device for each rank and no more, which some tests ask for."""
    return gpu_names.names(device, world_size) | {
        "autocast": functools.partial(torch.autocast, device),
        "GradScaler": functools.partial(torch.amp.GradScaler, device),
        "init_multigpu_helper": lambda size, backend: {rank: [rank] for rank in range(size)},
        "_occl_logged": lambda backend: "custom" if backend == "occl" else backend,
        "torchvision": SimpleNamespace(models=SimpleNamespace(resnet50=Residual)),
    }


def in_place_of_gloo(module: ModuleType) -> dict[str, object]:
    """Further globals for the module where occl takes the place of Gloo."""
    look_for = module.get_profiling_event

    def get_profiling_event(name, *args, **keywords):
        """Events are named after occl, which makes them; tests want the name that the program asked for."""
        events = look_for(name.replace("gloo:", "occl:"), *args, **keywords)
        for event in events:
            event.name = event.name.replace("occl:", "gloo:")
        return events

    # PyTorch's own monitored_barrier asks for the name "gloo", which these groups have.
    return {"get_profiling_event": get_profiling_event, "_occl_monitored_barrier": dist.monitored_barrier}


class Residual(torch.nn.Module):
    """For torchvision's ResNet-50: batch norm inside of modules inside of modules."""

    def __init__(self) -> None:
        super().__init__()
        block = torch.nn.Sequential(OrderedDict(conv1=torch.nn.Conv2d(3, 4, 1), bn1=torch.nn.BatchNorm2d(4)))
        self.layer1 = torch.nn.Sequential(block)


class Barrier:
    """For PyTorch's class of this name, which meets in files and looks ten times a second.

    Each rank counts its barriers in shared memory. A rank passes when enough ranks have counted as far as it.
    """

    counts: memoryview
    rank: int

    @classmethod
    def place(cls, fd: int, rank: int, world_size: int) -> None:
        """``fd``: a file of 8 zero bytes for each rank."""
        cls.counts = memoryview(mmap.mmap(fd, 8 * world_size)).cast("q")
        cls.rank = rank

    @classmethod
    def leave(cls) -> None:
        """No rank waits for this one from now on."""
        cls.counts[cls.rank] = (1 << 63) - 1

    @classmethod
    def init(cls) -> None:
        raise NotImplementedError("each test has processes of its own")

    @classmethod
    def sync(cls, wait_for: int | None = None, timeout: float = 60) -> None:
        """Raises RuntimeError after ``timeout`` seconds (PyTorch's 10 are too few for a busy machine)."""
        cls.counts[cls.rank] += 1
        mine = cls.counts[cls.rank]
        deadline = time.monotonic() + timeout
        while sum(count >= mine for count in cls.counts) < (wait_for or len(cls.counts)):
            if time.monotonic() > deadline:
                raise RuntimeError(f"barrier timeout: {list(cls.counts)}, and rank {cls.rank} waits")
            time.sleep(0.001)
