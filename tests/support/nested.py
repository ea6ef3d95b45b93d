"""Tensors within nested values, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree


def tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def differentiable(value: Any) -> list[torch.Tensor]:
    """Those that require a gradient."""
    return [tensor for tensor in tensors(value) if tensor.requires_grad]


def gradients(
    outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
) -> tuple[torch.Tensor | None, ...]:
    """Of the sum of all outputs; none where there are no outputs or no inputs."""
    if not outputs or not inputs:
        return ()
    return torch.autograd.grad(outputs, inputs, [torch.ones_like(o) for o in outputs], allow_unused=True)
