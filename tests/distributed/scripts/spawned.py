"""Ranks started by torch.multiprocessing.spawn."""

import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import torch_occl  # noqa: F401


def main(rank: int, n: int, device: str, store: str) -> None:
    dist.init_process_group("occl", init_method=f"file://{store}", rank=rank, world_size=n)
    t = torch.tensor([rank + 1], device=device)
    dist.all_reduce(t)
    assert t.item() == n * (n + 1) // 2
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(main, (3, *sys.argv[1:]), nprocs=3)
    print("all done")
