"""torchmetrics on several ranks: a metric gathers what all ranks have seen.

torchrun --nproc-per-node 2 metrics_digits.py --backend occl --device cpu
torchrun --nproc-per-node 2 metrics_digits.py --backend occl --device dev
"""

import argparse

import torch
import torch.distributed as dist
from digits import load, make_network
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC, MulticlassConfusionMatrix


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on digits, and measure with torchmetrics.")
    parser.add_argument("--backend", default="occl")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    if arguments.device == "dev":
        import torch_occl  # noqa: F401  (makes the device)
    dist.init_process_group(arguments.backend)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    images, labels = load(arguments.device, rank, ranks)
    network = DistributedDataParallel(make_network().to(arguments.device))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
    mean_loss = MeanMetric().to(arguments.device)
    losses = []
    for _ in range(3):
        for some, theirs in zip(images.split(32), labels.split(32), strict=True):
            loss = nn.functional.cross_entropy(network(some), theirs)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            mean_loss.update(loss.detach())
        losses.append(mean_loss.compute().item())  # of all ranks
        mean_loss.reset()

    metrics = MetricCollection([MulticlassAccuracy(10), MulticlassAUROC(10), MulticlassConfusionMatrix(10)])
    metrics.to(arguments.device)
    with torch.no_grad():
        metrics.update(network(images).softmax(1), labels)
    values = metrics.compute()
    if rank == 0:
        print("losses", *(f"{loss:.5f}" for loss in losses))
        print(f"accuracy {values['MulticlassAccuracy']:.4f}, AUROC {values['MulticlassAUROC']:.4f}")
        print(f"{values['MulticlassConfusionMatrix'].sum()} samples of {ranks} ranks on {images.device}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
