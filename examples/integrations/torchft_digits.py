"""torchft: replicas that go on without one that dies, and take it in again when it comes back.

    python torchft_digits.py --device cpu           starts a lighthouse and two replicas, and kills one
    python torchft_digits.py --device dev
"""

import argparse
import multiprocessing
import os
import signal
from datetime import timedelta

import torch
import torchft
from sklearn.datasets import load_digits
from torch import nn
from torchft.coordination import LighthouseServer

from torch_occl.integrations.torchft import ProcessGroupOCCL


def replica(number: int, life: int, lighthouse: str, arguments: argparse.Namespace) -> None:
    store = torch.distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    torch.manual_seed(0)
    digits = load_digits()
    images = (torch.tensor(digits.data, dtype=torch.float32) / 16).to(arguments.device)
    labels = torch.tensor(digits.target, dtype=torch.int64).to(arguments.device)
    network = nn.Sequential(nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 10)).to(arguments.device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
    group = torchft.ProcessGroupGloo if arguments.backend == "gloo" else ProcessGroupOCCL
    manager = torchft.Manager(
        pg=group(timeout=timedelta(seconds=10)),
        min_replica_size=1,
        load_state_dict=lambda state: (network.load_state_dict(state[0]), optimizer.load_state_dict(state[1])),
        state_dict=lambda: (network.state_dict(), optimizer.state_dict()),
        replica_id=f"replica_{number}_", rank=0, world_size=1, lighthouse_addr=lighthouse,
        store_addr="localhost", store_port=store.port, timeout=timedelta(seconds=10),
    )  # fmt: skip
    network, optimizer = torchft.DistributedDataParallel(manager, network), torchft.Optimizer(manager, optimizer)
    while manager.current_step() < arguments.steps:
        step = manager.current_step()
        chosen = torch.arange(step * 64 + number, step * 64 + 64, 2, device=arguments.device) % len(labels)
        optimizer.zero_grad()  # agrees on who takes part
        loss = nn.functional.cross_entropy(network(images[chosen]), labels[chosen])
        loss.backward()
        if (number, life, step) == (1, 0, arguments.kill):
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        there = manager.num_participants()
        print(f"replica {number}.{life} step {step} loss {loss.item():.4f} with {there}", flush=True)
    manager.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on digits with torchft.")
    parser.add_argument("--backend", default="occl")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--kill", type=int, default=20, help="the step in which replica 1 dies")
    arguments = parser.parse_args()
    lighthouse = LighthouseServer(bind="[::]:0", min_replicas=1, join_timeout_ms=2000, heartbeat_timeout_ms=2000)
    start = multiprocessing.get_context("spawn").Process
    running = [start(target=replica, args=(number, 0, lighthouse.address(), arguments)) for number in (0, 1)]
    for process in running:
        process.start()
    running[1].join()
    print(f"replica 1.0 ended with {running[1].exitcode}", flush=True)
    running[1] = start(target=replica, args=(1, 1, lighthouse.address(), arguments))
    running[1].start()
    for process in running:
        process.join()


if __name__ == "__main__":
    main()
