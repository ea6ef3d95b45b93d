"""Trains a small convolutional network on handwritten digits, on several processes of one machine.

    torchrun --nproc-per-node=2 examples/ddp_digits.py                           # occl, on the device dev
    torchrun --nproc-per-node=2 examples/ddp_digits.py --device cpu              # occl, on CPU tensors
    torchrun --nproc-per-node=2 examples/ddp_digits.py --backend gloo --device cpu
    python examples/ddp_digits.py                                                # one process, no torchrun

Each step trains on one global batch, of which each rank takes an equal share. The mean over ranks of the
gradients of equal shares is the gradient of the whole batch. No layer mixes samples (no batch normalization)
or draws random numbers (no dropout), so the losses do not depend on the number of ranks, except for rounding.
The network is smooth (GELU and averages, not ReLU and maxima), so rounding errors stay small. After every
epoch all ranks compare their parameters, which must be the same bits.

A communication hook measures in every step the time from the call of the gradients' all-reduce to its
completion. This network's gradients fill one bucket, which is complete at the end of the backward pass, so
nothing overlaps and no rank computes during that time. The time has two parts. The last rank of a step waits
for no other rank, so the smallest time of all ranks is the cost of communication itself ("communication").
The mean over all ranks includes the time that the others wait for the last one, as they would with the
fastest network ("with waiting").
"""

import argparse
import gc
import hashlib
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, TensorDataset
from tqdm import tqdm

TEST_SAMPLES = 360


def positive(text: str) -> int:
    """A number of at least 1, from the command line."""
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return int(text)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train on handwritten digits, with several processes.")
    parser.add_argument("--backend", choices=["occl", "gloo"], default="occl")
    parser.add_argument("--device", choices=["dev", "cpu"], default="dev")
    parser.add_argument("--epochs", type=positive, default=20)
    parser.add_argument("--batch-size", type=positive, default=64, help="samples a step, over all ranks")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to FILE")
    arguments = parser.parse_args()
    if arguments.backend == "gloo" and arguments.device == "dev":
        parser.error("Gloo moves CPU tensors only: add --device cpu")
    return arguments


def start(backend: str) -> None:
    """Joins the processes that torchrun started, or makes a group of this process alone."""
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)


def choose_device(kind: str) -> torch.device:
    if kind == "cpu":
        return torch.device("cpu")
    return torch.device(kind, int(os.environ.get("LOCAL_RANK", 0)) % torch.dev.device_count())


def load() -> tuple[TensorDataset, TensorDataset]:
    """1437 images to train on and 360 to test on, float32[1, 8, 8] in 0..1, with their digits, int64."""
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1)[order] / 16
    labels = torch.tensor(digits.target, dtype=torch.int64)[order]
    cut = len(order) - TEST_SAMPLES
    return TensorDataset(images[:cut], labels[:cut]), TensorDataset(images[cut:], labels[cut:])


def make_network() -> nn.Module:
    """About 150 000 parameters: 0.6 MB of gradients a step."""
    return nn.Sequential(
        nn.Conv2d(1, 32, kernel_size=3, padding=1),
        nn.GELU(),
        nn.Conv2d(32, 64, kernel_size=3, padding=1),
        nn.GELU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 128),
        nn.GELU(),
        nn.Linear(128, 10),
    )


def timed_all_reduce(seconds: list[float], bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The communication hook that DDP uses by default; adds to ``seconds`` how long each call took."""
    started = time.perf_counter()

    def finish(future: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
        seconds.append(time.perf_counter() - started)
        return future.value()

    return allreduce_hook(dist.group.WORLD, bucket).then(finish)


def same_bits_everywhere(network: nn.Module, device: torch.device) -> str:
    """The SHA-256 of all parameters. Raises RuntimeError unless it is the same on every rank."""
    digest = hashlib.sha256(b"".join(p.detach().cpu().numpy().tobytes() for p in network.parameters()))
    mine = torch.tensor(list(digest.digest()), dtype=torch.uint8, device=device)
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, mine)
    hashes = [bytes(tensor.tolist()).hex() for tensor in everyone]
    if len(set(hashes)) != 1:
        raise RuntimeError(f"the parameters differ between ranks: SHA-256 {hashes}")
    return hashes[0]


def over_ranks(values: list[float], op: dist.ReduceOp, device: torch.device) -> list[float]:
    """Combines the values of all ranks, one by one."""
    tensor = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(tensor, op)
    return tensor.tolist()


def count_correct(network: nn.Module, test: TensorDataset, device: torch.device) -> float:
    """How many test images the network gets right. Each rank tests a share of them."""
    images, labels = (tensor[dist.get_rank() :: dist.get_world_size()].to(device) for tensor in test.tensors)
    with torch.no_grad():
        correct = (network(images).argmax(dim=1) == labels).sum().item()
    return over_ranks([correct], dist.ReduceOp.SUM, device)[0]


def main() -> None:
    arguments = parse_arguments()
    if arguments.device == "dev":
        import torch_occl  # noqa: F401  (makes the device, before the group that serves it)
    start(arguments.backend)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if arguments.batch_size % ranks:
        raise ValueError(f"--batch-size {arguments.batch_size} does not divide into {ranks} equal shares")
    device = choose_device(arguments.device)
    torch.manual_seed(arguments.seed)

    train, test = load()
    sampler = DistributedSampler(train, seed=arguments.seed, drop_last=True)
    batches = BatchSampler(sampler, arguments.batch_size // ranks, drop_last=True)
    loader = DataLoader(train, sampler=batches, batch_size=None)

    network = DistributedDataParallel(make_network().to(device))
    communicating: list[float] = []
    network.register_comm_hook(communicating, timed_all_reduce)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.07, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()

    losses: list[float] = []
    seconds: list[float] = []
    hashes: list[str] = []
    samples_per_epoch = len(loader) * arguments.batch_size
    bar = tqdm(total=arguments.epochs * samples_per_epoch, unit=" samples", disable=True if rank else None)
    for epoch in range(arguments.epochs):
        sampler.set_epoch(epoch)
        bar.set_description(f"epoch {epoch + 1}/{arguments.epochs}", refresh=False)
        started = time.perf_counter()
        for images, labels in loader:
            loss = loss_of(network(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            bar.set_postfix(loss=f"{losses[-1]:.4f}", refresh=False)
            bar.update(arguments.batch_size)
        seconds.append(time.perf_counter() - started)
        hashes.append(same_bits_everywhere(network, device))
    bar.close()

    accuracy = count_correct(network, test, device) / len(test)
    step_losses = [total / ranks for total in over_ranks(losses, dist.ReduceOp.SUM, device)]
    communication = sum(over_ranks(communicating, dist.ReduceOp.MIN, device)) / sum(seconds)
    with_waiting = sum(over_ranks(communicating, dist.ReduceOp.SUM, device)) / ranks / sum(seconds)
    if rank == 0:
        print(
            f"{arguments.backend} on {device.type}, ranks: {ranks}. Test accuracy {accuracy:.2%}, "
            f"communication {communication:.1%} of the time ({with_waiting:.1%} with waiting)"
        )
        if arguments.json:
            results = vars(arguments) | {
                "ranks": ranks,
                "samples_per_epoch": samples_per_epoch,
                "accuracy": accuracy,
                "epoch_seconds": seconds,
                "communication_share": communication,
                "communication_share_with_waiting": with_waiting,
                "losses": step_losses,
                "parameter_hashes": hashes,
            }
            arguments.json.write_text(json.dumps(results, indent=1, default=str))
    # Delete everything that holds the group first, so that its threads end here and not at the interpreter's
    # exit: a thread of Gloo may hold the last reference to a Python object, and would abort then.
    del network
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
