"""torchft: a replica goes on without one that dies, and takes it in again when it comes back.

python torchft_digits.py --device cpu      or dev: starts a lighthouse and two replicas, and kills one
"""

import multiprocessing
import signal
import sys
import time
from datetime import timedelta

import torch
import torchft
from digits import load, make_network
from torchft.coordination import LighthouseServer

from torch_occl.integrations.torchft import ProcessGroupOCCL

STEPS, KILLED_IN, TIMEOUT = 100, 20, timedelta(seconds=10)


def replica(number: int, life: int, lighthouse: str, device: str, backend: str) -> None:
    store = torch.distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    (images, labels), network = load(device), make_network().to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.3)
    parts = {"network": network, "optimizer": optimizer}
    manager = torchft.Manager(
        pg=(torchft.ProcessGroupGloo if backend == "gloo" else ProcessGroupOCCL)(TIMEOUT),
        load_state_dict=lambda state: [part.load_state_dict(state[n]) for n, part in parts.items()],
        state_dict=lambda: {name: part.state_dict() for name, part in parts.items()},
        replica_id=f"replica_{number}_", rank=0, world_size=1, min_replica_size=1, lighthouse_addr=lighthouse,
        store_addr="localhost", store_port=store.port, timeout=TIMEOUT,
    )  # fmt: skip
    model, stepper = torchft.DistributedDataParallel(manager, network), torchft.Optimizer(manager, optimizer)
    while (step := manager.current_step()) < STEPS:
        chosen = torch.arange(step * 64 + number, step * 64 + 64, 2, device=device) % len(labels)
        time.sleep(0.2)  # as long as a step of a larger network
        stepper.zero_grad()  # agrees on the replicas that take part
        loss = torch.nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
        if (number, life, step) == (1, 0, KILLED_IN):
            signal.raise_signal(signal.SIGKILL)
        loss.backward()
        stepper.step()  # makes the step if no replica failed
        there = manager.num_participants()
        print(f"replica {number}.{life} step {step} loss {loss:.4f} with {there}", flush=True)
    manager.shutdown()


if __name__ == "__main__":
    options = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
    lighthouse = LighthouseServer("[::]:0", min_replicas=1, join_timeout_ms=2000, heartbeat_timeout_ms=2000)
    shared = (lighthouse.address(), options.get("--device", "cpu"), options.get("--backend", "occl"))
    start = multiprocessing.get_context("spawn").Process
    lives = {life: start(target=replica, args=(*life, *shared)) for life in ((0, 0), (1, 0), (1, 1))}
    lives[0, 0].start()
    lives[1, 0].start()
    lives[1, 0].join()
    print(f"replica 1.0 ended with {lives[1, 0].exitcode}", flush=True)
    lives[1, 1].start()
    lives[0, 0].join()
