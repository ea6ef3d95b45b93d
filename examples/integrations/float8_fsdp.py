"""torchao's float8 training under FSDP2: the ranks gather parameters in float8, not in float32.

    torchrun --nproc-per-node 2 float8_fsdp.py --backend occl

Gloo refuses to gather float8 ("Invalid scalar type").
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torchao.float8 import Float8LinearConfig, convert_to_float8_training


def main() -> None:
    parser = argparse.ArgumentParser(description="Train with float8 all-gathers.")
    parser.add_argument("--backend", default="occl")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--width", type=int, default=64, help="of each layer; a multiple of 16")
    parser.add_argument("--float32", action="store_true", help="gather the parameters in float32")
    given = parser.parse_args()
    dist.init_process_group(given.backend)
    torch.manual_seed(0)
    width = given.width
    network = nn.Sequential(
        nn.Linear(width, width, bias=False), nn.GELU(), nn.Linear(width, width, bias=False)
    )
    config = Float8LinearConfig(enable_fsdp_float8_all_gather=not given.float32, emulate=True)
    convert_to_float8_training(network, config=config)
    for layer in network:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
    torch.manual_seed(dist.get_rank())
    inputs = torch.randn(32, width)
    losses = []
    begin = time.perf_counter()
    for _ in range(given.steps):
        loss = (network(inputs) - inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        losses.append(mean.item())
    speed = given.steps * 32 * dist.get_world_size() / (time.perf_counter() - begin)
    if dist.get_rank() == 0:
        print("losses", *(f"{loss:.4f}" for loss in losses))
        print(f"{dist.get_world_size()} ranks, {speed:.0f} samples/s")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
