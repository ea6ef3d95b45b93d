"""Hugging Face Accelerate on several ranks: ``prepare``, ``gather``, ``reduce``, ``save_state``.

Accelerate knows only Gloo for processes without a GPU, so occl takes Gloo's place:

    OCCL_IN_PLACE_OF=gloo torchrun --nproc-per-node 2 accelerate_digits.py
    OCCL_IN_PLACE_OF=gloo accelerate launch --multi_gpu --num_processes 2 accelerate_digits.py

On `dev`, with OCCL_DEVICE=1 ACCELERATE_TORCH_DEVICE=dev:0 before that line too.
"""

import argparse
import tempfile
import time

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from digits import load, make_network
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main(epochs: int = 2) -> None:
    accelerator = Accelerator(cpu=True)  # without cpu=True, each process would train alone
    network = make_network()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.2, momentum=0.9)
    loader = DataLoader(TensorDataset(*load()), batch_size=30, shuffle=True)
    network, optimizer, loader = accelerator.prepare(network, optimizer, loader)

    losses = []
    begin = time.perf_counter()
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        for images, labels in loader:
            loss = nn.functional.cross_entropy(network(images), labels)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            losses.append(accelerator.reduce(loss.detach(), "mean").item())
    speed = epochs * len(loader.dataset) / (time.perf_counter() - begin)

    with torch.no_grad():
        correct = [network(images).argmax(1) == labels for images, labels in loader]
    accuracy = accelerator.gather(torch.cat(correct)).float().mean().item()

    with tempfile.TemporaryDirectory() as folder:
        (folder,) = broadcast_object_list([folder])  # rank 0's
        before = [parameter.detach().clone() for parameter in network.parameters()]
        accelerator.save_state(folder)
        accelerator.wait_for_everyone()
        nn.init.zeros_(next(network.parameters()))
        accelerator.load_state(folder)
        accelerator.wait_for_everyone()  # before the folder goes
        same = all(map(torch.equal, before, network.parameters()))

    accelerator.print("losses", *(f"{loss:.5f}" for loss in losses[::10]))
    ranks = f"{accelerator.num_processes} ranks on {accelerator.device}"
    accelerator.print(f"{ranks}, accuracy {accuracy:.4f}, {speed:.0f} samples/s")
    accelerator.print("the saved state was restored" if same else "the saved state differs")
    accelerator.end_training()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train on digits with Accelerate.")
    parser.add_argument("--epochs", type=int, default=2)
    main(parser.parse_args().epochs)
