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
from sklearn.datasets import load_digits
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on digits with DeepSpeed.")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--stage", type=int, default=1, help="of ZeRO")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--width", type=int, default=64)
    arguments = parser.parse_args()
    if arguments.device == "dev":
        from torch_occl.integrations import deepspeed as dev_for_deepspeed

        dev_for_deepspeed.use()
    import deepspeed

    deepspeed.init_distributed()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    digits = load_digits()
    images = (torch.tensor(digits.data, dtype=torch.float32) / 16)[rank::ranks].to(arguments.device)
    labels = torch.tensor(digits.target, dtype=torch.int64)[rank::ranks].to(arguments.device)
    width = arguments.width
    network = nn.Sequential(nn.Linear(64, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 10))
    config = {
        "train_micro_batch_size_per_gpu": 32,
        "zero_optimization": {"stage": arguments.stage},
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 10**9,
    }
    engine, _, _, _ = deepspeed.initialize(
        model=network, optimizer=torch.optim.Adam(network.parameters(), lr=3e-3), config=config
    )
    losses, started = [], time.perf_counter()
    for step in range(arguments.steps):
        chosen = torch.arange(step * 32, step * 32 + 32, device=arguments.device) % len(labels)
        loss = nn.functional.cross_entropy(engine(images[chosen]), labels[chosen])
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    seconds = time.perf_counter() - started
    if rank == 0:
        print("losses", *(f"{loss:.5f}" for loss in losses[::3]))
        print(f"{ranks} ranks on {engine.device}, over {dist.get_backend()}, ZeRO {engine.zero_optimization_stage()}")
        print(f"{arguments.steps * 32 * ranks / seconds:.0f} samples/s")
    engine.destroy()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
