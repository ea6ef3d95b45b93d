"""DeepSpeed's ZeRO on several ranks.

DeepSpeed knows only Gloo for CPU tensors, so occl takes Gloo's place:
    OCCL_IN_PLACE_OF=gloo DS_ACCELERATOR=cpu torchrun --nproc-per-node 2 deepspeed_digits.py --stage 2

On `dev`, which DeepSpeed gets through its accelerator interface:
    torchrun --nproc-per-node 2 deepspeed_digits.py --stage 2 --device dev
"""

import argparse
import time

import torch
import torch.distributed as dist
from digits import load, make_network
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on digits with DeepSpeed.")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--stage", type=int, default=1, help="of ZeRO")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--width", type=int, default=64)
    given = parser.parse_args()
    if given.device == "dev":
        import torch_occl.integrations.deepspeed

        torch_occl.integrations.deepspeed.use()
    import deepspeed

    deepspeed.init_distributed()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    network = make_network(given.width)
    config = {
        "train_micro_batch_size_per_gpu": 32,
        "zero_optimization": {"stage": given.stage},
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 10**9,
    }
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    engine, *_ = deepspeed.initialize(model=network, optimizer=optimizer, config=config)
    images, labels = load(engine.device, rank, ranks)
    losses, started = [], time.perf_counter()
    for step in range(given.steps):
        chosen = torch.arange(step * 32, step * 32 + 32, device=engine.device) % len(labels)
        loss = nn.functional.cross_entropy(engine(images[chosen]), labels[chosen])
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    speed = given.steps * 32 * ranks / (time.perf_counter() - started)
    if rank == 0:
        print("losses", *(f"{loss:.5f}" for loss in losses[::3]))
        print(f"{ranks} ranks on {engine.device}, over {dist.get_backend()}, {speed:.0f} samples/s")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
