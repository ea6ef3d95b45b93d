"""Trains on handwritten digits while a killed process is replaced, and the others run on:

    python examples/replaced_digits.py --ranks 3 --kill 1:60

It needs PyTorch 2.14 or newer: the group is made with ``enable_reconfigure=True``. The process that you start
is no rank. It decides which ranks are members, and leaves numbered lists of handles in the store: when a
rank has died, a list without that rank, and when another process has come in its place, a list with it.

    a rank gets an error       waits for the next list, and makes the group of it
    a new list has come        the ranks tell each other before a step, and do the same
    a new rank                 waits for a list that has its handle
    then                       all ranks take over the state of one that is farthest

Each global batch is divided among the ranks that there are, so the result is that of an undisturbed run but
for rounding.
"""

import argparse
import itertools
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import tempfile

import torch  # registers the backend "occl" for CPU tensors, where torch_occl is installed
import torch.distributed as dist
from elastic_digits import Training
from torch import nn


class Members:
    """A rank's view of the lists, whose numbers are the group's uuids."""

    def __init__(self, store: dist.Store, name: int) -> None:
        self.store, self.number = store, 0
        self.handle = dist._get_reconfigure_handle()
        store.set(f"handle {name}", self.handle)

    def changed(self) -> bool:
        """Whether any rank has seen a new list. A collective call."""
        seen = torch.tensor(float(self.store.check([f"members {self.number + 1}"])))
        dist.all_reduce(seen, dist.ReduceOp.MAX)
        return bool(seen)

    def join(self, training: Training) -> None:
        """Makes the group of the next list that has this rank, and brings all of it to one step."""
        while True:
            self.number += 1
            handles = self.store.get(f"members {self.number}").decode().split("\n")
            if self.handle not in handles:
                continue
            try:
                dist._reconfigure(self.number, handles).wait()
                training.catch_up()
            except dist.DistBackendError:  # another rank has died meanwhile
                continue
            if dist.get_rank() == 0:
                print(f"{len(handles)} ranks go on with step {training.step}", flush=True)
            return


def train(arguments: argparse.Namespace, file: str, rank: int, name: int) -> None:
    """``name``: of this process, the first ones' ranks. A process in the place of another has its rank."""
    torch.set_num_threads(1)
    store = dist.FileStore(file, arguments.ranks)
    dist.init_process_group(
        "occl", store=store, rank=rank, world_size=arguments.ranks, enable_reconfigure=True
    )
    training = Training(arguments.seed)
    members = Members(store, name)
    members.join(training)
    while training.step < arguments.steps:
        if arguments.kill == f"{name}:{training.step}":
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            if not members.changed():
                training.make_step()
                continue
        except dist.DistBackendError:  # nothing of the step has been made, or all of it
            pass
        members.join(training)
    if dist.get_rank() == 0:
        images, labels = training.test.tensors
        loss = nn.functional.cross_entropy(training.network(images), labels)
        print(f"{dist.get_world_size()} ranks, test loss {loss:.6f}", flush=True)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on handwritten digits, and replace a rank that dies.")
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kill", metavar="RANK:STEP", help="that rank kills itself in that step")
    arguments = parser.parse_args()
    context = multiprocessing.get_context("fork")  # nothing has been computed yet, no thread runs
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/store"
        store = dist.FileStore(file, arguments.ranks)
        names = itertools.count()

        def start(rank: int) -> tuple[str, multiprocessing.process.BaseProcess]:
            name = next(names)
            process = context.Process(target=train, args=(arguments, file, rank, name))
            process.start()
            return store.get(f"handle {name}").decode(), process

        ranks = {rank: start(rank) for rank in range(arguments.ranks)}
        numbers = itertools.count(1)

        def publish(members: list[int]) -> None:
            store.set(f"members {next(numbers)}", "\n".join(ranks[rank][0] for rank in members))

        publish(list(ranks))
        ended = set()
        while len(ended) < len(ranks):
            sentinels = {process.sentinel: rank for rank, (_, process) in ranks.items() if rank not in ended}
            for sentinel in multiprocessing.connection.wait(sentinels):
                rank = sentinels[sentinel]
                _, process = ranks[rank]
                process.join()
                if process.exitcode == 0:
                    ended.add(rank)
                elif process.exitcode == -signal.SIGKILL:
                    print(f"rank {rank} has died", flush=True)
                    others = [other for other in ranks if other != rank]
                    publish(others)
                    ranks[rank] = start(rank)
                    publish([*others, rank])
                else:
                    sys.exit(1)


if __name__ == "__main__":
    main()
