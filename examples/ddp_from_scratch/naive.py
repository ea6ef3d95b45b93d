"""Step 1: data parallelism in one idea.

Every rank has a replica of the model and computes gradients from its own share of the batch. The gradient of
a mean over the whole batch is the mean of the gradients of equal shares. So if the ranks replace each
gradient by its mean over all ranks, all optimizers make the same step, and replicas that were equal stay
equal.

It needs two things: equal replicas to begin with, and one all_reduce for each parameter after
the backward pass.

What is not good about it: a model has hundreds of parameters, most of them small, and each all_reduce has the
fixed cost of a message, however short. And no rank computes while gradients travel, although the gradients of
the last layers were ready long before those of the first.

A parameter that no rank has used also gets a gradient of zero, which differs from none: an optimizer with
momentum or weight decay moves a parameter whose gradient is zero, and not one without a gradient. Step 3
mends that too.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn


@torch.no_grad()
def make_equal(module: nn.Module, group: dist.ProcessGroup | None) -> None:
    """Every replica becomes that of rank 0: its parameters, and its buffers (averages of batch norms)."""
    # group_src=0 is the first rank of the group; src=0 would be rank 0 of all, which may not be in it.
    for tensor in [*module.parameters(), *module.buffers()]:
        dist.broadcast(tensor.detach(), group=group, group_src=0)


class NaiveDDP(nn.Module):
    """Call :meth:`average_gradients` between the backward pass and the optimizer.

    Args:
        module: this rank's replica.
        group: the ranks that train together; all of them by default.
    """

    def __init__(self, module: nn.Module, group: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        self.module, self.group = module, group
        self.scale = 1 / dist.get_world_size(group)
        make_equal(module, group)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    @torch.no_grad()
    def average_gradients(self) -> None:
        for parameter in self.module.parameters():
            if not parameter.requires_grad:
                continue
            # A parameter that this rank has not used counts as zero. It must take part nevertheless: ranks
            # that do not call the same operations wait for each other.
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            # Divided first and then added up, as in PyTorch's DDP: in half precision the sum of many large
            # gradients might overflow; their mean does not.
            parameter.grad.mul_(self.scale)
            dist.all_reduce(parameter.grad, group=self.group)
