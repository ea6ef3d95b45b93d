"""Ray Train with several workers on one machine, or on several nodes of a Ray cluster.

    python ray_digits.py --device cpu
    python ray_digits.py --device dev
    python ray_digits.py --nodes 2          two nodes of Ray on this machine, for a trial
"""

import argparse
import os
import tempfile

import ray
import torch
import torch.distributed as dist
from ray.cluster_utils import Cluster
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(config: dict) -> None:
    device = torch.device(config["device"])  # not ray.train.torch.get_device(), which knows cpu and cuda
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    digits = load_digits()
    images = (torch.tensor(digits.data, dtype=torch.float32) / 16)[rank::ranks].to(device)
    labels = torch.tensor(digits.target, dtype=torch.int64)[rank::ranks].to(device)
    network = nn.Sequential(nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 10)).to(device)
    network = DistributedDataParallel(network)  # not prepare_model, which moves to get_device()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
    losses = []
    for some, theirs in zip(images.split(32), labels.split(32), strict=True):
        loss = nn.functional.cross_entropy(network(some), theirs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(f"{loss.item():.5f}")
    ray.train.report({"losses": " ".join(losses[::3]), "ranks": ranks, "backend": dist.get_backend()})


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on digits with Ray Train.")
    parser.add_argument("--backend", default="occl")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--nodes", type=int, default=1)
    arguments = parser.parse_args()
    os.environ["OCCL_DEVICE"] = "1" if arguments.device == "dev" else "0"  # for the workers too
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2 // arguments.nodes})
    for _ in range(arguments.nodes - 1):
        cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, runtime_env={"env_vars": {"OCCL_DEVICE": os.environ["OCCL_DEVICE"]}})
    with tempfile.TemporaryDirectory() as folder:
        result = TorchTrainer(
            train, train_loop_config={"device": arguments.device},
            torch_config=TorchConfig(backend=arguments.backend),
            scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
            run_config=RunConfig(storage_path=folder),
        ).fit()
    print("losses", result.metrics["losses"])
    print(f"{result.metrics['ranks']} ranks on {arguments.device}, over {result.metrics['backend']}")
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
