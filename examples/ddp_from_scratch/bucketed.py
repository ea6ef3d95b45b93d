"""Step 2: few large messages instead of many small ones.

Gradients are copied into buckets, each one flat tensor of some megabytes, and each bucket is one all_reduce.
Larger messages use the memory (or the network) better, and there are fewer of them.

Buckets are filled from the last parameter to the first, because that is about the order in which the backward
pass makes gradients. Here this does not matter yet, because everything still happens after the backward pass.
In step 3 it will.

What is not good about it: every gradient is copied twice, into its bucket and back. And still no rank
computes while gradients travel.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from naive import make_equal
from torch import nn

MIB = 1024 * 1024


class Bucket:
    """Gradients of some parameters as one flat tensor, and a view of it for each parameter."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        first = parameters[0]
        self.flat = torch.zeros(
            sum(p.numel() for p in parameters), dtype=first.dtype, device=first.device, requires_grad=False
        )
        # A view has the shape of its parameter: what is added to the view is added to the bucket.
        parts = self.flat.split([p.numel() for p in parameters])
        self.views = [part.view(p.shape) for part, p in zip(parts, parameters, strict=True)]


def fill_buckets(parameters: Iterable[nn.Parameter], cap_mb: float) -> list[Bucket]:
    """Buckets in the order of the backward pass. One is full as soon as it holds ``cap_mb`` MiB or more.

    That is PyTorch's rule: a parameter larger than the limit still has a place, and is not cut. Parameters of
    different dtypes or devices cannot lie in one tensor, so there is an open bucket for each kind.
    """
    full: list[Bucket] = []
    filling: dict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = {}
    for p in reversed([p for p in parameters if p.requires_grad]):
        bucket = filling.setdefault((p.dtype, p.device), [])
        bucket.append(p)
        if sum(q.numel() * q.element_size() for q in bucket) >= cap_mb * MIB:
            full.append(Bucket(filling.pop((p.dtype, p.device))))
    return full + [Bucket(bucket) for bucket in filling.values()]


class BucketedDDP(nn.Module):
    """Call :meth:`average_gradients` between the backward pass and the optimizer.

    Args:
        module: this rank's replica.
        group: the ranks that train together; all of them by default.
        bucket_cap_mb: the size in MiB at which a bucket is full.
    """

    def __init__(
        self, module: nn.Module, group: dist.ProcessGroup | None = None, bucket_cap_mb: float = 25
    ) -> None:
        super().__init__()
        self.module, self.group = module, group
        self.scale = 1 / dist.get_world_size(group)
        make_equal(module, group)
        self.buckets = fill_buckets(module.parameters(), bucket_cap_mb)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    @torch.no_grad()
    def average_gradients(self) -> None:
        for bucket in self.buckets:
            for p, view in zip(bucket.parameters, bucket.views, strict=True):
                if p.grad is None:
                    p.grad = torch.zeros_like(p)
                torch.mul(p.grad, self.scale, out=view)  # copies and divides in one pass over the memory
            dist.all_reduce(bucket.flat, group=self.group)
            for p, view in zip(bucket.parameters, bucket.views, strict=True):
                p.grad.copy_(view)
