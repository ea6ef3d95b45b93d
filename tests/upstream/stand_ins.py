"""What the rewritten tests find in the place of ``torch.cuda``, and of PyTorch's barrier of processes."""

from __future__ import annotations

import functools
import mmap
import time
from collections import OrderedDict
from datetime import timedelta
from types import ModuleType, SimpleNamespace

import torch
import torch.distributed as dist

from torch_occl import ProcessGroupOCCL


def _place(device: str, value):
    """Where a test means a device by its number: on the CPU there are no numbers."""
    return torch.device("cpu") if device == "cpu" and type(value) is int else value


def names(device: str, world_size: int) -> dict[str, object]:
    """Globals for the module of the tests. `rewriting.Rewriter` makes the tests use them."""
    place = functools.partial(_place, device)

    def cuda(thing, index=None, **keywords):
        index = keywords.pop("device", index)
        if device == "cpu":
            return thing
        if index is None:
            index = torch.dev.current_device()
        return thing.to(torch.device(device, index) if isinstance(index, int) else index, **keywords)

    def to(thing, *args, **keywords):
        return thing.to(*map(place, args), **{name: place(value) for name, value in keywords.items()})

    return {
        "_occl_monitored_barrier": monitored_barrier,
        "_occl_accelerator": cpu(world_size) if device == "cpu" else dev(world_size),
        "_occl_cuda": cuda,
        "_occl_to": to,
        "_occl_device": place,
        "_occl_device_ids": lambda ids: None if device == "cpu" else ids,
        "_occl_output_device": lambda output: None if device == "cpu" else output,
        "autocast": functools.partial(torch.autocast, device),
        "GradScaler": functools.partial(torch.amp.GradScaler, device),
        "init_multigpu_helper": lambda size, backend: {rank: [rank] for rank in range(size)},
        "_occl_logged": lambda backend: "custom" if backend == "occl" else backend,
        "_occl_ProcessGroup": ProcessGroup,
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


class ProcessGroup(ProcessGroupOCCL):
    """Ours for ``ProcessGroupNCCL``, whose option of high priority has no effect."""

    class Options(ProcessGroupOCCL.Options):
        is_high_priority_stream = True


class Residual(torch.nn.Module):
    """For torchvision's ResNet-50: batch norm inside of modules inside of modules."""

    def __init__(self) -> None:
        super().__init__()
        block = torch.nn.Sequential(OrderedDict(conv1=torch.nn.Conv2d(3, 4, 1), bn1=torch.nn.BatchNorm2d(4)))
        self.layer1 = torch.nn.Sequential(block)


def monitored_barrier(group=None, timeout=None, wait_all_ranks=False) -> None:
    """``dist.monitored_barrier`` but for its question whether the backend is gloo."""
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        return
    if isinstance(timeout, float):
        timeout = timedelta(seconds=timeout)
    group = group or dist.group.WORLD
    group.monitored_barrier(
        timeout or dist.distributed_c10d.default_pg_timeout, wait_all_ranks=wait_all_ranks
    )


def dev(world_size: int) -> SimpleNamespace:
    """``torch.dev`` with a device for each rank and no more, which is what some tests ask for."""
    return SimpleNamespace(**vars(torch.dev) | {"device_count": lambda: world_size})


def cpu(world_size: int) -> SimpleNamespace:
    """``torch.cpu`` with what it lacks."""
    more = {
        "device_count": lambda: world_size,
        "current_device": lambda: torch.device("cpu"),
        "manual_seed": torch.manual_seed,
        "Stream": lambda device=None: torch.cpu.Stream(),
    }
    return SimpleNamespace(**vars(torch.cpu) | more)


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
