"""pytorch-ignite on several ranks: ``auto_model`` wraps the model where it knows the backend's name.

It knows Gloo, and not occl, so occl takes Gloo's place:

    OCCL_IN_PLACE_OF=gloo torchrun --nproc-per-node 2 ignite_digits.py
"""

import argparse
import time

import ignite.distributed as idist
import torch
from digits import load, make_network
from ignite.engine import Engine, Events
from ignite.metrics import Average
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on digits with Ignite.")
    parser.add_argument("--epochs", type=int, default=3)
    given = parser.parse_args()
    idist.initialize("gloo")  # in a group named occl, each process would train alone
    rank, ranks = idist.get_rank(), idist.get_world_size()
    network = idist.auto_model(make_network())
    optimizer = idist.auto_optim(torch.optim.SGD(network.parameters(), lr=0.5))

    def step(engine: Engine, batch: tuple[torch.Tensor, torch.Tensor]) -> float:
        images, labels = batch
        loss = nn.functional.cross_entropy(network(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    images, labels = load("cpu", rank, ranks)
    trainer = Engine(step)
    Average().attach(trainer, "loss")  # of all ranks
    losses = []
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: losses.append(trainer.state.metrics["loss"]))
    batches = list(zip(images.split(32), labels.split(32), strict=True))
    begin = time.perf_counter()
    trainer.run(batches, max_epochs=given.epochs)
    speed = given.epochs * len(images) * ranks / (time.perf_counter() - begin)
    if rank == 0:
        print("losses", *(f"{loss:.5f}" for loss in losses))
        print(f"{ranks} ranks, the model is a {type(network).__name__}, {speed:.0f} samples/s")
    idist.finalize()


if __name__ == "__main__":
    main()
