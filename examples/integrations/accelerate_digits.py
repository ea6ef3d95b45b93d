"""Hugging Face Accelerate on several ranks: ``prepare``, ``gather``, ``reduce``, ``save_state``.

Accelerate knows only Gloo for processes without a GPU, so occl takes Gloo's place:

    OCCL_IN_PLACE_OF=gloo accelerate launch --cpu --num_processes 2 accelerate_digits.py

On `dev`, with OCCL_DEVICE=1 ACCELERATE_TORCH_DEVICE=dev:0 before that line too.
"""

import tempfile

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target, dtype=torch.int64)
    network = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.2, momentum=0.9)

    accelerator = Accelerator(cpu=True)  # without cpu=True, each process would train alone
    loader = DataLoader(TensorDataset(images, labels), batch_size=30, shuffle=True)
    network, optimizer, loader = accelerator.prepare(network, optimizer, loader)

    losses = []
    for epoch in range(2):
        loader.set_epoch(epoch)
        for images, labels in loader:
            loss = nn.functional.cross_entropy(network(images), labels)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            losses.append(accelerator.reduce(loss.detach(), "mean").item())

    network.eval()
    with torch.no_grad():
        correct = [network(images).argmax(1) == labels for images, labels in loader]
    accuracy = accelerator.gather_for_metrics(torch.cat(correct)).float().mean().item()

    with tempfile.TemporaryDirectory() as folder:
        (folder,) = broadcast_object_list([folder])  # rank 0's
        before = [parameter.clone() for parameter in network.parameters()]
        accelerator.save_state(folder)
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.zero_()
        accelerator.wait_for_everyone()
        accelerator.load_state(folder)
        accelerator.wait_for_everyone()  # before the folder goes
        same = all(map(torch.equal, before, network.parameters()))

    accelerator.print("losses", *(f"{loss:.5f}" for loss in losses[::10]))
    accelerator.print(f"{accelerator.num_processes} ranks on {accelerator.device}, accuracy {accuracy:.4f}")
    accelerator.print("the saved state was restored" if same else "the saved state differs")
    accelerator.end_training()


if __name__ == "__main__":
    main()
