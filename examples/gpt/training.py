"""The training loop, which is the same for every strategy."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import checkpoints
import torch
from data import Text
from model import GPT, Size
from strategies import Strategy, make_strategy


@dataclass(frozen=True)
class Options:
    strategy: str
    device: torch.device
    size: Size = field(default_factory=Size)
    steps: int = 300
    batch_size: int = 32
    """Rows of a step, over all ranks."""
    learning_rate: float = 1e-3
    seed: int = 0
    dtype: torch.dtype = torch.float32
    inner: int | None = None
    pieces: int = 4
    """``inner`` and ``pieces``: see ``make_strategy``."""
    checkpoint: Path | None = None
    """The folder that gets checkpoints, and from whose last one the training goes on."""
    save_every: int = 50


class Training:
    """A model in the hands of a strategy, its optimizer, and the losses of all steps so far."""

    def __init__(self, options: Options, text: Text, rank: int = 0, backend: str | None = None) -> None:
        self.options, self.text, self.rank = options, text, rank
        model = GPT(options.size, options.seed).to(options.device, options.dtype)
        self.strategy: Strategy = make_strategy(
            options.strategy, model, options.device, options.inner, options.pieces, backend
        )
        # foreach=True would put all parameters into one operation. DTensor refuses that for those of fsdp-tp,
        # of which some lie on a mesh of one dimension and some on a mesh of two.
        self.optimizer = torch.optim.AdamW(
            self.strategy.model.parameters(), lr=options.learning_rate, foreach=False
        )
        self.losses: list[float] = []

    def resume(self) -> None:
        """Takes over the last checkpoint, if there is one."""
        folder = self.options.checkpoint
        if folder and (found := checkpoints.complete(folder)):
            self.losses = checkpoints.load(found[-1], self.strategy.model, self.optimizer)

    def make_step(self) -> None:
        options = self.options
        batch = self.text.batch(len(self.losses), options.batch_size, options.size.context, options.seed)
        inputs, targets = (tensor.to(options.device) for tensor in batch)
        self.optimizer.zero_grad()
        loss = self.strategy.loss_and_gradients(inputs, targets)
        self.optimizer.step()
        self.losses.append(loss.item())

    def save(self) -> None:
        if self.options.checkpoint:
            model = self.strategy.model
            checkpoints.save(
                self.options.checkpoint, self.options.size, model, self.optimizer, self.losses, self.rank
            )

    def run(self, before: Callable[[int], None] = lambda step: None) -> list[float]:
        """Makes the steps that are left; calls ``before(step)`` before each. Returns the seconds of each."""
        seconds = []
        while (step := len(self.losses)) < self.options.steps:
            before(step)
            started = time.perf_counter()
            self.make_step()
            seconds.append(time.perf_counter() - started)
            if (step + 1) % self.options.save_every == 0 or step + 1 == self.options.steps:
                self.save()
        return seconds
