"""What each rank of a trial does: the script until it ends, and then a life without the victim."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import resource
import signal
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from tests.support.checks import assert_works, backend
from tests.support.worker import join, listen, tell

from . import operations


def descriptors() -> list[str]:
    """What is behind each."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed since: that of the list, or by another thread
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return found


HOOKED = hasattr(torch._C._distributed_c10d, "HealthCheckHook")
"""Whether PyTorch gives each group a hook for failures. While a driving thread is in it, another drives."""


def leftovers() -> dict[str, int]:
    """What this process holds: descriptors, threads, and the control regions of itself and of others."""
    maps = Path("/proc/self/maps").read_text()
    return {
        "descriptors": len(descriptors()),
        "threads": len(os.listdir("/proc/self/task")),
        "control regions": maps.count("/memfd:occl-control"),
        "regions of devices": maps.count("/memfd:occl-dev"),
    }


def alone(device: str) -> None:
    """A group of one rank: only this process's own engine and memory."""
    dist.init_process_group("occl", store=dist.HashStore(), rank=0, world_size=1)
    assert_works(device)
    # The engine has its thread from the first operation on that is left in flight.
    receiving = backend(device).recv([torch.ones(3, device=device)], 0, 0)
    backend(device).send([torch.ones(3, device=device)], 0, 0).wait()
    receiving.wait()
    dist.destroy_process_group()
    gc.collect()


def live(
    rank: int,
    n: int,
    device: str,
    *,
    store: str,
    victim: int,
    kind: str,
    seed: int,
    timeout: float,
    steps: int,
) -> str:
    """Returns the error that ended the script, or ""."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    torch.set_num_threads(1)
    gc.freeze()  # what came with the warm process need not be looked through again and again
    alone(device)
    before = leftovers()
    if kind != "joining":
        join(rank, n, device, store=store, timeout=60.0)  # however busy the machine is
        dist.group.WORLD.set_timeout(timedelta(seconds=timeout))
    if kind == "orphan" and rank == victim:
        child = os.fork()
        if child == 0:
            while True:  # like a DataLoader's worker, it has all of the victim's descriptors
                signal.pause()
        tell(child)
    tell("ready")
    text, began = "", time.monotonic_ns()
    draw = random.Random(seed)
    try:
        if kind == "joining":
            join(rank, n, device, store=store, timeout=timeout)
        if kind == "abort" and rank == victim:
            delay = random.Random(seed + 1).uniform(0, 0.03)
            threading.Timer(delay, backend(device).abort).start()
        for _ in range(steps):
            began = time.monotonic_ns()
            operations.run_one(draw, device)
    except dist.DistBackendError as error:
        text = str(error)
    ended = time.monotonic_ns()
    if dist.is_initialized():
        dist.destroy_process_group()
    # PyTorch names default groups by number, and does not take the number back where making one failed: ranks
    # would look for each other under different names.
    dist.distributed_c10d._world.group_count = 0
    tell((text, began, ended))
    store, members = listen()
    again(members.index(rank), len(members), device, store=store)
    alone(device)  # what others may have been reading is given back when the next group is made
    check(before, len(members) - 1)
    return text


def check(before: dict[str, int], others: int) -> None:
    """Of the dead nothing is left; of the others only that they are known: a descriptor and their memory.

    The thread that answers peers closes a connection when it comes to see its end.
    """
    deadline = time.monotonic() + 10
    while (after := leftovers())["descriptors"] > before["descriptors"] + others:
        if time.monotonic() > deadline:
            break
        time.sleep(0.001)
    assert 0 <= after["threads"] - before["threads"] <= HOOKED, (before, after)
    assert after["descriptors"] == before["descriptors"] + others, (before, after, others)
    assert after["control regions"] == before["control regions"] + others, (before, after, others)
    assert after["regions of devices"] <= before["regions of devices"] + others, (before, after, others)


def again(rank: int, n: int, device: str, *, store: str) -> None:
    """A new group of the ranks that live."""
    join(rank, n, device, store=store, timeout=60.0)
    assert_works(device)
    dist.destroy_process_group()
    gc.collect()
