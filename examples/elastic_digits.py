"""Trains on handwritten digits, and goes on when a process is killed, in two ways:

    python examples/elastic_digits.py --ranks 4 --kill 2:60
        The others shrink the group and continue from what they have in memory: no checkpoint, no restart.

    torchrun --nproc-per-node=4 --max-restarts=1 examples/elastic_digits.py --checkpoint FILE --kill 2:60
        torchrun ends the others and starts all of them again, and they continue from the last checkpoint.

``--kill RANK:STEP`` makes that rank kill itself with SIGKILL in that step, so that you see what happens.

A step changes nothing before the gradients of all ranks have been summed. A death during the
sum leaves some ranks with the sum and others with an error, so the survivors are at most one step apart. They
all take over the state of a rank that is farthest. Each global batch is divided among the remaining ranks.
"""

import argparse
import multiprocessing
import os
import re
import signal
import sys
import tempfile
from pathlib import Path

import torch  # registers the backend "occl" for CPU tensors, where torch_occl is installed
import torch.distributed as dist
from ddp_digits import load, make_network
from torch import nn

BATCH = 60
"""Samples a step, over all ranks: divisible by 1 to 6."""


class Training:
    """Network, optimizer and the number of steps made. float32 parameters on the CPU."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.train, self.test = load()
        self.network = make_network()
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=2e-3)
        self.step = 0

    def state(self) -> dict:
        return {
            "step": self.step,
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def restore(self, state: dict) -> None:
        self.step = state["step"]
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """This rank's share of the step's global batch, which is the same however many ranks there are."""
        order = torch.Generator().manual_seed(self.step)
        chosen = torch.randperm(len(self.train), generator=order)[:BATCH]
        images, labels = self.train[chosen[dist.get_rank() :: dist.get_world_size()]]
        return images, labels

    def make_step(self) -> None:
        """Raises DistBackendError, and has changed nothing, if a rank dies meanwhile."""
        images, labels = self.batch()
        self.optimizer.zero_grad()
        # The sum over a share; divided by the whole batch it adds up to the mean.
        (nn.functional.cross_entropy(self.network(images), labels, reduction="sum") / BATCH).backward()
        gradients = [parameter.grad for parameter in self.network.parameters()]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        for gradient, whole in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(whole.view_as(gradient))
        self.optimizer.step()
        self.step += 1

    def catch_up(self) -> None:
        """All ranks take over the state of one that is farthest."""
        steps = [0] * dist.get_world_size()
        dist.all_gather_object(steps, self.step)
        farthest = [self.state()]
        dist.broadcast_object_list(farthest, src=steps.index(max(steps)))
        self.restore(farthest[0])

    def accuracy(self) -> float:
        images, labels = self.test.tensors
        with torch.no_grad():
            return (self.network(images).argmax(dim=1) == labels).float().mean().item()


def dead_ranks(error: dist.DistBackendError) -> list[int]:
    """The exited ranks that the error names. Raises it again if it names none: shrinking cannot help."""
    found = re.findall(r"rank (\d+) \(pid \d+, host [^)]*\) (?:has )?exited", str(error))
    if not found:
        raise error
    return sorted({int(rank) for rank in found})


def shrink_and_catch_up(training: Training, error: dist.DistBackendError) -> None:
    """Makes the survivors the new default group, and brings all of them to the same step."""
    dead = dead_ranks(error)
    dist.shrink_group(dead)
    training.catch_up()
    if dist.get_rank() == 0:
        print(f"lost rank {dead}; {dist.get_world_size()} ranks go on with step {training.step}", flush=True)


def run(arguments: argparse.Namespace, recover) -> None:
    """Trains to the end, and calls ``recover(training, error)`` when a rank is gone."""
    training = Training(arguments.seed)
    if arguments.checkpoint and arguments.checkpoint.exists():
        training.restore(torch.load(arguments.checkpoint))
        print(f"rank {dist.get_rank()} starts again from step {training.step}", flush=True)
    name = dist.get_rank()  # the rank that --kill means, even if this rank's number changes
    victim, when = (int(number) for number in arguments.kill.split(":")) if arguments.kill else (-1, -1)
    first_life = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    while training.step < arguments.steps:
        if name == victim and training.step == when and first_life:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            training.make_step()
        except dist.DistBackendError as error:
            recover(training, error)
        if arguments.checkpoint and training.step % 20 == 0 and dist.get_rank() == 0:
            whole = arguments.checkpoint.with_suffix(".new")  # a death while writing leaves the old one
            torch.save(training.state(), whole)
            whole.replace(arguments.checkpoint)
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks, test accuracy {training.accuracy():.2%}", flush=True)
    dist.destroy_process_group()


def give_up(training: Training, error: dist.DistBackendError) -> None:
    """Under torchrun: end with the error, so that torchrun starts all ranks again."""
    raise error


def run_one_of(arguments: argparse.Namespace, rank: int, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "occl", store=dist.FileStore(store, arguments.ranks), rank=rank, world_size=arguments.ranks
    )
    run(arguments, shrink_and_catch_up)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Train on handwritten digits, and go on when a rank is killed."
    )
    parser.add_argument("--ranks", type=int, default=4, help="processes to start, without torchrun")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kill", metavar="RANK:STEP", help="that rank kills itself in that step")
    parser.add_argument("--checkpoint", type=Path, metavar="FILE", help="for torchrun's restarts")
    arguments = parser.parse_args()
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group("occl")
        return run(arguments, give_up)
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("fork")  # nothing has been computed yet, no thread runs
        ranks = [
            context.Process(target=run_one_of, args=(arguments, rank, f"{folder}/store"))
            for rank in range(arguments.ranks)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
    failed = [process.exitcode for process in ranks if process.exitcode not in (0, -signal.SIGKILL)]
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
