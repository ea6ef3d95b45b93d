"""Says whether an installed torch_occl works: versions, kernels, the device, and an all_reduce of two ranks.

Needs the package and PyTorch, nothing of the repository and no compiler:

    python tools/smoke_test.py
"""

import socket
import sys
from importlib import metadata
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import torch_occl

RANKS = 2


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def rank_main(rank: int, port: int) -> None:
    """The body of one rank: sums a tensor of each kind and size that takes a path of its own."""
    store = dist.TCPStore("127.0.0.1", port, RANKS, is_master=rank == 0)
    dist.init_process_group("occl", store=store, rank=rank, world_size=RANKS)
    for device in ("cpu", "dev:0"):
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            for count in (1, 1000, 300_000):
                x = torch.full((count,), rank + 1, dtype=dtype, device=device)
                dist.all_reduce(x)
                assert x.eq(3).all(), (device, dtype, count, x)
    dist.destroy_process_group()


def main() -> None:
    home = Path(torch_occl.__file__).parent
    installed = metadata.version("torch_occl")
    assert torch_occl.__version__ == installed, (torch_occl.__version__, installed)
    assert home.parent != Path(__file__).parents[1], (
        f"this is the repository's own package, not a wheel's: {home}"
    )
    x = torch.arange(4.0, device="dev:0")
    assert x.device.type == "dev" and float((x * 2).sum()) == 12
    mp.spawn(rank_main, (free_port(),), nprocs=RANKS)
    print(f"torch_occl {installed} works with torch {torch.__version__} in Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
