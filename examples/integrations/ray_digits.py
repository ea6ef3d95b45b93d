"""Ray Train with several workers on one machine, or on several nodes of a Ray cluster.

python ray_digits.py --device cpu       or dev
python ray_digits.py --nodes 2          two nodes of Ray on this machine, for a trial
"""

import argparse
import tempfile
import time

import ray
import torch
import torch.distributed as dist
from digits import load, make_network
from ray.cluster_utils import Cluster
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from torch.nn.parallel import DistributedDataParallel


def train(config: dict) -> dict:
    device = config["device"]  # not ray.train.torch.get_device(), which knows only GPUs and CPUs
    images, labels = load(device, dist.get_rank(), dist.get_world_size())
    network = DistributedDataParallel(make_network().to(device))  # not prepare_model, which calls get_device
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
    losses = []
    begin = time.perf_counter()
    for _ in range(config["epochs"]):
        for some, theirs in zip(images.split(32), labels.split(32), strict=True):
            loss = torch.nn.functional.cross_entropy(network(some), theirs)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(f"{loss.item():.5f}")
    ranks = dist.get_world_size()
    speed = config["epochs"] * len(images) * ranks / (time.perf_counter() - begin)
    where = f"{ranks} ranks on {network.device}, over {dist.get_backend()}, {speed:.0f} samples/s"
    return {"losses": losses[::3], "where": where}


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on digits with Ray Train.")
    parser.add_argument("--backend", default="occl")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=1)
    arguments = parser.parse_args()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2 // arguments.nodes})
    if arguments.nodes == 2:
        cluster.add_node(num_cpus=1)
    workers = {"env_vars": {"OCCL_DEVICE": "1"} if arguments.device == "dev" else {}}
    with ray.init(address=cluster.address, runtime_env=workers), tempfile.TemporaryDirectory() as folder:
        result = TorchTrainer(
            train,
            train_loop_config={"device": arguments.device, "epochs": arguments.epochs},
            torch_config=TorchConfig(backend=arguments.backend),
            scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
            run_config=RunConfig(storage_path=folder),
        ).fit()
    print("losses", *result.return_value["losses"])  # rank 0's
    print(result.return_value["where"])
    cluster.shutdown()


if __name__ == "__main__":
    main()
