"""Run in a process of its own: one of the two ranks of the self-test, ``rank.py RANK FOLDER SECONDS``.

Rank 0 says what it finds, a JSON object on each line. Rank 1 kills itself at the end.
"""

from __future__ import annotations

import datetime
import json
import os
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import torch_occl  # noqa: F401  (makes the device)
from torch_occl.dev import _registration

COUNTS = (1, 1000, 262_145)
"""Elements of the all_reduces that are checked: each takes another path through occl."""
TIMED = {"4 B": (1, 300), "1 MiB": (1 << 18, 40)}
"""By name: elements of float32, and how often it is timed."""
WARM = 10
WEIGHT = 2


def say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def wrong_sizes(rank: int, device: str) -> list[int]:
    """The counts for which an all_reduce does not give the right sum. The sums are exact in float32."""
    wrong = []
    for count in COUNTS:
        numbers = torch.arange(count, dtype=torch.float32)
        tensor = (numbers * (1 + (WEIGHT - 1) * rank)).to(device)
        dist.all_reduce(tensor)
        if not torch.equal(tensor.cpu(), numbers * (1 + WEIGHT)):
            wrong.append(count)
    return wrong


def median_us(device: str, count: int, times: int) -> float:
    tensor = torch.zeros(count, device=device)
    taken = []
    for i in range(WARM + times):
        start = time.perf_counter_ns()
        dist.all_reduce(tensor)
        if i >= WARM:
            taken.append(time.perf_counter_ns() - start)
    return statistics.median(taken) / 1000


def survive() -> str:
    """The error that tells of the other rank's death; "" if there is none."""
    try:
        dist.all_reduce(torch.zeros(1))
    except dist.DistBackendError as error:
        return str(error)
    return ""


def main(rank: int, folder: str, seconds: float) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(folder, "store")), 2)
    timeout = datetime.timedelta(seconds=seconds)
    dist.init_process_group("occl", store=store, rank=rank, world_size=2, timeout=timeout)
    say(group=True)
    devices = ["cpu", "dev"] if _registration.registered() else ["cpu"]
    say(wrong={device: wrong_sizes(rank, device) for device in devices})
    for device in devices:
        say(**{device: {name: median_us(device, *work) for name, work in TIMED.items()}})
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    say(death=survive())
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
