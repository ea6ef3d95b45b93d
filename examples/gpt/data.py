"""Text that every machine with Python has: the reference of the language, which ``help("for")`` shows."""

from pydoc_data import topics

import torch


class Text:
    """The text as bytes, and batches of it."""

    def __init__(self) -> None:
        text = "\n\n".join(topics.topics[name] for name in sorted(topics.topics))
        everything = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).long()
        cut = len(everything) * 9 // 10
        self.train, self.validation = everything[:cut], everything[cut:]

    def batch(self, step: int, rows: int, context: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets, int64[rows, context] each: the targets are one byte ahead.

        The batch depends on nothing but the arguments. All ranks make the whole batch and take their share of
        it, so it is the same for any number of ranks, and a training that resumes goes on with the right one.
        """
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        starts = torch.randint(len(self.train) - context, (rows,), generator=generator)
        windows = self.train[starts.unsqueeze(1) + torch.arange(context + 1)]
        return windows[:, :-1], windows[:, 1:]
