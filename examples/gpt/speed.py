"""How fast a training is with two backends that take turns, so that both meet the same disturbances."""

import statistics
from collections.abc import Sequence
from dataclasses import replace

import torch.distributed as dist
from data import Text
from training import Options, Training

ROUNDS, STEPS = 5, 5


def samples_per_second(options: Options, text: Text, backends: Sequence[str]) -> dict[str, float]:
    """The median step of each backend, and of all ranks the slowest. Called by all ranks.

    A round before the others is not counted: groups are made, and buffers allocated, in it. The trainings are
    new ones. They write no checkpoints.
    """
    trainings = {
        name: Training(replace(options, steps=0, checkpoint=None), text, backend=name) for name in backends
    }
    seconds: dict[str, list[float]] = {name: [] for name in backends}
    for round_number in range(1 + ROUNDS):
        for name, training in trainings.items():
            training.options = replace(training.options, steps=len(training.losses) + STEPS)
            dist.barrier()
            took = training.run()
            if round_number:
                seconds[name] += took
    everyone: list = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, {name: statistics.median(took) for name, took in seconds.items()})
    return {name: options.batch_size / max(medians[name] for medians in everyone) for name in backends}
