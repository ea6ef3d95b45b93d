"""Trains on handwritten digits in one process that drives several devices, one replica on each.

    python examples/replicas_digits.py                  # two devices
    python examples/replicas_digits.py --devices 1      # the same training on one

No torchrun and no process group: threads of one process run the replicas side by side. Each step trains on
one global batch, of which each replica takes a share. So accuracy and losses do not depend on the number of
devices, except for rounding.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from pathlib import Path

import torch
from ddp_digits import load, make_network, positive
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler
from tqdm import tqdm

from torch_occl import replicas


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=positive, default=2)
    parser.add_argument("--epochs", type=positive, default=20)
    parser.add_argument("--batch-size", type=positive, default=64, help="samples a step, over all devices")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to FILE")
    arguments = parser.parse_args()
    if arguments.devices > torch.dev.device_count():
        parser.error(f"there are {torch.dev.device_count()} devices; OCCL_DEVICE_COUNT sets how many")
    samples = len(load()[0])
    if min(arguments.batch_size, samples % arguments.batch_size or samples) < arguments.devices:
        parser.error(
            f"--batch-size {arguments.batch_size}: a batch of {samples} samples is too small to share"
        )
    return arguments


def parameter_hash(parameters: list[nn.Parameter]) -> str:
    """The SHA-256 of all parameters of one replica."""
    return hashlib.sha256(b"".join(p.detach().cpu().numpy().tobytes() for p in parameters)).hexdigest()


def main() -> None:
    arguments = parse_arguments()
    # Each replica computes with its share of the cores.
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // arguments.devices))
    torch.manual_seed(arguments.seed)
    train, test = load()
    order = RandomSampler(train, generator=torch.Generator().manual_seed(arguments.seed))
    loader = DataLoader(train, sampler=BatchSampler(order, arguments.batch_size, False), batch_size=None)

    devices = [f"dev:{i}" for i in range(arguments.devices)]
    networks = replicas.prepare_replicas(make_network(), devices)
    parameters = [list(network.parameters()) for network in networks]
    optimizers = [torch.optim.SGD(p, lr=0.07, momentum=0.9) for p in parameters]
    loss_of = nn.CrossEntropyLoss()

    def forward(i, _, shard):
        images, labels = shard
        return loss_of(networks[i](images), labels)

    losses: list[float] = []
    seconds: list[float] = []
    for epoch in range(arguments.epochs):
        started = time.perf_counter()
        for batch in tqdm(loader, desc=f"epoch {epoch + 1}/{arguments.epochs}", unit=" steps", disable=None):
            losses.append(replicas.data_parallel_step(forward, parameters, optimizers, batch).loss)
        seconds.append(time.perf_counter() - started)

    hashes = {parameter_hash(p) for p in parameters}
    if len(hashes) != 1:
        raise RuntimeError(f"the replicas differ: SHA-256 {sorted(hashes)}")
    images, labels = test.tensors
    with torch.no_grad():
        predictions = networks[0](images.to(devices[0])).argmax(dim=1).cpu()
    accuracy = (predictions == labels).float().mean().item()
    rate = arguments.epochs * len(train) / sum(seconds)
    print(f"{arguments.devices} devices: test accuracy {accuracy:.2%}, {rate:.0f} samples/s")
    if arguments.json:
        results = vars(arguments) | {
            "accuracy": accuracy,
            "epoch_seconds": seconds,
            "losses": losses,
            "parameter_hash": hashes.pop(),
        }
        arguments.json.write_text(json.dumps(results, indent=1, default=str))


if __name__ == "__main__":
    main()
