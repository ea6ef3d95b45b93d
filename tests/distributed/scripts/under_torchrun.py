"""Run by torchrun: every rank makes the group from the environment."""

import sys

import torch
import torch.distributed as dist

import torch_occl  # noqa: F401

dist.init_process_group("occl")
t = torch.tensor([dist.get_rank() + 1], device=sys.argv[1])
dist.all_reduce(t)
n = dist.get_world_size()
assert t.item() == n * (n + 1) // 2
dist.barrier()
# One write for the line: the ranks share standard output.
sys.stdout.write(f"rank {dist.get_rank()} of {n} is done\n")
dist.destroy_process_group()
