"""Which samples a rank trains on.

In data parallel training every rank runs the same program on its own share of the data. Two things decide
whether that equals the training of a single rank: which rank gets which sample, and when the ranks add up
their gradients. This file is about the first; the other files are about the second.

All ranks compute the same order of the whole data set from the same seed, so they need not exchange anything:
rank r takes the samples r, r + n, r + 2n, ... of that order. Together the
ranks' k-th batches are one consecutive piece of it: the batch that a single rank would have taken.

What remains is the end of the order, if the number of samples is not a multiple of the number of ranks. A
rank with one sample less would make one step less, and the others would wait for its gradients forever. So
the order is either shortened (``drop_last``) or extended with samples from its beginning.

What is not good about it: some samples count twice in an epoch, or not at all, and an accuracy that is
measured on repeated samples is a little off. Every rank holds the order of the whole data set in memory. And
a program that forgets ``set_epoch`` trains in the same order in every epoch, without a warning.
"""

from __future__ import annotations

from collections.abc import Iterator, Sized

import torch
from torch.utils.data import Sampler


class ShardedSampler(Sampler[int]):
    """The indices of one rank's samples; those of torch.utils.data.DistributedSampler.

    Args:
        data: the data set; only its length is used.
        ranks: how many share it.
        rank: the number of this rank.
        shuffle: use a new order in every epoch, which :meth:`set_epoch` sets.
        seed: of the orders; the same on all ranks.
        drop_last: leave out samples instead of repeating some.

    Raises:
        ValueError: there is no such rank.
    """

    def __init__(
        self,
        data: Sized,
        ranks: int,
        rank: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        if not 0 <= rank < ranks:
            raise ValueError(f"there is no rank {rank} among {ranks}")
        self.data, self.ranks, self.rank = data, ranks, rank
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """To be called before each epoch. Without it, every epoch has the same order."""
        self.epoch = epoch

    def __len__(self) -> int:
        n = len(self.data)
        return n // self.ranks if self.drop_last else -(-n // self.ranks)

    def __iter__(self) -> Iterator[int]:
        n, total = len(self.data), len(self) * self.ranks
        if self.shuffle:
            # A generator of its own: the order depends on nothing that this rank has drawn before.
            order = torch.randperm(
                n, generator=torch.Generator().manual_seed(self.seed + self.epoch)
            ).tolist()
        else:
            order = list(range(n))
        # With more ranks than samples, the order may have to be repeated more than once.
        repeated = (order[i % n] for i in range(total)) if n else iter(())
        return iter(list(repeated)[self.rank :: self.ranks])
