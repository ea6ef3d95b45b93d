"""What lists of tensors must be like. Everything here raises before anything has been changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import torch

OPS = ("sum", "mean")


def check_op(call: str, op: str) -> None:
    if op not in OPS:
        raise ValueError(f"{call}: op must be one of {', '.join(OPS)}, not {op!r}")


def check_list(call: str, elements: Any, what: str) -> list[Any]:
    """The list, if it is one: the elements of a tensor are tensors, which would pass for a list of them."""
    if isinstance(elements, torch.Tensor) or not isinstance(elements, Iterable):
        raise TypeError(f"{call}: expected a list of {what}, got {type(elements).__name__}")
    return list(elements)


def check_tensors(call: str, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The list, if it holds dense tensors and at least one."""
    if isinstance(tensors, torch.Tensor):
        raise TypeError(f"{call}: expected a list of tensors, one for each device, got one tensor")
    tensors = list(tensors)
    if not tensors:
        raise ValueError(f"{call}: the list of tensors is empty")
    for i, tensor in enumerate(tensors):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{call}: element {i} is not a tensor but {type(tensor).__name__}")
        if tensor.layout != torch.strided:
            raise ValueError(f"{call}: tensor {i} is {tensor.layout}; only dense tensors are combined")
    return tensors


def check_alike(call: str, tensors: Sequence[torch.Tensor], name: str = "tensor") -> None:
    """Of one shape and dtype. The message names the first that differs from the first of all."""
    first = tensors[0]
    for i, tensor in enumerate(tensors):
        if tensor.shape != first.shape:
            raise ValueError(
                f"{call}: {name} {i} has shape {list(tensor.shape)}, and {name} 0 {list(first.shape)}"
            )
        if tensor.dtype != first.dtype:
            raise ValueError(f"{call}: {name} {i} is {tensor.dtype}, and {name} 0 {first.dtype}")


def check_apart(call: str, tensors: Sequence[torch.Tensor]) -> None:
    """No two share memory: each is written while the others are still read."""
    spans = []
    for i, tensor in enumerate(tensors):
        if tensor.numel():
            extent = 1 + sum(
                (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
            )
            spans.append((tensor.data_ptr(), tensor.data_ptr() + extent * tensor.element_size(), i))
    spans.sort()
    for (_, end, i), (begin, _, j) in pairwise(spans):
        if begin < end:
            raise ValueError(f"{call}: tensors {min(i, j)} and {max(i, j)} share memory")


def check_root(call: str, root: int, n: int) -> None:
    if not 0 <= root < n:
        raise ValueError(f"{call}: there is no root {root} among {n}")


def check_replicas(call: str, param_replicas: Sequence[Sequence[torch.Tensor]]) -> list[list[torch.Tensor]]:
    """The lists of parameters, if there is at least one and all are alike, parameter by parameter."""
    replicas = [list(parameters) for parameters in param_replicas]
    if not replicas:
        raise ValueError(f"{call}: there are no replicas")
    for i, parameters in enumerate(replicas):
        if len(parameters) != len(replicas[0]):
            raise ValueError(
                f"{call}: replica {i} has {len(parameters)} parameters, and replica 0 {len(replicas[0])}"
            )
    if not replicas[0]:
        raise ValueError(f"{call}: the replicas have no parameters")
    for index, copies in enumerate(zip(*replicas, strict=True)):
        for copy in copies:
            if not isinstance(copy, torch.Tensor):
                raise TypeError(f"{call}: parameter {index} is not a tensor but {type(copy).__name__}")
        check_alike(f"{call}: parameter {index}", copies, "replica")
    return replicas
